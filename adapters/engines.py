"""Engines: the ledger's own, made from a URL, and a host's, used as it is and left as it was."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, QueuePool, StaticPool
from sqlalchemy.util import await_only

from lockledger.adapters.characters import CLIENT_ENCODING
from lockledger.adapters.failures import translated
from lockledger.adapters.identifiers import POSTGRESQL, SQLITE
from lockledger.adapters.schema import SCHEMA_VERSION
from lockledger.adapters.sqlite_engines import InMemory, in_memory, set_up
from lockledger.adapters.statements import OWN
from lockledger.adapters.turns import Call, shared_driver, turns_on
from lockledger.domain.errors import ConcurrencyConflict, SchemaMismatch, shown

DRIVERS: Final = {POSTGRESQL: "psycopg", SQLITE: "pysqlite"}
ASYNC_DRIVERS: Final = {POSTGRESQL: "psycopg", SQLITE: "aiosqlite"}
OLDEST_SQLITE: Final = (3, 25, 0)
_PAUSE: Final = 0.001
"""Seconds between two looks whether it is a call's turn."""


class Source:
    """Where connections come from: a URL, for which it makes and owns an engine, or a host's engine.

    Every connection it gives is in AUTOCOMMIT, so that each statement is its own transaction until one is begun.
    `asynchronous`: the driver waits by awaiting, so whoever uses the source runs inside SQLAlchemy's greenlet.
    """

    def __init__(
        self,
        url_or_engine: str | URL | Engine | AsyncEngine,
        *,
        busy_timeout: float,
        synchronous: str = "FULL",
        asynchronous: bool = False,
    ) -> None:
        self.busy_timeout = busy_timeout
        self.asynchronous = asynchronous
        self.owned = isinstance(url_or_engine, str | URL)
        if isinstance(url_or_engine, str | URL):
            url = checked_url(url_or_engine, asynchronous=asynchronous)
            with _driver_wanted():
                self._engine, self._memory = _own_engine(
                    url, busy_timeout, synchronous, asynchronous
                )
        else:
            self._engine, self._memory = _host_engine(url_or_engine, asynchronous), None
        _refuse_old_sqlite(self._engine)
        self._deaf: Engine | None = None
        self._process = os.getpid()
        self._closed = False
        self._file = self._file_of_ours()

    @property
    def engine(self) -> Engine:
        """The engine, with nothing in its pool that a process shares with the one it was forked from."""
        if os.getpid() != self._process:
            # Sockets shared with the parent would mix two conversations: leave them to the parent, open new ones.
            self._engine.dispose(close=False)
            self._process = os.getpid()
        return self._engine

    @property
    def dialect(self) -> str:
        """`postgresql` or `sqlite`."""
        return self.engine.dialect.name

    @contextmanager
    def connect(self, *, busy_timeout: float | None = None) -> Iterator[Connection]:
        """A connection in AUTOCOMMIT, given back at the end with nothing left open.

        `busy_timeout`: fewer seconds than the source's own to wait for SQLite's write lock in this call.
        """
        seconds = (
            self.busy_timeout if busy_timeout is None else min(self.busy_timeout, busy_timeout)
        )
        with self.turn(seconds), self._opened() as connection:
            if not self.owned:
                with _lent(connection, seconds):
                    yield connection
            elif busy_timeout is not None and self.dialect == SQLITE:
                with _patient(connection, seconds):
                    yield connection
            else:
                yield connection

    def turn(self, seconds: float | None = None) -> AbstractContextManager[None]:
        """A call's turn on a connection that is everybody's, waited for so many seconds; else nothing."""
        if self.dialect != SQLITE or (self.owned and self._memory is None):
            return nullcontext()
        return self._turn(self.busy_timeout if seconds is None else seconds)

    @contextmanager
    def _turn(self, seconds: float) -> Iterator[None]:
        turns = self._memory.turns if self._memory else turns_on(self.engine.pool)
        call, ends = Call(), time.monotonic() + seconds
        try:
            while not (turns is None or turns.had(call)) or self._is_in_a_transaction():
                if time.monotonic() >= ends:
                    raise ConcurrencyConflict(
                        "the one connection to the database in memory was in use for longer than the busy timeout",
                        remedy="ask nothing of the ledger while it calls you, call through using(…) inside a"
                        " transaction, or use a file",
                    )
                self.sleep(_PAUSE)
            if self._closed:
                raise RuntimeError("the ledger was closed meanwhile; open a new LockLedger")
            yield
        finally:
            if turns is not None and turns.is_of(call):
                if self._closed and self._memory:
                    self._end(self._memory)
                turns.end()

    def _is_in_a_transaction(self) -> bool:
        """Whether the connection that a host's pool would give is in a transaction of the host's."""
        if self.owned:
            return False
        driver = shared_driver(self.engine.pool)
        return driver is not None and bool(driver.in_transaction)

    def sleep(self, seconds: float) -> None:
        """Waits without a connection: the thread, or in an asynchronous source the task alone."""
        if self.asynchronous:
            await_only(asyncio.sleep(seconds))
        else:
            time.sleep(seconds)

    def create_missing_file(self) -> None:
        """Makes an empty SQLite file where there is none, so that it can be migrated."""
        if self._file is not None and not self._file.exists():
            try:
                sqlite3.connect(self._file).close()
            except sqlite3.OperationalError as error:
                error.add_note(f"the ledger's file is {self._file}; make its folder first")
                raise

    def _file_of_ours(self) -> Path | None:
        """The SQLite file of an engine of ours, when a path names it, from where the program is now."""
        database = str(self._engine.url.database)
        if not self.owned or self.dialect != SQLITE or self._memory or database.startswith("file:"):
            return None
        return Path(database).absolute()

    @contextmanager
    def _opened(self) -> Iterator[Connection]:
        try:
            connection = self._listened.connect()
        except OperationalError as error:
            if self._file is not None and not self._file.exists():
                raise SchemaMismatch(None, SCHEMA_VERSION).noted(
                    f"there is no file {self._file}"
                ) from error
            with translated():
                raise
        with connection:
            try:
                yield connection
            finally:
                if self._closed and self.owned and not connection.invalidated:
                    connection.invalidate()  # its pool is gone, and would leave it open

    @property
    def _listened(self) -> Engine:
        """The engine whose listeners hear what is done here: the host's own, but for its SQLite engine."""
        if self.owned or self.dialect != SQLITE:
            return self.engine
        # There a listener may send BEGIN wherever SQLAlchemy begins, so that savepoints work, and then no statement
        # would be its own transaction. A disposed engine has another pool.
        if self._deaf is None or self._deaf.pool is not self.engine.pool:
            engine = self.engine
            self._deaf = Engine(
                engine.pool,
                engine.dialect,
                engine.url,
                logging_name=engine.logging_name,
                echo=engine.echo,
                hide_parameters=engine.hide_parameters,
            )
        return self._deaf

    def close(self) -> None:
        """Closes what was opened here; a host's engine is the host's."""
        if not self.owned:
            return
        self._closed = True
        if self._memory is None:
            self.engine.dispose()
            return
        turns, call = self._memory.turns, Call()
        if turns.had(call):  # else the call that has its turn ends it
            self._end(self._memory)
            turns.end()

    def _end(self, memory: InMemory) -> None:
        self.engine.dispose()
        memory.close()


def checked_url(url: str | URL, *, asynchronous: bool = False) -> URL:
    """The URL with the driver that lockledger speaks to.

    Raises `ValueError` for another database or driver and for what is no URL. It never shows what could be a password.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(
            f"the database's URL cannot be read; {_FORM}, with special characters of the password as %40"
        ) from None
    if "@" in (parsed.host or ""):
        raise ValueError("the database's URL has two @; write the one in the password as %40")
    dialect, _, driver = parsed.drivername.partition("+")
    dialect = POSTGRESQL if dialect == "postgres" else dialect
    wanted = _drivers(asynchronous).get(dialect, "")
    refuse_other_drivers(dialect, driver or wanted, asynchronous=asynchronous)
    return parsed.set(drivername=f"{dialect}+{wanted}")


_FORM: Final = "write postgresql+psycopg://user@host/database or sqlite:///file.db"


def _drivers(asynchronous: bool) -> dict[str, str]:
    return ASYNC_DRIVERS if asynchronous else DRIVERS


def refuse_other_drivers(dialect: str, driver: str, *, asynchronous: bool = False) -> None:
    """Raises `ValueError` unless it is PostgreSQL through psycopg, or SQLite through sqlite3 or aiosqlite."""
    if driver.removesuffix("_async") != _drivers(asynchronous).get(dialect):
        sqlite = "aiosqlite" if asynchronous else "sqlite3"
        raise ValueError(
            f"lockledger speaks to PostgreSQL through psycopg and to SQLite through {sqlite} here, not to {dialect}"
            f" through {driver or 'its driver'}; use postgresql+psycopg://… or"
            f" sqlite{'+aiosqlite' if asynchronous else ''}:///…"
        )


def _host_engine(engine: object, asynchronous: bool) -> Engine:
    wanted = "AsyncLockLedger" if isinstance(engine, AsyncEngine) else "LockLedger"
    if isinstance(engine, AsyncEngine) and asynchronous:
        found = engine.sync_engine
    elif isinstance(engine, Engine) and not asynchronous:
        found = engine
    elif isinstance(engine, Engine | AsyncEngine):
        raise TypeError(f"this is a {type(engine).__name__}: give it to a {wanted}")
    else:
        # By its type alone: it may be a URL, with its password, as bytes.
        raise TypeError(
            f"a ledger wants a database URL or a SQLAlchemy engine, not a {type(engine).__name__}; {_FORM}"
        )
    refuse_other_drivers(found.dialect.name, found.dialect.driver, asynchronous=asynchronous)
    return found


def _refuse_old_sqlite(engine: Engine) -> None:
    """Raises `ValueError` where the SQLite library that the driver was built with is too old."""
    if engine.dialect.name != SQLITE:
        return
    found = getattr(engine.dialect.loaded_dbapi, "sqlite_version_info", OLDEST_SQLITE)
    if found < OLDEST_SQLITE:
        version, oldest = (".".join(map(str, each)) for each in (found, OLDEST_SQLITE))
        raise ValueError(
            f"SQLite {version} is too old: lockledger needs {oldest} or newer; use a Python that comes with it"
        )


@contextmanager
def _lent(connection: Connection, busy_timeout: float) -> Iterator[None]:
    """A host's connection in AUTOCOMMIT for the length of one call, and given back as it was.

    In the driver and not by SQLAlchemy's isolation level, which it would set to a default of its own afterwards.
    """
    driver: Any = connection.connection.dbapi_connection
    sqlite = connection.dialect.name == SQLITE
    # sqlite3 has this attribute since Python 3.12, and it is no bool where isolation_level counts instead.
    by_level = sqlite and not isinstance(getattr(driver, "autocommit", None), bool)
    name, alone = ("isolation_level", None) if by_level else ("autocommit", True)
    before = getattr(driver, name)
    try:
        # Inside, since an async driver may set it although the call is cancelled meanwhile.
        if before != alone:
            setattr(driver, name, alone)
        with _patient(connection, busy_timeout) if sqlite else nullcontext():
            yield
    finally:
        if not connection.invalidated:
            connection.rollback()
            if before != alone:
                setattr(driver, name, before)


@contextmanager
def _patient(connection: Connection, busy_timeout: float) -> Iterator[None]:
    """A busy timeout on a SQLite connection for the length of one call."""
    # It answers with the new value. A cursor left open would be reset when it is collected, which may be while the
    # connection waits for a lock in another thread: then SQLite lets the collecting one, an event loop's, wait too.
    before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
    try:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(busy_timeout * 1000)}").close()
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}").close()


def checked_busy_timeout(busy_timeout: float | timedelta) -> float:
    """Seconds a call waits for SQLite's write lock: 0 up to a day. Raises `ValueError` or `TypeError`."""
    seconds = busy_timeout.total_seconds() if isinstance(busy_timeout, timedelta) else busy_timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"busy_timeout is seconds or a timedelta, not {shown(busy_timeout)}")
    if not 0 <= seconds <= 86_400:
        raise ValueError(f"busy_timeout={shown(busy_timeout)}: give 0 to 86,400 seconds")
    return float(seconds)


def _own_engine(
    url: URL, busy_timeout: float, synchronous: str, asynchronous: bool
) -> tuple[Engine, InMemory | None]:
    options: dict[str, Any] = {
        "isolation_level": "AUTOCOMMIT",
        # Reasons and metadata are in the parameters, and errors in the host's log.
        "hide_parameters": True,
        "execution_options": {OWN: True},
    }
    if url.get_backend_name() == POSTGRESQL:
        options["connect_args"] = arguments = dict[str, Any]()
        if CLIENT_ENCODING not in url.query:  # else the environment's counts
            arguments[CLIENT_ENCODING] = "utf8"
        if _THRESHOLD in url.query:
            arguments[_THRESHOLD] = _threshold(url.query[_THRESHOLD])
            url = url.difference_update_query([_THRESHOLD])
    if url.get_backend_name() == SQLITE:
        queue = AsyncAdaptedQueuePool if asynchronous else QueuePool
        # The data lives in the one connection, so callers take turns.
        options["poolclass"] = StaticPool if in_memory(url) else queue
    engine = (
        create_async_engine(url, **options).sync_engine
        if asynchronous
        else create_engine(url, **options)
    )
    if url.get_backend_name() != SQLITE:
        return engine, None
    return engine, set_up(engine, url, busy_timeout=busy_timeout, synchronous=synchronous)


_THRESHOLD: Final = "prepare_threshold"


def _threshold(given: object) -> int | None:
    """After how many runs psycopg prepares a statement on the server; `None`: never, as some poolers need it."""
    if given == "none":
        return None
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 6:
        return int(given)
    raise ValueError(
        f"{_THRESHOLD}={shown(given)} in the database's URL: give a whole number of runs below 1,000,000, or none"
    )


@contextmanager
def _driver_wanted() -> Iterator[None]:
    """Says what to install where SQLAlchemy cannot import the driver."""
    try:
        yield
    except ImportError as missing:
        if missing.name == "aiosqlite":
            raise ModuleNotFoundError(
                "SQLite under asyncio needs aiosqlite: pip install 'lockledger[sqlite-async]'",
                name=missing.name,
            ) from missing
        if (missing.name or "psycopg").startswith(
            "psycopg"
        ):  # it has no name where libpq is missing
            missing.add_note("pip install 'psycopg[binary]', or install the system's libpq")
        raise
