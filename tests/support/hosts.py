"""A host: a program with tables of its own, which takes the ledger into its transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from lockledger import LockLedger, configure_sqlite
from support.databases import Database
from support.ledgers import Ledgers

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds after which something that must happen is taken not to happen."""


class Base(DeclarativeBase):
    """The host's own models."""


class Document(Base):
    """What the host keeps, and locks before it changes it."""

    __tablename__ = "host_document"

    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str]


@dataclass
class Host:
    """A host on one database. `ledger` has connections of its own: what it sees is what everybody else sees."""

    ledgers: Ledgers
    engine: Engine
    ledger: LockLedger
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(16))

    @property
    def database(self) -> Database:
        return self.ledgers.database

    @property
    def postgres(self) -> bool:
        return self.database.dialect == "postgresql"

    def session(self, **options: Any) -> Session:
        """A session as a host would make it; use it as a context manager."""
        return Session(self.engine, **options)

    def write(self, session: Session, number: int, body: str = "draft") -> None:
        """One row of the host's own, at once."""
        session.execute(
            text("INSERT INTO host_document (id, body) VALUES (:id, :body)"),
            {"id": number, "body": body},
        )

    def documents(self) -> dict[int, str]:
        """The host's committed rows, as another connection sees them."""
        with Session(self.database.engine()) as session:
            return {each.id: each.body for each in session.scalars(select(Document))}

    def impatient(self, milliseconds: int = 100, **options: Any) -> LockLedger:
        """A ledger whose calls fail when they have to wait for another transaction for longer than this."""
        if not self.postgres:
            return self.ledgers.open(busy_timeout=milliseconds / 1000, **options)
        engine = self.database.engine(
            connect_args={"options": f"-c lock_timeout={milliseconds}"}, pool_size=8
        )
        return self.ledgers.open(url_or_engine=engine, **options)

    def meanwhile(self, call: Callable[[], T]) -> Future[T]:
        """The call, running in a thread of its own."""
        return self._threads.submit(call)

    def blocked(self, call: Callable[[], T]) -> Future[T]:
        """The call, running in a thread of its own, once it waits for a lock that another transaction holds."""
        before = self._waiting()
        running = self.meanwhile(call)
        deadline = time.monotonic() + PATIENCE
        while self._waiting() <= before:
            if running.done():
                raise AssertionError(f"it did not have to wait: {running.exception() or running}")
            assert time.monotonic() < deadline, "it neither waits nor ends"
            time.sleep(0.005)
        return running

    def close(self) -> None:
        # What still waits ends with its database.
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _waiting(self) -> int:
        """How many sessions of this database wait for a lock. SQLite cannot tell."""
        assert self.database.server is not None
        with self.database.server.connect() as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'",
                (self.database.name,),
            ).fetchone()
        assert found is not None
        return int(found[0])


@contextmanager
def host_on(ledgers: Ledgers) -> Iterator[Host]:
    """A host with its table made; its SQLite engine is configured as the documentation says."""
    engine = ledgers.database.engine(pool_size=10)
    if engine.dialect.name == "sqlite":
        configure_sqlite(engine)
    Base.metadata.create_all(engine)
    host = Host(ledgers, engine, ledgers.open())
    try:
        yield host
    finally:
        host.close()


def how_many(session: Session) -> int:
    """The host's rows as its own transaction sees them."""
    return session.scalar(select(func.count()).select_from(Document)) or 0
