"""Waking those who wait: who ends a hold tells it, and the process of who waits for that lock hears it.

It is a hint and nothing rests on it: who is not woken asks again when its pause is over, as ever. So it is told outside
the transaction that ended the hold, by a thread with a connection of its own, one of each for a ledger in a process;
and what ends while one notification is under way goes into the next. In the append, NOTIFY would take a lock of the
whole server at each commit.
"""

import asyncio
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Protocol, cast
from uuid import UUID

import psycopg
from psycopg import sql
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.util import await_only

from lockledger.adapters.engines import Source

LONGEST_PAUSE: Final = 30.0
"""Seconds between two tries to connect, after a second at first."""
LONGEST_FAREWELL: Final = 2.0
"""Seconds that `close` waits for what is under way."""
MOST_UNTOLD: Final = 1000
"""Ends that are kept while there is no connection."""

_TELL: Final = "SELECT pg_notify(%s, lock) FROM pg_catalog.unnest(%s::text[]) AS lock"


class _Sleeper(Protocol):
    def sleep(self, seconds: float) -> None:
        """Sleeps so long, or until it is woken."""

    def wake(self) -> None:
        """Called by another thread."""


class _Thread:
    def __init__(self) -> None:
        self._woken = threading.Event()

    def sleep(self, seconds: float) -> None:
        self._woken.wait(seconds)

    def wake(self) -> None:
        self._woken.set()


class _Task:
    """Inside SQLAlchemy's greenlet, on a running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def sleep(self, seconds: float) -> None:
        await_only(self._within(seconds))

    async def _within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits there any more
            self._loop.call_soon_threadsafe(self._woken.set)


class Listener:
    """Tells and hears on PostgreSQL. Begins with the first end or wait, and anew in a forked process."""

    def __init__(self, source: Source, channel: str) -> None:
        self._source = source
        self._channel = channel
        self._set_up()

    def _set_up(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Sleeper]] = {}
        self._ended: set[str] = set()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._ears, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        self.hears = threading.Event()
        """Set while there is a connection that listens."""

    def tell(self, locks: Iterable[UUID]) -> None:
        """Holds of these locks have ended. Returns at once."""
        self._begin()
        with self._lock:
            if len(self._ended) < MOST_UNTOLD or self.hears.is_set():
                self._ended.update(map(str, locks))
        self._poke()

    def sleep(self, lock: UUID, seconds: float) -> None:
        """Sleeps so long, or until a hold of this lock has ended. Each end wakes one: who has slept here longest."""
        self._begin()
        sleeper: _Sleeper = _Task() if self._source.asynchronous else _Thread()
        with self._lock:
            self._waiting.setdefault(str(lock), deque()).append(sleeper)
        try:
            sleeper.sleep(seconds)
        finally:
            self._leave(str(lock), sleeper)

    def sleepers(self, lock: UUID) -> int:
        """How many sleep here until this lock's hold ends."""
        with self._lock:
            return len(self._waiting.get(str(lock), ()))

    def close(self) -> None:
        """Ends the thread and its connection."""
        if self._process == os.getpid() and self._thread is not None:
            self._closed.set()
            self._poke()
            self._thread.join(LONGEST_FAREWELL)
        self._ears.close()
        self._mouth.close()

    def _leave(self, lock: str, sleeper: _Sleeper) -> None:
        with self._lock:
            others = self._waiting.get(lock, deque())
            with suppress(ValueError):
                others.remove(sleeper)
            if not others:
                self._waiting.pop(lock, None)

    def _wake(self, lock: str) -> None:
        with self._lock:
            sleepers = self._waiting.get(lock)
            first = sleepers.popleft() if sleepers else None
        if first is not None:
            first.wake()

    def _begin(self) -> None:
        if self._process != os.getpid():
            self._set_up()  # thread, locks and connection are the parent's
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"lockledger listener {self._channel}", daemon=True
                )
                self._thread.start()

    def _poke(self) -> None:
        with suppress(OSError):  # poked often enough already, or closed
            self._mouth.send(b".")

    def _run(self) -> None:
        pause = 1.0
        while not self._closed.is_set():
            try:
                self._serve(self._connected())
            except (psycopg.Error, SQLAlchemyError, OSError, ValueError):
                pause = 1.0 if self.hears.is_set() else min(2 * pause, LONGEST_PAUSE)
                self.hears.clear()
                self._closed.wait(pause)

    def _serve(self, connection: "psycopg.Connection[Any]") -> None:
        with connection:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self.hears.set()
            awaited: list[Any] = [connection.fileno(), self._ears]
            while not self._closed.is_set():
                select.select(awaited, [], [])
                self._tell_all(connection)
                for heard in connection.notifies(timeout=0):
                    self._wake(heard.payload)

    def _tell_all(self, connection: "psycopg.Connection[Any]") -> None:
        """Tells all that has ended since the last time, in one statement."""
        while select.select([self._ears], [], [], 0)[0]:
            self._ears.recv(4096)
        with self._lock:
            ended, self._ended = self._ended, set()
        if ended:
            connection.execute(_TELL, (self._channel, list(ended)))

    def _connected(self) -> "psycopg.Connection[Any]":
        """A connection of its own, outside the pool."""
        engine = self._source.engine
        if self._source.asynchronous:  # its driver's connections belong to an event loop
            arguments, options = engine.dialect.create_connect_args(engine.url)
            return psycopg.connect(*arguments, **options, autocommit=True)
        pooled = engine.raw_connection()
        connection = cast("psycopg.Connection[Any]", pooled.dbapi_connection)
        pooled.detach()
        connection.rollback()
        connection.autocommit = True
        return connection
