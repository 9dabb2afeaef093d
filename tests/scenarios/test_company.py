"""Scenarios of other parts about time and company: who waits, and who goes on holding by heartbeats."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from lockledger import Grant, HoldLost, HoldSuspect, LockLedger, WaitTimeout
from lockledger.waiting import LONGEST_PAUSE
from support.company import until
from support.in_the_way import clock_of, in_the_way
from support.ledgers import Ledgers, SettableClock, unchanged
from support.stories import at
from support.waits import Missed, anew

# Who waits.


def test_s30_who_waited_gets_the_whole_ttl_from_the_grant_on(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "A", ttl=20)
    clock.set(1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ledger.take, "k", "B", ttl=5, wait=60)
        time.sleep(0.1)
        clock.set(7)  # by now a lease that had begun with the call would be over
        time.sleep(0.1)
        assert not waiting.done()
        clock.set(20)
        grant = waiting.result()

    assert (grant.created, grant.taken_at, grant.expires_at) == (True, at(20), at(25))
    clock.set(24)
    assert ledger.try_take("k", "C") is None
    clock.set(25)
    assert ledger.take("k", "C").created


def test_s30_a_grant_that_was_held_up_while_it_was_recorded_begins_after_that(
    ledgers: Ledgers,
) -> None:
    ledger = ledgers.open()
    ledger.take("k", "A", ttl=0.05)
    until(lambda: not ledger.is_locked("k"), "the hold runs out")
    with ThreadPoolExecutor() as pool:
        with in_the_way(ledgers.database, "k"):
            waiting = pool.submit(ledger.take, "k", "B", ttl=0.3, wait=60)
            time.sleep(0.6)  # longer than its ttl
            assert not waiting.done()
            freed = clock_of(ledgers.database)
        grant = waiting.result()

    assert grant.taken_at >= freed
    assert grant.expires_at == grant.taken_at + timedelta(seconds=0.3)


class ImaginedTime:
    """Time that passes only by sleeping, and by being suspended."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if 300 < self.now < 600:
            self.now = 30 * 86_400 - 300  # the machine was shut in the meantime


def test_s56_a_wait_of_thirty_days_asks_in_capped_pauses_and_keeps_its_deadline(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, imagined = ledgers.open(), ImaginedTime()
    ledger.take("k", "A")
    monkeypatch.setattr("lockledger.waiting.monotonic", imagined.monotonic)
    monkeypatch.setattr("lockledger.adapters.engines.Source.sleep", imagined.sleep)
    with unchanged(ledgers), pytest.raises(WaitTimeout) as timeout:
        ledger.take("k", "B", wait=timedelta(days=30))

    assert imagined.now == pytest.approx(30 * 86_400)
    assert max(imagined.slept) <= LONGEST_PAUSE
    assert 600 <= len(imagined.slept) <= 7 + 2 * 600
    assert len(set(imagined.slept)) > 600, "all who wait would ask in step"
    assert timeout.value.current is not None
    assert timeout.value.current.holder == "A"
    assert len(str(timeout.value)) < 200


WAITERS = 12


def test_s80_each_release_has_one_winner_and_all_are_served(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred of them, and a thousand releases, are in `tests/company` and `tests/benchmarks`."""
    ledger, asked = ledgers.open(), 0
    counting = threading.Lock()
    attempt = ledger.workings.commands.attempt

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal asked
        with counting:
            asked += 1
        return attempt(*args, **options)

    monkeypatch.setattr(ledger.workings.commands, "attempt", counted)
    ledger.take("k", "boss")
    first_is_seen = threading.Event()
    granted: list[str] = []
    waited: list[float] = []

    def wait(number: int) -> None:
        began = time.monotonic()
        grant = ledger.take("k", f"waiter:{number}", wait=60)
        waited.append(time.monotonic() - began)
        granted.append(grant.holder)
        assert first_is_seen.wait(30)
        ledger.release("k", grant.holder, token=grant.token)

    with ThreadPoolExecutor(WAITERS) as pool:
        waiting = [pool.submit(wait, number) for number in range(WAITERS)]
        ledger.release("k", "boss")
        until(lambda: granted, "one wins")
        before = asked
        until(lambda: asked >= before + WAITERS, "the others have asked again")
        assert len(granted) == 1
        first_is_seen.set()
        for each in waiting:
            each.result()

    history = ledger.history("k")
    assert [entry.holder for entry in history if entry.action == "LockTaken"] == ["boss", *granted]
    assert sorted(granted) == sorted(f"waiter:{number}" for number in range(WAITERS))
    assert asked <= sum(8 + 2 * seconds for seconds in waited)


# Who goes on holding.


def test_s79_a_holder_that_is_cut_off_stops_believing_before_another_is_granted(
    ledgers: Ledgers,
) -> None:
    ledger, other = ledgers.open(), ledgers.open()

    def cut_off(key: str) -> None:
        believed: list[bool] = []

        def take_over_when_free() -> Grant:
            grant = other.take(key, "B", wait=60)
            believed.append(not held.lost)
            return grant

        with (  # noqa: PT012
            pytest.raises(HoldLost) as at_exit,
            ledger.hold(key, "A", ttl=1.5, heartbeat=0.3) as held,
            ThreadPoolExecutor() as pool,
        ):
            begun = held.grant
            until(lambda: held.grant != begun or held.lost, "the heart beats")
            with in_the_way(ledgers.database, key):
                until(lambda: held.lost, "it is known at once, although nothing answers")
                with pytest.raises(HoldLost) as lost:
                    held.check()
                suspect = lost.value
                if not isinstance(suspect, HoldSuspect):
                    raise Missed  # the hold had run out before it was cut off
                silent_for = suspect.silent_for
                until(lambda: not other.is_locked(key), "the hold runs out")
                waiting = pool.submit(take_over_when_free)
            assert waiting.result().created
            until(lambda: heartbeats(key) == 0, "the heart does not go on for ever")
            with pytest.raises(HoldLost):
                held.check()

        assert believed == [False]
        assert silent_for >= 1.5 * 0.9
        assert at_exit.value.ended_by == "expiry"
        assert at_exit.value.current is not None
        assert at_exit.value.current.holder == "B"

    anew(cut_off)


def heartbeats(key: str) -> int:
    return sum(each.name == f"lockledger heartbeat {key}" for each in threading.enumerate())


def test_s86_a_heartbeat_as_long_as_the_ttl_is_refused(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    for heartbeat in (30, 15, timedelta(seconds=10, microseconds=1)):
        with (
            unchanged(ledgers),
            pytest.raises(ValueError, match="at most a third of the ttl, 10 seconds here"),
            ledger.hold("k", "A", ttl=30, heartbeat=heartbeat),
        ):
            pass
    with ledger.hold("k", "A", ttl=30, heartbeat=10) as held:
        assert held.grant.created


def test_s87_work_longer_than_the_ttl_overlaps_with_nobody_while_its_heart_beats(
    ledgers: Ledgers,
) -> None:
    ledger, other = ledgers.open(), ledgers.open()

    def work(key: str) -> None:
        with ledger.hold(key, "A", ttl=1.5, heartbeat=0.3) as held:
            ends = held.grant.expires_at
            assert ends is not None
            while clock_of(ledgers.database) <= ends + timedelta(seconds=0.5):
                assert other.try_take(key, "B") is None
                time.sleep(0.02)
            held.check()
        assert other.take(key, "B").created

    def beats_in_time(key: str) -> bool:
        """By the database: none was kept waiting for most of the ttl."""
        beats = [e.occurred_at for e in ledger.history(key, extensions=True) if e.after is not None]
        return all(
            later - earlier < timedelta(seconds=1)
            for earlier, later in pairwise([*beats, clock_of(ledgers.database)])
        )

    def work_beside_a_heart(key: str) -> None:
        try:
            work(key)
        except (AssertionError, HoldLost):
            if beats_in_time(key):
                raise
            raise Missed from None

    anew(work_beside_a_heart)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_s87_after_a_kill_the_lock_is_free_a_ttl_after_the_last_beat(ledgers: Ledgers) -> None:
    ledgers.may_log_errors = True  # of the session that is gone
    ledger = ledgers.open()

    def killed(key: str) -> str:
        child = os.fork()
        if child == 0:
            try:
                with LockLedger(ledgers.database.url).hold(key, "A", ttl=1.5, heartbeat=0.1):
                    time.sleep(60)
            finally:
                os._exit(1)
        until(lambda: ledger.is_locked(key) or ledger.history(key), "it holds the lock")
        until(lambda: beats(key) >= 2 or not ledger.is_locked(key), "its heart beats")
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        if beats(key) < 2:
            raise Missed  # the machine let it beat too late
        return key

    def beats(key: str) -> int:
        return len(ledger.history(key, extensions=True)) - 1

    key = anew(killed)
    grant = ledger.take(key, "B", wait=60)
    *_, last, expired, _taken = ledger.history(key, extensions=True)

    assert last.action == "LockExtended"
    assert expired.action == "LockExpired"
    assert expired.occurred_at == last.occurred_at + timedelta(seconds=1.5)
    assert expired.occurred_at <= grant.taken_at <= datetime.now(UTC) + timedelta(seconds=1)
