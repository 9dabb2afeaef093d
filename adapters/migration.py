"""Bringing a database to this release's schema, with the Alembic migrations that ship in the package."""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from io import StringIO
from typing import Any

import alembic.context
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from lockledger.adapters.characters import refuse_other_encodings
from lockledger.adapters.identifiers import POSTGRESQL, SQLITE, effective_schema
from lockledger.adapters.schema import (
    SCHEMA_VERSION,
    WHOLE_RESULTS,
    found_version,
    refuse_missing_tables,
)
from lockledger.adapters.statements import OWN
from lockledger.adapters.store import in_the_place_of
from lockledger.domain.errors import SchemaMismatch

# The two-number advisory locks are a space apart from the one-number locks of appends; this number is migrations' own.
_MIGRATION_LOCKS = 0x6C6C6D67
_SQLITE_BUSY_OR_LOCKED = (5, 6)
_RETRY_SECONDS = 0.02

# Alembic runs a migration through module-wide proxies: one at a time in a process.
_one_at_a_time = threading.Lock()
_here = threading.local()


def migrate(engine: Engine, *, schema: str | None = None) -> None:
    """Bring the schema to this release's version, from nothing or from any released version, in one transaction.

    Safe to call twice and at once, from threads and processes: the others wait. Where the schema is up to date
    already, it only reads. On PostgreSQL a missing schema is created, and no privilege to do so is needed when it
    is there; SQLite is set to write-ahead logging for good.

    Raises `SchemaMismatch` when a later release made the schema, or somebody took tables out of it; `ValueError` for a
    database in an encoding that lockledger cannot use. A database error comes through as itself, and then nothing was
    changed.
    """
    dialect = engine.dialect.name
    schema = effective_schema(dialect, schema)
    with engine.connect() as connection, _own_transactions(connection):
        # Nothing goes past SQLAlchemy, also on an engine of ours: it has to know of the transaction that it is to end.
        connection.execution_options(schema_translate_map=None, **{OWN: None}, **WHOLE_RESULTS)
        refuse_other_encodings(connection)
        if found_version(connection, schema) != SCHEMA_VERSION:
            with _alone(), _transaction(connection, schema):
                _upgrade(connection, schema)
        refuse_missing_tables(connection, schema)
        if dialect == SQLITE:
            _log_ahead(connection)


def migration_sql(dialect_name: str, schema: str | None = None) -> str:
    """The migrations from nothing as one SQL script, for a reviewer or a database administrator to run.

    It takes no lock against a second run. On SQLite, `PRAGMA journal_mode=WAL` goes before it.
    """
    script = StringIO()
    config = _config(effective_schema(dialect_name, schema), output_buffer=script)
    config.attributes["dialect_name"] = dialect_name
    with _alone():
        command.upgrade(config, "head", sql=True)
    return script.getvalue()


def _upgrade(connection: Connection, schema: str | None) -> None:
    config = _config(schema)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    found = found_version(connection, schema)
    if found is not None and found not in known:
        raise SchemaMismatch(found, SCHEMA_VERSION, schema=schema)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config(schema: str | None, **options: Any) -> Config:
    # Without an ini file there is no section of loggers either: the host's logging stays as it is.
    config = Config(**options)
    config.set_main_option("path_separator", "newline")
    config.set_main_option(
        "script_location", str(files("lockledger.migrations")).replace("%", "%%")
    )
    config.attributes["lockledger_schema"] = schema
    return config


@contextmanager
def _alone() -> Iterator[None]:
    """No other run of Alembic in this process: ours wait for each other, the host's are refused."""
    if getattr(_here, "migrating", False):
        raise RuntimeError(
            "migrate() on the thread of an event loop where another migration is awaited, for which it would wait for"
            " ever: await AsyncLockLedger.migrate(), or call it before or after"
        )
    with _one_at_a_time:
        if getattr(alembic.context, "_proxy", None) is not None:
            raise RuntimeError(
                "migrate() inside another run of Alembic, which can run only one at a time in a process:"
                " call it before or after, or list lockledger's migrations in version_locations"
            )
        _here.migrating = True
        try:
            yield
        finally:
            _here.migrating = False


@contextmanager
def _transaction(connection: Connection, schema: str | None) -> Iterator[None]:
    """One transaction, in which migrations of one schema take turns, whatever the host's engine does by itself."""
    connection.rollback()
    try:
        if connection.dialect.name == POSTGRESQL:
            _begin_on_postgresql(connection, schema)
        else:
            _leave_transaction(connection)
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
        if connection.dialect.name == SQLITE:
            connection.exec_driver_sql("COMMIT")
        connection.commit()
    except BaseException as error:
        with in_the_place_of(error, connection):
            if not connection.invalidated:
                _leave_transaction(connection)
            connection.rollback()
        raise


def _begin_on_postgresql(connection: Connection, schema: str | None) -> None:
    # A snapshot of before the wait would not show what the migration that we waited for has made.
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")
    connection.exec_driver_sql("SET LOCAL search_path = pg_catalog")
    name = int.from_bytes(hashlib.sha256(str(schema).encode()).digest()[:4], signed=True)
    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s, %s)", (_MIGRATION_LOCKS, name))


@contextmanager
def _own_transactions(connection: Connection) -> Iterator[None]:
    """Let transactions be ours for a while, and give the host's pool its connection back as it was.

    psycopg has to begin them, also where the host has it commit each statement. sqlite3 has not to: in the mode of
    PEP 249 it would begin again after each.
    """
    driver: Any = connection.connection.dbapi_connection
    wanted = connection.dialect.name == SQLITE
    opposite = not wanted
    if getattr(driver, "autocommit", wanted) is not opposite:
        yield
        return
    driver.autocommit = wanted
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.rollback()
            driver.autocommit = opposite


def _leave_transaction(connection: Connection) -> None:
    """End what a host's event listener, or we, began on SQLite."""
    if connection.dialect.name == SQLITE:
        # SQLAlchemy begins with its first statement, and then a listener may.
        connection.exec_driver_sql("SELECT 1")
        if _driver(connection).in_transaction:
            connection.exec_driver_sql("ROLLBACK")


def _log_ahead(connection: Connection) -> None:
    """Set write-ahead logging, which the file remembers; with all others that wait for the file to do the same."""
    if connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal":
        return
    _leave_transaction(connection)
    waiting_ends = (
        time.monotonic() + connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() / 1000
    )
    while True:
        try:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        except OperationalError as error:
            # SQLite does not apply the busy timeout to every step of this change.
            code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
            if code not in _SQLITE_BUSY_OR_LOCKED or time.monotonic() > waiting_ends:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection
