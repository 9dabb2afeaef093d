"""`hold(…)`: every way out of its block, and forked children, which have none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest

from lockledger import (
    AsyncLockLedger,
    LockLedger,
)
from lockledger.door import Door
from lockledger.waiting import Wish
from support.blocks import Trouble, actions, was_released_once
from support.company import Company
from support.ledgers import Ledgers

# Every way out.


def test_a_block_that_is_left_by_return_releases(company: Company, ledger: LockLedger) -> None:
    def work() -> int:
        with company.hold(ledger, "k", ttl=60, heartbeat=0.05) as held:
            return held.grant.token

    assert work() == 1
    assert was_released_once(ledger)


@pytest.mark.parametrize(
    "wrong",
    [Trouble("it broke"), KeyboardInterrupt(), SystemExit(3), GeneratorExit(), StopIteration(7)],
    ids=lambda wrong: type(wrong).__name__,
)
@pytest.mark.parametrize("heartbeat", [None, 0.05])
def test_a_block_that_fails_releases_and_its_exception_comes_through_as_itself(
    ledgers: Ledgers, wrong: BaseException, heartbeat: float | None
) -> None:
    ledger = ledgers.open()
    with pytest.raises(type(wrong)) as raised, ledger.hold("k", ttl=60, heartbeat=heartbeat):
        raise wrong
    assert raised.value is wrong
    assert not hasattr(wrong, "__notes__")
    assert was_released_once(ledger)


def test_a_block_that_is_left_by_break_or_continue_releases(
    company: Company, ledger: LockLedger
) -> None:
    for number in range(3):
        with company.hold(ledger, str(number), ttl=60, heartbeat=0.05):
            if number == 1:
                break
            continue
    assert [was_released_once(ledger, str(number)) for number in range(2)] == [True, True]
    assert actions(ledger, "2") == []


def test_a_generator_that_is_closed_releases(ledgers: Ledgers) -> None:
    ledger = ledgers.open()

    def work() -> Iterator[int]:
        with ledger.hold("k", ttl=60, heartbeat=0.05):
            yield 1
            yield 2

    numbers = work()
    assert next(numbers) == 1
    assert ledger.is_locked("k")
    numbers.close()  # type: ignore[attr-defined]
    assert was_released_once(ledger)


def test_an_async_generator_that_is_closed_releases(ledgers: Ledgers) -> None:
    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:

            async def work() -> AsyncIterator[int]:
                async with ledger.hold("k", ttl=60, heartbeat=0.05):
                    yield 1
                    yield 2

            numbers = work()
            assert await anext(numbers) == 1
            assert await ledger.is_locked("k")
            await numbers.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert was_released_once(ledgers.open())


@pytest.mark.parametrize("heartbeat", [None, 0.02])
def test_a_task_that_is_cancelled_releases(ledgers: Ledgers, heartbeat: float | None) -> None:
    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:
            inside = asyncio.Event()

            async def work() -> None:
                async with ledger.hold("k", ttl=60, heartbeat=heartbeat):
                    inside.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await inside.wait()
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert not await ledger.is_locked("k")

    asyncio.run(main())
    assert was_released_once(ledgers.open())


def test_a_task_that_is_cancelled_again_and_again_releases(ledgers: Ledgers) -> None:
    """As the scopes of anyio do, and with them web frameworks."""

    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:
            inside = asyncio.Event()

            async def work() -> None:
                async with ledger.hold("k", ttl=60, heartbeat=0.02):
                    inside.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await inside.wait()
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
            assert task.cancelled()
            assert not await ledger.is_locked("k")

    asyncio.run(main())
    assert was_released_once(ledgers.open())


def test_a_timeout_around_a_block_releases(ledgers: Ledgers) -> None:
    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:
            with pytest.raises(TimeoutError):  # noqa: PT012
                async with asyncio.timeout(None) as limit, ledger.hold("k", ttl=60, heartbeat=0.05):
                    limit.reschedule(asyncio.get_running_loop().time() + 0.3)
                    await asyncio.sleep(60)

    asyncio.run(main())
    assert was_released_once(ledgers.open())


def test_a_block_that_is_cancelled_while_it_is_entered_leaves_nothing(ledgers: Ledgers) -> None:
    """At whatever moment: between two statements, within one, or when the lock has just been granted."""

    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:

            async def work(key: str) -> None:
                async with ledger.hold(key, "run:1"):
                    await asyncio.sleep(0)

            await work("warm")
            for number in range(60):
                task = asyncio.create_task(work(f"k:{number}"))
                await asyncio.sleep(number * 0.0003)
                task.cancel()
                await asyncio.wait([task])
                assert len(await ledger.current_holders()) == 0

    ledgers.may_log_errors = True  # psycopg has the server cancel the statement under way
    asyncio.run(main())
    assert list(ledgers.open().current_holders()) == []
    assert all("due to user request" in line for line in ledgers.database.logged_errors())


def test_a_lock_that_was_granted_just_when_the_call_was_interrupted_is_given_back(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ledgers.open()
    perform = ledger.workings.commands.perform

    def interrupted(*args: Any, **options: Any) -> Any:
        performed = perform(*args, **options)
        monkeypatch.undo()
        raise KeyboardInterrupt(performed)

    monkeypatch.setattr(ledger.workings.commands, "perform", interrupted)
    with pytest.raises(KeyboardInterrupt), ledger.hold("k", "run:1", metadata={"request": "r1"}):
        pass
    taken, released = ledger.history("k")

    assert (taken.action, released.action, released.token) == ("LockTaken", "LockReleased", 1)
    assert released.reason == "the call was broken off while it was being granted"
    assert released.metadata == {"request": "r1"}


def test_what_another_call_of_the_same_holder_began_is_left_when_a_call_is_broken_off(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, other = ledgers.open(), ledgers.open()
    taken_back = Wish.taken_back

    def interrupted(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    def outrun(wish: Wish, door: Door) -> Any:
        monkeypatch.undo()
        assert wish.proposed is not None
        assert other.take("k", "run:1").token == wish.proposed.token
        return taken_back(wish, door)

    monkeypatch.setattr(ledger.workings.store, "append", interrupted)
    monkeypatch.setattr(Wish, "taken_back", outrun)
    with pytest.raises(KeyboardInterrupt), ledger.hold("k", "run:1"):
        pass
    assert ledger.is_locked("k")
    assert actions(ledger, "k") == ["LockTaken"]


# Forked children.


FORKED = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@FORKED
@pytest.mark.parametrize("heartbeat", [None, 0.05])
@pytest.mark.parametrize("wrong", [None, Trouble("it broke")], ids=["well", "failing"])
def test_a_forked_child_that_leaves_the_block_leaves_the_hold_to_its_parent(
    ledgers: Ledgers, heartbeat: float | None, wrong: Trouble | None
) -> None:
    ledger = ledgers.open()
    child = -1
    with suppress(Trouble), ledger.hold("k", ttl=60, heartbeat=heartbeat) as held:
        child = os.fork()
        if child == 0 and wrong is not None:
            raise wrong
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert held.here
            assert ledger.is_locked("k")
    if child == 0:
        os._exit(int(held.here))
    assert was_released_once(ledger)


@FORKED
@pytest.mark.parametrize("heartbeat", [None, 0.05])
def test_a_child_forked_by_a_task_leaves_the_hold_to_its_parent(
    ledgers: Ledgers, heartbeat: float | None
) -> None:
    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:
            async with ledger.hold("k", ttl=60, heartbeat=heartbeat) as held:
                child = os.fork()
                if child:
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222 - as a test it may
                    assert await ledger.is_locked("k")
            if child == 0:
                os._exit(int(held.here))

    asyncio.run(main())
    assert was_released_once(ledgers.open())
