"""Rule 15: a cancelled call leaves a pool that works, nothing that is half done, and may simply be repeated."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from lockledger import AsyncLockLedger, Grant, LockLedgerError
from support.cancelling import cancelled_at
from support.hosts import Host
from support.ways import async_engine

MOST_POINTS = 150
"""More points at which a call waits than any call has."""


@dataclass
class Asking:
    """An async ledger and the engine whose pool it uses."""

    ledger: AsyncLockLedger
    other: AsyncLockLedger
    """Another one on the same database, of whose calls `ledger` remembers nothing."""
    engine: AsyncEngine
    host: Host

    def given_back(self) -> bool:
        """Whether every connection is in the pool again."""
        pool: Any = self.ledger.sync_ledger._source.engine.pool
        return bool(pool.checkedout() == 0)


@asynccontextmanager
async def asking(host: Host, whose: str) -> AsyncIterator[Asking]:
    """A ledger with an engine of its own, or on an engine of the host's with a pool of five."""
    engine = async_engine(host.database, pool_size=5, max_overflow=0)
    ledger = AsyncLockLedger(engine if whose == "host's" else host.database.url)
    other = AsyncLockLedger(host.database.url)
    try:
        yield Asking(ledger, other, engine, host)
    finally:
        await ledger.close()
        await other.close()
        await engine.dispose()


@pytest.fixture
def host(host: Host) -> Host:
    """A host that cancels: PostgreSQL says so in its log."""
    host.ledgers.may_log_errors = True
    return host


WHOSE = ("own", "host's")
Call = Callable[[AsyncLockLedger, str], Awaitable[object]]


async def _nothing(ledger: AsyncLockLedger, key: str) -> None:
    """Nothing was before."""


async def taken_and_released(ledger: AsyncLockLedger, key: str) -> None:
    await ledger.take(key, "run:0")
    await ledger.release(key, "run:0")


FROM_MEMORY = "a release by the ledger that took it"

# What was before, and the call that is cancelled; what it records, and how often when it is repeated.
CALLS: dict[str, tuple[Call, Call, list[str]]] = {
    "a first take": (
        _nothing,
        lambda ledger, key: ledger.take(key, "run:1", ttl=60),
        ["LockTaken"],
    ),
    "a take": (
        taken_and_released,
        lambda ledger, key: ledger.take(key, "run:1", ttl=60),
        ["LockTaken", "LockReleased", "LockTaken"],
    ),
    "a takeover": (
        lambda ledger, key: ledger.take(key, "run:2"),
        lambda ledger, key: ledger.take(key, "run:1", takeover_reason="urgent"),
        ["LockTaken", "LockTakenOver"],
    ),
    "a release": (
        lambda ledger, key: ledger.take(key, "run:1"),
        lambda ledger, key: ledger.release(key, "run:1", token=1),
        ["LockTaken", "LockReleased"],
    ),
    "a forced release": (
        lambda ledger, key: ledger.take(key, "run:2"),
        lambda ledger, key: ledger.force_release(key, actor="user:9", reason="why"),
        ["LockTaken", "LockReleased"],
    ),
    FROM_MEMORY: (
        lambda ledger, key: ledger.take(key, "run:1"),
        lambda ledger, key: ledger.release(key, "run:1", token=1),
        ["LockTaken", "LockReleased"],
    ),
    "a forced release of all": (
        lambda ledger, key: ledger.take(key, "run:2"),
        lambda ledger, key: ledger.release_all(under=key, actor="user:9", reason="why"),
        ["LockTaken", "LockReleased"],
    ),
    "a take of several": (
        _nothing,
        lambda ledger, key: ledger.take_all([key, f"{key}:b"], "run:1"),
        ["LockTaken"],
    ),
}


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_cancelled_anywhere_leaves_all_or_nothing_and_can_be_repeated(
    host: Host, call: str, whose: str
) -> None:
    before, cancelled, recorded = CALLS[call]

    async def story() -> list[str]:
        outcomes: list[str] = []
        async with asking(host, whose) as asked:
            # Whatever is only done once must not hide what a call does every time.
            await asked.ledger.is_locked("k")
            for point in range(1, MOST_POINTS):
                key = f"k:{point}"
                await before(asked.ledger if call == FROM_MEMORY else asked.other, key)
                outcome = await cancelled_at(point, as_coroutine(cancelled(asked.ledger, key)))
                assert asked.given_back(), point
                found = [entry.action for entry in await asked.ledger.history(key)]
                assert found in (recorded, recorded[:-1]), point
                await cancelled(asked.ledger, key)
                after = [entry.action for entry in await asked.ledger.history(key)]
                assert after == recorded, point
                if not isinstance(outcome, asyncio.CancelledError):
                    return outcomes
                outcomes.append("made" if found == recorded else "not made")
        raise AssertionError("it was cancelled at every point and never came to its end")

    outcomes = asyncio.run(story())
    # What is one statement may have been sent before it can be cancelled at all, where it is remembered.
    assert "not made" in outcomes or (call == FROM_MEMORY and host.postgres)
    assert outcomes


async def as_coroutine(call: Awaitable[object]) -> object:
    return await call


@pytest.mark.parametrize("whose", WHOSE)
def test_a_cancelled_call_in_a_transaction_loses_it_and_nothing_else(
    host: Host, whose: str
) -> None:
    async def story() -> int:
        async with asking(host, whose) as asked:
            for point in range(1, MOST_POINTS):
                async with AsyncSession(asked.engine) as session:
                    await session.execute(
                        text("INSERT INTO host_document VALUES (:id, 'x')"), {"id": point}
                    )
                    bound = asked.ledger.using(session)
                    outcome = await cancelled_at(
                        point, as_coroutine(bound.take(f"k:{point}", "run:1"))
                    )
                    cancelled = isinstance(outcome, asyncio.CancelledError)
                    await session.rollback()
                    # The session goes on with its next transaction.
                    assert not await bound.is_locked(f"k:{point}")
                assert asked.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
                if not cancelled:
                    return point
        raise AssertionError("it was cancelled at every point and never came to its end")

    assert asyncio.run(story()) > 2
    assert host.documents() == {}
    assert list(host.ledger.current_holders()) == []


async def settings(engine: AsyncEngine) -> dict[str, object]:
    """What the next user of the engine's only connection finds."""
    async with engine.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        found = {"isolation_level": driver.isolation_level}
        if engine.dialect.name == "postgresql":
            found["autocommit"] = driver.autocommit
        else:
            timeout = await connection.exec_driver_sql("PRAGMA busy_timeout")
            found["busy_timeout"] = timeout.scalar()
        return found


def test_a_cancelled_call_leaves_a_hosts_connections_as_they_were(host: Host) -> None:
    """On an engine as SQLAlchemy makes it: one left in AUTOCOMMIT would commit what the host rolls back."""

    async def story() -> int:
        url = host.database.url.replace("sqlite:", "sqlite+aiosqlite:")
        engine = create_async_engine(url, pool_size=1, max_overflow=0)
        before = await settings(engine)
        async with AsyncLockLedger(engine, busy_timeout=7) as ledger:
            await ledger.is_locked("k")
            for point in range(1, MOST_POINTS):
                call = as_coroutine(ledger.take(f"k:{point}", "run:1"))
                outcome = await cancelled_at(point, call)
                assert await settings(engine) == before, point
                if not isinstance(outcome, asyncio.CancelledError):
                    await engine.dispose()
                    return point
        raise AssertionError("it was cancelled at every point and never came to its end")

    assert asyncio.run(story()) > 2


@pytest.mark.parametrize("whose", WHOSE)
def test_two_hundred_tasks_with_random_cancellations(host: Host, whose: str) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    keys = [f"k:{number}" for number in range(10)]
    granted: list[Grant] = []
    cancelled: list[tuple[str, str]] = []

    async def one(ledger: AsyncLockLedger, number: int) -> None:
        key, holder = chance.choice(keys), f"run:{number}"
        reason = chance.choice((None, None, "urgent"))
        try:
            grant = await ledger.take(key, holder, takeover_reason=reason, ttl=600)
            granted.append(grant)
            await ledger.extend(key, holder, 1200, token=grant.token)
            await asyncio.sleep(chance.uniform(0, 0.01))
            await ledger.try_release(key, holder, token=grant.token)
        except LockLedgerError:
            return
        except asyncio.CancelledError:
            cancelled.append((key, holder))
            raise

    async def story() -> None:
        async with asking(host, whose) as asked:
            tasks = [asyncio.ensure_future(one(asked.ledger, number)) for number in range(200)]
            for task in chance.sample(tasks, 120):
                asyncio.get_running_loop().call_later(chance.uniform(0, 1.0), task.cancel)
            done = await asyncio.gather(*tasks, return_exceptions=True)
            errors = [each for each in done if isinstance(each, Exception)]
            assert errors == [], seed
            assert asked.given_back(), seed
            await repeated(asked.ledger, cancelled, seed)
            # All five connections still work, at once.
            assert all(await asyncio.gather(*(is_known(asked.ledger, key) for key in keys)))
            assert asked.given_back(), seed

    asyncio.run(story())
    tokens = Counter((grant.key, grant.token) for grant in granted)
    assert max(tokens.values()) == 1, seed


async def repeated(ledger: AsyncLockLedger, cancelled: list[tuple[str, str]], seed: int) -> None:
    """Each cancelled take, repeated: the grant that was made, a new one, or a refusal; never a second one of its own."""
    for key, holder in cancelled:
        mine = [entry for entry in await ledger.history(key, limit=1000) if entry.holder == holder]
        before = await ledger.holder_of(key)
        grant = await ledger.try_take(key, holder)
        if before is not None and before.holder == holder:
            assert grant == before.grant(created=False), seed
        elif before is not None:
            assert grant is None, seed
        else:
            assert grant is not None, seed
            assert grant.created, seed
            # It had its hold once at most, and what was made of it then has ended.
            assert len([each for each in mine if each.action != "LockReleased"]) <= 1, seed
        assert await ledger.try_release(key, holder) == (grant is not None), seed
        assert await ledger.try_release(key, holder) is False, seed


async def is_known(ledger: AsyncLockLedger, key: str) -> bool:
    return len(await ledger.history(key)) > 0


def test_a_take_that_waits_for_another_transaction_can_be_cancelled(postgres_host: Host) -> None:
    host = postgres_host

    async def story() -> None:
        async with asking(host, "host's") as asked, AsyncSession(asked.engine) as slow:
            await asked.ledger.using(slow).take("k", "run:1")
            waiting = asyncio.ensure_future(asked.ledger.take("k", "run:2"))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(waiting, 60)
            await slow.commit()
            assert [entry.holder for entry in await asked.ledger.history("k")] == ["run:1"]
            assert await asked.ledger.release("k", "run:1")

    asyncio.run(story())
    host.ledgers.may_log_errors = True


def test_a_timeout_is_a_cancellation(postgres_host: Host) -> None:
    host = postgres_host

    async def story() -> None:
        async with asking(host, "own") as asked, AsyncSession(asked.engine) as slow:
            await asked.ledger.using(slow).take("k", "run:1")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await asked.ledger.take("k", "run:2")
            await slow.rollback()
            assert (await asked.ledger.take("k", "run:2")).token == 1
            assert asked.given_back()

    asyncio.run(story())
    host.ledgers.may_log_errors = True
