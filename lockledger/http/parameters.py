"""What clients ask in the query. What a key or a holder may be is the ledger's to say, with its own codes."""

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Final, Literal, Self
from urllib.parse import unquote_to_bytes

from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from lockledger.domain.keys import MAX_LENGTH
from lockledger.http.bodies import Extension, ForcedRelease, Take
from lockledger.past import place_of
from lockledger.queries import MAX_LIMIT, checked_instant


def _instant(given: object) -> datetime:
    # pydantic by itself would also take a number, and guess whether it counts seconds or milliseconds.
    try:
        instant = datetime.fromisoformat(given) if isinstance(given, str) else None
        checked = checked_instant(instant, "the instant")
    except ValueError:
        checked = None
    if checked is None:
        raise PydanticCustomError(
            "instant",
            "Input should be an instant with its time zone, of a year from 1 to 9999 in UTC",
        )
    return checked


def _whole(given: object) -> object:
    # pydantic by itself would also take 1_0, 1.0, +1, blanks around it, and digits of any script.
    if isinstance(given, str) and not (given.isascii() and given.isdigit()):
        raise PydanticCustomError("whole_number", "Input should be a whole number in plain digits")
    return given


def _place(after: str | None) -> str | None:
    try:
        if after is not None:
            place_of(after)
    except ValueError:
        raise PydanticCustomError("place", "Input should be a page's next_after") from None
    return after


_TEXT = {"minLength": 1, "maxLength": MAX_LENGTH}

_Count = Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(_whole)]

Key = Annotated[str, Query(description="the lock's key, exactly", json_schema_extra=_TEXT)]
Token = Annotated[_Count | None, Query(description="the token of the hold meant")]

_Exact = Annotated[str | None, Field(json_schema_extra=_TEXT)]
_Beginning = Annotated[str | None, Field(pattern=r"^[^\x00]*$")]
_Instant = Annotated[datetime, BeforeValidator(_instant)]
_Limit = Annotated[
    int,
    Field(ge=1, le=MAX_LIMIT, description="items on a page"),
    BeforeValidator(_whole),
]


class HoldersQuery(BaseModel):
    """Which live holds; all that is given must fit."""

    holder: _Exact = None
    key_prefix: _Beginning = None
    under: _Exact = Field(None, description="this key and all keys under it")
    after: _Beginning = Field(None, description="`next_after` of the page before")
    limit: _Limit = 100


class _Period(BaseModel):
    since: _Instant | None = None
    until: _Instant | None = Field(None, description="excluded")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.since is not None and self.until is not None and self.until < self.since:
            raise PydanticCustomError("period", "until is before since")
        return self


class HoldsQuery(_Period):
    """Which holds, live at any instant of the period; all that is given must fit."""

    key: _Exact = None
    key_prefix: _Beginning = None
    under: _Exact = Field(None, description="this key and all keys under it")
    holder: _Exact = None
    after: Annotated[str | None, AfterValidator(_place)] = Field(
        None, description="`next_after` of the page before"
    )
    limit: _Limit = 100


class AuditQuery(_Period):
    """Which entries; all that is given must fit."""

    key: _Exact = None
    key_prefix: _Beginning = None
    under: _Exact = Field(None, description="this key and all keys under it")
    holder: _Exact = Field(None, description="who gained or lost a hold")
    actor: _Exact = None
    action: (
        Literal["LockTaken", "LockTakenOver", "LockExtended", "LockReleased", "LockExpired"] | None
    ) = None
    extensions: bool = Field(False, description="show extensions too")
    after: _Count | None = Field(None, description="`next_after` of the page before")
    limit: _Limit = 100


_OURS: Final = {"key", "token", *HoldersQuery.model_fields, *HoldsQuery.model_fields} | set(
    AuditQuery.model_fields
)
_IN_BODIES: Final = {
    *Take.model_fields,
    *Extension.model_fields,
    *ForcedRelease.model_fields,
}


def check_query(request: Request, takes: Collection[str]) -> None:
    """Refuses a query of which something would be lost: texts that are not UTF-8, a parameter given twice, and one that
    another route or a body takes and this route does not.

    Read leniently, what is not UTF-8 becomes U+FFFD, so that two keys would be one lock; and of two keys, whoever stood
    before the router may have judged the other one. A ttl in the query would be no ttl at all. What nothing here takes
    is let through: the host's own dependencies and what stands before them may have parameters too.
    """
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError as error:
        raise _unfit("encoding", "query", f"should be UTF-8: {error.reason}") from error
    given = request.query_params
    for name in sorted(_OURS | _IN_BODIES):
        if name not in given:
            continue
        if name not in takes:
            has_body = name in _IN_BODIES and request.method in ("PUT", "POST")
            where = "in the body" if has_body else "left out: this request takes no such parameter"
            raise _unfit("misplaced", name, f"should be {where}")
        if len(given.getlist(name)) > 1:
            raise _unfit("repeated", name, "should be given once")


def one_token(in_query: int | None, in_body: int | None) -> int | None:
    """The token that a request names in the query, in the body, or in both; two different ones are refused."""
    if None not in (in_query, in_body) and in_query != in_body:
        raise _unfit("contradiction", "token", "should be the token that the body names")
    return in_body if in_query is None else in_query


def _unfit(kind: str, name: str, message: str) -> RequestValidationError:
    error = {"type": kind, "loc": ("query", name), "msg": f"Input {message}", "input": None}
    return RequestValidationError([error])
