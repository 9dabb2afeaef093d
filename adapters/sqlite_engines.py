"""How an engine of ours opens SQLite, and how it keeps a database that is only in memory."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode
from weakref import WeakSet

from sqlalchemy import URL, Engine, event

from lockledger.adapters.turns import Turns, turns_called

_IN_MEMORY: Final = ("", ":memory:")


def in_memory(url: URL) -> bool:
    """Whether a database is gone with its connection: in memory, or in a file without a name."""
    database = url.database or ""
    if not database.startswith("file:"):
        return database in _IN_MEMORY
    path, _, asked = database.removeprefix("file:").partition("?")
    given = parse_qsl(asked) + [
        (name, each) for name, all_of_it in url.normalized_query.items() for each in all_of_it
    ]
    return path in _IN_MEMORY or ("mode", "memory") in given or ("vfs", "memdb") in given


def set_up(engine: Engine, url: URL, *, busy_timeout: float, synchronous: str) -> "InMemory | None":
    """Lets an engine of ours open what the URL names; answers with what keeps it when it is in memory."""
    arguments = _arguments(url, busy_timeout)
    memory = InMemory(engine, arguments) if in_memory(url) else None
    # SQLAlchemy goes on to open it with what a listener leaves in these, unless that one gives a connection.
    event.listen(engine, "do_connect", memory.connect if memory else _opening(arguments))
    event.listen(engine, "connect", pragmas(foreign_keys="ON", synchronous=synchronous))
    if engine.dialect.is_async:
        _await_no_more_than_needed(engine.dialect)
    elif memory is None:
        _roll_back_before_closing(engine.dialect)
    return memory


class InMemory:
    """A database in memory, which is gone with its one connection: so that is kept, whatever the pool throws away.

    SQLAlchemy throws a connection away when what ran on it was cancelled or interrupted, as nobody knows then how far
    its driver came. Here the next call has the same one again, with that transaction rolled back.
    """

    def __init__(self, engine: Engine, arguments: dict[str, Any]) -> None:
        self._arguments = arguments | {"factory": _GivenOutAgain}
        self._connection: Any = None
        self._turns = Turns()
        self._process = 0
        dialect: Any = engine.dialect
        dialect.do_close = dialect.do_terminate = _keep

    @property
    def turns(self) -> Turns:
        """Its calls take turns, with those of all connections of this process that share it by a name."""
        self._begin_in_this_process()
        return self._turns

    def connect(self, dialect: Any, *_arguments: object) -> Any:
        """The one connection, with nothing open; a forked process begins with one of its own."""
        self._begin_in_this_process()
        if self._connection is None:
            self._connection = dialect.connect(**self._arguments)
        else:
            # Its driver does one thing after the other, so what a cancelled call left running is over then.
            self._connection.rollback()
        return self._connection

    def close(self) -> None:
        """Closes the connection, and so ends the database where nobody shares it."""
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
            self._connection = None

    def _begin_in_this_process(self) -> None:
        if self._process != os.getpid():
            name = self._arguments["database"]
            shared = "cache=shared" in name or "vfs=memdb" in name
            self._turns = turns_called(name) if shared else Turns()
            self._connection = None
            self._process = os.getpid()


def _keep(_connection: object) -> None:
    """What a pool may do with the one connection that there is."""


class _GivenOutAgain(sqlite3.Connection):
    """A connection that is given out again after a call that was cancelled or interrupted.

    Such a call may have left a statement under way, in a cursor that waits for its collection. While it is, SQLite
    commits nothing, and makes no function anew, which SQLAlchemy asks for each time it is given a connection.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, *args: Any, **named: Any) -> Any:
        made = super().cursor(*args, **named)
        self._cursors.add(made)
        return made

    def rollback(self) -> None:
        for cursor in list(self._cursors):
            cursor.close()
        super().rollback()


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
        target = f"file:{quote(os.fsencode(Path(database).absolute()))}?mode=rw"
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


def _roll_back_before_closing(dialect: Any) -> None:
    """Lets go of the file's lock with a connection that is closed while an interruption still has a cursor of it."""
    for name in ("do_close", "do_terminate"):
        setattr(dialect, name, partial(_rolled_back, getattr(dialect, name)))


def _rolled_back(close: Callable[[Any], None], connection: Any) -> None:
    with suppress(sqlite3.Error):
        connection.rollback()
    close(connection)


def _await_no_more_than_needed(dialect: Any) -> None:
    """Lets aiosqlite end no transaction that is over: it would wait for the driver's thread after every call, and a
    cancellation there costs the connection.
    """
    for name in ("do_commit", "do_rollback"):
        setattr(dialect, name, partial(_ended, getattr(dialect, name)))


def _ended(end: Callable[[Any], None], connection: Any) -> None:
    if connection.driver_connection.in_transaction:
        end(connection)
