"""`hold(…)`: what it takes, every way out of its block, and what is said of a hold that was lost meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import (
    AsyncLockLedger,
    BoundLedger,
    Held,
    HoldLost,
    HoldSuspect,
    InvalidKey,
    InvalidTtl,
    LockedByOther,
    LockLedger,
    NotLockable,
    Policy,
    RecordedEvent,
    TakeRequest,
    WaitTimeout,
)
from lockledger.door import Door
from lockledger.waiting import Wish
from support.company import Company, until
from support.in_the_way import in_the_way
from support.ledgers import Ledgers, SettableClock, unchanged
from support.stories import at


class Trouble(Exception):
    """What goes wrong in a body."""


def actions(ledger: LockLedger, key: str) -> list[str]:
    return [entry.action for entry in ledger.history(key)]


def was_released_once(ledger: LockLedger, key: str = "k") -> bool:
    return not ledger.is_locked(key) and actions(ledger, key) == ["LockTaken", "LockReleased"]


# What it takes.


def test_a_block_holds_the_lock_and_releases_it(company: Company, ledger: LockLedger) -> None:
    with company.hold(ledger, "k", "run:1", metadata={"request": "r1"}) as held:
        live = ledger.holder_of("k")
        assert live is not None
        assert live.grant(created=True) == held.grant
        assert (held.grant.holder, held.grant.expires_at, held.lost) == ("run:1", None, False)
        held.check()

    assert was_released_once(ledger)
    taken, released = ledger.history("k")
    assert (released.actor, released.reason, released.token) == ("run:1", None, taken.token)
    assert taken.metadata == released.metadata == {"request": "r1"}


def test_who_acts_for_the_holder_takes_and_releases(company: Company, ledger: LockLedger) -> None:
    with company.hold(ledger, "k", "run:1", actor="user:9"):
        pass
    assert [entry.actor for entry in ledger.history("k")] == ["user:9", "user:9"]


def test_each_hold_has_a_holder_of_its_own_unless_one_is_named(
    company: Company, ledger: LockLedger
) -> None:
    with company.hold(ledger, "a") as first, company.hold(ledger, "b") as second:
        assert first.grant.holder != second.grant.holder
        assert first.grant.holder.startswith("holder:")
        with pytest.raises(LockedByOther) as refused, company.hold(ledger, "a"):
            pass
    assert refused.value.current is not None
    assert refused.value.current.holder == first.grant.holder


def test_a_second_block_of_the_same_holder_is_refused(company: Company, ledger: LockLedger) -> None:
    with company.hold(ledger, "k", "run:1") as held:
        with pytest.raises(LockedByOther) as refused, company.hold(ledger, "k", "run:1"):
            pass
        assert refused.value.same_holder
        held.check()
        assert ledger.is_locked("k")
    assert was_released_once(ledger)


def test_a_refused_block_is_not_entered_and_leaves_nothing(
    company: Company, ledger: LockLedger
) -> None:
    ledger.take("k", "run:2")
    entered = False
    with unchanged(company.ledgers), pytest.raises(LockedByOther), company.hold(ledger, "k"):
        entered = True
    assert not entered


def test_a_block_takes_over_with_a_reason_from_the_hold_that_was_seen(
    company: Company, ledger: LockLedger
) -> None:
    token = ledger.take("k", "run:2").token
    with company.hold(ledger, "k", "run:1", takeover_reason="urgent", expected_token=token) as held:
        assert held.grant.taken_over_from == "run:2"
        assert held.grant.takeover_reason == "urgent"
    assert actions(ledger, "k") == ["LockTaken", "LockTakenOver", "LockReleased"]


def test_a_replaced_ghost_loses_its_hold_and_leaves_the_new_one(
    company: Company, ledger: LockLedger
) -> None:
    with (  # noqa: PT012
        pytest.raises(HoldLost) as lost,
        company.hold(ledger, "k", "worker:1") as ghost,
        company.hold(ledger, "k", "worker:1", if_mine="replace") as restarted,
    ):
        assert restarted.grant.token > ghost.grant.token
        with pytest.raises(HoldLost):
            ledger.extend("k", "worker:1", 10, token=ghost.grant.token)
    assert (lost.value.ended_by, lost.value.ended_by_actor) == ("takeover", "worker:1")
    assert actions(ledger, "k") == ["LockTaken", "LockTakenOver", "LockReleased"]


def test_a_block_waits_for_the_lock(company: Company, ledger: LockLedger) -> None:
    ledger.take("k", "run:2", ttl=0.4)
    with pytest.raises(WaitTimeout), company.hold(ledger, "k", wait=0.1):
        pass
    with company.hold(ledger, "k", wait=20, ttl=60) as held:
        assert not held.lost
        assert held.grant.expires_at == held.grant.taken_at + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"heartbeat": 3.4, "ttl": 10}, ValueError),
        ({"heartbeat": 30, "ttl": 30}, ValueError),
        ({"heartbeat": timedelta(seconds=11), "ttl": timedelta(seconds=30)}, ValueError),
        ({"heartbeat": 0, "ttl": 10}, ValueError),
        ({"heartbeat": -1, "ttl": 10}, ValueError),
        ({"heartbeat": float("nan"), "ttl": 10}, ValueError),
        ({"heartbeat": 1}, ValueError),
        ({"heartbeat": 1, "ttl": datetime(2100, 1, 1, tzinfo=UTC)}, ValueError),
        ({"heartbeat": True, "ttl": 10}, TypeError),
        ({"heartbeat": "1", "ttl": 10}, TypeError),
        ({"heartbeat": 1, "ttl": 0}, InvalidTtl),
        ({"heartbeat": 1, "ttl": -5}, InvalidTtl),
        ({"ttl": 0}, InvalidTtl),
        ({"wait": 0}, ValueError),
        ({"wait": -1}, ValueError),
        ({"wait": True}, TypeError),
        ({"if_mine": "wait"}, ValueError),
        ({"holder": " k"}, ValueError),
    ],
    ids=str,
)
def test_a_block_that_makes_no_sense_takes_nothing(
    company: Company, ledger: LockLedger, wrong: dict[str, Any], error: type[Exception]
) -> None:
    with unchanged(company.ledgers), pytest.raises(error), company.hold(ledger, "k", **wrong):
        pass
    with pytest.raises(InvalidKey), company.hold(ledger, ""):
        pass


@pytest.mark.parametrize(("heartbeat", "ttl"), [(10, 30), (0.3, 0.9), (1 / 3, 1), (10 / 3, 10)])
def test_a_heartbeat_of_just_a_third_of_the_ttl_will_do(
    company: Company, ledger: LockLedger, heartbeat: float, ttl: float
) -> None:
    with company.hold(ledger, "k", heartbeat=heartbeat, ttl=ttl):
        pass
    assert was_released_once(ledger)


def test_a_block_in_a_callers_transaction_is_not_to_be_had() -> None:
    assert not hasattr(BoundLedger, "hold")


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
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3), ledger.hold("k", ttl=60, heartbeat=0.05):
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


# One block for each.


def test_a_hold_is_for_one_block(company: Company, ledger: LockLedger) -> None:
    holding = ledger.hold("k", "run:1", ttl=60)
    again = "entered already: call hold"
    with on(company, holding):
        with pytest.raises(RuntimeError, match=again), on(company, holding):
            pass
        assert ledger.is_locked("k")
    with unchanged(company.ledgers), pytest.raises(RuntimeError, match=again), on(company, holding):
        pass
    assert was_released_once(ledger)


@contextmanager
def on(company: Company, holding: Any) -> Iterator[Held]:
    """The block of a hold that was made before."""
    if company.colour == "sync":
        with holding as held:
            yield held
        return
    held = company.loop.run(holding.__aenter__())
    try:
        yield held
    finally:
        company.loop.run(holding.__aexit__(None, None, None))


def test_a_decorated_function_holds_anew_in_each_call(ledgers: Ledgers) -> None:
    ledger = ledgers.open()

    @ledger.hold("k")
    def work() -> bool:
        return ledger.is_locked("k")

    assert [work(), work()] == [True, True]
    assert actions(ledger, "k") == ["LockTaken", "LockReleased"] * 2
    assert len({entry.holder for entry in ledger.history("k")}) == 2


def test_a_decorated_coroutine_holds_anew_in_each_call(ledgers: Ledgers) -> None:
    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:

            @ledger.hold("k")
            async def work() -> bool:
                return await ledger.is_locked("k")

            assert [await work(), await work()] == [True, True]

    asyncio.run(main())
    assert actions(ledgers.open(), "k") == ["LockTaken", "LockReleased"] * 2


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


# A hold that was lost meanwhile.


def take_over(ledger: LockLedger) -> None:
    ledger.take("k", "run:2", takeover_reason="urgent")


def force(ledger: LockLedger) -> None:
    ledger.force_release("k", actor="user:9", reason="holiday")


def test_a_hold_that_was_taken_over_is_a_loss_at_the_end_and_the_other_keeps_it(
    company: Company, ledger: LockLedger
) -> None:
    with pytest.raises(HoldLost) as lost, company.hold(ledger, "k", "run:1"):
        take_over(ledger)
    told = lost.value
    assert (told.ended_by, told.ended_by_actor, told.reason) == ("takeover", "run:2", "urgent")
    assert told.current is not None
    assert told.current.holder == "run:2"
    assert actions(ledger, "k") == ["LockTaken", "LockTakenOver"]


def test_a_hold_that_was_forced_is_a_loss_at_the_end(company: Company, ledger: LockLedger) -> None:
    with pytest.raises(HoldLost) as lost, company.hold(ledger, "k", "run:1"):
        force(ledger)
    told = lost.value
    assert (told.ended_by, told.ended_by_actor, told.reason) == ("forced", "user:9", "holiday")
    assert told.current is None


def test_a_hold_that_ran_out_is_a_loss_at_the_end(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    with pytest.raises(HoldLost) as lost, company.hold(timed, "k", "run:1", ttl=10):
        clock.set(10)
    assert (lost.value.ended_by, lost.value.ended_at, lost.value.current) == (
        "expiry",
        at(10),
        None,
    )
    assert actions(timed, "k") == ["LockTaken"]


def test_a_loss_is_a_note_on_the_exception_of_a_body_that_failed(
    company: Company, ledger: LockLedger
) -> None:
    trouble = Trouble("it broke")
    with pytest.raises(Trouble) as raised, company.hold(ledger, "k", "run:1"):  # noqa: PT012
        take_over(ledger)
        raise trouble
    assert raised.value is trouble
    (note,) = trouble.__notes__
    assert "taken over by 'run:2'" in note
    assert ledger.is_locked("k")


def test_a_loss_is_a_note_on_the_cancellation_of_a_body(ledgers: Ledgers) -> None:
    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:
            notes: list[str] = []

            async def work() -> None:
                try:
                    async with ledger.hold("k", "run:1"):
                        await ledger.take("k", "run:2", takeover_reason="urgent")
                        await asyncio.sleep(60)
                except asyncio.CancelledError as cancelled:
                    notes.extend(cancelled.__notes__)
                    raise

            task = asyncio.create_task(work())
            while not await ledger.is_locked("k"):
                pass
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.wait([task])
            assert len(notes) == 1
            assert "taken over by 'run:2'" in notes[0]

    asyncio.run(main())


def test_a_release_in_the_body_is_no_loss(company: Company, ledger: LockLedger) -> None:
    with company.hold(ledger, "k", "run:1") as held:
        assert ledger.release("k", "run:1", token=held.grant.token)
    assert was_released_once(ledger)


def test_a_release_in_the_body_is_no_loss_whoever_took_the_lock_after_it(
    company: Company, ledger: LockLedger
) -> None:
    with company.hold(ledger, "k", "run:1"):
        ledger.release("k", "run:1")
        ledger.take("k", "run:2")
    live = ledger.holder_of("k")
    assert live is not None
    assert live.holder == "run:2"


def test_what_the_holder_took_anew_in_the_body_is_left_in_place(
    company: Company, ledger: LockLedger
) -> None:
    with company.hold(ledger, "k", "run:1") as held:
        ledger.release("k", "run:1")
        again = ledger.take("k", "run:1")
        assert again.token > held.grant.token
    live = ledger.holder_of("k")
    assert live is not None
    assert live.token == again.token


# A hold that was there already.


def test_a_hold_that_was_there_is_used_and_left_in_place(
    company: Company, ledger: LockLedger
) -> None:
    grant = ledger.take("k", "run:1")
    with (
        unchanged(company.ledgers),
        company.hold(ledger, "k", "run:1", if_mine="return") as held,
    ):
        assert (held.grant.token, held.grant.created) == (grant.token, False)
    assert ledger.is_locked("k")


def test_a_hold_that_was_there_is_extended_and_left_in_place(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    timed.take("k", "run:1", ttl=10)
    clock.set(5)
    with company.hold(timed, "k", "run:1", ttl=60, if_mine="extend") as held:
        assert held.grant.expires_at == at(65)
        held.check()
    clock.set(64)
    assert timed.is_locked("k")


@pytest.mark.parametrize("if_mine", ["return", "extend"])
def test_the_loss_of_a_hold_that_was_there_is_reported_and_the_others_left_in_place(
    company: Company, ledger: LockLedger, if_mine: str
) -> None:
    ledger.take("k", "run:1", ttl=60)
    for body in (None, Trouble("it broke")):
        told: BaseException
        try:
            with company.hold(ledger, "k", "run:1", ttl=60, if_mine=if_mine):
                take_over(ledger)
                if body is not None:
                    raise body
        except (HoldLost, Trouble) as error:
            told = error
        else:
            raise AssertionError("the loss was not reported")
        if body is None:
            assert isinstance(told, HoldLost)
            assert (told.ended_by, told.ended_by_actor) == ("takeover", "run:2")
        else:
            assert told is body
            assert "taken over by 'run:2'" in told.__notes__[0]
        assert ledger.release("k", "run:2")
        ledger.take("k", "run:1", ttl=60)


@pytest.mark.parametrize("if_mine", ["return", "extend"])
def test_a_block_that_finds_the_lock_free_begins_a_hold_and_releases_it(
    company: Company, ledger: LockLedger, if_mine: str
) -> None:
    with company.hold(ledger, "k", "run:1", ttl=60, if_mine=if_mine) as held:
        assert held.grant.created
    assert was_released_once(ledger)


# What the holder may believe.


def test_a_hold_turns_suspect_before_it_can_have_run_out(
    company: Company, ledger: LockLedger
) -> None:
    began = time.monotonic()
    with company.hold(ledger, "k", "run:1", ttl=3) as held:
        held.check()
        until(lambda: held.lost, "the hold turns suspect")
        assert time.monotonic() - began < 3
        assert ledger.is_locked("k")
        with pytest.raises(HoldSuspect) as suspect:
            held.check()
        assert 2.7 <= suspect.value.silent_for < 3
    assert was_released_once(ledger)


def test_a_hold_that_was_long_in_coming_is_not_suspect_from_the_start(
    company: Company, ledger: LockLedger
) -> None:
    ledger.take("k", "run:2")
    ledger.release("k", "run:2")
    with in_the_way(company.database, "k"):
        got: list[Held] = []

        def work() -> None:
            with company.hold(ledger, "k", "run:1", ttl=1) as held:
                got.append(held)
                held.check()

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(1.5)
        assert not got
    thread.join()
    assert len(got) == 1
    assert actions(ledger, "k")[-1] == "LockReleased"


def test_a_hold_that_was_there_is_measured_by_the_clock_of_the_ledger(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    timed.take("k", "run:1", ttl=3600)
    clock.set(3599.9)
    with company.hold(timed, "k", "run:1", if_mine="return") as held:
        until(lambda: held.lost, "what was left of the hold is over")
        with pytest.raises(HoldSuspect):
            held.check()


# What the host's policy hears.


class Asked(Policy[Connection]):
    """Keeps what it was asked and told."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.closed = False

    def lock_subject(self, connection: Connection, key: str) -> None:
        self.log.append(("subject", key))

    def check_take(self, connection: Connection, request: TakeRequest) -> None:
        self.log.append(("check", request.verb, request.key, request.holder, request.actor))
        if self.closed:
            raise NotLockable("closed", code="ROUND_CLOSED", key=request.key)

    def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        self.log.append(("recorded", *(each.event.action for each in events)))


def test_the_policy_is_asked_about_a_block_by_its_verb(company: Company) -> None:
    policy = Asked()
    ledger = company.open(policy=policy)
    with company.hold(ledger, "k", "run:1", actor="user:9"):
        pass
    assert policy.log == [
        ("subject", "k"),
        ("check", "hold", "k", "run:1", "user:9"),
        ("recorded", "LockTaken"),
        ("subject", "k"),
        ("recorded", "LockReleased"),
    ]


def test_a_block_that_the_policy_refuses_is_not_entered(company: Company) -> None:
    policy = Asked()
    ledger = company.open(policy=policy)
    policy.closed = True
    with (
        unchanged(company.ledgers),
        pytest.raises(NotLockable) as refused,
        company.hold(ledger, "k", wait=20),
    ):
        pass
    assert refused.value.code == "ROUND_CLOSED"
