"""What went wrong, as one line with its remedy, and as an exit code."""

import sqlite3
from typing import Final

DONE: Final = 0
REFUSED: Final = 1
BAD_INPUT: Final = 2
TAMPERED: Final = 3
DATABASE: Final = 4
FAULT: Final = 70
"""A fault of lockledger itself, with a traceback; never taken for a refusal."""
UNWRITTEN: Final = 74
"""Standard output did not take the answer."""
INTERRUPTED: Final = 130


class BadInput(ValueError):
    """What the user gave cannot be used; says why, and what to give instead."""


class Unwritten(Exception):
    """The answer could not be written; says whether there was more to do than to print it."""


def exit_code(error: BaseException) -> int:
    """The contract's code for an error."""
    from sqlalchemy.exc import SQLAlchemyError

    from lockledger.domain import errors

    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, Unwritten):
        return UNWRITTEN
    if isinstance(
        error, errors.LockedByOther | errors.HoldChanged | errors.NotHolding | errors.NotLockable
    ):
        return REFUSED
    if isinstance(error, errors.TamperedLedger):
        return TAMPERED
    if isinstance(
        error, errors.SchemaMismatch | errors.ConcurrencyConflict | errors.OutcomeUnknown
    ):
        return DATABASE
    if isinstance(error, SQLAlchemyError | sqlite3.Error) or _is_driver_error(error):
        return DATABASE
    return BAD_INPUT if isinstance(error, ValueError | OSError) else FAULT


def sentence(error: BaseException) -> str:
    """What happened and what to do about it, on one line and without anybody's password."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    if isinstance(error, KeyboardInterrupt):
        text = "interrupted"
    elif isinstance(error, DBAPIError):
        text = _database_sentence(error.orig or error)
    elif isinstance(error, SQLAlchemyError | sqlite3.Error) or _is_driver_error(error):
        text = _database_sentence(error)
    elif isinstance(error, OSError):
        text = f"{error.filename or 'input or output'}: {error.strerror or error}"
    else:
        text = str(error)
    notes = getattr(error, "__notes__", ())
    return "; ".join(" ".join(part.split()) for part in (text, *notes) if part)


def _is_driver_error(error: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] == "psycopg" for kind in type(error).__mro__) or (
        isinstance(error, ImportError) and "psycopg" in str(error)
    )


def _database_sentence(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return f"PostgreSQL's driver cannot be loaded: {error}; {_DRIVER}"
    sqlite_code, state = getattr(error, "sqlite_errorcode", None), getattr(error, "sqlstate", None)
    if sqlite_code is not None:
        remedy = _SQLITE.get(sqlite_code & 0xFF)
    else:
        remedy = _UNREACHED if state is None else _POSTGRESQL.get(state)
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    text = primary or str(error) or type(error).__name__
    return text if remedy is None else f"{text}; {remedy}"


_UNREACHED = "check --database or LOCKLEDGER_DATABASE, and that the server runs and lets you in"
_DRIVER = "pip install 'psycopg[binary]', or install the system's libpq"
_POSTGRESQL = {
    "25006": "connect to a server that may be written to",
    "28000": _UNREACHED,
    "28P01": _UNREACHED,
    "3D000": "make the database, or name another with --database",
    "42501": "grant the role what docs/reference/schema.md lists, or use a role that has it",
    "53300": "close other connections, or run it again later",
    "57P03": "run it again when the server has started",
}
_SQLITE = {
    sqlite3.SQLITE_NOTADB: "name a file that is an SQLite database, or one that does not exist yet",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable, or name another file",
    sqlite3.SQLITE_CANTOPEN: "check that the folder exists and that file and folder may be read and written",
    sqlite3.SQLITE_PERM: "make the file and its folder writable, or name another file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup",
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_IOERR: "look for faults of the disk or the file system",
}
