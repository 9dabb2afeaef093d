"""Migrating on the engines that hosts have: odd options, transactions of their own, files and memory."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, NullPool, StaticPool, create_engine, event, inspect
from sqlalchemy.exc import OperationalError

from lockledger.adapters.identifiers import VERSION_TABLE
from lockledger.adapters.migration import migrate
from lockledger.adapters.schema import check_schema
from support.databases import Database

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
    assert inspect(empty_postgres_database.engine()).get_table_names("host") == [VERSION_TABLE]
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
    patient = empty_sqlite_database.engine(connect_args={"timeout": 60})
    waiting = threading.Thread(target=migrate, args=(patient,))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    reader.execute("COMMIT")
    waiting.join(60)
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
