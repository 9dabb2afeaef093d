"""How an engine of ours opens SQLite, and how it keeps a database that is only in memory."""

import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from sqlalchemy import URL, Engine, event

_IN_MEMORY: Final = ("", ":memory:")


def in_memory(url: URL) -> bool:
    """Whether a database is gone with its connection: in memory, or in a file without a name."""
    database = url.database or ""
    if not database.startswith("file:"):
        return database in _IN_MEMORY
    path, _, asked = database.removeprefix("file:").partition("?")
    modes = (url.query.get("mode"), dict(parse_qsl(asked)).get("mode"))
    return path in _IN_MEMORY or "memory" in modes


def set_up(engine: Engine, url: URL, *, busy_timeout: float, synchronous: str) -> "InMemory | None":
    """Lets an engine of ours open what the URL names; answers with what keeps it when it is in memory."""
    arguments = _arguments(url, busy_timeout)
    memory = InMemory(engine, arguments) if in_memory(url) else None
    # SQLAlchemy goes on to open it with what a listener leaves in these, unless that one gives a connection.
    event.listen(engine, "do_connect", memory.connect if memory else _opening(arguments))
    event.listen(engine, "connect", pragmas(foreign_keys="ON", synchronous=synchronous))
    if engine.dialect.is_async:
        _await_no_more_than_needed(engine.dialect)
    return memory


class InMemory:
    """A database in memory, which is gone with its one connection: so that is kept, whatever the pool throws away.

    SQLAlchemy throws a connection away when what ran on it was cancelled or interrupted, as nobody knows then how far
    its driver came. Here the next call has the same one again, with that transaction rolled back.
    """

    def __init__(self, engine: Engine, arguments: dict[str, Any]) -> None:
        self._arguments = arguments | {"factory": _GivenOutAgain}
        self._connection: Any = None
        self._process = 0
        self._kept = True
        dialect: Any = engine.dialect
        for name in ("do_close", "do_terminate"):
            setattr(dialect, name, partial(self._closed, getattr(dialect, name)))

    def connect(self, dialect: Any, *_arguments: object) -> Any:
        """The one connection; a forked process begins with an empty database."""
        if self._process != os.getpid():
            self._connection = dialect.connect(**self._arguments)
            self._process = os.getpid()
        else:
            # Its driver does one thing after the other, so what a cancelled call left running is over then.
            self._connection.rollback()
        return self._connection

    def let_go(self) -> None:
        """From now on the connection is closed like any other."""
        self._kept = False

    def _closed(self, close: Callable[[Any], None], connection: Any) -> None:
        if not self._kept:
            close(connection)


class _GivenOutAgain(sqlite3.Connection):
    """A connection that SQLAlchemy sets up each time it is given one, although it has been set up before.

    SQLite makes no function anew while a statement is under way, and a cancelled call may have left one.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._has: set[str] = set()

    def create_function(
        self, name: str, narg: int, func: Any, *, deterministic: bool = False
    ) -> None:
        if name not in self._has:
            super().create_function(name, narg, func, deterministic=deterministic)
            self._has.add(name)


def _opening(arguments: dict[str, Any]) -> Callable[..., None]:
    def on_do_connect(_dialect: Any, _record: Any, args: list[Any], named: dict[str, Any]) -> None:
        args.clear()
        named.clear()
        named.update(arguments)

    return on_do_connect


def _arguments(url: URL, busy_timeout: float) -> dict[str, Any]:
    """Opens the file only if it is there: a mistyped path must not leave an empty database behind."""
    database = url.database or ""
    if database in _IN_MEMORY:
        target = ":memory:"
    elif database.startswith("file:"):
        # As SQLAlchemy has it: what is not its own belongs to SQLite's URI, `mode=ro` say.
        given = {name: value for name, value in url.query.items() if name != "uri"}
        target = f"{database}?{urlencode(given, doseq=True)}" if given else database
    else:
        target = f"file:{quote(str(Path(database).absolute()))}?mode=rw"
    return {
        "database": target,
        "timeout": busy_timeout,
        "uri": target.startswith("file:"),
        "check_same_thread": False,
        "isolation_level": None,
    }


def pragmas(**settings: object) -> Callable[[Any, object], None]:
    """A listener that makes these settings on each new SQLite connection, whichever driver it is of."""

    def on_connect(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for name, value in settings.items():
            cursor.execute(f"PRAGMA {name} = {value}")
        cursor.close()

    return on_connect


def _await_no_more_than_needed(dialect: Any) -> None:
    """Lets aiosqlite end no transaction that is over: it would wait for the driver's thread after every call, and a
    cancellation there costs the connection.
    """
    for name in ("do_commit", "do_rollback"):
        setattr(dialect, name, partial(_ended, getattr(dialect, name)))


def _ended(end: Callable[[Any], None], connection: Any) -> None:
    if connection.driver_connection.in_transaction:
        end(connection)
