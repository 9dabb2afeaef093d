"""A diagnosis of an SQLite file."""

import os
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection

from lockledger.adapters.findings import APPEND_ONLY, Finding, history_is_protected, value
from lockledger.adapters.statements import run


def of_database(connection: Connection) -> Iterator[Finding]:
    """The file, and how this connection uses it."""
    yield Finding("database", "ok", f"SQLite {value(connection, 'SELECT sqlite_version()')}")
    mode = str(value(connection, "PRAGMA journal_mode"))
    if mode == "wal":
        yield Finding("journal", "ok", "write-ahead logging")
    else:
        yield Finding(
            "journal",
            "warning",
            f"{mode}, so readers and writers wait for each other: run `lockledger migrate`",
        )
    levels = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
    level = int(value(connection, "PRAGMA synchronous"))
    wait = int(value(connection, "PRAGMA busy_timeout")) / 1000
    if level >= 2:
        yield Finding(
            "durability",
            "ok",
            f"synchronous {levels[level]}: each change is on the disk when it is answered",
        )
    else:
        yield Finding(
            "durability",
            "warning",
            f"synchronous {levels[level]}: a crash may take back what was answered",
        )
    yield Finding(
        "waiting",
        "ok" if wait else "warning",
        f"a write waits {wait:g} s for another connection's write",
    )
    database = str(connection.engine.url.database)
    if not database.startswith("file:"):
        yield _writable(Path(database))


def _writable(path: Path) -> Finding:
    """WAL makes its files beside the database, so the folder counts too."""
    missing = [str(each) for each in (path, path.absolute().parent) if not os.access(each, os.W_OK)]
    if missing:
        return Finding(
            "file",
            "warning",
            f"this user may not write {' and '.join(missing)}: nothing can be taken or released",
        )
    return Finding("file", "ok", f"{path.absolute()}, {path.stat().st_size} bytes, may be written")


def of_triggers(connection: Connection) -> Finding:
    """What protects history."""
    found = run(connection, "SELECT name FROM sqlite_master WHERE type = 'trigger'").scalars()
    wanted = {
        f"{table}_refuse_{what}"
        for table in APPEND_ONLY
        for what in ("update", "delete", "replace")
    }
    return history_is_protected(wanted, set(found))
