"""What clients send, beside the query. Limits of texts and ttls are the ledger's, and refused with its own codes."""

import json
from datetime import datetime
from math import isfinite
from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from lockledger.domain.reasons import MAX_REASON_LENGTH
from lockledger.domain.ttl import MAX_TTL

MAX_BODY_BYTES: Final = 64 * 1024
"""Several times what a body within the limits takes with every character escaped."""


class BodyTooLarge(Exception):
    """A body that no request here needs, and of which no more is read."""


class StrictRequest(Request):
    """A request whose body is read as the JSON that the standard knows, and as far as one can be long.

    Python's own reading lets NaN, infinities and halves of characters through, on which an application's answer to bad
    input then fails; and of a name given twice it drops one, while whoever stood before the router may have judged it.
    """

    async def body(self) -> bytes:
        """The body's bytes. Raises `BodyTooLarge`, and `JSONDecodeError` where they are no UTF-8.

        FastAPI shows a body that does not say that it is JSON in its answer, as text, and fails where it is none.
        """
        if not hasattr(self, "_body"):
            chunks, size = list[bytes](), 0
            async for chunk in self.stream():
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise BodyTooLarge
            content = b"".join(chunks)
            try:
                content.decode()
            except UnicodeDecodeError as error:
                raise json.JSONDecodeError(f"no UTF-8: {error}", "", 0) from error
            self._body = content
        return self._body

    async def json(self) -> Any:
        """The body. Raises `JSONDecodeError`, which FastAPI makes into its answer to bad input."""
        if not self.headers.get("content-type"):
            # A page of anybody's may send such a body to any site without asking it first.
            raise json.JSONDecodeError("say Content-Type: application/json", "", 0)
        body = await self.body()
        try:
            value = json.loads(
                body.decode(),
                parse_constant=_finite,
                parse_float=_finite,
                parse_int=_whole,
                object_pairs_hook=_object,
            )
            json.dumps(value, ensure_ascii=False).encode()
        except json.JSONDecodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise json.JSONDecodeError(str(error), "", 0) from error
        return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, each in pairs:
        if name in value:
            raise ValueError(f"{name!a} is given twice")
        value[name] = each
    return value


def _finite(number: str) -> float:
    if not isfinite(value := float(number)):
        raise ValueError(f"{number} is no JSON number, or too large")
    return value


def _whole(number: str) -> int:
    try:
        return int(number)
    except ValueError:
        # Of more digits than Python converts; its own words are for whoever runs the interpreter.
        raise ValueError("a number has too many digits; write it as a text") from None


def _length(given: Any) -> float | datetime:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return given
    try:
        return datetime.fromisoformat(given)
    except (TypeError, ValueError):
        raise PydanticCustomError(
            "ttl", "Input should be a number of seconds, or an instant with its time zone"
        ) from None


Token = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Reason = Annotated[str, Field(json_schema_extra={"maxLength": MAX_REASON_LENGTH})]
Length = Annotated[
    float | datetime,
    PlainValidator(_length),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": MAX_TTL.total_seconds(),
                    "description": "seconds from the grant",
                },
                {
                    "type": "string",
                    "format": "date-time",
                    "description": "an instant with its time zone, in the future",
                },
            ]
        }
    ),
]


class Body(BaseModel):
    """A body: what it does not know, it refuses."""

    model_config = ConfigDict(extra="forbid")


class LastingTake(Body):
    """A take where holds never run out."""

    takeover_reason: Reason | None = None
    expected_token: Token | None = None


class Take(LastingTake):
    """A take; without a ttl the hold never runs out."""

    ttl: Length | None = None


class Extension(Body):
    """An extension: until when, and of which hold."""

    ttl: Length
    token: Token | None = None


class ForcedRelease(Body):
    """A release by force: why, and of which hold."""

    reason: Reason
    expected_token: Token | None = None
