"""Database errors, recognised by SQLSTATE or SQLite's error code, in this one place; unknown ones pass as themselves."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DataError, DBAPIError, OperationalError

from lockledger.adapters.schema import POSITION_SEQUENCE, TABLES
from lockledger.domain.errors import (
    ConcurrencyConflict,
    LockLedgerError,
    OutcomeUnknown,
    TamperedLedger,
)

SERIALIZATION_FAILURE = "40001"
LOCK_NOT_AVAILABLE = "55P03"
NOT_PERMITTED = "42501"
UNIQUE_VIOLATION = "23505"
UNREADABLE_TEXT = "22P02"
_READ_ONLY = "25006"
_UNDEFINED_TABLE = "42P01"
_NAME = re.compile(r"(?<!\w)lockledger_\w+")
_MAY_NOT_WRITE = (
    "nothing was changed: here the database may only be read, and a ledger writes; lead it to a server, a transaction,"
    " a role or a file that takes writes"
)
_OURS = frozenset((*TABLES, POSITION_SEQUENCE))
_IS_GONE = (
    "{} has gone since this ledger looked: see that it is on the right database; `lockledger doctor` tells what is"
    " missing"
)
_LOST_TRANSACTION = {
    SERIALIZATION_FAILURE: "the database could not serialize the transaction with another one",
    "40P01": "the transaction was part of a deadlock",
    LOCK_NOT_AVAILABLE: "a lock was not to be had within the lock timeout",
}


def sqlstate(error: BaseException | None) -> str | None:
    """PostgreSQL's five-character code of an error or of its cause."""
    driver = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(driver, "sqlstate", None)
    return state if isinstance(state, str) else None


def sqlite_code(error: DBAPIError) -> int | None:
    """SQLite's extended error code."""
    return getattr(error.orig, "sqlite_errorcode", None)


def is_busy(error: DBAPIError) -> bool:
    """Whether SQLite gave up on a lock that another connection holds."""
    code = sqlite_code(error)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_lost_connection(error: BaseException) -> bool:
    """Whether the connection went away under a call, which may have been carried out or not."""
    return isinstance(error, OutcomeUnknown) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )


@contextmanager
def translated(*, key: str | None = None, commits: bool = False) -> Iterator[None]:
    """Turns the database's verdicts into ours.

    `commits`: the statement inside commits by itself, so that a connection lost during it leaves the outcome unknown.
    """
    try:
        yield
    except DBAPIError as error:
        if what := _LOST_TRANSACTION.get(sqlstate(error) or ""):
            raise ConcurrencyConflict(what, key=key) from error
        code = sqlite_code(error)
        if is_busy(error):
            raise _busy(code, key) from error
        if commits and (error.connection_invalidated or _torn_commit(code)):
            raise OutcomeUnknown(key=key) from error
        remedy = _remedy(error)
        if remedy is not None and remedy not in getattr(error, "__notes__", ()):
            error.add_note(remedy)
        raise


def _remedy(error: DBAPIError) -> str | None:
    """What to do about an error of the database's that stays what it is."""
    state, told = sqlstate(error), str(error.orig)
    if state == _READ_ONLY or (sqlite_code(error) or 0) & 0xFF == sqlite3.SQLITE_READONLY:
        return _MAY_NOT_WRITE
    if state == _UNDEFINED_TABLE:
        told = getattr(getattr(error.orig, "diag", None), "message_primary", None) or ""
    elif not told.startswith("no such table: "):
        return None
    named = _NAME.search(told)
    return _IS_GONE.format(named[0]) if named and named[0] in _OURS else None


@contextmanager
def readable(*, key: str | None = None) -> Iterator[None]:
    """Turns a row that cannot be read, since the ledger never wrote it so, into `TamperedLedger`."""
    try:
        yield
    except DBAPIError as fault:
        if not _is_the_drivers(fault):
            raise
        raise TamperedLedger(key, _UNREADABLE) from fault
    except LockLedgerError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise TamperedLedger(key, _UNREADABLE) from fault


def _is_the_drivers(fault: DBAPIError) -> bool:
    """Whether not the database but its driver failed, on a value that it cannot read."""
    if isinstance(fault, DataError):
        return sqlstate(fault) is None  # an `infinity`, say
    # SQLite's, on a text that is none.
    return isinstance(fault, OperationalError) and str(fault.orig).startswith(
        "Could not decode to UTF-8"
    )


_UNREADABLE = "a row of its tables holds a value that cannot be read"


def _busy(code: int | None, key: str | None) -> ConcurrencyConflict:
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return ConcurrencyConflict(
            "another connection wrote after this transaction had begun to read",
            key=key,
            remedy="begin the transaction with BEGIN IMMEDIATE and run it again",
        )
    return ConcurrencyConflict(
        "another connection kept the SQLite file locked for longer than the busy timeout",
        key=key,
        remedy="run it again, with a longer busy_timeout or shorter transactions elsewhere",
    )


def _torn_commit(code: int | None) -> bool:
    """An input or output error while SQLite commits does not tell whether the commit reached the disk."""
    return code is not None and code & 0xFF == sqlite3.SQLITE_IOERR
