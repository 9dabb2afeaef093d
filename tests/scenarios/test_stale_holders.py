"""Scenarios 4.1: who lost a lock, and acts as if it were still theirs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from lockledger import (
    Grant,
    Hold,
    HoldLost,
    Lock,
    LockedByOther,
    LockLedger,
    NotHeld,
    NotLockHolder,
)
from support.ledgers import SettableClock
from support.stories import at


def actions(ledger: LockLedger, key: str = "k") -> list[str]:
    return [entry.action for entry in ledger.history(key, extensions=True)]


def holder(ledger: LockLedger, key: str = "k") -> str | None:
    return name(ledger.holder_of(key))


def name(hold: Hold | None) -> str | None:
    return None if hold is None else hold.holder


def test_s01_release_after_expiry_leaves_the_next_holder_alone(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("k", "A", ttl=10)
    clock.set(11)
    ledger.take("k", "B", ttl=10)
    clock.set(12)
    with pytest.raises(NotLockHolder) as refusal:
        ledger.release("k", "A")
    assert refusal.value.current is not None
    assert refusal.value.current.holder == "B"
    with pytest.raises(HoldLost):
        ledger.release("k", "A", token=a.token)
    clock.set(13)
    with pytest.raises(LockedByOther) as busy:
        ledger.take("k", "C")

    assert busy.value.current is not None
    assert busy.value.current.holder == "B"
    assert [(entry.action, entry.holder, entry.occurred_at) for entry in ledger.history("k")] == [
        ("LockTaken", "A", at(0)),
        ("LockExpired", "A", at(10)),
        ("LockTaken", "B", at(11)),
    ]


def test_s02_a_first_handle_does_not_free_the_second_ones_hold(
    ledger: LockLedger, clock: SettableClock
) -> None:
    first = ledger.take("k", "process:1", ttl=5)
    clock.set(5)
    second = ledger.take("k", "process:1", ttl=10)
    assert second.created
    with pytest.raises(HoldLost) as loss:
        ledger.release("k", "process:1", token=first.token)
    assert loss.value.ended_by == "expiry"

    assert ledger.try_take("k", "process:1", if_mine="refuse") is None
    assert ledger.try_take("k", "process:2") is None
    assert ledger.release("k", "process:1", token=second.token)


def _in_threads(*steps: Callable[[], None]) -> None:
    for step in steps:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()


def _in_tasks(*steps: Callable[[], None]) -> None:
    """Each step is a task of one event loop, on one thread."""

    async def one(step: Callable[[], None]) -> None:
        await asyncio.sleep(0)
        step()

    async def run() -> None:
        for step in steps:
            await asyncio.create_task(one(step))

    asyncio.run(run())


@pytest.mark.parametrize("apart", [_in_threads, _in_tasks])
def test_s03_a_token_lives_in_its_grant_and_in_no_thread_or_task(
    ledger: LockLedger, clock: SettableClock, apart: Callable[..., None]
) -> None:
    grants: dict[str, Grant] = {}
    losses: list[HoldLost] = []

    def a_takes() -> None:
        grants["A"] = ledger.take("k", "worker", ttl=3)

    def b_is_granted() -> None:
        clock.set(3)
        grants["B"] = ledger.take("k", "worker")

    def a_releases() -> None:
        clock.set(4)
        with pytest.raises(HoldLost) as loss:
            ledger.release("k", "worker", token=grants["A"].token)
        losses.append(loss.value)

    apart(a_takes, b_is_granted, a_releases)

    assert [loss.ended_by for loss in losses] == ["expiry"]
    assert ledger.holder_of("k") == ledger.current_holders()[0]
    assert ledger.release("k", "worker", token=grants["B"].token)


def test_s04_a_grant_taken_in_one_thread_is_released_in_another(ledger: LockLedger) -> None:
    sent: list[str] = []
    released: list[bool] = []

    def take() -> None:
        sent.append(ledger.take("k", "A").model_dump_json())

    def release() -> None:
        grant = Grant.model_validate_json(sent[0])
        released.append(ledger.release(grant.key, grant.holder, token=grant.token))

    _in_threads(take, release)

    assert released == [True]


def test_s06_a_victim_cannot_extend_what_was_taken_from_it(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("seg", "A", ttl=10)
    clock.set(10)
    ledger.take("seg", "B", ttl=10)
    clock.set(15)
    with pytest.raises(NotLockHolder):
        ledger.extend("seg", "A", 10)
    with pytest.raises(HoldLost):
        ledger.extend("seg", "A", 10, token=a.token)

    holders: list[str | None] = []
    events = [each.event for each in ledger.events()]
    for length in range(1, len(events) + 1):
        lock = Lock.project(None, events[:length])
        assert lock is not None
        holders.append(name(lock.hold))
    assert holders == ["A", None, "B"]
    assert [hold.holder for hold in ledger.current_holders()] == ["B"]


def test_s07_a_retried_release_of_an_old_grant_leaves_the_newer_one(ledger: LockLedger) -> None:
    g1 = ledger.take("k", "A")
    ledger.release("k", "A", token=g1.token)  # its answer was lost
    g2 = ledger.take("k", "A")

    assert ledger.release("k", "A", token=g1.token) is False

    hold = ledger.holder_of("k")
    assert hold is not None
    assert hold.token == g2.token > g1.token
    assert actions(ledger) == ["LockTaken", "LockReleased", "LockTaken"]


def test_s08_a_hook_releases_only_what_it_holds(ledger: LockLedger) -> None:
    ledger.take("k", "job:1")
    # job:2 never took anything, and its rollback runs a hook that releases all the same.
    with pytest.raises(NotLockHolder):
        ledger.release("k", "job:2")
    assert ledger.try_release("k", "job:2") is False

    with pytest.raises(LockedByOther):
        ledger.take("k", "job:3")
    assert actions(ledger) == ["LockTaken"]


def test_s09_a_lost_hold_is_told_with_who_has_it_now_and_since_when(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("k", "A", ttl=10)
    clock.set(11)
    ledger.take("k", "B")
    clock.set(12)

    with pytest.raises(HoldLost) as loss:
        ledger.release("k", "A", token=a.token)

    assert (loss.value.ended_by, loss.value.ended_at) == ("expiry", at(10))
    assert loss.value.current is not None
    assert (loss.value.current.holder, loss.value.current.taken_at) == ("B", at(11))
    assert "'B'" in str(loss.value)


def test_s11_an_old_holders_extension_never_steals_a_hold_back(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("k", "A", ttl=10)
    clock.set(8)
    ledger.take("k", "B", takeover_reason="urgent")
    clock.set(9)
    with pytest.raises(NotLockHolder):
        ledger.extend("k", "A", 10)
    with pytest.raises(HoldLost) as loss:
        ledger.extend("k", "A", 10, token=a.token)
    assert (loss.value.ended_by, loss.value.reason) == ("takeover", "urgent")
    assert holder(ledger) == "B"


def test_s11_an_extension_never_makes_a_hold_that_ran_out_anew(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("k", "A", ttl=10)
    clock.set(11)
    with pytest.raises(NotHeld):
        ledger.extend("k", "A", 10)
    with pytest.raises(HoldLost):
        ledger.extend("k", "A", 10, token=a.token)
    assert (holder(ledger), actions(ledger)) == (None, ["LockTaken"])

    assert ledger.take("k", "A").token > a.token


def test_s12b_a_slot_is_not_released_twice(ledger: LockLedger, clock: SettableClock) -> None:
    a = ledger.take("slot", "A")
    clock.set(30)
    ledger.force_release("slot", actor="supervisor", reason="pruned")
    clock.set(31)
    ledger.take("slot", "B")
    clock.set(60)

    with pytest.raises(HoldLost) as loss:
        ledger.release("slot", "A", token=a.token)

    assert (loss.value.ended_by, loss.value.ended_by_actor) == ("forced", "supervisor")
    assert [name(entry.after) for entry in ledger.history("slot")] == ["A", None, "B"]
    assert holder(ledger, "slot") == "B"
