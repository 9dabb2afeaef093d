"""The process that is killed between two writes: what it writes to the database and to files is counted."""

from __future__ import annotations

import io
import os
import re
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import create_engine

import lockledger.importing
import lockledger.ledger
import lockledger.replaying
from lockledger import LockLedger, configure_sqlite
from support.crashes import OPERATIONS, Place
from support.killed import Steps, Stopped, decide_at_leisure, run_and_kill

ANSWER = "the answer"
"""What comes after the last write."""
AT_ONCE = 2
"""Locks in a batch of the process that is killed, so that three make two."""


def kill_after(operation: str, place: Place, writes: int | None) -> Stopped:
    """Kills the operation once it has done so many writes, `None`: all, and before it can tell of it."""
    stopped = run_and_kill(_work, operation, place, writes)
    assert stopped is not None
    return stopped


def _work(operation: str, place: Place, writes: int | None, pipe: Pipe) -> None:
    lockledger.ledger.BATCH = AT_ONCE
    for module, name in (
        (lockledger.importing, "LOCKS_IN_A_BATCH"),
        (lockledger.replaying, "EVENTS_AT_ONCE"),
    ):
        assert hasattr(module, name)
        setattr(module, name, AT_ONCE)
    engine = create_engine(place.url)
    if engine.dialect.name == "sqlite":
        configure_sqlite(engine)
    decide_at_leisure()
    steps = Steps(-1 if writes is None else writes + 1, pipe)
    shown = _Writes(many=OPERATIONS[operation].many)
    steps.count_database(shown)
    _count_copies(steps, shown)
    _count_files(steps, place.file.parent)
    OPERATIONS[operation].call(LockLedger(engine), place)
    steps.stand_still(ANSWER)


class _Writes:
    """What a statement is called in the table; `None` when it writes nothing."""

    _named = re.compile(
        r"(INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|COPY) .*?\"?(?:(lockledger|own)_(\w+))",
        re.IGNORECASE,
    )

    def __init__(self, *, many: bool) -> None:
        self._many = many
        self._written: set[int] = set()

    def __call__(self, statement: str, connection: Any) -> str | None:
        said = self._shown(statement)
        if said not in ("commit", "rollback"):
            if said is not None:
                self._written.add(id(connection))
            return said
        written = id(connection) in self._written
        self._written.discard(id(connection))
        return said if written and said == "commit" else None

    def _shown(self, statement: str) -> str | None:
        if statement.upper() in ("COMMIT", "ROLLBACK"):
            return statement.lower()
        if statement.startswith("WITH ") and "INSERT INTO" in statement:
            return "append"
        if statement == "PRAGMA journal_mode = WAL":
            return statement
        found = self._named.match(statement)
        if found is None:
            return None
        verb, prefix, table = found.groups()
        if verb.upper() in ("CREATE", "DROP", "ALTER"):
            return "DDL"
        if self._many and verb.upper() in ("INSERT", "UPDATE"):
            return f"rows of {prefix}_…"
        return f"{verb.upper()} {prefix}_{table}"


def _count_copies(steps: Steps, shown: _Writes) -> None:
    original = psycopg.Cursor.copy

    def copy(cursor: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
        said = shown(str(statement), cursor.connection) or "COPY"
        return steps.take(said, lambda: original(cursor, statement, *arguments, **options))

    psycopg.Cursor.copy = copy  # type: ignore[assignment, method-assign]


def _count_files(steps: Steps, folder: Path) -> None:
    """Counts what is done to files in a folder."""
    open_file, fsync = io.open, os.fsync

    def opened(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) <= set("rbt") or Path(str(path)).parent != folder:
            return open_file(path, mode, *arguments, **options)
        return _File(
            steps, steps.take("open", lambda: open_file(path, mode, *arguments, **options))
        )

    def counted(name: str) -> None:
        original = getattr(os, name)

        def stop_or_do(path: Any, *arguments: Any, **options: Any) -> Any:
            if Path(str(path)).parent != folder or (name == "unlink" and not Path(path).exists()):
                return original(path, *arguments, **options)
            return steps.take(name, lambda: original(path, *arguments, **options))

        setattr(os, name, stop_or_do)

    io.open = opened  # type: ignore[assignment]
    setattr(os, "fsync", lambda number: steps.take("fsync", lambda: fsync(number)))  # noqa: B010
    for name in ("link", "replace", "rename", "unlink"):
        counted(name)


class _File:
    """A file whose writes and flushes are counted."""

    def __init__(self, steps: Steps, file: Any) -> None:
        self._steps = steps
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._steps.take("close", self._file.close)

    def write(self, data: Any) -> Any:
        return self._steps.take("write", lambda: self._file.write(data))

    def flush(self) -> None:
        self._steps.take("flush", self._file.flush)
