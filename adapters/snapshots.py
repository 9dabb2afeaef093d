"""One moment of the whole database, held for as long as it is read; nothing is locked and nobody waits for it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection

from lockledger.adapters.identifiers import SQLITE
from lockledger.adapters.statements import run

# Instants are read as text, so that one which no calendar has is only a text that differs.
_POSTGRESQL = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "SET LOCAL TimeZone = 'UTC'",
    "SET LOCAL DateStyle = 'ISO, MDY'",
)


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """A read-only transaction on a connection in AUTOCOMMIT, in which every statement sees the same moment.

    On PostgreSQL instants cast to text are in UTC and ISO 8601; on SQLite text that is no UTF-8 is read all the same.
    """
    with any_text(connection):
        if not connection.in_transaction():
            connection.begin()  # so that its rollback() reaches the driver
        try:
            for statement in ("BEGIN",) if connection.dialect.name == SQLITE else _POSTGRESQL:
                run(connection, statement)
            yield
        finally:
            if not connection.invalidated:
                _end(connection)


def _end(connection: Connection) -> None:
    if connection.dialect.name == SQLITE:
        driver: Any = connection.connection.driver_connection
        if driver.in_transaction:
            run(connection, "ROLLBACK")
    connection.rollback()


@contextmanager
def any_text(connection: Connection) -> Iterator[None]:
    """Inside, SQLite gives text that is no UTF-8 too, as text that differs from any other; nothing on PostgreSQL."""
    if connection.dialect.name != SQLITE:
        yield
        return
    driver: Any = connection.connection.driver_connection
    before = driver.text_factory
    driver.text_factory = _readable
    try:
        yield
    finally:
        with suppress(ValueError):  # of an async driver whose connection was thrown away
            driver.text_factory = before


def _readable(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")
