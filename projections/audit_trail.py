"""The audit trail: one entry per event, readable by a person, never changed."""

from sqlalchemy import Column, Index, MetaData, PrimaryKeyConstraint, Table

from lockledger.projections.columns import Count, Digest, ExactText, Instant, Json, LockId

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
        schema=schema,
    )
    Index(f"{NAME}_by_token", table.c.lock_id, table.c.token, table.c.version)
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
    return table
