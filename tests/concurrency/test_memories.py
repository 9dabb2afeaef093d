"""What a ledger remembers of a lock is tried and never believed: every answer is as if it had looked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from lockledger import (
    Grant,
    HoldLost,
    LockedByOther,
    LockLedger,
    NotHeld,
    NotLockHolder,
    Policy,
    TamperedLedger,
)
from lockledger.memory import IN_A_ROW, SHORT, SIZE, Memory
from support.hosts import PATIENCE, Host
from support.tampering import tamper

SECOND = 10**9
HOUR = 3600 * SECOND


@pytest.fixture
def host(postgres_host: Host) -> Host:
    """On each PostgreSQL server in turn; on SQLite a ledger remembers nothing."""
    return postgres_host


@pytest.fixture
def ledger(host: Host) -> LockLedger:
    """A ledger that nobody else uses."""
    return host.ledgers.open()


def memories(ledger: LockLedger) -> dict[str, Memory]:
    found = ledger.workings.commands._memories
    assert found is not None
    return found._memories


def owned(ledger: LockLedger, key: str = "k") -> None:
    """Makes the ledger try to begin the next hold of the lock from memory."""
    for _ in range(IN_A_ROW // 2):
        ledger.take(key, "ann")
        ledger.release(key, "ann")
    assert memories(ledger)[key].in_a_row >= IN_A_ROW


def shift(ledger: LockLedger, nanoseconds: int) -> None:
    """Lets the ledger believe that so much more time has passed since it changed the lock."""
    reckoning = ledger.workings.commands._reckoning
    assert reckoning._known is not None
    clock = reckoning._known.clock + timedelta(microseconds=nanoseconds // 1000)
    reckoning._known = replace(reckoning._known, clock=clock)


def actions(ledger: LockLedger) -> list[str]:
    return [entry.action for entry in ledger.history("k")]


def test_a_hold_that_somebody_else_ended_is_lost_for_its_ledger_too(
    host: Host, ledger: LockLedger
) -> None:
    token = ledger.take("k", "ann").token
    host.ledger.take("k", "ben", takeover_reason="urgent")
    with pytest.raises(HoldLost) as lost:
        ledger.release("k", "ann", token=token)
    assert (lost.value.ended_by, lost.value.reason) == ("takeover", "urgent")
    token = ledger.take("k", "ann", takeover_reason="back").token
    host.ledger.force_release("k", actor="root", reason="order")
    with pytest.raises(HoldLost):
        ledger.extend("k", "ann", 60, token=token)
    assert ledger.release("k", "ann") is False
    assert actions(ledger) == ["LockTaken", "LockTakenOver", "LockTakenOver", "LockReleased"]


def test_a_lock_that_somebody_else_took_is_held_for_its_ledger_too(
    host: Host, ledger: LockLedger
) -> None:
    owned(ledger)
    theirs = host.ledger.take("k", "ben")
    with pytest.raises(LockedByOther) as refused:
        ledger.take("k", "ann")
    assert refused.value.current
    assert refused.value.current.token == theirs.token
    with pytest.raises(NotLockHolder):
        ledger.release("k", "ann")


def test_a_refusal_waits_for_nobody(host: Host, ledger: LockLedger) -> None:
    """Who has the lock's row in an open transaction has not changed what is committed."""
    owned(ledger)
    token = ledger.take("k", "ann").token
    host.ledger.take("k", "ben", takeover_reason="urgent")
    with host.session() as session:
        host.ledger.using(session).release("k", "ben")
        refused = host.meanwhile(lambda: ledger.release("k", "ann", token=token))
        assert isinstance(refused.exception(timeout=PATIENCE), HoldLost)
        assert host.meanwhile(lambda: ledger.try_take("k", "ann")).result(timeout=PATIENCE) is None
        session.rollback()


def test_what_others_did_and_undid_leaves_another_version(host: Host, ledger: LockLedger) -> None:
    """The lock is free again, as it is remembered, and yet it is another state."""
    owned(ledger)
    host.ledger.take("k", "ben")
    host.ledger.release("k", "ben")
    assert ledger.take("k", "ann").token == IN_A_ROW + 3


@pytest.mark.parametrize("seconds", [30, 3600])
def test_a_hold_does_not_end_earlier_than_by_the_databases_clock(
    host: Host, ledger: LockLedger, seconds: float
) -> None:
    """This machine's clock runs ahead of the database's, or that was set back."""
    owned(ledger)
    mine = ledger.take("k", "ann", ttl=seconds)
    shift(ledger, round(seconds * SECOND) + SECOND)
    with pytest.raises(LockedByOther):
        ledger.take("k", "ben")
    assert ledger.extend("k", "ann", seconds + 60, token=mine.token).token == mine.token
    shift(ledger, HOUR)
    assert ledger.release("k", "ann", token=mine.token)
    assert "LockExpired" not in actions(ledger)


@pytest.mark.parametrize("call", ["release", "extend", "take"])
def test_a_hold_does_not_live_longer_than_by_the_databases_clock(
    host: Host, ledger: LockLedger, call: str
) -> None:
    """This machine was suspended, and its clock with it: it believes that the hold still lives."""
    owned(ledger)
    mine = ledger.take("k", "ann", ttl=0.2)
    while host.ledger.is_locked("k"):
        pass
    shift(ledger, -HOUR)
    if call == "take":
        assert ledger.take("k", "ann", if_mine="extend", ttl=60).created
        assert actions(ledger)[-2:] == ["LockExpired", "LockTaken"]
        return
    calls: dict[str, Callable[[], object]] = {
        "release": lambda: ledger.release("k", "ann", token=mine.token),
        "extend": lambda: ledger.extend("k", "ann", 60, token=mine.token),
    }
    with pytest.raises(HoldLost) as lost:
        calls[call]()
    assert lost.value.ended_by == "expiry"
    with pytest.raises(NotHeld):
        ledger.extend("k", "ann", 60)


def test_an_event_is_not_earlier_than_the_one_before_it(ledger: LockLedger) -> None:
    owned(ledger)
    for _ in range(50):
        ledger.take("k", "ann", ttl=60)
        ledger.extend("k", "ann", 120)
        ledger.release("k", "ann")
    recorded = [entry.recorded_at for entry in ledger.history("k", limit=500)]
    assert recorded == sorted(recorded)


AN_EVENT_MORE = (
    "INSERT INTO lockledger_events (lock_id, version, position, ledger, topic, state, hash)"
    " SELECT lock_id, {version}, position, ledger, topic, state, hash FROM lockledger_events WHERE lock_id = :k"
)
TAMPERED = {
    "another holder": "UPDATE lockledger_current_holders SET holder = 'eve' WHERE lock_id = :k",
    "another token": "UPDATE lockledger_current_holders SET token = 9 WHERE lock_id = :k",
    "another end": "UPDATE lockledger_current_holders SET expires_at = now() WHERE lock_id = :k",
    "no end": "UPDATE lockledger_current_holders SET expires_at = NULL WHERE lock_id = :k",
    "another key": "UPDATE lockledger_current_holders SET key = 'j' WHERE lock_id = :k",
    "another ledger": "UPDATE lockledger_current_holders SET ledger = 'j' WHERE lock_id = :k",
    "an older version": "UPDATE lockledger_current_holders SET version = 0 WHERE lock_id = :k",
    "no head": "DELETE FROM lockledger_current_holders WHERE lock_id = :k",
    "no event": "DELETE FROM lockledger_events WHERE lock_id = :k",
    "an event more": AN_EVENT_MORE.format(version=2),
    "an event more above a gap": AN_EVENT_MORE.format(version=5),
    "no state": "UPDATE lockledger_events SET state = '{}' WHERE lock_id = :k",
    "another holder in the state": (
        "UPDATE lockledger_events SET state = replace(state, 'ann', 'eve') WHERE lock_id = :k"
    ),
    "a foreign topic": "UPDATE lockledger_events SET topic = 'foreign:Event' WHERE lock_id = :k",
}


@pytest.mark.parametrize("how", TAMPERED)
def test_what_a_look_would_have_found_is_found(host: Host, how: str) -> None:
    host.ledgers.may_log_errors = True
    with LockLedger(host.database.url) as ledger:
        token = ledger.take("k", "ann", ttl=60).token
        tamper(host.database, TAMPERED[how], k="k")
        with pytest.raises(TamperedLedger):
            ledger.release("k", "ann", token=token)
        with host.database.engine().connect() as connection:
            found = connection.exec_driver_sql("SELECT count(*) FROM lockledger_audit_trail")
            assert found.scalar_one() == 1
    tamper(
        host.database,
        *(
            f"DELETE FROM lockledger_{table} WHERE lock_id = :k"
            for table in ("events", "audit_trail", "current_holders")
        ),
        k="k",
    )


def test_a_history_that_was_put_back_and_went_on_otherwise_is_read(
    host: Host, ledger: LockLedger
) -> None:
    """A backup, or a standby that lacked the last commits, and then another hold under the same version and token."""
    ledger.take("k", "ann")
    for table in ("events", "audit_trail", "current_holders"):
        tamper(host.database, f"DELETE FROM lockledger_{table} WHERE lock_id = :k", k="k")
    again = host.ledger.take("k", "ann")
    assert ledger.release("k", "ann", token=again.token)
    assert ledger.verify().ok


def test_what_a_transaction_takes_back_is_not_remembered(host: Host, ledger: LockLedger) -> None:
    ledger.take("k", "ann")
    before = dict(memories(ledger))
    with host.session() as session:
        ledger.using(session).release("k", "ann")
        session.rollback()
    assert memories(ledger) == before
    assert ledger.release("k", "ann")


def test_with_a_policy_nothing_is_remembered(host: Host) -> None:
    """The policy runs in the transaction that makes the change, before the lock is looked at."""

    class Quiet(Policy[Connection]):
        """Says nothing."""

    ledger = host.ledgers.open(policy=Quiet())
    ledger.take("k", "ann")
    assert memories(ledger) == {}


def test_holds_above_and_under_are_still_looked_for(host: Host) -> None:
    ledger, other = (host.ledgers.open(scopes=True) for _ in range(2))
    owned(ledger, "a:b")
    theirs = other.take("a", "ben")
    with pytest.raises(LockedByOther) as refused:
        ledger.take("a:b", "ann")
    assert refused.value.current
    assert refused.value.current.token == theirs.token
    other.release("a", "ben")
    mine = ledger.take("a:b", "ann")
    assert ledger.release("a:b", "ann", token=mine.token)


def test_no_more_locks_are_remembered_than_it_says(ledger: LockLedger) -> None:
    for start in range(0, SIZE + 20, 60):
        ledger.take_all([f"k:{number}" for number in range(start, start + 60)], "ann")
    for number in range(SIZE + 20):
        ledger.release(f"k:{number}", "ann")
    assert len(memories(ledger)) == SIZE
    assert "k:0" not in memories(ledger)


def test_what_is_long_is_not_remembered(ledger: LockLedger) -> None:
    ledger.take("k", "ann", metadata={"note": "x" * SHORT})
    assert memories(ledger) == {}
    assert ledger.release("k", "ann")


def test_threads_of_one_ledger_give_a_lock_to_one_of_them(ledger: LockLedger) -> None:
    held: list[str] = []

    def work(holder: str) -> int:
        took = 0
        for _ in range(40):
            grant: Grant | None = ledger.try_take("k", holder, ttl=60)
            if grant is None:
                continue
            held.append(holder)
            assert held == [holder]
            held.remove(holder)
            assert ledger.release("k", holder, token=grant.token)
            took += 1
        return took

    with ThreadPoolExecutor(6) as pool:
        took = sum(pool.map(work, [f"run:{number}" for number in range(6)]))
    recorded = [entry.action for entry in ledger.history("k", limit=1000)]
    assert recorded == ["LockTaken", "LockReleased"] * took
    assert took > 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_waits_for_no_thread_that_its_parent_had(ledger: LockLedger) -> None:
    """One of them was just looking for what is remembered, and is not there to end that."""
    ledger.take("k", "ann")
    found = ledger.workings.commands._memories
    assert found is not None
    with found._mutex:
        child = os.fork()
        if child == 0:
            signal.alarm(round(PATIENCE))
            os._exit(0 if ledger.release("k", "ann") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ledger.release("k", "ann") is False
