"""The ways in which a program may call the verbs: alone or in its transaction, sync or async."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from lockledger import AsyncLockLedger, LockLedger, configure_sqlite
from support.colours import Loop, blocking
from support.databases import Database
from support.hosts import Host

Where = Literal["alone", "session", "connection"]
WAYS: tuple[tuple[Where, bool], ...] = (
    ("alone", False),
    ("session", False),
    ("connection", False),
    ("alone", True),
    ("session", True),
    ("connection", True),
)


def async_engine(database: Database, **options: Any) -> AsyncEngine:
    """A host's async engine, configured as the documentation says; whoever makes it disposes of it."""
    if database.dialect == "sqlite":
        return configure_sqlite(
            create_async_engine(f"sqlite+aiosqlite:///{database.path}", **options)
        )
    return create_async_engine(database.url, **options)


@dataclass
class Way:
    """One of them, on one host."""

    host: Host
    loop: Loop
    where: Where
    asynchronous: bool
    engine: AsyncEngine

    @contextmanager
    def ledger(self, **options: Any) -> Iterator[_Opened]:
        """A ledger of this way's colour."""
        if not self.asynchronous:
            with LockLedger(self.host.database.url, **options) as ledger:
                yield _Opened(self, ledger)
            return
        ledger_ = AsyncLockLedger(self.host.database.url, **options)
        try:
            yield _Opened(self, ledger_)
        finally:
            self.loop.run(ledger_.close())


@dataclass
class _Opened:
    way: Way
    ledger: Any

    @contextmanager
    def transaction(self, **using: Any) -> Iterator[LockLedger]:
        """The verbs, in one transaction where this way has one: committed, unless the body raises."""
        if self.way.where == "alone":
            yield self._verbs(self.ledger)
        elif self.way.asynchronous:
            with self._async_transaction() as transaction:
                yield self._verbs(self.ledger.using(transaction, **using))
        else:
            host = self.way.host
            with (
                (
                    host.session() if self.way.where == "session" else host.engine.connect()
                ) as transaction,
                transaction.begin(),
            ):
                yield self.ledger.using(transaction, **using)

    @contextmanager
    def _async_transaction(self) -> Iterator[Any]:
        engine, run = self.way.engine, self.way.loop.run
        transaction: Any = (
            AsyncSession(engine) if self.way.where == "session" else run(_connected(engine))
        )
        try:
            yield transaction
            run(transaction.commit())
        finally:
            run(transaction.close())

    def _verbs(self, ledger: Any) -> LockLedger:
        verbs: LockLedger = blocking(self.way.loop, ledger) if self.way.asynchronous else ledger
        return verbs


async def _connected(engine: AsyncEngine) -> Any:
    return await engine.connect()
