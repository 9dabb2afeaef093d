"""Engines: the ledger's own, made from a URL, and a host's, used as it is and left as it was."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import QueuePool

from lockledger.adapters.identifiers import POSTGRESQL, SQLITE
from lockledger.adapters.schema import SCHEMA_VERSION
from lockledger.domain.errors import SchemaMismatch

DRIVERS: Final = {POSTGRESQL: "psycopg", SQLITE: "pysqlite"}
_MEMORY = (None, "", ":memory:")


class Source:
    """Where connections come from: a URL, for which it makes and owns an engine, or a host's engine.

    Every connection it gives is in AUTOCOMMIT, so that each statement is its own transaction until one is begun.
    """

    def __init__(
        self, url_or_engine: str | URL | Engine, *, busy_timeout: float, synchronous: str = "FULL"
    ) -> None:
        self.owned = not isinstance(url_or_engine, Engine)
        self.busy_timeout = busy_timeout
        if isinstance(url_or_engine, Engine):
            self.engine = url_or_engine
            refuse_other_drivers(self.engine.dialect.name, self.engine.dialect.driver)
            self._autocommit: Engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        else:
            self.engine = _own_engine(checked_url(url_or_engine), busy_timeout, synchronous)
            self._autocommit = self.engine
        self._process = os.getpid()

    @property
    def dialect(self) -> str:
        """`postgresql` or `sqlite`."""
        return self.engine.dialect.name

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection in AUTOCOMMIT, given back at the end with nothing left open."""
        if os.getpid() != self._process:
            # Sockets shared with the parent would mix two conversations: leave them to the parent, open new ones.
            self.engine.dispose(close=False)
            self._process = os.getpid()
        with self._opened() as connection:
            if self.owned or self.dialect != SQLITE:
                yield connection
            else:
                with self._patient(connection):
                    yield connection

    @contextmanager
    def _patient(self, connection: Connection) -> Iterator[None]:
        """The ledger's busy timeout on a host's SQLite connection, for the length of one call."""
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(self.busy_timeout * 1000)}")
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def create_missing_file(self) -> None:
        """Makes an empty SQLite file where there is none, so that it can be migrated."""
        path = self._file
        if path is not None and not path.exists():
            sqlite3.connect(path).close()

    @property
    def _file(self) -> Path | None:
        """The SQLite file of an engine of ours, when a path names it."""
        url = self.engine.url
        if not self.owned or self.dialect != SQLITE or url.database in _MEMORY:
            return None
        return None if str(url.database).startswith("file:") else Path(str(url.database))

    @contextmanager
    def _opened(self) -> Iterator[Connection]:
        try:
            connection = self._autocommit.connect()
        except OperationalError as error:
            if self._file is not None and not self._file.exists():
                raise SchemaMismatch(None, SCHEMA_VERSION).noted(
                    f"there is no file {self._file}"
                ) from error
            raise
        with connection:
            yield connection

    def close(self) -> None:
        """Closes what was opened here; a host's engine is the host's."""
        if self.owned:
            self.engine.dispose()


def checked_url(url: str | URL) -> URL:
    """The URL with the driver that lockledger speaks to. Raises `ValueError` for another database or driver."""
    parsed = make_url(url)
    if parsed.drivername in ("postgres", POSTGRESQL):
        parsed = parsed.set(drivername=f"{POSTGRESQL}+{DRIVERS[POSTGRESQL]}")
    dialect, _, driver = parsed.drivername.partition("+")
    refuse_other_drivers(dialect, driver or DRIVERS.get(dialect, ""))
    return parsed


def refuse_other_drivers(dialect: str, driver: str) -> None:
    """Raises `ValueError` unless it is PostgreSQL through psycopg or SQLite through the standard library."""
    if DRIVERS.get(dialect) != driver:
        raise ValueError(
            f"lockledger speaks to PostgreSQL through psycopg and to SQLite through sqlite3, not to {dialect} through"
            f" {driver or 'its driver'}; use postgresql+psycopg://… or sqlite:///…"
        )


def checked_busy_timeout(busy_timeout: float | timedelta) -> float:
    """Seconds a call waits for SQLite's write lock: 0 up to a day. Raises `ValueError` or `TypeError`."""
    seconds = busy_timeout.total_seconds() if isinstance(busy_timeout, timedelta) else busy_timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"busy_timeout is seconds or a timedelta, not {busy_timeout!r}")
    if not 0 <= seconds <= 86_400:
        raise ValueError(f"busy_timeout={busy_timeout!r}: give 0 to 86,400 seconds")
    return float(seconds)


def _own_engine(url: URL, busy_timeout: float, synchronous: str) -> Engine:
    if url.get_backend_name() == POSTGRESQL:
        return create_engine(url, isolation_level="AUTOCOMMIT")
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "poolclass": QueuePool}
    if url.database in _MEMORY:
        # The data lives in the one connection: it is kept, and callers take turns.
        options |= {"pool_size": 1, "max_overflow": 0, "pool_timeout": busy_timeout}
    engine = create_engine(url, creator=_opener(url, busy_timeout), **options)

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA synchronous = {synchronous}")

    return engine


def _opener(url: URL, busy_timeout: float) -> Callable[[], sqlite3.Connection]:
    """Opens the file only if it is there: a mistyped path must not leave an empty database behind."""
    if url.database in _MEMORY:
        target = ":memory:"
    elif str(url.database).startswith("file:"):
        target = str(url.database)
    else:
        target = f"file:{quote(str(Path(str(url.database)).absolute()))}?mode=rw"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            target,
            timeout=busy_timeout,
            uri=target.startswith("file:"),
            check_same_thread=False,
            isolation_level=None,
        )

    return connect
