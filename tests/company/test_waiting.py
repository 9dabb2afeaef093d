"""`take(wait=…)`: what is granted and when, and how often the database is asked meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import (
    Grant,
    HoldChanged,
    InvalidTtl,
    LockedByOther,
    LockLedger,
    NotLockable,
    Policy,
    RecordedEvent,
    TakeRequest,
    WaitTimeout,
)
from lockledger.waiting import LONGEST_PAUSE, Patience, pauses, wait_for
from support.company import SOAK, Company, until
from support.hosts import Host
from support.in_the_way import in_the_way
from support.ledgers import SettableClock, unchanged
from support.waits import Imagined, Meanwhile, Tries, pausing, takes

# What is granted.


def test_a_free_lock_is_granted_at_once(ledger: LockLedger) -> None:
    with takes(0, 0):
        assert ledger.take("k", "run:1", wait=60).created
        assert not ledger.take("k", "run:1", wait=60).created


def test_a_lock_is_granted_soon_after_it_is_released(ledger: LockLedger) -> None:
    """By the first question that is asked after it, within a pause."""
    ledger.take("k", "run:2")
    tries = Tries(ledger)
    waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=30, ttl=600))
    until(lambda: tries.begun > 1, "it waits")
    time.sleep(0.3)
    assert waiting.runs
    ledger.release("k", "run:2")
    before = tries.begun
    with pausing() as meant:
        grant: Grant = waiting.answer()
    assert tries.begun <= before + 1
    assert sum(meant) <= LONGEST_PAUSE
    released, taken = list(ledger.history("k"))[-2:]

    assert (grant.created, grant.token) == (True, 3)
    assert released.occurred_at <= taken.occurred_at == grant.taken_at
    assert grant.expires_at == grant.taken_at + timedelta(seconds=600)


def test_a_lock_is_granted_just_when_it_runs_out(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    imagined = Imagined()
    imagined.replace(monkeypatch)
    ledger = company.open(clock=imagined.clock)
    held = ledger.take("k", "run:2", ttl=1.3)
    grant = ledger.take("k", "run:1", wait=30, ttl=1.3)
    assert held.expires_at is not None
    assert timedelta(0) <= grant.taken_at - held.expires_at < timedelta(seconds=0.06)
    assert grant.expires_at == grant.taken_at + timedelta(seconds=1.3)
    assert [entry.action for entry in ledger.history("k")] == [
        "LockTaken",
        "LockExpired",
        "LockTaken",
    ]


def test_the_ttl_may_be_shorter_than_the_wait(ledger: LockLedger) -> None:
    ledger.take("k", "run:2", ttl=1)
    grant = ledger.take("k", "run:1", wait=30, ttl=0.5)
    assert grant.expires_at == grant.taken_at + timedelta(seconds=0.5)


def test_try_take_waits_too(ledger: LockLedger) -> None:
    ledger.take("k", "run:2")
    with takes(0.1, 0.1):
        assert ledger.try_take("k", "run:1", wait=0.1) is None
    ledger.take("k", "run:2", ttl=0.5, if_mine="replace")
    assert ledger.try_take("k", "run:1", wait=timedelta(seconds=30)) is not None


def test_who_holds_the_lock_already_does_not_wait(company: Company) -> None:
    ledger = company.open()
    grant = ledger.take("k", "run:1", ttl=600)
    with takes(0, 0):
        assert ledger.take("k", "run:1", wait=30).token == grant.token
        assert ledger.take("k", "run:1", wait=30, ttl=1200, if_mine="extend").token == grant.token
        assert ledger.take("k", "run:1", wait=30, if_mine="replace").token > grant.token
        assert ledger.take("k", "run:2", wait=30, takeover_reason="urgent").taken_over_from


def test_who_must_not_hold_it_twice_waits_for_his_own_hold(ledger: LockLedger) -> None:
    ledger.take("k", "run:1")
    with pytest.raises(WaitTimeout) as timeout:
        ledger.take("k", "run:1", wait=0.1, if_mine="refuse")
    assert timeout.value.same_holder
    ledger.take("k", "run:1", ttl=0.5, if_mine="replace")
    assert ledger.take("k", "run:1", wait=30, if_mine="refuse").created


# The end of the wait.


def test_a_wait_that_ends_names_the_holder(company: Company, ledger: LockLedger) -> None:
    grant = ledger.take("k", "run:2", ttl=600)
    with unchanged(company.ledgers), takes(0.4, 0.4), pytest.raises(WaitTimeout) as timeout:
        ledger.take("k", "run:1", wait=0.4)
    told = timeout.value
    assert isinstance(told, LockedByOther)
    assert (told.code, told.key, told.waited, told.same_holder) == ("WAIT_TIMEOUT", "k", 0.4, False)
    assert told.current is not None
    assert told.current.grant(created=True) == grant


def test_a_wait_that_ends_names_who_holds_the_lock_then(
    ledger: LockLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when the test says so."""
    imagined = Imagined()
    imagined.replace(monkeypatch, sleeps=False)
    ledger.take("k", "run:2")
    tries = Tries(ledger)
    waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=1))
    until(lambda: tries.begun, "it asks")
    ledger.take("k", "run:3", takeover_reason="urgent")
    before = tries.begun
    until(lambda: tries.begun > before + 1, "it has asked again")
    imagined.now = 1.0
    with pytest.raises(WaitTimeout) as timeout:
        waiting.answer()
    assert timeout.value.current is not None
    assert timeout.value.current.holder == "run:3"


@pytest.mark.parametrize(
    ("wait", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (timedelta(0), ValueError),
        (timedelta(days=40_000), ValueError),
        (True, TypeError),
        ("1", TypeError),
        (datetime(2100, 1, 1, tzinfo=UTC), TypeError),
    ],
    ids=str,
)
def test_a_wait_that_makes_no_sense_is_refused(
    ledger: LockLedger, wait: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        ledger.take("k", "run:1", wait=wait)
    with pytest.raises(error):
        ledger.try_take("k", "run:1", wait=wait)
    assert list(ledger.history("k")) == []


def test_a_wait_in_a_callers_transaction_is_refused(host: Host) -> None:
    with host.engine.connect() as connection, unchanged(host.ledgers):
        bound = host.ledger.using(connection)
        for verb in (bound.take, bound.try_take):
            with pytest.raises(ValueError, match="inside a transaction"):
                verb("k", "run:1", wait=1)
        connection.rollback()


def test_an_instant_that_passes_while_waiting_ends_the_wait(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    imagined = Imagined()
    imagined.replace(monkeypatch)
    ledger = company.open(clock=imagined.clock)
    ledger.take("k", "run:2", ttl=600)
    until_when = imagined.clock() + timedelta(seconds=0.5)
    with pytest.raises(InvalidTtl, match="has passed while waiting for 'k'"):
        ledger.take("k", "run:1", wait=30, ttl=until_when)
    assert 0.5 <= imagined.now < 0.56


def test_an_instant_that_passes_behind_an_open_transaction_ends_the_wait(
    company: Company, ledger: LockLedger
) -> None:
    ledger.take("k", "run:2")
    ledger.release("k", "run:2")
    with (
        in_the_way(company.database, "k"),
        takes(0.3, 0.6),
        pytest.raises((InvalidTtl, WaitTimeout)),
    ):
        ledger.take("k", "run:1", wait=1.5, ttl=datetime.now(UTC) + timedelta(seconds=0.5))


def test_an_instant_is_judged_by_the_clock_of_the_ledger(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    timed.take("k", "run:2")
    until_when = clock.now + timedelta(seconds=10)
    waiting = Meanwhile(lambda: timed.take("k", "run:1", wait=30, ttl=until_when))
    time.sleep(0.3)
    assert waiting.runs
    clock.forward(10)
    with pytest.raises(InvalidTtl):
        waiting.answer()


def test_an_expected_token_that_changes_ends_the_wait(ledger: LockLedger) -> None:
    ledger.take("k", "run:2")
    waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=30, expected_token=1))
    time.sleep(0.2)
    ledger.take("k", "run:3", takeover_reason="urgent")
    with pytest.raises(HoldChanged) as changed:
        waiting.answer()
    assert changed.value.current is not None
    assert changed.value.current.holder == "run:3"


# What the host's policy hears.


class Asked(Policy[Connection]):
    def __init__(self) -> None:
        self.log: list[str] = []
        self.closed = False

    def lock_subject(self, connection: Connection, key: str) -> None:
        self.log.append("subject")

    def check_take(self, connection: Connection, request: TakeRequest) -> None:
        self.log.append(f"check {request.verb} {request.current and request.current.holder}")
        if self.closed:
            self.log.append("closed")
            raise NotLockable("closed", code="ROUND_CLOSED", key=request.key)

    def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        self.log.append("recorded")


def test_the_policy_is_asked_in_each_try(company: Company) -> None:
    policy = Asked()
    ledger = company.open(policy=policy)
    other = company.open()
    other.take("k", "run:2")
    waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=30))
    until(lambda: len(policy.log) >= 4, "it is asked in two tries")
    other.release("k", "run:2")
    waiting.answer()

    tries, rest = divmod(len(policy.log) - 1, 2)
    assert rest == 0
    assert policy.log[:4] == ["subject", "check take run:2"] * 2
    assert policy.log[-3:] == ["subject", "check take None", "recorded"]
    assert policy.log.count("subject") == tries
    ledger.try_take("k", "run:2", wait=0.05)
    assert policy.log[-1] == "check try_take run:1"


def test_what_the_policy_refuses_ends_the_wait_at_once(company: Company) -> None:
    policy = Asked()
    ledger = company.open(policy=policy)
    company.open().take("k", "run:2")
    waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=30))
    until(lambda: len(policy.log) >= 4, "it is asked in two tries")
    policy.closed = True
    with pausing() as meant, pytest.raises(NotLockable) as refused:
        waiting.answer()
    assert refused.value.code == "ROUND_CLOSED"
    assert policy.log.count("closed") == 1
    assert sum(meant) <= LONGEST_PAUSE


def test_a_policy_that_blocks_does_not_hold_a_wait_up(postgres_host: Host) -> None:
    postgres_host.ledgers.may_log_errors = True

    class LocksItsRow(Policy[Connection]):
        def lock_subject(self, connection: Connection, key: str) -> None:
            connection.exec_driver_sql("SELECT FROM host_document WHERE id = 1 FOR UPDATE")

    ledger = postgres_host.ledgers.open(policy=LocksItsRow())
    with postgres_host.session() as session:
        postgres_host.write(session, 1)
        session.commit()
        session.connection().exec_driver_sql("SELECT FROM host_document WHERE id = 1 FOR UPDATE")
        with takes(0.4, 0.4), pytest.raises(WaitTimeout):
            ledger.take("k", "run:1", wait=0.4)
        waiting = Meanwhile(lambda: ledger.take("k", "run:1", wait=30))
        time.sleep(0.3)
        session.rollback()
    assert waiting.answer().created


# How often it is asked.


@pytest.mark.parametrize("days", [1 / 86_400, 0.01, min(30, SOAK)])
def test_pauses_are_capped_and_the_deadline_kept(
    monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    time_ = Imagined()
    monkeypatch.setattr("lockledger.waiting.monotonic", time_.monotonic)
    tries = 0

    def refused(command: Any, patience: Patience) -> None:
        nonlocal tries
        tries += 1

    command: Any = type("Wished", (), {"key": "k", "until": None})()
    seconds = days * 86_400
    with pytest.raises(WaitTimeout) as timeout:
        wait_for(command, refused, Patience(seconds), time_.sleep, time_.clock)

    assert len(str(timeout.value)) < 200
    assert time_.now == pytest.approx(seconds)
    assert max(time_.slept) <= LONGEST_PAUSE
    assert tries == len(time_.slept) + 1
    assert tries <= 7 + 2 * seconds
    if seconds > 100:
        assert tries == pytest.approx(4 / 3 * seconds, rel=0.1)


def test_a_waiter_asks_seven_times_in_its_first_second_at_most() -> None:
    for _ in range(200):
        spacing = list(islice(pauses(), 50))
        asked_at = [sum(spacing[:number]) for number in range(50)]
        assert sum(at < 1 for at in asked_at) <= 7
        assert all(LONGEST_PAUSE / 2 <= pause <= LONGEST_PAUSE for pause in spacing[7:])
        assert len(set(spacing)) == 50
