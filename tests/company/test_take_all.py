"""`take_all`: all or nothing, in the order given, naming every refusal, asking the policy once for each key in key order."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import (
    InvalidKey,
    InvalidTtl,
    LockedByOther,
    LockLedger,
    NotLockable,
    Policy,
    RecordedEvent,
    TakeRequest,
)
from support.company import Company
from support.hosts import Host
from support.ledgers import SettableClock, unchanged
from support.stories import at


def test_all_are_taken_and_the_grants_come_in_the_order_given(
    timed: LockLedger, clock: SettableClock
) -> None:
    clock.set(5)
    keys = ["c", "a", "round:5:band:2", "b"]
    grants = timed.take_all(keys, "run:1", ttl=60, metadata={"request": "r1"}, actor="user:9")

    assert [grant.key for grant in grants] == keys
    for grant in grants:
        assert (grant.holder, grant.token, grant.created) == ("run:1", 1, True)
        assert (grant.taken_at, grant.expires_at) == (at(5), at(65))
        assert grant.metadata == {"request": "r1"}
    assert [hold.grant(created=True) for hold in timed.current_holders()] == sorted(
        grants, key=lambda grant: grant.key
    )
    assert {entry.actor for entry in timed.audit_trail()} == {"user:9"}


def test_keys_may_come_from_anything_that_yields_them(ledger: LockLedger) -> None:
    assert len(ledger.take_all((f"k:{number}" for number in range(3)), "run:1")) == 3
    assert len(ledger.take_all({"x", "y"}, "run:1")) == 2


def test_nothing_to_take_is_nothing(company: Company, ledger: LockLedger) -> None:
    with unchanged(company.ledgers):
        assert ledger.take_all([], "run:1") == []


@pytest.mark.parametrize(
    ("keys", "wrong", "error"),
    [
        (["a", "b", "a"], {}, ValueError),
        ("ab", {}, TypeError),
        (["a", ""], {}, InvalidKey),
        (["a", 5], {}, TypeError),
        (["a", "b"], {"ttl": 0}, InvalidTtl),
        (["a", "b"], {"if_mine": "never"}, ValueError),
        (["a", "b"], {"if_mine": "extend"}, None),
    ],
    ids=str,
)
def test_what_makes_no_sense_takes_nothing(
    company: Company,
    ledger: LockLedger,
    keys: Any,
    wrong: dict[str, Any],
    error: type[Exception] | None,
) -> None:
    if error is None:  # only a hold that is to be extended needs a ttl
        assert len(ledger.take_all(keys, "run:1", **wrong)) == 2
        error = InvalidTtl
    with unchanged(company.ledgers), pytest.raises(error):
        ledger.take_all(keys, "run:1", **wrong)


def test_a_refusal_names_all_of_them_in_key_order_and_records_nothing(
    company: Company, ledger: LockLedger
) -> None:
    ledger.take("d", "run:2")
    ledger.take("b", "run:3", ttl=600)
    ledger.take("e", "run:1")
    with unchanged(company.ledgers), pytest.raises(LockedByOther) as refused:
        ledger.take_all(["e", "d", "a", "c", "b"], "run:1")
    told = refused.value

    assert told.key == "b"
    assert told.refusals[0] is told
    assert [(each.key, each.current and each.current.holder) for each in told.refusals] == [
        ("b", "run:3"),
        ("d", "run:2"),
    ]
    for again in (copy.copy(told), copy.deepcopy(told), pickle.loads(pickle.dumps(told))):  # noqa: S301
        assert [each.key for each in again.refusals] == ["b", "d"]
        assert again.current == told.current


def test_what_is_held_already_is_given_back_and_the_rest_taken(
    company: Company, ledger: LockLedger
) -> None:
    mine = ledger.take("b", "run:1")
    grants = ledger.take_all(["a", "b", "c"], "run:1", ttl=60)
    assert [grant.created for grant in grants] == [True, False, True]
    assert grants[1].model_copy(update={"created": True}) == mine
    with unchanged(company.ledgers):
        again = ledger.take_all(["c", "b", "a"], "run:1")
    assert [grant.created for grant in again] == [False] * 3


def test_what_is_held_already_may_be_extended_refused_or_replaced(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    timed.take_all(["a", "b"], "run:1", ttl=10)
    clock.set(5)
    extended = timed.take_all(["a", "b", "c"], "run:1", ttl=10, if_mine="extend")
    assert [(grant.created, grant.expires_at) for grant in extended] == [
        (False, at(15)),
        (False, at(15)),
        (True, at(15)),
    ]
    with unchanged(company.ledgers), pytest.raises(LockedByOther) as refused:
        timed.take_all(["a", "b", "d"], "run:1", if_mine="refuse")
    assert [each.key for each in refused.value.refusals] == ["a", "b"]
    assert refused.value.same_holder
    replaced = timed.take_all(["a", "b"], "run:1", if_mine="replace")
    assert all(grant.created and grant.taken_over_from == "run:1" for grant in replaced)


def test_all_are_taken_over_with_one_reason(ledger: LockLedger) -> None:
    ledger.take("a", "run:2")
    ledger.take("b", "run:3")
    grants = ledger.take_all(["a", "b", "c"], "run:1", takeover_reason="  urgent ")
    assert [(grant.taken_over_from, grant.takeover_reason) for grant in grants] == [
        ("run:2", "urgent"),
        ("run:3", "urgent"),
        (None, None),
    ]


def test_holds_that_have_run_out_are_recorded_so_in_the_same_append(
    timed: LockLedger, clock: SettableClock
) -> None:
    timed.take_all(["a", "b"], "run:2", ttl=10)
    clock.set(20)
    timed.take_all(["a", "b", "c"], "run:1")
    for key in ("a", "b"):
        expired, taken = list(timed.history(key))[-2:]
        assert (expired.action, expired.occurred_at, expired.recorded_at) == (
            "LockExpired",
            at(10),
            at(20),
        )
        assert (taken.holder, taken.token) == ("run:1", 3)


def test_a_thousand_keys_are_taken_at_once(ledger: LockLedger) -> None:
    keys = [f"k:{number}" for number in range(1200)]
    assert [grant.key for grant in ledger.take_all(keys, "run:1", ttl=600)] == keys
    positions = [entry.position for entry in ledger.audit_trail(limit=1000)]
    assert positions == sorted(positions)


# In a caller's transaction.


def test_all_or_nothing_in_a_callers_transaction(host: Host) -> None:
    host.ledger.take("b", "run:2")
    with host.session() as session:
        host.write(session, 1)
        bound = host.ledger.using(session, actor="user:9", metadata={"request": "r1"})
        with pytest.raises(LockedByOther):
            bound.take_all(["a", "b"], "run:1")
        assert not bound.is_locked("a")
        grants = bound.take_all(["a", "c"], "run:1")
        assert not host.ledger.is_locked("a")
        session.commit()
    assert [host.ledger.holder_of(grant.key) is not None for grant in grants] == [True, True]
    assert host.documents() == {1: "draft"}
    entry = host.ledger.history("a")[0]
    assert (entry.actor, entry.metadata) == ("user:9", {"request": "r1"})


def test_a_rollback_takes_all_of_them_back(host: Host) -> None:
    with host.session() as session, unchanged(host.ledgers):
        host.ledger.using(session).take_all(["a", "b"], "run:1")
        session.rollback()


def test_a_refused_take_of_many_keeps_no_row_locked(postgres_host: Host) -> None:
    ledger = postgres_host.ledger
    for key in ("a", "b", "c"):
        ledger.take(key, "run:2")
        ledger.release(key, "run:2")
    ledger.take("b", "run:2")
    other = postgres_host.impatient(200)
    with postgres_host.engine.connect() as connection:
        with pytest.raises(LockedByOther):
            ledger.using(connection).take_all(["a", "b", "c"], "run:1")
        assert other.take("a", "run:3").created
        assert other.take("c", "run:3").created
        connection.rollback()


def test_one_that_is_refused_only_after_the_wait_leaves_the_others_free(
    postgres_host: Host,
) -> None:
    ledger = postgres_host.ledger
    for key in ("a", "b"):
        ledger.take(key, "run:2")
        ledger.release(key, "run:2")
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("b", "run:2")
        waiting = postgres_host.blocked(lambda: ledger.take_all(["a", "b", "c"], "run:1"))
        connection.commit()
    with pytest.raises(LockedByOther) as refused:
        waiting.result(20)
    assert [each.key for each in refused.value.refusals] == ["b"]
    assert ledger.take("a", "run:3").token == 3
    assert ledger.take("c", "run:3").token == 1


def test_the_ttl_counts_from_the_grant_however_long_the_rows_were_waited_for(
    postgres_host: Host,
) -> None:
    ledger = postgres_host.ledger
    ledger.take("b", "run:2")
    ledger.release("b", "run:2")
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("b", "run:2")
        waiting = postgres_host.blocked(lambda: ledger.take_all(["a", "b"], "run:1", ttl=0.8))
        time.sleep(1)
        connection.rollback()
    for grant in waiting.result(20):
        assert grant.expires_at == grant.taken_at + timedelta(seconds=0.8)
        assert grant.expires_at > ledger.history("b")[-1].recorded_at


# The host's policy.


class Asked(Policy[Connection]):
    def __init__(self) -> None:
        self.log: list[Any] = []
        self.closed: set[str] = set()
        self.fails = False

    def lock_subject(self, connection: Connection, key: str) -> None:
        self.log.append(("subject", key))

    def check_take(self, connection: Connection, request: TakeRequest) -> None:
        self.log.append(("check", request.verb, request.key))
        if request.key in self.closed:
            raise NotLockable("closed", code="ROUND_CLOSED", key=request.key)

    def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        self.log.append(
            ("recorded", *((each.position, each.event.action, each.event.key) for each in events))
        )
        if self.fails:
            raise ConnectionError("the outbox is full")


def test_the_policy_locks_each_subject_once_in_key_order_and_hears_of_all_at_once(
    company: Company, clock: SettableClock
) -> None:
    company.open(clock=clock).take("b", "run:2", ttl=10)
    clock.set(20)
    policy = Asked()
    ledger = company.open(policy=policy, clock=clock)
    ledger.take_all(["c", "a", "b"], "run:1")
    subjects, rest = policy.log[:3], policy.log[3:]

    assert subjects == [("subject", "a"), ("subject", "b"), ("subject", "c")]
    checks, (recorded,) = rest[:-1], rest[-1:]
    once = [("check", "take_all", key) for key in "abc"]
    assert checks in (once, once * 2)  # after each read that a decision rests on
    told = recorded[1:]
    assert [(action, key) for _, action, key in told] == [
        ("LockTaken", "a"),
        ("LockExpired", "b"),
        ("LockTaken", "b"),
        ("LockTaken", "c"),
    ]
    entries = {(e.position, e.action, e.key) for key in "abc" for e in ledger.history(key)}
    assert set(told) <= entries
    policy.log.clear()
    ledger.take_all(["a", "b"], "run:1")
    assert not any(entry[0] == "recorded" for entry in policy.log)


def test_what_the_policy_refuses_is_among_the_refusals(company: Company) -> None:
    policy = Asked()
    ledger = company.open(policy=policy)
    company.open().take("c", "run:2")
    policy.closed = {"b"}
    with unchanged(company.ledgers), pytest.raises(NotLockable) as refused:
        ledger.take_all(["c", "b", "a"], "run:1")
    assert [(each.key, each.code) for each in refused.value.refusals] == [
        ("b", "ROUND_CLOSED"),
        ("c", "LOCKED_BY_OTHER"),
    ]


def test_what_the_policy_cannot_record_takes_all_back(company: Company) -> None:
    policy = Asked()
    ledger = company.open(policy=policy)
    policy.fails = True
    with unchanged(company.ledgers), pytest.raises(ConnectionError):
        ledger.take_all(["a", "b"], "run:1")
