"""Migrating: from nothing, twice, at once, on every kind of engine that a host may have."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Engine, event, inspect, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from lockledger.adapters.identifiers import VERSION_TABLE
from lockledger.adapters.migration import migrate, migration_sql
from lockledger.adapters.schema import (
    EVENTS,
    POSITION_SEQUENCE,
    SCHEMA_VERSION,
    check_schema,
    declared,
)
from lockledger.domain.errors import SchemaMismatch
from support.databases import Database
from support.roles import role_of
from support.rows import insert_event

MIGRATE_WHEN_TOLD = """
import sys
from sqlalchemy import create_engine
from lockledger.adapters.migration import migrate
options = {"isolation_level": sys.argv[2]} if sys.argv[2:] else {}
engine = create_engine(sys.argv[1], **options)
print("ready", flush=True)
sys.stdin.readline()
migrate(engine)
migrate(engine)
engine.dispose()
"""


def process_that_migrates(database: Database, *isolation: str) -> subprocess.Popen[str]:
    """A process that is ready to migrate the database, and waits to be told."""
    process = subprocess.Popen(
        [sys.executable, "-c", MIGRATE_WHEN_TOLD, database.url, *isolation],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def ledger_objects(engine: Engine, schema: str | None = None) -> set[str]:
    found = inspect(engine)
    names = [*found.get_table_names(schema), *found.get_view_names(schema)]
    return {name for name in names if name.startswith("lockledger_")}


def test_an_empty_database_gets_the_whole_schema(empty_database: Database) -> None:
    engine = empty_database.engine()
    migrate(engine)
    tables = declared(empty_database.dialect)
    names = {table.name for table in tables.metadata.tables.values()}
    assert ledger_objects(engine) == names | {tables.live_holders.name, tables.all_holds.name}
    with engine.connect() as connection:
        check_schema(connection)


def test_migrating_again_changes_nothing(database: Database) -> None:
    engine = database.engine()
    with engine.begin() as connection:
        insert_event(connection)
    migrate(engine)
    with engine.connect() as connection:
        check_schema(connection)
        assert len(connection.execute(declared(database.dialect).events.select()).all()) == 1


def test_several_processes_at_once_make_one_schema(empty_database: Database) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(process_that_migrates(empty_database)) for _ in range(4)]
        for process in processes:
            tell(process)
        assert [process.communicate()[1] for process in processes] == [""] * len(processes)
    with empty_database.engine().connect() as connection:
        check_schema(connection)
    assert empty_database.logged_errors() == []


def test_threads_and_schemas_at_once(empty_postgres_database: Database) -> None:
    engine = empty_postgres_database.engine()
    schemas = ["one", "two", "one", "two", "three"]
    failures: list[BaseException] = []

    def run(schema: str) -> None:
        try:
            migrate(engine, schema=schema)
        except BaseException as failure:  # noqa: BLE001 - reported by the test below
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(schema,)) for schema in schemas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with engine.connect() as connection:
        for schema in set(schemas):
            check_schema(connection, schema)


def test_schemas_lie_side_by_side(empty_postgres_database: Database) -> None:
    engine = empty_postgres_database.engine()
    for schema in ("tenant_a", "Tenant-B"):
        migrate(engine, schema=schema)
    with engine.begin() as connection:
        insert_event(connection, "tenant_a")
    with engine.connect() as connection:
        with pytest.raises(SchemaMismatch):
            check_schema(connection)
        for schema, events in (("tenant_a", 1), ("Tenant-B", 0)):
            check_schema(connection, schema)
            found = connection.execute(declared("postgresql", schema).events.select()).all()
            assert len(found) == events
            last = f"SELECT pg_sequence_last_value('\"{schema}\".{POSITION_SEQUENCE}')"
            assert connection.exec_driver_sql(last).scalar() == 0
    assert ledger_objects(engine, "public") == set()


def test_the_first_position_is_one(database: Database) -> None:
    with database.engine().connect() as connection:
        if database.dialect == "postgresql":
            position = connection.exec_driver_sql(f"SELECT nextval('{POSITION_SEQUENCE}')").scalar()
        else:
            connection.exec_driver_sql(
                f"INSERT INTO {EVENTS} (lock_id, version, ledger, topic, state, hash)"
                " VALUES ('a', 1, 'l', 't', '{}', x'00')"
            )
            position = connection.exec_driver_sql(f"SELECT position FROM {EVENTS}").scalar()
    assert position == 1


def test_a_schema_from_the_future_is_left_alone(database: Database) -> None:
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = 'lockledger_9999'"))
    with pytest.raises(SchemaMismatch, match=r"lockledger_9999.*does not know") as mismatch:
        migrate(engine)
    assert (mismatch.value.found, mismatch.value.expected) == ("lockledger_9999", SCHEMA_VERSION)
    with engine.connect() as connection:
        found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    assert found == "lockledger_9999"


def test_a_migration_that_fails_leaves_nothing(empty_database: Database) -> None:
    engine = empty_database.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE lockledger_all_holds (mine INTEGER)")
    with pytest.raises((ProgrammingError, OperationalError), match="already exists"):
        migrate(engine)
    assert ledger_objects(engine) == {"lockledger_all_holds"}
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE lockledger_all_holds")
    migrate(engine)
    with engine.connect() as connection:
        check_schema(connection)


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "AUTOCOMMIT"])
def test_a_migration_waits_for_the_one_before_it_and_finds_it_done(
    empty_database: Database, isolation: str
) -> None:
    """Whatever snapshot the host's isolation level would have given it."""
    first = empty_database.engine()
    begun, go_on = threading.Event(), threading.Event()

    @event.listens_for(first, "before_cursor_execute")
    def pause(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if "lockledger_refuse_change" in statement or "CREATE VIEW" in statement:
            begun.set()
            go_on.wait(60)

    migrating = threading.Thread(target=migrate, args=(first,))
    migrating.start()
    try:
        assert begun.wait(60)
        with process_that_migrates(empty_database, isolation) as second:
            tell(second)
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(0.5)
            go_on.set()
            assert second.communicate()[1] == ""
    finally:
        go_on.set()
        migrating.join(60)
    with empty_database.engine().connect() as connection:
        check_schema(connection)
    assert empty_database.logged_errors() == []


@pytest.fixture
def newcomer(empty_postgres_database: Database) -> Iterator[Engine]:
    """An engine of a role that may not create schemas, and owns the schema `mine`."""
    with role_of(empty_postgres_database) as role:
        with empty_postgres_database.engine().begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA mine AUTHORIZATION {role}")
        engine = empty_postgres_database.engine(pool_size=1)
        with engine.connect() as connection:
            connection.exec_driver_sql(f"SET ROLE {role}")
            connection.commit()
        yield engine
        engine.dispose()


def test_a_schema_that_is_there_needs_no_privilege_to_create_one(newcomer: Engine) -> None:
    migrate(newcomer, schema="mine")
    with newcomer.connect() as connection:
        check_schema(connection, "mine")


def test_a_missing_privilege_comes_through_as_itself(newcomer: Engine) -> None:
    with pytest.raises(ProgrammingError, match="permission denied for database"):
        migrate(newcomer, schema="yours")
    migrate(newcomer, schema="mine")


def test_the_hosts_logging_is_left_as_it_was(empty_database: Database) -> None:
    host = logging.getLogger("host.of.the.test")
    before = {
        logger: (logger.level, list(logger.handlers), logger.disabled, logger.propagate)
        for logger in (
            logging.getLogger(),
            host,
            logging.getLogger("alembic"),
            logging.getLogger("sqlalchemy"),
        )
    }
    migrate(empty_database.engine())
    assert before == {
        logger: (logger.level, list(logger.handlers), logger.disabled, logger.propagate)
        for logger in before
    }


def test_the_script_for_reviewers_makes_the_same_schema(empty_database: Database) -> None:
    schema = "Tenant-7" if empty_database.dialect == "postgresql" else None
    script = migration_sql(empty_database.dialect, schema)
    engine = empty_database.engine()
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        if empty_database.dialect == "postgresql":
            driver.autocommit = True
            driver.execute(script)
            driver.autocommit = False
        else:
            driver.executescript(script)
        check_schema(connection, schema)
        connection.rollback()
        insert_event(connection, schema)
    migrate(engine, schema=schema)


def test_a_schema_on_sqlite_is_refused_before_anything(empty_sqlite_database: Database) -> None:
    with pytest.raises(ValueError, match="SQLite has no schemas"):
        migrate(empty_sqlite_database.engine(), schema="tenant")
    assert empty_sqlite_database.path is not None
    assert not empty_sqlite_database.path.exists()
