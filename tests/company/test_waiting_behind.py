"""`take(wait=…)` behind open transactions, and what a wait leaves that ends otherwise."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import (
    AsyncLockLedger,
    LockLedger,
    Policy,
    TakeRequest,
    WaitTimeout,
)
from lockledger.waiting import LONGEST_PAUSE, Patience
from support.company import Company, Process, until
from support.hosts import Host
from support.in_the_way import clock_of, in_the_way
from support.ledgers import Ledgers, unchanged
from support.waits import HANG, Imagined, Meanwhile, Tries, pausing, takes

# Behind open transactions.


def test_a_wait_does_not_block_behind_an_open_transaction(
    company: Company, ledger: LockLedger
) -> None:
    ledger.take("k", "run:2")
    ledger.release("k", "run:2")
    with (
        in_the_way(company.database, "k"),
        unchanged(company.ledgers),
        takes(0.5, 0.5),
        pytest.raises(WaitTimeout) as timeout,
    ):
        ledger.take("k", "run:1", wait=0.5)
    assert timeout.value.current is None
    assert "open transactions" in str(timeout.value)
    assert not ledger.is_locked("k")


def test_a_wait_gets_the_lock_once_the_transaction_in_the_way_is_over(
    company: Company, ledger: LockLedger
) -> None:
    """By the first question that is asked after it, within a pause."""
    ledger.take("k", "run:2")
    ledger.release("k", "run:2")
    tries = Tries(ledger)
    with in_the_way(company.database, "k"):
        waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=30, ttl=600))
        until(lambda: tries.begun, "it asks")
        time.sleep(0.7)
        assert waiting.runs
    before = tries.begun
    with pausing() as meant:
        grant = waiting.answer()
    assert tries.begun <= before + 1
    assert sum(meant) <= LONGEST_PAUSE
    assert grant.expires_at == grant.taken_at + timedelta(seconds=600)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_wait_behind_an_uncommitted_release_ends_in_time_or_with_the_lock(
    host: Host, end: str
) -> None:
    ledger = host.ledger
    ledger.take("k", "run:2")
    with host.engine.connect() as connection:
        host.ledger.using(connection).release("k", "run:2")
        with takes(0.4, 0.4), pytest.raises(WaitTimeout) as timeout:
            ledger.take("k", "run:1", wait=0.4)
        assert timeout.value.current is not None  # what is committed
        assert timeout.value.current.holder == "run:2"
        wait = 60 if end == "commit" else 3
        waiting = Meanwhile(lambda: ledger.try_take("k", "run:1", wait=wait))
        time.sleep(0.3)
        getattr(connection, end)()
    grant = waiting.answer()
    assert (grant is not None) == (end == "commit")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_wait_behind_an_uncommitted_takeover_ends_in_time(host: Host, end: str) -> None:
    ledger = host.ledger
    ledger.take("k", "run:2", ttl=600)
    with host.engine.connect() as connection:
        host.ledger.using(connection).take("k", "run:3", takeover_reason="urgent")
        with takes(0.4, 0.4), pytest.raises(WaitTimeout):
            ledger.take("k", "run:1", wait=0.4, takeover_reason="more urgent")
        waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=30, takeover_reason="again"))
        time.sleep(0.3)
        getattr(connection, end)()
    assert waiting.answer().taken_over_from == ("run:3" if end == "commit" else "run:2")


def test_a_wait_behind_another_uncommitted_first_take_ends_in_time(host: Host) -> None:
    """There is no row to be seen yet, so PostgreSQL blocks, and gives up when the time is up; its log says so."""
    host.ledgers.may_log_errors = True
    ledger = host.ledger
    with host.engine.connect() as connection:
        ledger.using(connection).take("k", "run:2")
        with takes(0.4, 0.4), pytest.raises(WaitTimeout) as timeout:
            ledger.take("k", "run:1", wait=0.4)
        assert timeout.value.current is None
        connection.rollback()
    assert list(ledger.history("k")) == []
    logged = host.database.logged_errors()
    assert len(logged) == (1 if host.postgres and host.database.server.log else 0)  # type: ignore[union-attr]
    assert all("lock timeout" in line for line in logged)


def test_a_wait_behind_another_first_take_that_commits_waits_for_its_hold(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends when the test says so."""
    imagined = Imagined()
    imagined.replace(monkeypatch, sleeps=False)
    ledger, tries = host.ledger, Tries(host.ledger)
    with host.engine.connect() as connection:
        ledger.using(connection).take("k", "run:2", ttl=600)
        waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=60))
        until(lambda: tries.begun, "it asks")
        time.sleep(0.5)
        assert waiting.runs
        connection.commit()
    before = tries.begun
    until(lambda: tries.begun > before + 1, "it has asked again")
    imagined.now = 60.0
    with pytest.raises(WaitTimeout) as timeout:
        waiting.answer()
    assert timeout.value.current is not None
    assert timeout.value.current.holder == "run:2"


def test_a_wait_behind_another_first_take_that_rolls_back_gets_the_lock(host: Host) -> None:
    ledger = host.ledger
    with host.engine.connect() as connection:
        ledger.using(connection).take("k", "run:2")
        waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=30, ttl=600))
        time.sleep(0.7)
        assert waiting.runs
        over = clock_of(host.database)
        connection.rollback()
    grant = waiting.answer()
    assert (grant.token, grant.created) == (1, True)
    assert grant.taken_at >= over
    assert grant.expires_at == grant.taken_at + timedelta(seconds=600)


def test_a_lock_timeout_of_the_hosts_own_does_not_end_a_wait(postgres_host: Host) -> None:
    postgres_host.ledgers.may_log_errors = True
    ledger = postgres_host.impatient(100)
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("k", "run:2")
        waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=30))
        time.sleep(0.7)
        assert waiting.runs
        connection.rollback()
    assert waiting.answer().token == 1


def test_nothing_is_granted_after_the_wait(
    company: Company, ledger: LockLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks come free about when the waits for them end: each grant began before its wait was over."""
    rng = random.Random(5)
    granted = refused = number = 0
    began = clock_of(company.database)

    class Noted(Patience):
        """The wait has begun by `began`, however late that is."""

        def __init__(self, seconds: float) -> None:
            nonlocal began
            super().__init__(seconds)
            began = clock_of(company.database)

    monkeypatch.setattr("lockledger.blocks.Patience", Noted)
    while number < 25 or not granted or not refused:
        number += 1
        assert number < 200, "locks do not come free about when the waits end"
        key = f"k:{number}"
        ledger.take(key, "run:2", ttl=rng.uniform(0.1, 0.2))
        wait = rng.uniform(0.1, 0.2)
        grant = ledger.try_take(key, "run:1", wait=wait)
        if grant is None:
            refused += 1
        else:
            granted += 1
            assert grant.taken_at - began < timedelta(seconds=wait + 0.005)  # of two clocks


class Slow:
    """Keeps the append back until the wait is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ledger: LockLedger, seconds: float) -> None:
        store = ledger.workings.store
        append = store.append
        self.calls = 0

        def slow(*args: Any, **options: Any) -> Any:
            self.calls += 1
            time.sleep(seconds)
            return append(*args, **options)

        monkeypatch.setattr(store, "append", slow)


@pytest.mark.parametrize("known", [True, False], ids=["a known lock", "a first take"])
def test_what_would_be_recorded_late_is_not_recorded(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    ledger = ledgers.open()
    if known:
        ledger.take("k", "run:2")
        ledger.release("k", "run:2")
    slow = Slow(monkeypatch, ledger, 0.4)
    with unchanged(ledgers), pytest.raises(WaitTimeout):
        ledger.take("k", "run:1", wait=0.3)
    assert slow.calls
    monkeypatch.undo()
    assert ledger.take("k", "run:1", wait=60).created


def test_a_policy_that_takes_its_time_keeps_no_wait_from_its_end(company: Company) -> None:
    """Its answer may take longer than a decision stays fresh elsewhere."""

    class Slowly(Policy[Connection]):
        def check_take(self, connection: Connection, request: TakeRequest) -> None:
            time.sleep(0.3)

    ledger = company.open(policy=Slowly())
    assert ledger.take("k", "run:1", wait=20).token == 1
    ledger.release("k", "run:1")
    assert ledger.take("k", "run:1", wait=20).token == 3


# What a waiter leaves.


def test_a_cancelled_wait_leaves_nothing_and_the_pool_as_it_was(ledgers: Ledgers) -> None:
    """At whatever moment: asleep, in the middle of a question, or when the lock has just been granted."""
    ledgers.may_log_errors = True  # psycopg has the server cancel the statement under way

    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:
            rng = random.Random(7)
            for number in range(60):
                key = f"k:{number % 7}"
                await ledger.take(key, "run:2", ttl=rng.uniform(0.001, 0.05))
                task = asyncio.create_task(ledger.take(key, "run:1", wait=30))
                await asyncio.sleep(rng.uniform(0, 0.06))
                if not task.done():
                    task.cancel()
                await asyncio.wait([task])
                if task.cancelled():
                    holder = await ledger.holder_of(key)
                    assert holder is None or holder.holder == "run:2"
                else:
                    assert task.result().holder == "run:1"
                    await ledger.release(key, "run:1")
            pool: Any = ledger.sync_ledger._source.engine.pool
            assert pool.checkedout() == 0
            await asyncio.gather(*(ledger.take(f"after:{number}", "run:1") for number in range(20)))

    asyncio.run(main())
    assert all("due to user request" in line for line in ledgers.database.logged_errors())


def test_many_waits_are_cancelled_at_once(ledgers: Ledgers) -> None:
    ledgers.may_log_errors = True
    ledgers.open().take("k", "run:2")

    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:
            tasks = [
                asyncio.create_task(ledger.take("k", f"run:{number}", wait=600))
                for number in range(100, 150)
            ]
            await asyncio.sleep(0.5)
            for task in tasks:
                task.cancel()
            done, pending = await asyncio.wait(tasks, timeout=HANG)
            assert not pending
            assert all(task.cancelled() for task in done)
            await ledger.release("k", "run:2")
            assert (await ledger.take("k", "run:1")).token == 3

    asyncio.run(main())


def test_what_a_try_leaves_for_the_collector_does_not_stop_the_event_loop(
    sqlite_ledgers: Ledgers,
) -> None:
    """SQLite lets whoever collects a cursor wait for as long as its connection waits for the write lock."""

    async def main() -> float:
        async with AsyncLockLedger(sqlite_ledgers.database.url) as ledger:
            await ledger.take("k", "run:2")
            await ledger.release("k", "run:2")
            gc.collect()
            gc.disable()
            with in_the_way(sqlite_ledgers.database, "k"):
                for _ in range(3):
                    assert await ledger.try_take("k", "run:1", wait=0.05) is None
                waiting = asyncio.create_task(ledger.try_take("k", "run:1", wait=60))
                await asyncio.sleep(0.5)
                began = time.monotonic()
                gc.collect()
                lasted = time.monotonic() - began
            await waiting
            return lasted

    try:
        assert (
            asyncio.run(main()) < HANG
        )  # it would be as long as SQLite's patience, 30 seconds here
    finally:
        gc.enable()


WAITING = """
os.environ["PGAPPNAME"] = "waiter"
ledger = LockLedger(url)
say("waiting")
ledger.take("k", "run:1", wait=60)
say("granted")
"""


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name
)
def test_a_killed_waiter_leaves_nothing(ledgers: Ledgers, how: signal.Signals) -> None:
    ledgers.may_log_errors = True
    ledger = ledgers.open()
    ledger.take("k", "run:2")
    with Process(WAITING, ledgers.database.url) as process:
        assert process.hear() == "waiting"
        connected = 1 if ledgers.database.server else 0
        until(lambda: sessions(ledgers) == connected, "it asks")
        time.sleep(0.8)
        with unchanged(ledgers):
            assert sessions(ledgers) == connected
            process.kill(how)
            assert process.ended() != 0
            until(lambda: sessions(ledgers) == 0, "its session is gone")
        ledger.release("k", "run:2")
        assert ledger.take("k", "run:3").token == 3


def sessions(ledgers: Ledgers) -> int:
    """How many sessions the waiter has with the server."""
    if ledgers.database.server is None:
        return 0
    with ledgers.database.server.connect() as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND application_name = 'waiter'",
            (ledgers.database.name,),
        ).fetchone()
    assert found is not None
    return int(found[0])


def test_an_interrupted_wait_gives_back_what_was_granted_at_that_moment(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ledgers.open()
    attempt = ledger.workings.commands.attempt

    def interrupted(*args: Any, **options: Any) -> Any:
        performed = attempt(*args, **options)
        monkeypatch.undo()
        raise KeyboardInterrupt(performed)

    monkeypatch.setattr(ledger.workings.commands, "attempt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ledger.take("k", "run:1", wait=10, actor="user:9")
    assert [(entry.action, entry.actor) for entry in ledger.history("k")] == [
        ("LockTaken", "user:9"),
        ("LockReleased", "user:9"),
    ]


def test_no_connection_is_held_while_waiting(ledgers: Ledgers) -> None:
    """Ten wait on an engine with a single connection, over which the lock is released too."""
    engine = ledgers.database.engine(pool_size=1, max_overflow=0, pool_timeout=20)
    ledger = ledgers.open(url_or_engine=engine)
    ledger.take("k", "run:0", ttl=600)
    waiting = [
        Meanwhile(
            lambda number=number: (  # type: ignore[misc]
                ledger.take("k", f"run:{number}", wait=60, ttl=600),
                ledger.release("k", f"run:{number}"),
            )
        )
        for number in range(1, 11)
    ]
    time.sleep(0.3)
    pool: Any = engine.pool
    until(lambda: pool.checkedout() == 0, "all of them pause")
    assert all(each.runs for each in waiting)
    ledger.release("k", "run:0")
    for each in waiting:
        each.answer()
    assert len(ledger.history("k")) == 22
