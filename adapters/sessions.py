"""Joining a caller's open transaction: no begin, commit or rollback of ours, and nothing of the host's is touched.

One exception: where SQLite's driver has begun nothing yet, although SQLAlchemy has, `BEGIN IMMEDIATE` is sent, since a
guard would guard nothing otherwise, and a nested write survive the outer rollback.
"""

from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, scoped_session

from lockledger.adapters.engines import checked_busy_timeout, pragmas, refuse_other_drivers
from lockledger.adapters.failures import translated
from lockledger.adapters.identifiers import SQLITE

_BEGUN = "lockledger: the transaction that the driver has begun too"
_REMEDY = (
    "configure the engine with lockledger.configure_sqlite(engine) before its first connection"
)


def joined(host: Session | Connection, dialect: str) -> Connection:
    """The connection of the caller's transaction. A session's pending objects are not flushed.

    Raises `TypeError` for anything but a session or connection, `ValueError` for one of another database or in
    AUTOCOMMIT, where nothing could be taken back.
    """
    if isinstance(host, Session | scoped_session):
        connection = host.connection()
    elif isinstance(host, Connection):
        connection = host
    else:
        raise TypeError(f"using(…) wants a SQLAlchemy Session or Connection, not {host!r}")
    found = connection.dialect
    if found.name != dialect:
        raise ValueError(f"this ledger is on {dialect}, the transaction on {found.name}")
    refuse_other_drivers(found.name, found.driver, asynchronous=found.is_async)
    if _commits_by_itself(connection):
        raise ValueError(
            "the connection is in AUTOCOMMIT, so that a rollback would not take a lock back;"
            " use one with transactions, or the ledger's own verbs"
        )
    return connection


def begin_to_write(connection: Connection) -> None:
    """Sees to it that what is written from here on belongs to a transaction. PostgreSQL's driver does that itself."""
    if connection.dialect.name != SQLITE:
        return
    driver, root = driver_of(connection), connection.get_transaction()
    begun = driver.isolation_level is None or connection.info.get(_BEGUN) is root
    if connection.in_nested_transaction() and not begun:
        raise ValueError(
            "a savepoint is open on a SQLite connection whose driver may have begun no transaction around it;"
            f" {_REMEDY}"
        )
    if not driver.in_transaction:
        with translated():
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    connection.info[_BEGUN] = connection.get_transaction()


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
    return connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT" or (
        driver.isolation_level is None and not driver.in_transaction and not _begins(connection)
    )


def _begins(connection: Connection) -> bool:
    """Begins SQLAlchemy's transaction, as the caller's next statement would, and tells whether the driver followed."""
    if not connection.in_transaction():
        connection.begin()
    return bool(driver_of(connection).in_transaction)


def configure_sqlite(engine: Engine, *, busy_timeout: float = 30) -> Engine:
    """Configures a host's SQLite engine so that transactions and savepoints are what they seem; gives it back.

    The driver begins nothing by itself, SQLAlchemy's begin sends `BEGIN IMMEDIATE`, and a write waits `busy_timeout`
    seconds for another writer. Call it once, before the engine's first connection. For an `AsyncEngine` give its
    `sync_engine`. Raises `ValueError` for another database.
    """
    if engine.dialect.name != SQLITE:
        raise ValueError(f"configure_sqlite is for SQLite engines, not for {engine.dialect.name}")
    milliseconds = int(checked_busy_timeout(busy_timeout) * 1000)

    def on_connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    def on_begin(connection: Connection) -> None:
        with translated():
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "connect", pragmas(busy_timeout=milliseconds, foreign_keys="ON"))
    event.listen(engine, "begin", on_begin)
    return engine
