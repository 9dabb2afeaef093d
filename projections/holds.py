"""The holds that ended: one row each, written once, when the hold ends."""

from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    Column,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Select,
    Table,
    select,
)

from lockledger.domain.events import LockEvent
from lockledger.projections.columns import Count, ExactText, Instant, Json, LockId, json_to_text

NAME = "lockledger_holds"


def declare(metadata: MetaData, schema: str | None) -> Table:
    """Append-only: the database refuses UPDATE, DELETE and TRUNCATE.

    `ended_by` is one of `release`, `forced`, `takeover`, `expiry`.
    """
    table = Table(
        NAME,
        metadata,
        Column("lock_id", LockId, nullable=False),
        Column("token", Count, nullable=False),
        Column("ledger", ExactText, nullable=False),
        Column("key", ExactText, nullable=False),
        Column("holder", ExactText, nullable=False),
        Column("taken_at", Instant, nullable=False),
        Column("expires_at", Instant),
        Column("taken_over_from", ExactText),
        Column("takeover_reason", ExactText),
        Column("metadata", Json, nullable=False),
        Column("ended_at", Instant, nullable=False),
        Column("ended_by", ExactText, nullable=False),
        Column("end_reason", ExactText),
        Column("ended_by_actor", ExactText),
        PrimaryKeyConstraint("lock_id", "token", name=f"{NAME}_pkey"),
        # Else SQLite's INSERT OR REPLACE could hide behind the rowid that its trigger sees when none was given: -1.
        CheckConstraint("rowid > 0", name=f"{NAME}_rowid").ddl_if(dialect="sqlite"),
        schema=schema,
    )
    # Within a lock the order of beginnings is that of tokens. The end lets an index tell who was live at an instant.
    c = table.c
    Index(f"{NAME}_by_key", c.ledger, c.key, c.taken_at, c.token, c.ended_at)
    Index(f"{NAME}_by_holder", c.ledger, c.holder, c.key, c.taken_at, c.token, c.ended_at)
    Index(f"{NAME}_by_end", c.ledger, c.ended_at)
    return table


COLUMNS = (
    "lock_id",
    "token",
    "ledger",
    "key",
    "holder",
    "taken_at",
    "expires_at",
    "taken_over_from",
    "takeover_reason",
    "metadata",
    "ended_at",
    "ended_by",
    "end_reason",
    "ended_by_actor",
)


def row(ledger: str, event: LockEvent) -> dict[str, Any] | None:
    """What the table says of the hold that ended with this event, `None` when none did; JSON as text."""
    ended = event.facts_ended()
    if ended is None:
        return None
    metadata = json_to_text(ended["metadata"])
    return {"lock_id": event.originator_id, "ledger": ledger, **ended, "metadata": metadata}


def ended_hold(table: Table, lock_id: UUID, token: int) -> Select[Any]:
    """The hold of this lock with that token, when it has ended."""
    return select(table).where(table.c.lock_id == lock_id, table.c.token == token)
