"""The audit trail: one entry per event, readable by a person, never changed."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from pydantic_core import to_json
from sqlalchemy import (
    CheckConstraint,
    Column,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Row,
    Select,
    Table,
    Text,
    cast,
    literal,
    select,
    union_all,
)
from sqlalchemy.sql import ColumnElement

from lockledger.domain.events import LockEvent, LockExtended
from lockledger.domain.holds import AuditEntry, Facts, Hold
from lockledger.projections.columns import (
    Count,
    Digest,
    ExactText,
    Instant,
    Json,
    LockId,
    json_to_text,
    key_conditions,
)

NAME = "lockledger_audit_trail"


def declare(metadata: MetaData, schema: str | None) -> Table:
    """Append-only: the database refuses UPDATE, DELETE and TRUNCATE."""
    table = Table(
        NAME,
        metadata,
        Column("lock_id", LockId, nullable=False),
        Column("version", Count, nullable=False),
        Column("ledger", ExactText, nullable=False),
        Column("position", Count, nullable=False),
        Column("key", ExactText, nullable=False),
        Column("action", ExactText, nullable=False),
        Column("actor", ExactText),
        Column("holder", ExactText, nullable=False),
        Column("previous_holder", ExactText),
        Column("token", Count, nullable=False),
        Column("occurred_at", Instant, nullable=False),
        Column("recorded_at", Instant, nullable=False),
        Column("reason", ExactText),
        Column("before", Json),
        Column("after", Json),
        Column("metadata", Json, nullable=False),
        Column("event_hash", Digest, nullable=False),
        PrimaryKeyConstraint("lock_id", "version", name=f"{NAME}_pkey"),
        # Else SQLite's INSERT OR REPLACE could hide behind the rowid that its trigger sees when none was given: -1.
        CheckConstraint("rowid > 0", name=f"{NAME}_rowid").ddl_if(dialect="sqlite"),
        schema=schema,
    )
    Index(f"{NAME}_by_position", table.c.ledger, table.c.position)
    Index(f"{NAME}_by_key", table.c.ledger, table.c.key, table.c.position)
    Index(f"{NAME}_by_holder", table.c.ledger, table.c.holder, table.c.position)
    Index(f"{NAME}_by_time", table.c.ledger, table.c.occurred_at)
    Index(f"{NAME}_by_actor", table.c.ledger, table.c.actor, table.c.position)

    taken_over = table.c.previous_holder.is_not(None)
    Index(
        f"{NAME}_by_previous_holder",
        table.c.ledger,
        table.c.previous_holder,
        table.c.position,
        postgresql_where=taken_over,
        sqlite_where=taken_over,
    )
    # Until when a hold was to last at some instant: what the first extension after it moved. Other events pay nothing.
    extended = table.c.action == LockExtended.__name__
    Index(
        f"{NAME}_extensions",
        table.c.lock_id,
        table.c.token,
        table.c.occurred_at,
        table.c.version,
        postgresql_where=extended,
        sqlite_where=extended,
    )
    return table


COLUMNS = (
    "lock_id",
    "version",
    "ledger",
    "key",
    "action",
    "actor",
    "holder",
    "previous_holder",
    "token",
    "occurred_at",
    "recorded_at",
    "reason",
    "before",
    "after",
    "metadata",
    "event_hash",
)
"""All columns but the position, which the database gives."""


def row(ledger: str, event: LockEvent, event_hash: bytes) -> dict[str, Any]:
    """What the table says of an event, but for its position; JSON as text."""
    before, after = event.facts_before(), event.facts_after()
    return {
        "lock_id": event.originator_id,
        "version": event.originator_version,
        "ledger": ledger,
        "key": event.key,
        "action": event.action,
        "actor": event.actor,
        "holder": event.holder,
        "previous_holder": before["holder"]
        if before and after and before["token"] != after["token"]
        else None,
        "token": event.token,
        "occurred_at": event.occurred_at,
        "recorded_at": event.timestamp,
        "reason": event.why,
        "before": before and _text(before),
        "after": after and _text(after),
        "metadata": json_to_text(event.metadata),
        "event_hash": event_hash,
    }


def _text(facts: Facts) -> str:
    """As the JSON of a hold."""
    return to_json(facts, inf_nan_mode="null").decode()


@dataclass(frozen=True, slots=True)
class Filter:
    """Which entries are asked for. `since` and `until` bound `occurred_at`; `holder` is who gained or lost."""

    key: str | None = None
    key_prefix: str | None = None
    under: str | None = None
    holder: str | None = None
    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    extensions: bool = False

    @property
    def is_history(self) -> bool:
        """Whether a key is all that leads to the entries."""
        others = (self.holder, self.actor, self.since, self.until)
        return self.key is not None and all(other is None for other in others)


def entries(
    table: Table, ledger: str, wanted: Filter, *, after: int, upto: int | None, limit: int
) -> Select[Any]:
    """The entries in (after, upto], in position order, at most `limit`; rows for `entry_of`."""
    query = select(*_read(table)).where(*_conditions(table, ledger, wanted, after, upto))
    if wanted.holder is None:
        return query.order_by(table.c.position).limit(limit)
    return _who_gained_or_lost(table, query, wanted.holder, limit)


@lru_cache(maxsize=256)
def _read(table: Table) -> tuple[ColumnElement[Any], ...]:
    """The columns of an entry, the holds on either side as text."""
    return tuple(
        cast(table.c[name], Text()).label(name) if name in _SIDES else table.c[name]
        for name in _READ
    )


_READ = tuple(AuditEntry.model_fields)
_SIDES = ("before", "after")


def _conditions(
    table: Table, ledger: str, wanted: Filter, after: int, upto: int | None
) -> Iterator[ColumnElement[bool]]:
    """All conditions but who the holder is."""
    c = table.c
    yield c.ledger == ledger
    yield c.position > after
    if upto is not None:
        yield c.position <= upto
    if wanted.key is not None:
        yield c.key == _key(wanted.key, hidden=wanted.is_history)
    yield from key_conditions(c.key, key_prefix=wanted.key_prefix, under=wanted.under)
    if wanted.actor is not None:
        yield c.actor == wanted.actor
    if wanted.action is not None:
        yield c.action == wanted.action
    elif not wanted.extensions:
        yield c.action != LockExtended.__name__
    if wanted.since is not None:
        yield c.occurred_at >= wanted.since
    if wanted.until is not None:
        yield c.occurred_at < wanted.until


def _key(key: str, *, hidden: bool) -> ColumnElement[str]:
    """The key; hidden from PostgreSQL's planner, it counts as one of so many.

    Where it sees that nearly all entries are the lock's, it walks the ledger in position order instead, past all others
    that come before. It has to see the key where another condition may be the one that few entries meet.
    """
    seen = literal(key, ExactText)
    return select(seen).scalar_subquery() if hidden else seen


def _who_gained_or_lost(table: Table, query: Select[Any], holder: str, limit: int) -> Select[Any]:
    """Two index scans instead of one OR, which would read the whole ledger in position order."""
    c = table.c
    gained = query.where(c.holder == holder)
    lost = query.where(c.previous_holder == holder, c.holder != holder)
    both = union_all(
        *(select(part.order_by(c.position).limit(limit).subquery()) for part in (gained, lost))
    ).subquery()
    return select(both).order_by(both.c.position).limit(limit)


def entry_of(found: Row[Any]) -> AuditEntry:
    """The entry in a row of `entries`."""
    facts = dict(zip(_READ, found, strict=True))
    for side in _SIDES:
        text = facts[side]
        facts[side] = None if text is None else Hold.model_validate_json(text)
    facts["event_hash"] = facts["event_hash"].hex()
    return AuditEntry(**facts)
