"""What clients ask in the query. What a key or a holder may be is the ledger's to say, with its own codes."""

from typing import Annotated, Literal

from fastapi import Query
from pydantic import AwareDatetime, BaseModel, Field

from lockledger.domain.keys import MAX_LENGTH
from lockledger.queries import MAX_LIMIT

_TEXT = {"minLength": 1, "maxLength": MAX_LENGTH}

Key = Annotated[str, Query(description="the lock's key, exactly", json_schema_extra=_TEXT)]
Token = Annotated[int | None, Query(ge=0, lt=2**63, description="the token of the hold meant")]

_Exact = Annotated[str | None, Field(json_schema_extra=_TEXT)]
_Beginning = Annotated[str | None, Field(pattern=r"^[^\x00]*$")]
_Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT, description="items on a page")]


# Unknown parameters are let through: the host's own dependencies may have some.
class HoldersQuery(BaseModel):
    """Which live holds; all that is given must fit."""

    holder: _Exact = None
    key_prefix: _Beginning = None
    under: _Exact = Field(None, description="this key and all keys under it")
    after: _Beginning = Field(None, description="`next_after` of the page before")
    limit: _Limit = 100


class AuditQuery(BaseModel):
    """Which entries; all that is given must fit."""

    key: _Exact = None
    key_prefix: _Beginning = None
    under: _Exact = Field(None, description="this key and all keys under it")
    holder: _Exact = Field(None, description="who gained or lost a hold")
    actor: _Exact = None
    action: (
        Literal["LockTaken", "LockTakenOver", "LockExtended", "LockReleased", "LockExpired"] | None
    ) = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = Field(None, description="excluded")
    extensions: bool = Field(False, description="show extensions too")
    after: int | None = Field(None, ge=0, lt=2**63, description="`next_after` of the page before")
    limit: _Limit = 100
