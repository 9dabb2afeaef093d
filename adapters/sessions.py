"""Joining a caller's open transaction: no begin, commit or rollback of ours, and nothing of the host's is touched.

One exception: where SQLite's driver has begun nothing yet, although SQLAlchemy has, `BEGIN IMMEDIATE` is sent, since a
guard would guard nothing otherwise, and a nested write survive the outer rollback.
"""

import sqlite3
from datetime import timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session, scoped_session

from lockledger.adapters.engines import checked_busy_timeout, refuse_other_drivers
from lockledger.adapters.failures import is_busy, sqlite_code, translated
from lockledger.adapters.identifiers import SQLITE, VERSION_TABLE
from lockledger.adapters.sqlite_engines import pragmas
from lockledger.domain.errors import ConcurrencyConflict

E = TypeVar("E", bound=Engine | AsyncEngine)
_BEGUN = "lockledger: the transaction that the driver has begun too"
_REMEDY = (
    "configure the engine with lockledger.configure_sqlite(engine) before its first connection"
)
_WRITE_LOCK: Final = f'UPDATE main."{VERSION_TABLE}" SET version_num = version_num WHERE 0'
"""Changes nothing, and still makes the open transaction the one that writes."""
_LEGACY_CONTROL: Final = -1
"""`sqlite3.LEGACY_TRANSACTION_CONTROL` of Python 3.12."""


def joined(host: Session | scoped_session[Any] | Connection, dialect: str) -> Connection:
    """The connection of the caller's transaction. A session's pending objects are not flushed.

    Raises `TypeError` for anything but a session or connection, `ValueError` for one of another database or in
    AUTOCOMMIT, where nothing could be taken back.
    """
    if isinstance(host, Session | scoped_session):
        # It begins the session's transaction when none is open, and on SQLite that may wait for the write lock.
        with translated():
            connection = host.connection()
    elif isinstance(host, Connection):
        connection = host
    else:
        raise _no_transaction(host)
    found = connection.dialect
    if found.name != dialect:
        raise ValueError(f"this ledger is on {dialect}, the transaction on {found.name}")
    refuse_other_drivers(found.name, found.driver, asynchronous=found.is_async)
    if _commits_by_itself(connection):
        other = f"; {_REMEDY}" if dialect == SQLITE else ""
        raise ValueError(
            "the connection is in AUTOCOMMIT, so that a rollback would not take a lock back;"
            f" use one with transactions, or the ledger's own verbs{other}"
        )
    return connection


def refuse_what_has_no_transaction(host: object) -> None:
    """Raises `TypeError` for anything but a session or connection."""
    if not isinstance(host, Session | scoped_session | Connection):
        raise _no_transaction(host)


def _no_transaction(host: object) -> TypeError:
    return TypeError(f"using(…) wants a SQLAlchemy Session or Connection, not {host!r}")


def begin_to_write(connection: Connection) -> None:
    """Sees to it that what is written from here on belongs to a transaction. PostgreSQL's driver does that itself.

    On SQLite that transaction holds the write lock then, since a guard that only reads would guard nothing. Raises
    `ConcurrencyConflict` when it is not to be had.
    """
    if connection.dialect.name != SQLITE:
        return
    driver, root = driver_of(connection), connection.get_transaction()
    begun = (
        driver.isolation_level is None
        or getattr(driver, "autocommit", None) is False
        or connection.info.get(_BEGUN) is root
    )
    if connection.in_nested_transaction() and not begun:
        raise ValueError(
            "a savepoint is open on a SQLite connection whose driver may have begun no transaction around it;"
            f" {_REMEDY}"
        )
    if driver.in_transaction:
        _lock_for_writing(connection)
    else:
        with translated():
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    connection.info[_BEGUN] = connection.get_transaction()


def _lock_for_writing(connection: Connection) -> None:
    """Before the first read: SQLite lets a transaction that has read neither wait for another writer nor pass it by."""
    try:
        connection.exec_driver_sql(_WRITE_LOCK)
    except DBAPIError as error:
        if is_busy(error):
            raise ConcurrencyConflict(
                "another connection was writing to the SQLite file, or had written since this transaction began to read",
                remedy="begin it with BEGIN IMMEDIATE, as lockledger.configure_sqlite(engine) does, and run it again",
            ) from error
        # A missing table: the check of the schema comes next and names the remedy.
        if sqlite_code(error) != sqlite3.SQLITE_ERROR:
            raise


def driver_of(connection: Connection) -> Any:
    """The driver's own connection, also below SQLAlchemy's asyncio adapter."""
    return connection.connection.driver_connection


def _commits_by_itself(connection: Connection) -> bool:
    # in_transaction() says True even then, and the isolation level is SQLAlchemy's word, not the driver's.
    driver = driver_of(connection)
    if connection.dialect.name != SQLITE:
        return bool(driver.autocommit)
    if getattr(driver, "autocommit", None) is True:
        return True
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    return (
        driver.isolation_level is None
        and not driver.in_transaction
        and not _begins(connection, driver)
    )


def _begins(connection: Connection, driver: Any) -> bool:
    """Begins SQLAlchemy's transaction, as the caller's next statement would, and tells whether the driver followed."""
    if connection.in_transaction():
        return False
    with translated():
        transaction = connection.begin()
    if driver.in_transaction:
        return True
    transaction.rollback()
    return False


def configure_sqlite(engine: E, *, busy_timeout: float | timedelta = 30) -> E:
    """Configures a host's SQLite engine so that transactions and savepoints are what they seem; gives it back.

    The driver begins nothing by itself, SQLAlchemy's begin sends `BEGIN IMMEDIATE`, and a write waits `busy_timeout`
    for another writer: seconds or a `timedelta`, up to a day. Call it once, before the engine's first connection.
    Raises `ValueError` for another database, `TypeError` for anything but an engine.
    """
    if not isinstance(engine, Engine | AsyncEngine):
        raise TypeError(f"configure_sqlite wants a SQLAlchemy engine, not {engine!r}")
    if engine.dialect.name != SQLITE:
        raise ValueError(f"configure_sqlite is for SQLite engines, not for {engine.dialect.name}")
    listened = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    milliseconds = int(checked_busy_timeout(busy_timeout) * 1000)

    def on_connect(connection: Any, _record: object) -> None:
        if isinstance(getattr(connection, "autocommit", None), bool):
            connection.autocommit = _LEGACY_CONTROL
        connection.isolation_level = None

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(listened, "connect", on_connect)
    event.listen(listened, "connect", pragmas(busy_timeout=milliseconds))
    event.listen(listened, "begin", on_begin)
    return engine
