"""`hold(…)`: what it takes, what its holder may believe, and one block for each."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from support.blocks import actions, was_released_once
from support.company import Company, until
from support.in_the_way import in_the_way
from support.ledgers import Ledgers, SettableClock, unchanged
from support.waits import Imagined

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
    ledger.take("k", "run:2")
    with pytest.raises(WaitTimeout), company.hold(ledger, "k", wait=0.1):
        pass
    ledger.take("k", "run:2", ttl=0.4, if_mine="replace")
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
    company: Company, timed: LockLedger, heartbeat: float, ttl: float
) -> None:
    with company.hold(timed, "k", heartbeat=heartbeat, ttl=ttl):
        pass
    assert was_released_once(timed)


def test_a_block_in_a_callers_transaction_is_not_to_be_had() -> None:
    assert not hasattr(BoundLedger, "hold")


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


# What the holder may believe.


def test_a_hold_turns_suspect_before_it_can_have_run_out(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from before it was asked for, and the answer took a while, of which the grant knows nothing."""

    class Slowly(Policy[Connection]):
        def check_take(self, connection: Connection, request: TakeRequest) -> None:
            if request.verb == "hold":
                imagined.now += 0.2

    imagined = Imagined()
    imagined.replace(monkeypatch)
    ledger = company.open(clock=imagined.clock, policy=Slowly())
    with company.hold(ledger, "k", "run:1", ttl=3) as held:
        assert held.grant.expires_at == held.grant.taken_at + timedelta(seconds=3)
        held.check()
        imagined.now = 2.69
        held.check()
        imagined.now = 2.71
        assert held.lost
        assert ledger.is_locked("k")
        with pytest.raises(HoldSuspect) as suspect:
            held.check()
        assert suspect.value.silent_for == pytest.approx(2.71)
    assert was_released_once(ledger)


def test_a_hold_that_was_long_in_coming_is_not_suspect_from_the_start(
    company: Company, ledger: LockLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this process's clock, which is set, it comes later than it lasts."""
    asked = threading.Event()

    class Noticed(Imagined):
        def monotonic(self) -> float:
            asked.set()
            return super().monotonic()

    imagined = Noticed()
    imagined.replace(monkeypatch, sleeps=False)
    ledger.take("k", "run:2")
    ledger.release("k", "run:2")
    with in_the_way(company.database, "k"):
        got: list[Held] = []

        def work() -> None:
            with company.hold(ledger, "k", "run:1", ttl=600) as held:
                got.append(held)
                held.check()

        thread = threading.Thread(target=work)
        thread.start()
        assert asked.wait(30)
        imagined.now = 1000.0
        time.sleep(0.3)
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
