"""The current-holder table: one row per lock, and the row that an append compares and swaps."""

from sqlalchemy import Column, Index, MetaData, PrimaryKeyConstraint, Table, and_

from lockledger.projections.columns import Count, ExactText, Instant, Json, LockId

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
