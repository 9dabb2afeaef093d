"""On the database's own clock, as every host runs it: the core of the tables, with ttls of fractions of a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from lockledger import HoldLost, LockedByOther, LockLedger, NotHeld, NotLockHolder
from support.ledgers import Ledgers

# Long enough for a call or two to come in time, also on a busy machine.
TTL = 0.8


@pytest.fixture
def ledger(ledgers: Ledgers) -> LockLedger:
    """A ledger on each kind of database in turn, without a clock of the host's."""
    return ledgers.open()


def wait_for(true: Callable[[], bool]) -> None:
    """Until it is so; a test that waits for too long fails by its timeout."""
    while not true():
        time.sleep(0.005)


def test_a_hold_lasts_exactly_its_ttl_from_the_grant(ledger: LockLedger) -> None:
    before = datetime.now(UTC)
    grant = ledger.take("k", "run:1", ttl=TTL)
    after = datetime.now(UTC)

    assert grant.expires_at is not None
    assert grant.expires_at - grant.taken_at == timedelta(seconds=TTL)
    skew = timedelta(seconds=1)  # the server's clock may be another machine's
    assert before - skew <= grant.taken_at <= after + skew
    with pytest.raises(LockedByOther):
        ledger.take("k", "run:2")

    wait_for(lambda: not ledger.is_locked("k"))

    taken = ledger.take("k", "run:2")
    assert taken.taken_at >= grant.expires_at
    assert [(entry.action, entry.occurred_at) for entry in ledger.history("k")] == [
        ("LockTaken", grant.taken_at),
        ("LockExpired", grant.expires_at),
        ("LockTaken", taken.taken_at),
    ]


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


def test_an_extension_counts_from_now(ledger: LockLedger) -> None:
    grant = ledger.take("k", "run:1", ttl=TTL)
    time.sleep(TTL / 4)
    extended = ledger.extend("k", "run:1", TTL)

    assert grant.expires_at is not None
    assert extended.expires_at is not None
    assert extended.expires_at - grant.expires_at >= timedelta(seconds=TTL / 4)
    wait_for(lambda: not ledger.is_locked("k"))
    with pytest.raises(NotHeld):
        ledger.extend("k", "run:1", TTL)


def test_an_instant_ends_a_hold_at_that_instant(ledger: LockLedger) -> None:
    until = datetime.now(UTC) + timedelta(seconds=TTL)

    assert ledger.take("k", "run:1", ttl=until).expires_at == until
    wait_for(lambda: not ledger.is_locked("k"))
    assert ledger.take("k", "run:2").created


def test_a_take_over_begins_a_new_ttl(ledger: LockLedger) -> None:
    ledger.take("k", "run:1", ttl=TTL)
    taken_over = ledger.take("k", "run:2", ttl=TTL, takeover_reason="urgent")
    replaced = ledger.take("k", "run:2", ttl=TTL, if_mine="replace")

    for grant in (taken_over, replaced):
        assert grant.expires_at == grant.taken_at + timedelta(seconds=TTL)
    assert replaced.taken_over_from == "run:2"
    wait_for(lambda: not ledger.is_locked("k"))
    assert ledger.release("k", "run:2") is False


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
