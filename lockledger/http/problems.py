"""Refusals as RFC 9457 problems: the same few facts each time, and which status stands for which refusal."""

from http import HTTPStatus
from typing import Any, Final

from fastapi import Response
from fastapi.openapi.utils import validation_error_definition
from pydantic import BaseModel

from lockledger.domain.errors import (
    ConcurrencyConflict,
    HoldChanged,
    HoldLost,
    InvalidHolder,
    InvalidKey,
    InvalidMetadata,
    InvalidReason,
    InvalidTtl,
    LockedByOther,
    LockLedgerError,
    NotHolding,
    NotLockable,
    OutcomeUnknown,
)
from lockledger.domain.holds import EndedBy, Hold, Instant
from lockledger.http.answers import HoldAnswer, NamesNow
from lockledger.http.bodies import MAX_BODY_BYTES

MEDIA_TYPE = "application/problem+json"
HIDDEN = "a hold of another key, which you may not see, stands in the way"
_STATUS: Final[dict[type[LockLedgerError], int]] = {
    LockedByOther: 409,
    NotHolding: 409,
    NotLockable: 409,
    HoldChanged: 412,
    InvalidKey: 422,
    InvalidHolder: 422,
    InvalidTtl: 422,
    InvalidReason: 422,
    InvalidMetadata: 422,
    ConcurrencyConflict: 503,
    OutcomeUnknown: 503,
}


class Problem(BaseModel):
    """Why a request was refused. `code` is stable; the texts are for people and may change."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    key: str | None = None
    current: HoldAnswer | None = None


class HoldLostProblem(Problem):
    """The hold is over: how, when, by whom and why; all null when the caller never had it."""

    ended_by: EndedBy | None
    ended_at: Instant | None
    ended_by_actor: str | None
    actor_name: str | None
    reason: str | None


class Refusal(Exception):
    """Ends a request with a problem."""

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        self.problem = problem
        self.headers = headers
        super().__init__(problem.detail)

    def response(self) -> Response:
        """The answer that says so."""
        return Response(
            self.problem.model_dump_json(exclude_unset=True),
            status_code=self.problem.status,
            headers=self.headers,
            media_type=MEDIA_TYPE,
        )


def status_of(error: LockLedgerError) -> int | None:
    """The status that stands for this error; `None`: it is no refusal, and the host's own affair."""
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), None)


def refused(
    error: LockLedgerError,
    status: int,
    *,
    key: str | None,
    current: Hold | None = None,
    names: NamesNow | None = None,
    detail: str | None = None,
) -> Refusal:
    """The problem that an error of the ledger is. `current`: the live hold; told only where the status is about it."""
    names, detail = names or {}, detail or str(error)
    facts: dict[str, Any] = {"code": error.code, "key": error.key or key}
    if status in (409, 412):
        facts["current"] = None if current is None else HoldAnswer.of(current, names)
    if not isinstance(error, HoldLost):
        return Refusal(_problem(status, detail, **facts))
    actor = error.ended_by_actor
    return Refusal(
        _problem(
            status,
            detail,
            kind=HoldLostProblem,
            **facts,
            ended_by=error.ended_by,
            ended_at=error.ended_at,
            ended_by_actor=actor,
            actor_name=None if actor is None else names.get(actor),
            reason=error.reason,
        )
    )


def unauthenticated(challenge: str) -> Refusal:
    """Nobody asks."""
    problem = _problem(401, "say who you are", code="NOT_AUTHENTICATED")
    return Refusal(problem, {"WWW-Authenticate": challenge})


def too_large() -> Refusal:
    """A body that is larger than any that could be meant."""
    detail = f"the body has more than {MAX_BODY_BYTES} bytes; no request here needs as many"
    return Refusal(_problem(413, detail, code="BODY_TOO_LARGE"))


def forbidden(key: str | None) -> Refusal:
    """Who asks may know of it, but not do this."""
    return Refusal(_problem(403, "you may not do this", code="FORBIDDEN", key=key))


def not_found(key: str | None) -> Refusal:
    """Who asks may not see it, or there is nothing to see; which of the two is not told."""
    return Refusal(
        _problem(404, "there is nothing here that you may see", code="NOT_FOUND", key=key)
    )


def _problem(status: int, detail: str, *, kind: type[Problem] = Problem, **facts: Any) -> Problem:
    # The type is named on purpose, so that it is sent: what was not set is left out.
    title = HTTPStatus(status).phrase
    return kind(type="about:blank", title=title, status=status, detail=detail, **facts)


# OpenAPI. The schemas are written out where they are used: a reference would break when the host has a `Problem` too.


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(each, definitions) for name, each in schema.items() if name != "$defs"}


def _schema(kind: type[BaseModel]) -> Any:
    schema = kind.model_json_schema(mode="serialization")
    return _inlined(schema, schema.get("$defs", {}))


_PROBLEM = _schema(Problem)
_HOLD_LOST = {"anyOf": [_schema(HoldLostProblem), _PROBLEM]}
_VALIDATION = {
    "type": "object",
    "properties": {"detail": {"type": "array", "items": validation_error_definition}},
}
_MEANINGS: Final = {
    401: "`NOT_AUTHENTICATED`: nobody asks",
    403: "`FORBIDDEN`: who asks may not do this",
    404: "`NOT_FOUND`: not visible to who asks",
    412: "`HOLD_CHANGED`: the lock is not at `expected_token`",
    413: "`BODY_TOO_LARGE`: more than 65,536 bytes",
    422: "Bad input: the ledger's `INVALID_…` codes, or the application's own list of what does not fit",
    503: "`CONCURRENCY_CONFLICT`: nothing was changed, try again; `OUTCOME_UNKNOWN`: it may have been; repeat it, with the token where a hold is ended",
}


def documented(
    *statuses: int, conflict: str | None = None, lost: bool = False
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: these statuses, and those that every route has. `conflict`: what 409 means there."""
    told: dict[int | str, dict[str, Any]] = {
        status: {"description": _MEANINGS[status], "content": _content(status)}
        for status in (401, 403, 404, 422, 503, *statuses)
    }
    told[401]["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    if conflict is not None:
        schema = _HOLD_LOST if lost else _PROBLEM
        told[409] = {"description": conflict, "content": {MEDIA_TYPE: {"schema": schema}}}
    return told


def _content(status: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": _PROBLEM}}
    if status == 422:
        content["application/json"] = {"schema": _VALIDATION}
    return content
