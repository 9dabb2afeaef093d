"""Bringing the schema up to date from asyncio: twice, at once, and beside everything else on the loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from lockledger import AsyncLockLedger, LockLedger, SchemaMismatch
from lockledger.adapters import migration
from support.databases import Database
from support.ways import async_engine


def test_twice_and_at_once_on_one_loop(empty_database: Database) -> None:
    async def story() -> None:
        one, other = (AsyncLockLedger(empty_database.url) for _ in range(2))
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        beating = asyncio.ensure_future(beat())
        async with asyncio.timeout(30):
            await asyncio.gather(one.migrate(), other.migrate(), one.migrate(), other.migrate())
        assert beats > 3, "the loop stood still"
        beating.cancel()
        await one.migrate()
        assert (await one.take("k", "run:1")).token == 1
        assert await other.is_locked("k")
        await one.close()
        await other.close()

    asyncio.run(story())
    assert empty_database.logged_errors() == []


def test_a_plain_migration_beside_an_awaited_one_is_refused_and_waits_for_nothing(
    empty_database: Database,
) -> None:
    """Both are on one thread: it would wait for a lock that the task beside it lets go only after it."""

    async def story() -> None:
        refused: list[str] = []
        async with AsyncLockLedger(empty_database.url) as ledger:
            awaited = asyncio.ensure_future(ledger.migrate())
            with LockLedger(empty_database.url) as plain:
                while not awaited.done():
                    await asyncio.sleep(0)
                    if getattr(migration._here, "migrating", False):
                        try:
                            plain.migrate()  # has nothing to do once the other has committed
                        except RuntimeError as refusal:
                            refused.append(str(refusal))
                await awaited
                plain.migrate()
        assert refused
        assert all("await AsyncLockLedger.migrate" in each for each in refused)

    asyncio.run(story())
    assert empty_database.logged_errors() == []


def test_on_a_hosts_engine_which_stays_as_it_was(empty_database: Database) -> None:
    async def story() -> None:
        engine = async_engine(empty_database)
        async with AsyncLockLedger(engine) as ledger:
            await asyncio.gather(ledger.migrate(), ledger.migrate())
            await ledger.take("k", "run:1")
        async with engine.connect() as connection:
            await connection.exec_driver_sql("SELECT 1")
            driver: Any = (await connection.get_raw_connection()).driver_connection
            if empty_database.dialect == "postgresql":
                assert driver.autocommit is False
            else:
                assert driver.isolation_level is None
                assert driver.in_transaction
        await engine.dispose()

    asyncio.run(story())


def test_on_two_loops_one_after_the_other(empty_database: Database) -> None:
    async def story() -> None:
        async with AsyncLockLedger(empty_database.url) as ledger:
            await ledger.migrate()
            await ledger.try_take("k", "run:1")

    asyncio.run(story())
    asyncio.run(story())
    with LockLedger(empty_database.url) as ledger:
        assert [entry.version for entry in ledger.history("k")] == [1]


def test_before_it_every_verb_names_the_remedy(empty_database: Database) -> None:
    async def story() -> None:
        async with AsyncLockLedger(empty_database.url) as ledger:
            with pytest.raises(SchemaMismatch, match="run `lockledger migrate`"):
                await ledger.take("k", "run:1")
            await ledger.migrate()
            assert (await ledger.take("k", "run:1")).created

    asyncio.run(story())


# aiosqlite leaves a connection to the collector that comes when nobody waits for it any more; Python 3.13 says so.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_a_cancelled_migration_can_be_repeated(empty_database: Database) -> None:
    async def story() -> None:
        async with AsyncLockLedger(empty_database.url) as ledger:
            for seconds in (0, 0.01, 0.03):
                migrating = asyncio.ensure_future(ledger.migrate())
                await asyncio.sleep(seconds)
                migrating.cancel()
                await asyncio.gather(migrating, return_exceptions=True)
            await ledger.migrate()
            assert (await ledger.take("k", "run:1")).token == 1

    asyncio.run(story())


def test_a_plain_sqlite_url_is_enough(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with AsyncLockLedger(url) as ledger:
            await ledger.migrate()
            assert (await ledger.take("k", "run:1")).token == 1

    for name, prefix in (("a", "sqlite"), ("b", "sqlite+aiosqlite")):
        asyncio.run(story(f"{prefix}:///{tmp_path}/{name}.db"))


def test_a_hosts_engine_in_memory_is_used_where_it_is() -> None:
    async def story() -> None:
        engine = create_async_engine("sqlite+aiosqlite://")
        async with AsyncLockLedger(engine) as ledger:
            await ledger.migrate()
            await ledger.take("k", "run:1")
            async with engine.begin() as connection:
                await ledger.using(connection).take("other", "run:1")
            assert len(await ledger.current_holders()) == 2
        await engine.dispose()

    asyncio.run(story())
