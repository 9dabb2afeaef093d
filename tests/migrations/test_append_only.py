"""Events, audit entries and ended holds are never changed: the database itself refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError

from lockledger.adapters.schema import AUDIT_TRAIL, EVENTS, HOLDS, declared
from support.databases import Database
from support.rows import (
    OTHER_LOCK,
    insert_audit_entry,
    insert_ended_hold,
    insert_event,
)

APPEND_ONLY = (EVENTS, AUDIT_TRAIL, HOLDS)
INSERTS = {EVENTS: insert_event, AUDIT_TRAIL: insert_audit_entry, HOLDS: insert_ended_hold}
NUMBERS = {EVENTS: "version", AUDIT_TRAIL: "version", HOLDS: "token"}


@pytest.fixture(params=APPEND_ONLY)
def table(request: pytest.FixtureRequest) -> str:
    """Each append-only table in turn."""
    return str(request.param)


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    """A connection to a database with one row in each append-only table."""
    with database.engine().begin() as connection:
        for insert in INSERTS.values():
            insert(connection)
    with database.engine().connect() as connection:
        yield connection


@pytest.fixture
def sqlite_connection(sqlite_database: Database) -> Iterator[Connection]:
    """The same on SQLite alone."""
    with sqlite_database.engine().connect() as connection:
        for insert in INSERTS.values():
            insert(connection)
        yield connection


@pytest.fixture
def postgres_connection(postgres_database: Database) -> Iterator[Connection]:
    """The same on PostgreSQL alone, as superuser."""
    with postgres_database.engine().begin() as connection:
        for insert in INSERTS.values():
            insert(connection)
    with postgres_database.engine().connect() as connection:
        yield connection


def refuse(connection: Connection, statement: str, table: str, what: str) -> None:
    with pytest.raises(
        IntegrityError, match=f"{table} is append-only and refuses {what}"
    ) as refused:
        connection.exec_driver_sql(statement)
    if connection.dialect.name == "postgresql":
        assert getattr(refused.value.orig, "sqlstate", None) == "23001"
        connection.rollback()
    only = declared(connection.dialect.name).metadata.tables
    name = table if connection.dialect.name == "sqlite" else f"public.{table}"
    row = connection.execute(select(only[name])).one()
    assert row.ledger == "default"


@pytest.mark.parametrize(
    "change",
    [
        "SET ledger = 'other'",
        "SET ledger = ledger",
        "SET lock_id = lock_id WHERE ledger = 'default'",
    ],
)
def test_an_update_is_refused(connection: Connection, table: str, change: str) -> None:
    refuse(connection, f"UPDATE {table} {change}", table, "UPDATE")


@pytest.mark.parametrize("which", ["", " WHERE ledger = 'default'"])
def test_a_delete_is_refused(connection: Connection, table: str, which: str) -> None:
    refuse(connection, f"DELETE FROM {table}{which}", table, "DELETE")


@pytest.mark.parametrize("how", ["", " CASCADE", " RESTART IDENTITY"])
def test_a_truncate_is_refused(postgres_connection: Connection, table: str, how: str) -> None:
    refuse(postgres_connection, f"TRUNCATE {table}{how}", table, "TRUNCATE")


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE {} SET ledger = 'other'", "UPDATE"),
        ("DELETE FROM {}", "DELETE"),
        ("TRUNCATE {}", "TRUNCATE"),
    ],
)
def test_a_replica_session_is_refused_as_well(
    postgres_connection: Connection, table: str, statement: str, what: str
) -> None:
    postgres_connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
    refuse(postgres_connection, statement.format(table), table, what)


def test_an_upsert_is_refused_on_postgresql(postgres_connection: Connection, table: str) -> None:
    key = f"lock_id, {NUMBERS[table]}"
    refuse(
        postgres_connection,
        f"INSERT INTO {table} SELECT * FROM {table} ON CONFLICT ({key}) DO UPDATE SET ledger = 'other'",
        table,
        "UPDATE",
    )


@pytest.mark.parametrize(
    "by", ["lock", "lock as it is spelt elsewhere", "rowid", "oid", "text rowid"]
)
@pytest.mark.parametrize("verb", ["INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE", "INSERT"])
def test_a_row_cannot_be_replaced_on_sqlite(
    sqlite_connection: Connection, table: str, verb: str, by: str
) -> None:
    columns = list(declared("sqlite").metadata.tables[table].c.keys())
    rowid = "position" if table == EVENTS else {"oid": "oid"}.get(by, "rowid")
    if table == EVENTS:
        columns.remove("position")
    values = {column: column for column in columns}
    if by.startswith("lock"):
        number = NUMBERS[table]
        values[number] = f"CAST({number} AS TEXT)" if "elsewhere" in by else number
    else:
        values["lock_id"] = f"'{OTHER_LOCK.hex}'"
        values[rowid] = "'1'" if by == "text rowid" else "1"
    names, expressions = ", ".join(values), ", ".join(values.values())
    refuse(
        sqlite_connection,
        f"{verb} INTO {table} ({names}) SELECT {expressions} FROM {table}",
        table,
        "a second row with the same key",
    )


@pytest.mark.parametrize("action", ["DO UPDATE SET ledger = 'other'", "DO NOTHING"])
def test_an_upsert_is_refused_on_sqlite(
    sqlite_connection: Connection, table: str, action: str
) -> None:
    columns = ", ".join(declared("sqlite").metadata.tables[table].c.keys())
    refuse(
        sqlite_connection,
        f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE true ON CONFLICT {action}",
        table,
        "a second row with the same key",
    )


@pytest.mark.parametrize("rowid", [-1, 0, -(2**63)])
@pytest.mark.parametrize("verb", ["INSERT OR REPLACE", "INSERT"])
def test_no_row_can_hide_where_the_trigger_would_not_look(
    sqlite_connection: Connection, table: str, verb: str, rowid: int
) -> None:
    columns = list(declared("sqlite").metadata.tables[table].c.keys())
    name = "position" if table == EVENTS else "rowid"
    values = {column: column for column in columns} | {
        "lock_id": f"'{OTHER_LOCK.hex}'",
        name: str(rowid),
    }
    names, expressions = ", ".join(values), ", ".join(values.values())
    with pytest.raises(IntegrityError, match="CHECK constraint failed"):
        sqlite_connection.exec_driver_sql(
            f"{verb} INTO {table} ({names}) SELECT {expressions} FROM {table}"
        )


def test_a_refusal_leaves_the_sqlite_transaction_usable(sqlite_connection: Connection) -> None:
    insert_event(sqlite_connection, lock_id=OTHER_LOCK, position=2)
    with pytest.raises(IntegrityError):
        insert_event(sqlite_connection, lock_id=OTHER_LOCK, position=3)
    sqlite_connection.commit()
    events = declared("sqlite").events
    assert sqlite_connection.execute(select(func.count()).select_from(events)).scalar() == 2


def test_new_rows_are_welcome(connection: Connection, table: str) -> None:
    facts: dict[str, Any] = {"position": 2} if table == EVENTS else {}
    INSERTS[table](connection, lock_id=OTHER_LOCK, **facts)


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
def test_recursive_triggers_make_no_difference(
    sqlite_connection: Connection, table: str, recursive: str
) -> None:
    sqlite_connection.commit()
    sqlite_connection.exec_driver_sql(f"PRAGMA recursive_triggers = {recursive}")
    refuse(
        sqlite_connection,
        f"REPLACE INTO {table} SELECT * FROM {table}",
        table,
        "a second row with the same key",
    )
