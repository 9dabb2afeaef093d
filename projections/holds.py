"""The holds that ended: one row each, written once, when the hold ends."""

from sqlalchemy import Column, Index, MetaData, PrimaryKeyConstraint, Table

from lockledger.projections.columns import Count, ExactText, Instant, Json, LockId

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
        schema=schema,
    )
    Index(f"{NAME}_by_key", table.c.ledger, table.c.key, table.c.token)
    Index(f"{NAME}_by_holder", table.c.ledger, table.c.holder, table.c.taken_at)
    Index(f"{NAME}_by_end", table.c.ledger, table.c.ended_at)
    return table
