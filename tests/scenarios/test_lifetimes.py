"""Scenarios 4.2: how long a hold lasts, what an extension is, and what a repeated take."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import (
    InvalidTtl,
    LockedByOther,
    LockLedger,
    NotHeld,
    NotHolding,
    NotLockable,
    Policy,
    TakeRequest,
)
from support.ledgers import Ledgers, SettableClock, unchanged
from support.stories import at


def actions(ledger: LockLedger, key: str = "k") -> list[str]:
    return [entry.action for entry in ledger.history(key, extensions=True)]


def test_s12_zero_is_no_ttl_and_no_extension_deletes(ledger: LockLedger) -> None:
    with pytest.raises(InvalidTtl):
        ledger.take("k", "A", ttl=0)
    grant = ledger.take("k", "A", ttl=None)
    for ttl in (0, None):
        with pytest.raises(InvalidTtl):
            ledger.extend("k", "A", ttl)
    assert ledger.extend("k", "A", 5) == grant.model_copy(update={"created": False})

    assert ledger.is_locked("k")
    assert actions(ledger) == ["LockTaken"]


@pytest.mark.parametrize("ttl", [None, 60], ids=["without expiry", "with a ttl"])
@pytest.mark.parametrize("mode", ["fresh", "after a release", "after an expiry"])
def test_s13_of_fifty_takes_at_once_exactly_one_wins(
    ledgers: Ledgers, clock: SettableClock, ttl: float | None, mode: str
) -> None:
    ledger = ledgers.open(clock=clock)
    if mode != "fresh":
        ledger.take("k", "old", ttl=5)
    if mode == "after a release":
        ledger.release("k", "old")
    clock.set(5)

    with ThreadPoolExecutor(10) as pool:
        grants = list(pool.map(lambda n: ledger.try_take("k", f"run:{n}", ttl=ttl), range(50)))

    (winner,) = [grant for grant in grants if grant]
    hold = ledger.holder_of("k")
    assert hold is not None
    assert hold.grant(created=True) == winner
    assert actions(ledger).count("LockTaken") == (1 if mode == "fresh" else 2)


def test_s14_an_extension_of_a_hold_without_expiry_gives_it_none(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "A", ttl=None)
    ledger.extend("k", "A", 1)
    clock.set(2)

    hold = ledger.holder_of("k")
    assert hold is not None
    assert hold.expires_at is None


def test_s15_a_forced_release_needs_the_key_alone(ledgers: Ledgers, clock: SettableClock) -> None:
    class Blind(Policy[Connection]):
        """Nobody may take anything, as for someone who cannot see the resource."""

        def check_take(self, connection: Connection, request: TakeRequest) -> None:
            raise NotLockable

    ledgers.open(clock=clock).take("k", "A", ttl=None)
    ledger = ledgers.open(clock=clock, policy=Blind())

    hold = ledger.force_release("k", actor="admin", reason="left the company")

    assert hold is not None
    assert hold.holder == "A"
    assert not ledger.is_locked("k")


def test_s16_a_hold_that_ran_out_is_told_so_and_fractions_count_everywhere(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "A", ttl=60)
    clock.set(190)
    with pytest.raises(NotHeld):
        ledger.extend("k", "A", 60)
    with pytest.raises(
        InvalidTtl
    ):  # what is left of a hold is never fed back: there is no such number
        ledger.extend("k", "A", -130)

    assert ledger.take("k", "A", ttl=0.9).expires_at == at(190.9)
    clock.set(190.899999)
    assert ledger.is_locked("k")
    clock.set(190.9)
    assert not ledger.is_locked("k")


def test_s17_a_ttl_runs_from_the_grant_and_not_from_the_call(
    ledgers: Ledgers, clock: SettableClock
) -> None:
    class Slow(Policy[Connection]):
        """The host's row is locked for 20 seconds, and the call waits for it."""

        def lock_subject(self, connection: Connection, key: str) -> None:
            clock.set(20)

    grant = ledgers.open(clock=clock, policy=Slow()).take("k", "B", ttl=20)

    assert (grant.taken_at, grant.expires_at) == (at(20), at(40))


def test_s20_zero_empty_and_false_are_values_and_never_mean_unset(
    ledgers: Ledgers, ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "A", ttl=10)
    take: Any = ledger.take
    options: dict[str, tuple[object, ...]] = {
        "ttl": (0, "", False),
        "actor": (0, "", False),
        "if_mine": (0, "", False),
        "expected_token": ("", False),
        "metadata": (0, "", False),
        "takeover_reason": (0, False),
    }
    with unchanged(ledgers):
        for name, values in options.items():
            for value in values:
                with pytest.raises((ValueError, TypeError)):
                    take("free", "A", **{name: value})
        for value in (0, "", False):
            with pytest.raises((ValueError, TypeError)):
                take(value, "A")
        with pytest.raises(NotHolding):
            ledger.release("k", "A", token=0)
    assert take("free", "A", expected_token=0, takeover_reason="", metadata={}).created
    assert ledgers.open(busy_timeout=0, clock=clock).is_locked("k")
    assert len(ledger.current_holders(key_prefix="", after="")) == 2


def test_s22_an_extension_resets_from_now_and_its_grant_stays_good(
    ledger: LockLedger, clock: SettableClock
) -> None:
    grant = ledger.take("k", "A", ttl=10)
    clock.set(2)

    for _ in range(2):
        assert ledger.extend("k", "A", 10, token=grant.token).expires_at == at(12)
    assert actions(ledger) == ["LockTaken", "LockExtended"]
    assert ledger.extend("k", "A", 1, token=grant.token).expires_at == at(12)
    assert ledger.release("k", "A", token=grant.token)


def test_s23_an_owner_who_takes_again_gets_the_same_grant(
    ledger: LockLedger, clock: SettableClock
) -> None:
    grant = ledger.take("k", "A", ttl=60)
    clock.set(30)

    again = ledger.take("k", "A", ttl=60)
    assert again == grant.model_copy(update={"created": False})
    assert again.expires_at == at(60)
    refreshed = ledger.take("k", "A", ttl=60, if_mine="extend")
    assert (refreshed.token, refreshed.expires_at) == (grant.token, at(90))
    assert actions(ledger) == ["LockTaken", "LockExtended"]


def test_s24_there_is_no_count_of_takes(ledger: LockLedger) -> None:
    for _ in range(3):
        ledger.take("k", "A")
    assert ledger.release("k", "A") is True
    assert ledger.release("k", "A") is False

    assert ledger.take("k", "B").created


def test_s26_a_list_and_a_command_agree_at_the_same_instant(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "A", ttl=120)
    for second, held in ((119.999999, True), (120, False), (121, False)):
        clock.set(second)
        listed = [hold.holder for hold in ledger.current_holders()]
        assert listed == (["A"] if held else [])
        assert ledger.is_locked("k") is held
    assert ledger.release("k", "A") is False


def test_s27_what_ran_out_is_free_without_any_sweep(
    ledger: LockLedger, clock: SettableClock
) -> None:
    for number in range(100):
        ledger.take(f"task:{number}", f"worker:{number}", ttl=60)
    clock.set(60)

    assert list(ledger.current_holders()) == []
    free = next(key for key in map("task:{}".format, range(100)) if not ledger.is_locked(key))
    assert ledger.take(free, "worker:101").created
    assert [hold.holder for hold in ledger.current_holders()] == ["worker:101"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_s32_owner_and_deadline_are_written_together_and_survive_a_kill(ledgers: Ledgers) -> None:
    child = os.fork()
    if child == 0:
        try:
            LockLedger(ledgers.database.url).take("k", "A", ttl=60)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    hold = ledgers.open().holder_of("k")
    assert hold is not None
    assert hold.expires_at is not None
    assert (hold.expires_at - hold.taken_at).total_seconds() == 60


def test_s32_a_renewal_that_races_with_a_release_changes_nothing_after_it(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    for number in range(10):
        key = f"k{number}"
        grant = ledger.take(key, "A", ttl=60)
        start = threading.Barrier(2)

        def renew(key: str = key, token: int = grant.token, start: Any = start) -> None:
            start.wait()
            for ttl in range(61, 71):
                try:
                    ledger.extend(key, "A", ttl, token=token)
                except NotHolding:
                    return

        renewing = threading.Thread(target=renew)
        renewing.start()
        start.wait()
        assert ledger.release(key, "A", token=grant.token)
        renewing.join()

        assert not ledger.is_locked(key)
        assert actions(ledger, key)[-1] == "LockReleased"


def test_s33_a_ttl_is_no_idle_timeout_and_activity_that_extends_is_one(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("file", "A", ttl=900)
    ledger.take("touched", "A", ttl=900)
    for second in range(60, 900, 60):
        clock.set(second)
        assert ledger.take("file", "A").created is False  # works in it, and extends nothing
        ledger.extend("touched", "A", 900)
    clock.set(901)

    assert ledger.take("file", "B").created
    with pytest.raises(LockedByOther):
        ledger.take("touched", "B")
