"""`expire_due`: each expiry recorded once, at its true instant, by however many sweepers, with nothing live touched."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import (
    InvalidMetadata,
    LockedByOther,
    LockLedger,
    NotHolding,
    Policy,
    RecordedEvent,
)
from support.company import SOAK, Company, together
from support.hosts import Host
from support.in_the_way import clock_of
from support.ledgers import Ledgers, SettableClock, unchanged
from support.stories import at


def test_what_has_run_out_is_recorded_once_with_its_true_instant(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    timed.take("a", "run:1", ttl=10, metadata={"request": "r1"})
    timed.take("b", "run:1", ttl=30)
    timed.take("c", "run:1")
    clock.set(20)
    assert timed.expire_due() == 1
    with unchanged(company.ledgers):
        assert timed.expire_due() == 0
    entry = timed.history("a")[-1]

    assert (entry.action, entry.occurred_at, entry.recorded_at) == ("LockExpired", at(10), at(20))
    assert (entry.actor, entry.holder, entry.token, entry.after) == (None, "run:1", 1, None)
    event = next(iter(company.ledgers.open().events(after=entry.position - 1))).event
    assert (event.action, getattr(event, "recorded_during", None)) == ("LockExpired", "sweep")
    assert [hold.key for hold in timed.current_holders()] == ["b", "c"]


def test_metadata_is_kept_with_each_expiry_and_checked_although_none_is_due(
    timed: LockLedger, clock: SettableClock
) -> None:
    with pytest.raises(InvalidMetadata):
        timed.expire_due(metadata={"x": float("nan")})
    timed.take("a", "run:1", ttl=10, metadata={"of": "the take"})
    clock.forward(20)
    assert timed.expire_due(metadata={"request": "r-1"}) == 1
    entry = timed.history("a")[-1]
    assert (entry.actor, entry.metadata) == (None, {"request": "r-1"})
    assert entry.before is not None
    assert entry.before.metadata == {"of": "the take"}


def test_at_the_very_instant_a_hold_has_run_out(timed: LockLedger, clock: SettableClock) -> None:
    timed.take("a", "run:1", ttl=10)
    clock.set(9.999999)
    assert timed.expire_due() == 0
    clock.set(10)
    assert timed.expire_due() == 1


def test_the_longest_due_come_first_and_a_limit_leaves_the_rest(
    timed: LockLedger, clock: SettableClock
) -> None:
    for ttl, key in ((30, "a"), (10, "b"), (20, "c")):
        timed.take(key, "run:1", ttl=ttl)
    clock.set(60)
    assert timed.expire_due(2) == 2
    assert [len(timed.history(key)) for key in "abc"] == [1, 2, 2]
    assert timed.expire_due(2) == 1
    assert timed.expire_due(1) == 0


@pytest.mark.parametrize(
    ("limit", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), (1.5, TypeError)]
)
def test_a_limit_is_a_count(ledger: LockLedger, limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="give at least 1"):
        ledger.expire_due(limit)


def test_no_answer_depends_on_a_sweep(timed: LockLedger, clock: SettableClock) -> None:
    timed.take("k", "run:1", ttl=10)
    clock.set(20)
    before = (timed.holder_of("k"), list(timed.current_holders()), list(timed.holds(key="k")))
    timed.expire_due()
    assert (timed.holder_of("k"), list(timed.current_holders()), list(timed.holds(key="k"))) == (
        before
    )
    assert timed.take("k", "run:2").token == 3


def test_many_are_recorded_in_batches_of_a_hundred(company: Company, clock: SettableClock) -> None:
    class Batches(Policy[Connection]):
        def __init__(self) -> None:
            self.batches: list[set[str]] = []
            self.subjects: list[str] = []

        def lock_subject(self, connection: Connection, key: str) -> None:
            self.subjects.append(key)

        def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
            self.batches.append({each.event.key for each in events})

    keys = [f"k:{number:03}" for number in range(250)]
    company.open(clock=clock).take_all(keys, "run:1", ttl=10)
    clock.set(20)
    policy = Batches()
    ledger = company.open(clock=clock, policy=policy)
    assert ledger.expire_due() == 250
    assert [len(batch) for batch in policy.batches] == [100, 100, 50]
    assert sorted(policy.subjects) == keys
    first = policy.subjects[:100]
    assert first == sorted(first)


def test_in_a_callers_transaction_a_rollback_takes_it_back(host: Host) -> None:
    host.ledger.take_all(["a", "b"], "run:1", ttl=0.05)
    time.sleep(0.1)
    with host.session() as session:
        assert host.ledger.using(session).expire_due() == 2
        session.rollback()
    assert host.ledger.expire_due() == 2


def test_locks_that_another_transaction_has_in_hand_are_passed_over(postgres_host: Host) -> None:
    ledger = postgres_host.ledger
    ledger.take_all(["a", "b", "c"], "run:1", ttl=0.05)
    time.sleep(0.1)
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("b", "run:2")
        assert ledger.expire_due() == 2
        connection.rollback()
    assert ledger.expire_due() == 1


@pytest.mark.parametrize("whose", ["own", "caller's"])
def test_what_another_transaction_has_in_hand_leaves_the_limit_to_the_next_in_line(
    postgres_host: Host, whose: str
) -> None:
    ledger = postgres_host.ledger
    for key in ("a", "b", "c", "d", "e"):
        ledger.take(key, "run:1", ttl=0.05)
    time.sleep(0.1)
    with postgres_host.engine.connect() as connection, postgres_host.session() as session:
        ledger.using(connection).take_all(["a", "b"], "run:2")
        sweeping = ledger if whose == "own" else ledger.using(session)
        assert sweeping.expire_due(2) == 2
        session.commit()
        assert [hold.action for hold in ledger.history("e")] == ["LockTaken"]
        assert sweeping.expire_due(2) == 1
        session.commit()
        assert sweeping.expire_due(2) == 0
        session.commit()
        connection.rollback()
    assert ledger.expire_due(3) == 2


def test_a_hold_that_ran_out_under_a_guard_is_recorded_after_it(
    postgres_host: Host, clock: SettableClock
) -> None:
    ledger = postgres_host.ledgers.open(clock=clock)
    ledger.take("k", "run:1", ttl=10)
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).guard("k", "run:1")
        clock.set(10)
        assert not ledger.is_locked("k")
        assert ledger.expire_due() == 0
        connection.rollback()
    assert ledger.expire_due() == 1


def test_a_clock_that_was_set_back_records_nothing_early(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    timed.take("k", "run:1", ttl=10)
    clock.set(-3600)
    with unchanged(company.ledgers):
        assert timed.expire_due() == 0


SWEPT = 5000
SWEEPERS = 4


@pytest.mark.timeout(300 * SOAK)
def test_four_sweepers_and_live_traffic_record_each_expiry_once(ledgers: Ledgers) -> None:
    """5,000 holds run out; meanwhile others are taken, extended and released, also of locks that are being swept."""
    keys = [f"k:{number:04}" for number in range(SWEPT)]
    setting_up = ledgers.open()
    setting_up.take_all([f"live:{number}" for number in range(200)], "run:live")
    due = setting_up.take_all(keys, "run:1", ttl=1)
    ends = max(grant.expires_at for grant in due if grant.expires_at is not None)
    while clock_of(ledgers.database) < ends:
        time.sleep(0.05)
    over = threading.Event()
    traded = {seed: threading.Event() for seed in (2, 3, 4)}
    retaken: Counter[str] = Counter()
    counting = threading.Lock()

    def sweep() -> int:
        ledger, recorded = ledgers.open(), 0
        while True:
            swept = ledger.expire_due(700)
            recorded += swept
            # Four first rounds leave a part of them, which is swept beside live traffic.
            assert all(each.wait(60) for each in traded.values()), "there is no live traffic"
            if swept == 0 and not due_now(ledger):
                return recorded

    def due_now(ledger: LockLedger) -> list[str]:
        """Others may have the last ones in hand."""
        with ledgers.database.engine().connect() as connection:
            return ledger.workings.queries.due(connection, 1)

    def trade(seed: int) -> int:
        ledger, rng, done = ledgers.open(), random.Random(seed), 0
        while not over.is_set():
            key = rng.choice(keys) if rng.random() < 0.5 else f"traded:{rng.randrange(20)}"
            holder = f"run:{seed}"
            with contextlib.suppress(LockedByOther, NotHolding):
                grant = ledger.take(key, holder, ttl=600)
                if key in known:
                    with counting:
                        retaken[key] += grant.created
                ledger.extend(key, holder, 1200, token=grant.token)
                assert ledger.release(key, holder, token=grant.token)
                done += 1
                traded[seed].set()
        return done

    known = set(keys)
    recorded: list[int] = []

    def sweep_all() -> None:
        recorded.extend(int(str(count)) for count in together([sweep] * SWEEPERS))
        over.set()

    answers = together([sweep_all, *[lambda seed=seed: trade(seed) for seed in traded]])
    audit = all_entries(setting_up)
    expired = Counter(entry.key for entry in audit if entry.action == "LockExpired")

    assert expired == Counter(keys)
    by_take = sum(1 for key in retaken if retaken[key])
    assert SWEPT - by_take <= sum(recorded) <= SWEPT
    assert all(int(str(done)) for done in answers[1:]), "there was no live traffic"
    at_the_end = {grant.key: grant.expires_at for grant in due}
    assert all(e.occurred_at == at_the_end[e.key] for e in audit if e.action == "LockExpired")
    live = setting_up.current_holders(under="live", limit=1000)
    assert len(live) == 200
    assert {hold.token for hold in live} == {1}


def all_entries(ledger: LockLedger) -> list[Any]:
    found: list[Any] = []
    after = None
    while True:
        page = ledger.audit_trail(after=after, limit=1000)
        found += page
        after = page.next_after
        if after is None:
            return found
