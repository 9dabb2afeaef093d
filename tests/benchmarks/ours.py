"""lockledger's public API as a contender, for every operation."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

from benchmarks.measuring import KEYS_PER_WORKER, AsyncClient, Client, Contender
from benchmarks.operations import (
    AT_ONCE,
    BOSS,
    GUARD,
    HELD,
    HISTORY,
    HOLDER,
    HOLDER_AT,
    IN_TURN,
    NEW,
    PAST,
    REFUSED,
    TAKE,
    TAKEOVER,
    WHY,
    edit,
    make_documents,
    new_keys,
)
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from lockledger import AsyncLockLedger, LockLedger


def keys_of(worker: int) -> Iterator[str]:
    """The worker's own keys, again and again."""
    return cycle([f"worker:{worker}:item:{number}" for number in range(KEYS_PER_WORKER)])


def prepare(url: str) -> None:
    """The ledger, one lock that is held, and one with a past."""
    with LockLedger(url) as ledger:
        ledger.migrate()
        ledger.take(HELD, BOSS)
        for _ in range(0 if ledger.history(PAST) else AT_ONCE // 2):
            ledger.take(PAST, BOSS)
            ledger.release(PAST, BOSS)
    make_documents(url)


@contextmanager
def site(url: str, width: int) -> Iterator[Callable[[int], Client]]:
    """One ledger for all clients of a process, as threads share it."""
    engine = create_engine(url, pool_size=width)
    with (
        LockLedger(url if width == 1 else engine) as ledger,
        LockLedger(url if width == 1 else engine) as other,
    ):
        middle = ledger.history(PAST)[AT_ONCE // 2].occurred_at

        def client(worker: int) -> Client:
            keys, holder = keys_of(worker), f"run:{worker}"
            fresh, in_turn = new_keys(), cycle([ledger, other])
            mine, wanted = f"guarded:{worker}", f"wanted:{worker}"
            others = cycle([f"{holder}:a", f"{holder}:b"])
            ledger.take(mine, holder)

            def take_and_release(ledger: LockLedger, key: str) -> int:
                token = ledger.take(key, holder, ttl=60).token
                ledger.release(key, holder, token=token)
                return 2

            def guarded() -> int:
                with Session(engine) as session, session.begin():
                    ledger.using(session).guard(mine, holder)
                    edit(session, worker)
                return 1

            def counted(call: Callable[[], Any]) -> Callable[[], int]:
                def operation() -> int:
                    call()
                    return 1

                return operation

            return {
                TAKE: lambda: take_and_release(ledger, next(keys)),
                NEW: lambda: take_and_release(ledger, f"{next(fresh)}:{worker}"),
                IN_TURN: lambda: take_and_release(next(in_turn), f"turns:{worker}"),
                REFUSED: counted(lambda: ledger.try_take(HELD, holder, ttl=60)),
                TAKEOVER: counted(
                    lambda: ledger.take(wanted, next(others), ttl=60, takeover_reason=WHY)
                ),
                GUARD: guarded,
                HOLDER: counted(lambda: ledger.holder_of(HELD)),
                HISTORY: counted(lambda: ledger.history(PAST, limit=AT_ONCE)),
                HOLDER_AT: counted(lambda: ledger.holder_at(PAST, middle)),
            }

        yield client
    engine.dispose()


@asynccontextmanager
async def tasks(url: str, width: int) -> AsyncIterator[Callable[[int], Awaitable[AsyncClient]]]:
    """One async ledger for all tasks."""
    engine = create_async_engine(url, pool_size=width)
    async with AsyncLockLedger(url if width == 1 else engine) as ledger:

        async def client(worker: int) -> AsyncClient:
            keys, holder = keys_of(worker), f"run:{worker}"

            async def take_and_release() -> int:
                key = next(keys)
                token = (await ledger.take(key, holder, ttl=60)).token
                await ledger.release(key, holder, token=token)
                return 2

            return {TAKE: take_and_release}

        yield client
    await engine.dispose()


LEDGER = Contender("lockledger", prepare, site, tasks=tasks)


def follow(url: str, started: Any, stop: Any, told: Any) -> None:
    """A subscriber from now on, until it is told to stop: how many events came, and how long after their instant."""

    def close_in_time() -> None:
        stop.wait()
        subscription.close()

    with LockLedger(url) as ledger, ledger.subscribe(after="now") as subscription:
        threading.Thread(target=close_in_time, daemon=True).start()
        started.set()
        instants = [(datetime.now(UTC), recorded.event.timestamp) for recorded in subscription]
    told.put([(came - was).total_seconds() * 1000 for came, was in instants])
