"""The current-holder table: one row per lock, and the row that an append compares and swaps."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Column,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    RowMapping,
    Select,
    Table,
    and_,
    select,
)
from sqlalchemy.sql import ColumnElement

from lockledger.domain.holds import Hold
from lockledger.domain.keys import above, range_under
from lockledger.domain.lock import Lock
from lockledger.projections.columns import (
    Count,
    ExactText,
    Instant,
    Json,
    LockId,
    json_to_text,
    key_conditions,
)

NAME = "lockledger_current_holders"


def declare(metadata: MetaData, schema: str | None) -> Table:
    """One row per lock that was ever taken.

    While the lock is free, everything about a hold is null; key and changed_at stay. A stream of events that is no
    lock has neither key nor changed_at.
    """
    table = Table(
        NAME,
        metadata,
        Column("lock_id", LockId, nullable=False),
        Column("ledger", ExactText, nullable=False),
        Column("version", Count, nullable=False),
        Column("key", ExactText),
        Column("holder", ExactText),
        Column("token", Count),
        Column("taken_at", Instant),
        Column("expires_at", Instant),
        Column("taken_over_from", ExactText),
        Column("takeover_reason", ExactText),
        Column("metadata", Json),
        Column("changed_at", Instant),
        PrimaryKeyConstraint("lock_id", name=f"{NAME}_pkey"),
        schema=schema,
    )
    # Makes the token a key column: PostgreSQL lets an extension pass a guard's FOR KEY SHARE, and no end of the hold.
    Index(f"{NAME}_token", table.c.lock_id, table.c.token, unique=True)

    held = table.c.holder.is_not(None)
    may_expire = and_(held, table.c.expires_at.is_not(None))
    for name, columns, condition in (
        ("by_holder", (table.c.ledger, table.c.holder, table.c.key), held),
        ("by_key", (table.c.ledger, table.c.key), held),
        ("by_expiry", (table.c.ledger, table.c.expires_at), may_expire),
    ):
        Index(f"{NAME}_{name}", *columns, postgresql_where=condition, sqlite_where=condition)
    return table


COLUMNS = (
    "lock_id",
    "ledger",
    "version",
    "key",
    "holder",
    "token",
    "taken_at",
    "expires_at",
    "taken_over_from",
    "takeover_reason",
    "metadata",
    "changed_at",
)


def row(ledger: str, lock: Lock) -> dict[str, Any]:
    """What the table says of a lock in this state; JSON as text."""
    hold = lock.hold
    return {
        "lock_id": lock.id,
        "ledger": ledger,
        "version": lock.version,
        "key": lock.key,
        "holder": hold and hold.holder,
        "token": hold and hold.token,
        "taken_at": hold and hold.taken_at,
        "expires_at": hold and hold.expires_at,
        "taken_over_from": hold and hold.taken_over_from,
        "takeover_reason": hold and hold.takeover_reason,
        "metadata": hold and json_to_text(hold.metadata),
        "changed_at": lock.changed_at,
    }


def foreign_row(ledger: str, stream_id: UUID, version: int) -> dict[str, Any]:
    """What the table says of a stream of events that is no lock: its version only."""
    return dict.fromkeys(COLUMNS) | {"lock_id": stream_id, "ledger": ledger, "version": version}


def live_holds(
    table: Table,
    ledger: str,
    now: datetime | ColumnElement[datetime],
    *,
    holder: str | None = None,
    key_prefix: str | None = None,
    under: str | None = None,
    after: str | None = None,
    limit: int,
) -> Select[Any]:
    """The holds that are live at `now`, by key, at most `limit`; a lock's now is never before its newest event."""
    c = table.c
    query = (
        select(table)
        .where(c.ledger == ledger, c.holder.is_not(None))
        .where(c.expires_at.is_(None) | ((c.expires_at > now) & (c.expires_at > c.changed_at)))
        .where(*key_conditions(c.key, key_prefix=key_prefix, under=under))
    )
    if holder is not None:
        query = query.where(c.holder == holder)
    if after is not None:
        query = query.where(c.key > after)
    return query.order_by(c.key).limit(limit)


def live_around(
    table: Table, ledger: str, key: str, holder: str, now: datetime | ColumnElement[datetime]
) -> Select[Any]:
    """The live holds of other holders on keys above or under this one, the first by key."""
    c = table.c
    first, beyond = range_under(key)
    around = c.key.in_(above(key)) | ((c.key >= first) & (c.key < beyond))
    query = live_holds(table, ledger, now, limit=1)
    return query.where(around, c.holder != holder)


def due(
    table: Table, ledger: str, now: datetime | ColumnElement[datetime], limit: int, passed: int
) -> Select[Any]:
    """The keys of holds that have run out unrecorded, the longest due first, at most `limit` after `passed` of them."""
    c = table.c
    return (
        select(c.key)
        .where(c.ledger == ledger, c.holder.is_not(None), c.expires_at <= now)
        .order_by(c.expires_at)
        .limit(limit)
        .offset(passed)
    )


def hold_of(found: RowMapping) -> Hold:
    """The hold in a row of this table or of the holds that ended."""
    return Hold(**{name: found[name] for name in Hold.model_fields if name in found})
