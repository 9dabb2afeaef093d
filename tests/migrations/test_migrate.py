"""Migrating: from nothing, twice, at once, on every kind of engine that a host may have."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, NullPool, StaticPool, create_engine, event, inspect, text
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
    command = [sys.executable, "-c", MIGRATE_WHEN_TOLD, empty_database.url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, **pipes) for _ in range(6)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    failures = [process.communicate()[1] for process in processes]
    assert failures == [""] * len(processes)
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
            go_on.wait(20)

    migrating = threading.Thread(target=migrate, args=(first,))
    migrating.start()
    assert begun.wait(20)
    with subprocess.Popen(
        [sys.executable, "-c", MIGRATE_WHEN_TOLD, empty_database.url, isolation],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "ready\n"
        assert second.stdin is not None
        second.stdin.write("\n")
        second.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(0.5)
        go_on.set()
        assert second.communicate()[1] == ""
    migrating.join(20)
    with empty_database.engine().connect() as connection:
        check_schema(connection)
    assert empty_database.logged_errors() == []


ODD_ON_BOTH: dict[str, dict[str, Any]] = {
    "autocommit": {"isolation_level": "AUTOCOMMIT"},
    "serializable": {"isolation_level": "SERIALIZABLE"},
    "no pool": {"poolclass": NullPool},
    "one connection": {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1},
    "translated schemas": {
        "execution_options": {"schema_translate_map": {None: "host", "public": "host"}}
    },
    "streamed results": {"execution_options": {"stream_results": True}},
    "rows in portions": {"execution_options": {"yield_per": 1, "isolation_level": "AUTOCOMMIT"}},
}
ODD_ON_POSTGRESQL: dict[str, dict[str, Any]] = {
    "repeatable read": {"isolation_level": "REPEATABLE READ"},
    "autocommit as an option": {"execution_options": {"isolation_level": "AUTOCOMMIT"}},
    "read only": {"execution_options": {"postgresql_readonly": True}},
    "read only by default": {"connect_args": {"options": "-c default_transaction_read_only=on"}},
    "search path elsewhere": {"connect_args": {"options": "-c search_path=host,nowhere"}},
    "no search path": {"connect_args": {"options": "-c search_path="}},
    "every statement prepared": {"connect_args": {"prepare_threshold": 0}},
    "driver in autocommit": {"connect_args": {"autocommit": True}},
    "no rollback in autocommit": {
        "isolation_level": "AUTOCOMMIT",
        "skip_autocommit_rollback": True,
    },
}


def odd_engine_migrates(database: Database, options: dict[str, Any]) -> Engine:
    engine = database.engine(**options)
    migrate(engine)
    migrate(engine)
    with database.engine().connect() as connection:
        check_schema(connection)
    return engine


@pytest.mark.parametrize("oddity", ODD_ON_BOTH)
def test_an_odd_engine_is_good_enough(empty_database: Database, oddity: str) -> None:
    odd_engine_migrates(empty_database, ODD_ON_BOTH[oddity])


@pytest.mark.parametrize("oddity", ODD_ON_POSTGRESQL)
def test_an_odd_engine_is_good_enough_on_postgresql(
    empty_postgres_database: Database, oddity: str
) -> None:
    with empty_postgres_database.engine().begin() as connection:
        connection.exec_driver_sql(
            "CREATE SCHEMA host CREATE TABLE lockledger_schema_version (version_num text)"
        )
    engine = odd_engine_migrates(empty_postgres_database, ODD_ON_POSTGRESQL[oddity])
    assert ledger_objects(empty_postgres_database.engine(), "host") == {VERSION_TABLE}
    untouched = empty_postgres_database.engine(**ODD_ON_POSTGRESQL[oddity])
    assert settings_of(engine) == settings_of(untouched)


def settings_of(engine: Engine) -> list[Any]:
    """What a connection of the engine's pool is set to."""
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        names = ("search_path", "transaction_isolation", "transaction_read_only")
        shown = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]
        return [*shown, driver.autocommit, driver.isolation_level, driver.read_only]


LISTENERS: dict[str, Callable[[Connection], Any]] = {
    "begins": lambda connection: connection.exec_driver_sql("BEGIN"),
    "begins a write": lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"),
    "does nothing": lambda _connection: None,
}


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_host_that_begins_by_itself_is_served_on_sqlite(
    empty_sqlite_database: Database, listener: str
) -> None:
    engine = empty_sqlite_database.engine()

    @event.listens_for(engine, "connect")
    def leave_transactions_to_the_listener(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None

    event.listen(engine, "begin", LISTENERS[listener])
    migrate(engine)
    migrate(engine)
    with engine.connect() as connection:
        check_schema(connection)
        driver = connection.connection.driver_connection
        assert driver is not None
        assert driver.isolation_level is None


def test_a_database_in_memory_is_migrated_where_it_lives() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    migrate(engine)
    with engine.connect() as connection:
        check_schema(connection)
    engine.dispose()


def test_sqlite_logs_ahead_from_then_on(empty_sqlite_database: Database) -> None:
    migrate(empty_sqlite_database.engine())
    assert empty_sqlite_database.path is not None
    with sqlite3.connect(empty_sqlite_database.path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_reader_of_the_file_is_waited_for(empty_sqlite_database: Database) -> None:
    path = empty_sqlite_database.path
    assert path is not None
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("CREATE TABLE host (id)")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM host").fetchall()
    waiting = threading.Thread(target=migrate, args=(empty_sqlite_database.engine(),))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    reader.execute("COMMIT")
    waiting.join(20)
    reader.close()
    with empty_sqlite_database.engine().connect() as connection:
        check_schema(connection)


def test_the_wait_for_a_file_is_bounded_by_the_busy_timeout(
    empty_sqlite_database: Database,
) -> None:
    path = empty_sqlite_database.path
    assert path is not None
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("CREATE TABLE host (id)")
    with pytest.raises(OperationalError, match="locked"):
        migrate(empty_sqlite_database.engine(connect_args={"timeout": 0.2}))
    writer.close()


def test_what_is_no_database_is_left_alone(empty_sqlite_database: Database) -> None:
    path = empty_sqlite_database.path
    assert path is not None
    path.write_bytes(b"no database at all, but a file of somebody's" * 100)
    with pytest.raises(Exception, match="file is not a database"):
        migrate(empty_sqlite_database.engine())
    assert path.read_bytes().startswith(b"no database at all")


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
