"""The ledger's whole schema as this release expects it, and the check that a database has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    ColumnClause,
    Connection,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    String,
    Table,
    TableClause,
    UniqueConstraint,
    column,
    table,
)

from lockledger.adapters.characters import refuse_other_encodings
from lockledger.adapters.identifiers import (
    POSTGRESQL,
    SQLITE,
    VERSION_TABLE,
    effective_schema,
    qualified,
)
from lockledger.adapters.statements import run
from lockledger.domain.errors import SchemaMismatch
from lockledger.projections import audit_trail, current_holders, holds
from lockledger.projections.columns import Count, Digest, ExactText, LockId

SCHEMA_VERSION = "lockledger_0001"
"""The newest migration. Versions of later releases sort after it."""

EVENTS = "lockledger_events"
CURRENT_HOLDERS = current_holders.NAME
AUDIT_TRAIL = audit_trail.NAME
HOLDS = holds.NAME
CONSUMER_POSITIONS = "lockledger_consumer_positions"
LIVE_HOLDERS = "lockledger_live_holders"
ALL_HOLDS = "lockledger_all_holds"
POSITION_SEQUENCE = "lockledger_position"

TABLES = (EVENTS, CURRENT_HOLDERS, AUDIT_TRAIL, HOLDS, CONSUMER_POSITIONS)
"""Without which nothing can be done; the version stands in one more."""

WHOLE_RESULTS: Mapping[str, Any] = MappingProxyType({"stream_results": False, "yield_per": None})
"""Execution options that undo a host's for large results: a server-side cursor would need a transaction."""


@dataclass(frozen=True)
class Tables:
    """Every table and view of one schema on one kind of database; `metadata` holds the tables, for a host's Alembic."""

    metadata: MetaData
    events: Table
    current_holders: Table
    audit_trail: Table
    holds: Table
    consumer_positions: Table
    schema_version: Table
    live_holders: TableClause
    all_holds: TableClause


def declared(dialect_name: str, schema: str | None = None) -> Tables:
    """The schema as this release expects it: `dialect_name` is `postgresql` or `sqlite`.

    The same object for the same schema. Refuses what `effective_schema` refuses.
    """
    return _declared(dialect_name, effective_schema(dialect_name, schema))


def unnamed_schema(dialect_name: str, schema: str | None = None) -> Tables:
    """As `declared`, but without a `schema` the tables name none. Refuses what `effective_schema` refuses."""
    effective = effective_schema(dialect_name, schema)
    return _declared(dialect_name, None if schema is None else effective)


@lru_cache(maxsize=256)
def _declared(dialect_name: str, schema: str | None) -> Tables:
    metadata = MetaData()
    if dialect_name == POSTGRESQL:
        Sequence(
            POSITION_SEQUENCE,
            start=0,
            minvalue=0,
            cache=1,
            data_type=Count,
            schema=schema,
            metadata=metadata,
        )
    holders = current_holders.declare(metadata, schema)
    ended = holds.declare(metadata, schema)
    return Tables(
        metadata=metadata,
        events=_events(metadata, schema, dialect_name),
        current_holders=holders,
        audit_trail=audit_trail.declare(metadata, schema),
        holds=ended,
        consumer_positions=Table(
            CONSUMER_POSITIONS,
            metadata,
            Column("ledger", ExactText, nullable=False),
            Column("consumer", ExactText, nullable=False),
            Column("position", Count, nullable=False),
            PrimaryKeyConstraint("ledger", "consumer", name=f"{CONSUMER_POSITIONS}_pkey"),
            schema=schema,
        ),
        schema_version=Table(
            VERSION_TABLE,
            metadata,
            Column("version_num", String(32), nullable=False),
            PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
            schema=schema,
        ),
        live_holders=_view(LIVE_HOLDERS, holders, _HOLD, schema),
        all_holds=_view(ALL_HOLDS, ended, (*_HOLD, *_END), schema),
    )


_HOLD = (
    "ledger",
    "key",
    "holder",
    "token",
    "taken_at",
    "expires_at",
    "taken_over_from",
    "takeover_reason",
    "metadata",
    "lock_id",
)
_END = ("ended_at", "ended_by", "end_reason", "ended_by_actor")


def _view(name: str, like: Table, columns: tuple[str, ...], schema: str | None) -> TableClause:
    clauses: list[ColumnClause[object]] = [column(each, like.c[each].type) for each in columns]
    return table(name, *clauses, schema=schema)


def _events(metadata: MetaData, schema: str | None, dialect_name: str) -> Table:
    facts = (
        Column("ledger", ExactText, nullable=False),
        Column("topic", ExactText, nullable=False),
        Column("state", ExactText, nullable=False),
        Column("hash", Digest, nullable=False),
    )
    key = (Column("lock_id", LockId, nullable=False), Column("version", Count, nullable=False))
    if dialect_name == SQLITE:
        events = Table(
            EVENTS,
            metadata,
            # AUTOINCREMENT wants exactly this type, and VACUUM may renumber any other rowid.
            Column("position", Integer, primary_key=True),
            *key,
            *facts,
            UniqueConstraint("lock_id", "version", name=f"{EVENTS}_version"),
            # The trigger against INSERT OR REPLACE sees -1 where no position was given: no row may have it.
            CheckConstraint("position > 0", name=f"{EVENTS}_position"),
            sqlite_autoincrement=True,
        )
    else:
        events = Table(
            EVENTS,
            metadata,
            *key,
            Column("position", Count, nullable=False),
            *facts,
            PrimaryKeyConstraint("lock_id", "version", name=f"{EVENTS}_pkey"),
            schema=schema,
        )
    Index(f"{EVENTS}_by_position", events.c.ledger, events.c.position)
    return events


def check_schema(connection: Connection, schema: str | None = None) -> None:
    """Raise `SchemaMismatch` unless the database has exactly this release's schema, with all its tables.

    Raises `ValueError` where the database or the connection has an encoding that lockledger cannot use.

    Reads only. A missing schema is no database error, so a caller's transaction stays usable and the server logs
    nothing; a missing privilege is one, and comes through as itself.
    """
    refuse_other_encodings(connection)
    found = found_version(connection, schema)
    if found != SCHEMA_VERSION:
        raise SchemaMismatch(
            found, SCHEMA_VERSION, schema=effective_schema(connection.dialect.name, schema)
        )
    refuse_missing_tables(connection, schema)


def refuse_missing_tables(connection: Connection, schema: str | None = None) -> None:
    """Raise `SchemaMismatch` where tables are missing although the version of the schema is right."""
    there = _there(connection, TABLES, schema)
    if missing := [name for name in TABLES if name not in there]:
        where = effective_schema(connection.dialect.name, schema)
        raise SchemaMismatch(SCHEMA_VERSION, SCHEMA_VERSION, schema=where, missing=missing)


def _there(connection: Connection, tables: tuple[str, ...], schema: str | None) -> set[str]:
    """Which of these tables there are; that one is missing is no error of the database."""
    dialect = connection.dialect.name
    if dialect == POSTGRESQL:
        looked_up = ", ".join("pg_catalog.to_regclass(%s)" for _ in tables)
        places = tuple(qualified(name, dialect, schema) for name in tables)
        row = run(connection, f"SELECT {looked_up}", places).one()
        return {name for name, found in zip(tables, row, strict=True) if found is not None}
    marks = ", ".join("?" for _ in tables)
    looked_up = f"SELECT name FROM main.sqlite_master WHERE type = 'table' AND name IN ({marks})"
    return set(run(connection, looked_up, tables).scalars())


def found_version(connection: Connection, schema: str | None = None) -> str | None:
    """The version of the schema that the database has, `None` when it has none."""
    if not _there(connection, (VERSION_TABLE,), schema):
        return None
    version_table = qualified(VERSION_TABLE, connection.dialect.name, schema)
    versions = f"SELECT version_num FROM {version_table} ORDER BY version_num"
    found = run(connection, versions).scalars()
    return ", ".join(found) or None


def outlasts_rollback(connection: Connection, schema: str | None = None) -> bool:
    """Whether the schema that this transaction sees stays when it is rolled back: it was not made in it.

    Of a transaction that is open on SQLite nobody can tell, so it is `False` there.
    """
    dialect = connection.dialect.name
    if dialect == SQLITE:
        driver: Any = connection.connection.driver_connection
        return not driver.in_transaction
    # What is visible has been committed, or was written by this transaction or its savepoints: their numbers begin at
    # the transaction's own, from which age() counts.
    table = qualified(VERSION_TABLE, dialect, schema)
    others = f"SELECT bool_and(age(xmin) NOT BETWEEN -1000000 AND 0) FROM {table}"
    return bool(run(connection, others).scalar())
