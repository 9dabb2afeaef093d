"""`release_all`: whose and where, with a reason; in batches that a repeat goes on with, or all in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import InvalidReason, LockLedger, Policy, RecordedEvent
from support.company import Company, together
from support.hosts import Host
from support.ledgers import SettableClock, unchanged


def held(ledger: LockLedger) -> dict[str, str]:
    return {hold.key: hold.holder for hold in ledger.current_holders(limit=1000)}


@pytest.fixture
def taken(ledger: LockLedger) -> LockLedger:
    ledger.take_all(["round", "round:5", "round:5:band:2", "round:50", "other"], "run:1")
    ledger.take_all(["round:5:band:3", "round:6"], "run:2")
    return ledger


@pytest.mark.parametrize(
    ("selectors", "left"),
    [
        ({"holder": "run:1"}, {"round:5:band:3": "run:2", "round:6": "run:2"}),
        (
            {"under": "round:5"},
            {"round": "run:1", "round:50": "run:1", "other": "run:1", "round:6": "run:2"},
        ),
        (
            {"holder": "run:1", "under": "round:5"},
            {
                "round": "run:1",
                "round:50": "run:1",
                "other": "run:1",
                "round:5:band:3": "run:2",
                "round:6": "run:2",
            },
        ),
        ({"under": "round"}, {"other": "run:1"}),
        ({"under": "elsewhere"}, None),
        ({"holder": "run:3"}, None),
    ],
    ids=str,
)
def test_every_hold_that_all_selectors_select_is_ended(
    taken: LockLedger, selectors: dict[str, Any], left: dict[str, str] | None
) -> None:
    before = held(taken)
    count = taken.release_all(**selectors, actor="user:9", reason="  the round is closed ")
    assert held(taken) == (before if left is None else left)
    assert count == len(before) - len(held(taken))
    for key in before.keys() - held(taken).keys():
        entry = taken.history(key)[-1]
        assert (entry.action, entry.actor, entry.reason) == (
            "LockReleased",
            "user:9",
            "the round is closed",
        )
        assert entry.before is not None
        assert entry.after is None


def test_they_end_as_forced(ledger: LockLedger) -> None:
    ledger.take("k", "run:1")
    assert ledger.release_all(holder="run:1", actor="user:9", reason="gone") == 1
    (ended,) = ledger.holds(key="k")
    assert (ended.ended_by, ended.ended_by_actor, ended.end_reason) == ("forced", "user:9", "gone")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"actor": "user:9", "reason": "why"}, ValueError),
        ({"holder": "run:1", "reason": "why"}, TypeError),
        ({"holder": "run:1", "actor": "user:9", "reason": "  "}, InvalidReason),
        ({"holder": "", "actor": "user:9", "reason": "why"}, ValueError),
        ({"under": " k", "actor": "user:9", "reason": "why"}, ValueError),
    ],
    ids=str,
)
def test_what_is_not_said_ends_nothing(
    company: Company, taken: LockLedger, wrong: dict[str, Any], error: type[Exception]
) -> None:
    with unchanged(company.ledgers), pytest.raises(error):
        taken.release_all(**wrong)


def test_who_acts_may_be_named_by_the_transaction(host: Host) -> None:
    host.ledger.take("k", "run:1")
    with host.session() as session:
        bound = host.ledger.using(session, actor="user:9", metadata={"request": "r1"})
        assert bound.release_all(holder="run:1", reason="why") == 1
        session.commit()
    entry = host.ledger.history("k")[-1]
    assert (entry.actor, entry.metadata) == ("user:9", {"request": "r1"})


def test_what_has_run_out_is_not_ended_again(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    timed.take("a", "run:1", ttl=10)
    clock.set(10)
    with unchanged(company.ledgers):
        assert timed.release_all(holder="run:1", actor="user:9", reason="why") == 0


class Interrupting(Policy[Connection]):
    """The host's own rows cannot be written in the second batch."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.subjects: list[str] = []
        self.fails_at: int | None = None

    def lock_subject(self, connection: Connection, key: str) -> None:
        self.subjects.append(key)

    def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        if len(self.batches) == self.fails_at:
            raise ConnectionError("the outbox is full")
        self.batches.append(len(events))


def test_a_release_that_was_broken_off_keeps_its_batches_and_a_repeat_goes_on(
    company: Company,
) -> None:
    keys = [f"k:{number:03}" for number in range(250)]
    company.open().take_all(keys, "run:1")
    policy = Interrupting()
    ledger = company.open(policy=policy)
    policy.fails_at = 1
    with pytest.raises(ConnectionError):
        ledger.release_all(holder="run:1", actor="user:9", reason="why")
    assert policy.batches == [100]
    assert sorted(held(ledger)) == keys[100:]
    policy.fails_at = None
    assert ledger.release_all(holder="run:1", actor="user:9", reason="why") == 150
    assert policy.batches == [100, 100, 50]
    assert held(ledger) == {}
    assert policy.subjects == keys[:200] + keys[100:]


def test_in_a_callers_transaction_it_is_all_or_nothing(host: Host) -> None:
    keys = [f"k:{number:04}" for number in range(1100)]
    host.ledger.take_all(keys, "run:1")
    policy = Interrupting()
    ledger = host.ledgers.open(policy=policy)
    policy.fails_at = 1
    with host.session() as session:
        host.write(session, 1)
        with pytest.raises(ConnectionError):
            ledger.using(session).release_all(holder="run:1", actor="user:9", reason="why")
        assert ledger.using(session).is_locked(keys[0])
        policy.fails_at = None
        bound = ledger.using(session)
        assert bound.release_all(holder="run:1", actor="user:9", reason="why") == 1100
        assert len(bound.current_holders(limit=1000)) == 0
        assert host.ledger.is_locked(keys[0])
        session.rollback()
    assert len(held(host.ledger)) == 1000
    assert host.documents() == {}


def test_a_hold_that_another_took_over_meanwhile_is_left(postgres_host: Host) -> None:
    ledger = postgres_host.ledger
    ledger.take_all(["a", "b", "c"], "run:1")
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("b", "run:2", takeover_reason="urgent")
        ending = postgres_host.blocked(
            lambda: ledger.release_all(holder="run:1", actor="user:9", reason="why")
        )
        connection.commit()
    assert ending.result(20) == 2
    assert held(ledger) == {"b": "run:2"}


def test_two_that_end_the_same_holds_end_each_once(company: Company) -> None:
    keys = [f"k:{number:03}" for number in range(250)]
    ledgers = [company.open() for _ in range(3)]
    ledgers[0].take_all(keys, "run:1")
    counts = together(
        [
            lambda ledger=ledger: ledger.release_all(  # type: ignore[misc]
                holder="run:1", actor="user:9", reason="why"
            )
            for ledger in ledgers
        ]
    )
    assert sum(int(str(count)) for count in counts) == 250
    assert held(ledgers[0]) == {}
