"""On the database's own clock, as every host runs it: the core of the tables, with ttls of fractions of a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from lockledger import HoldLost, LockedByOther, LockLedger, NotHeld, NotLockHolder
from support.lasting import lasting, while_live
from support.ledgers import Ledgers

TTL = 0.4


@pytest.fixture
def ledger(ledgers: Ledgers) -> LockLedger:
    """A ledger on each kind of database in turn, without a clock of the host's."""
    return ledgers.open()


def wait_for(true: Callable[[], bool]) -> None:
    """Until it is so; a test that waits for too long fails by its timeout."""
    while not true():
        time.sleep(0.005)


def test_a_hold_lasts_exactly_its_ttl_from_the_grant(ledgers: Ledgers, ledger: LockLedger) -> None:
    def story(key: str, ttl: float) -> None:
        before = datetime.now(UTC)
        grant = ledger.take(key, "run:1", ttl=ttl)
        after = datetime.now(UTC)

        assert grant.expires_at is not None
        assert grant.expires_at - grant.taken_at == timedelta(seconds=ttl)
        skew = timedelta(seconds=1)  # the server's clock may be another machine's
        assert before - skew <= grant.taken_at <= after + skew
        with while_live(ledgers.database, grant.expires_at), pytest.raises(LockedByOther):
            ledger.take(key, "run:2")

        wait_for(lambda: not ledger.is_locked(key))

        taken = ledger.take(key, "run:2")
        assert taken.taken_at >= grant.expires_at
        assert [(entry.action, entry.occurred_at) for entry in ledger.history(key)] == [
            ("LockTaken", grant.taken_at),
            ("LockExpired", grant.expires_at),
            ("LockTaken", taken.taken_at),
        ]

    lasting(story)


def test_who_ran_out_can_neither_extend_nor_release_the_next_holders_hold(
    ledger: LockLedger,
) -> None:
    grant = ledger.take("k", "run:1", ttl=TTL)
    wait_for(lambda: not ledger.is_locked("k"))

    with pytest.raises(NotHeld):
        ledger.extend("k", "run:1", 60)
    with pytest.raises(HoldLost) as loss:
        ledger.extend("k", "run:1", 60, token=grant.token)
    assert (loss.value.ended_by, loss.value.ended_at) == ("expiry", grant.expires_at)
    assert ledger.release("k", "run:1") is False

    ledger.take("k", "run:2")
    with pytest.raises(NotLockHolder):
        ledger.release("k", "run:1")
    with pytest.raises(HoldLost):
        ledger.release("k", "run:1", token=grant.token)
    assert ledger.is_locked("k")


def test_an_extension_counts_from_now(ledgers: Ledgers, ledger: LockLedger) -> None:
    def story(key: str, ttl: float) -> None:
        grant = ledger.take(key, "run:1", ttl=ttl)
        time.sleep(ttl / 4)
        with while_live(ledgers.database, grant.expires_at):
            extended = ledger.extend(key, "run:1", ttl)

        assert grant.expires_at is not None
        assert extended.expires_at is not None
        assert extended.expires_at - grant.expires_at >= timedelta(seconds=ttl / 4)
        wait_for(lambda: not ledger.is_locked(key))
        with pytest.raises(NotHeld):
            ledger.extend(key, "run:1", ttl)

    lasting(story)


def test_an_instant_ends_a_hold_at_that_instant(ledgers: Ledgers, ledger: LockLedger) -> None:
    def story(key: str, ttl: float) -> None:
        until = datetime.now(UTC) + timedelta(seconds=ttl)

        with while_live(ledgers.database, until):
            assert ledger.take(key, "run:1", ttl=until).expires_at == until
        wait_for(lambda: not ledger.is_locked(key))
        assert ledger.take(key, "run:2").created

    lasting(story)


def test_a_take_over_begins_a_new_ttl(ledgers: Ledgers, ledger: LockLedger) -> None:
    def story(key: str, ttl: float) -> None:
        taken = ledger.take(key, "run:1", ttl=ttl)
        with while_live(ledgers.database, taken.expires_at):
            taken_over = ledger.take(key, "run:2", ttl=ttl, takeover_reason="urgent")
            assert taken_over.taken_over_from == "run:1"
        with while_live(ledgers.database, taken_over.expires_at):
            replaced = ledger.take(key, "run:2", ttl=ttl, if_mine="replace")
            assert replaced.taken_over_from == "run:2"

        for grant in (taken_over, replaced):
            assert grant.expires_at == grant.taken_at + timedelta(seconds=ttl)
        wait_for(lambda: not ledger.is_locked(key))
        assert ledger.release(key, "run:2") is False

    lasting(story)


def test_a_hold_without_expiry_stays(ledger: LockLedger) -> None:
    grant = ledger.take("k", "run:1")

    assert grant.expires_at is None
    assert ledger.extend("k", "run:1", TTL).expires_at is None
    time.sleep(TTL * 1.1)
    assert ledger.is_locked("k")


def test_repeats_of_everything_are_safe(ledger: LockLedger) -> None:
    grant = ledger.take("k", "run:1", ttl=60)
    assert ledger.take("k", "run:1", ttl=60) == grant.model_copy(update={"created": False})
    taken_over = ledger.take("k", "run:2", takeover_reason="urgent")
    again = ledger.take("k", "run:2", takeover_reason="urgent")
    assert again == taken_over.model_copy(update={"created": False})
    assert ledger.release("k", "run:2", token=taken_over.token) is True
    assert ledger.release("k", "run:2", token=taken_over.token) is False
    assert len(ledger.history("k")) == 3


def test_times_never_go_back_within_a_lock(ledger: LockLedger) -> None:
    for number in range(20):
        ledger.take("k", f"run:{number}", takeover_reason="urgent")

    times = [entry.occurred_at for entry in ledger.history("k")]
    assert times == sorted(times)
