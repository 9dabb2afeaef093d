"""200 wait for one key: one winner for each release, no one starves, and how often the database is asked is bounded.

A waiter asks at most seven times in its first second, then twice a second at most and four times in three seconds on
average; a try on a held lock is one statement. So 200 of them ask 267 times a second on average, never more than 400.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from lockledger import AsyncLockLedger, LockLedger
from lockledger.waiting import LONGEST_PAUSE
from support.company import SOAK, together
from support.databases import Database
from support.ledgers import Ledgers

WAITERS = 200
TASKS = 60
"""How many of them one event loop serves without being busy all the time."""
RELEASES = 100 * SOAK


# How often two hundred ask, and who is served when, is only theirs to say on a machine that is not busy otherwise.
pytestmark = pytest.mark.alone


class Tries:
    """How often a ledger's waiters have asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ledger: LockLedger) -> None:
        self.count = 0
        self._counting = threading.Lock()
        commands = ledger.workings.commands
        attempt = commands.attempt

        def counted(*args: Any, **options: Any) -> Any:
            with self._counting:
                self.count += 1
            return attempt(*args, **options)

        monkeypatch.setattr(commands, "attempt", counted)


def statements(database: Database) -> int:
    """Transactions that the server has ended in this database: one for each statement outside of them."""
    assert database.server is not None
    with database.server.connect(database.name) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot(), pg_stat_force_next_flush()")
        found = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert found is not None
    return int(found[0])


def test_two_hundred_waiters_on_a_held_lock_ask_at_most_400_times_a_second(
    postgres_ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres_ledgers.database
    ledger = postgres_ledgers.open()
    ledger.take("k", "run:0")
    tries = Tries(monkeypatch, ledger)

    async def main() -> tuple[int, int, float]:
        async with AsyncLockLedger(database.url) as ledger:
            counted = Tries(monkeypatch, ledger.sync_ledger)
            waiting = [
                asyncio.create_task(ledger.try_take("k", f"run:{number}", wait=6))
                for number in range(1, WAITERS + 1)
            ]
            await asyncio.sleep(2.5)  # the first second is the busiest
            began, before, asked = time.monotonic(), await count(), counted.count
            await asyncio.sleep(2.5)
            lasted, after = time.monotonic() - began, await count()
            asked = counted.count - asked
            assert set(await asyncio.gather(*waiting)) == {None}
            assert counted.count <= WAITERS * (7 + 2 * 6)
            return asked, after - before, lasted

    async def count() -> int:
        return await asyncio.to_thread(statements, database)

    asked, made, lasted = asyncio.run(main())
    assert asked <= 2 * WAITERS * lasted + WAITERS
    # The server counts up to a second late, in which as many may ask as in any other, and counts this counting too.
    assert made <= asked + 2 * WAITERS + 100
    assert tries.count == 0


def winners(ledger: LockLedger, key: str = "k") -> list[str]:
    """Who held the lock, one after the other."""
    found: list[str] = []
    after = None
    while True:
        page = ledger.history(key, after=after, limit=1000)
        found += [entry.holder for entry in page if entry.action == "LockTaken"]
        after = page.next_after
        if after is None:
            return found


class Served:
    """Waiters that come one after the other, and how long each has waited."""

    def __init__(self, waiters: int) -> None:
        self.total = waiters + RELEASES
        self.waited: list[float] = []
        self._coming = threading.Lock()
        self._next = iter(range(self.total))

    def come(self) -> str | None:
        with self._coming:
            number = next(self._next, None)
        return None if number is None else f"run:{number}"

    def check(self, ledger: LockLedger) -> None:
        held = winners(ledger)
        assert Counter(held) == Counter(
            ["boss", *(f"run:{number}" for number in range(self.total))]
        )
        # Whoever comes just when the lock is released has the best chance, and yet not all of it.
        patient = [seconds for seconds in self.waited[:RELEASES] if seconds > LONGEST_PAUSE / 2]
        assert len(patient) > RELEASES / 10


@pytest.mark.timeout(120 + 60 * SOAK)
def test_each_release_has_one_winner_and_nobody_starves(ledgers: Ledgers) -> None:
    """Whoever wins leaves, and another comes at that moment: 200 wait until the last ones are served."""
    ledger = ledgers.open()
    ledger.take("k", "boss")
    served = Served(WAITERS)

    def wait_one_after_the_other() -> None:
        while (holder := served.come()) is not None:
            began = time.monotonic()
            grant = ledger.take("k", holder, wait=600)
            served.waited.append(time.monotonic() - began)
            assert grant.created
            assert ledger.release("k", holder, token=grant.token)

    def let_them_go() -> None:
        time.sleep(1)
        ledger.release("k", "boss")

    together([*[wait_one_after_the_other] * WAITERS, let_them_go])
    served.check(ledger)


@pytest.mark.timeout(120 + 60 * SOAK)
def test_each_release_has_one_winner_among_tasks_too(ledgers: Ledgers) -> None:
    served = Served(TASKS)

    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:
            await ledger.take("k", "boss")

            async def wait_one_after_the_other() -> None:
                while (holder := served.come()) is not None:
                    began = time.monotonic()
                    grant = await ledger.take("k", holder, wait=600)
                    served.waited.append(time.monotonic() - began)
                    assert grant.created
                    assert await ledger.release("k", holder, token=grant.token)

            waiting = [asyncio.create_task(wait_one_after_the_other()) for _ in range(TASKS)]
            await asyncio.sleep(1)
            await ledger.release("k", "boss")
            await asyncio.gather(*waiting)

    asyncio.run(main())
    served.check(ledgers.open())


def test_a_release_wakes_one_of_many_and_costs_the_others_one_try_more(
    postgres_ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = postgres_ledgers.open()
    ledger.take("k", "run:0")

    async def main() -> None:
        async with AsyncLockLedger(postgres_ledgers.database.url) as ledger:
            counted = Tries(monkeypatch, ledger.sync_ledger)
            waiting = [
                asyncio.create_task(ledger.try_take("k", f"run:{number}", wait=4))
                for number in range(1, WAITERS + 1)
            ]
            await asyncio.sleep(2)
            before = counted.count
            await ledger.release("k", "run:0")
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=2)
            assert sum(task.done() for task in waiting) == 1
            assert counted.count - before <= WAITERS
            answers = await asyncio.gather(*waiting)
            assert sum(answer is not None for answer in answers) == 1

    asyncio.run(main())
    assert len(winners(ledger)) == 2
