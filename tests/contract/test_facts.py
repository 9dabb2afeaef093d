"""Who acted and what the call brought along; and answers as plain values that cross threads, processes and JSON."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from lockledger import (
    AuditEntry,
    Grant,
    Hold,
    HoldLost,
    LockedByOther,
    LockLedger,
    LockLedgerError,
    LockReleased,
    LockTaken,
)
from support.ledgers import SettableClock

Act = Callable[[LockLedger, dict[str, Any]], object]
ACTS: dict[str, Act] = {
    "LockTaken": lambda ledger, who: ledger.take("free", "run:2", **who),
    "LockTakenOver": lambda ledger, who: ledger.take(
        "held", "run:2", takeover_reason="urgent", **who
    ),
    "LockTakenOver from itself": lambda ledger, who: ledger.take(
        "held", "run:1", if_mine="replace", **who
    ),
    "LockExtended": lambda ledger, who: ledger.extend("held", "run:1", 60, **who),
    "LockExtended by a take": lambda ledger, who: ledger.take(
        "held", "run:1", ttl=60, if_mine="extend", **who
    ),
    "LockReleased": lambda ledger, who: ledger.release("held", "run:1", **who),
    "LockReleased by try_release": lambda ledger, who: ledger.try_release("held", "run:1", **who),
    "LockTaken by try_take": lambda ledger, who: ledger.try_take("free", "run:2", **who),
}


@pytest.fixture
def held(ledger: LockLedger) -> LockLedger:
    ledger.take("held", "run:1", ttl=10, metadata={"began": "here"})
    return ledger


def newest(ledger: LockLedger) -> AuditEntry:
    return list(ledger.audit_trail(extensions=True))[-1]


@pytest.mark.parametrize("act", ACTS)
def test_who_acts_is_the_holder_unless_somebody_is_named(held: LockLedger, act: str) -> None:
    ACTS[act](held, {})

    entry = newest(held)
    assert entry.action == act.partition(" ")[0]
    assert entry.actor == entry.holder
    assert entry.metadata == {}


@pytest.mark.parametrize("act", ACTS)
def test_a_named_actor_and_metadata_are_kept_with_the_event(held: LockLedger, act: str) -> None:
    brought = {"request": "r1", "causation": {"id": 5}}

    ACTS[act](held, {"actor": "user:9", "metadata": brought})

    entry = newest(held)
    assert (entry.actor, entry.metadata) == ("user:9", brought)
    event = list(held.events())[-1].event
    assert (event.actor, event.metadata) == ("user:9", brought)


def test_a_forced_release_names_its_actor_and_the_hold_with_its_end(held: LockLedger) -> None:
    hold = held.force_release("held", actor="user:9", reason="holiday", metadata={"n": 1})

    assert hold is not None
    assert (hold.ended_by, hold.ended_by_actor, hold.end_reason) == ("forced", "user:9", "holiday")
    assert hold.metadata == {"began": "here"}
    entry = newest(held)
    assert (entry.actor, entry.holder, entry.metadata) == ("user:9", "run:1", {"n": 1})
    event = list(held.events())[-1].event
    assert isinstance(event, LockReleased)
    assert event.forced


def test_nobody_acts_in_an_expiry_and_the_recording_call_is_told(
    held: LockLedger, clock: SettableClock
) -> None:
    clock.set(60)
    held.take("held", "run:2", actor="user:2", metadata={"request": "r2"})

    _, expired, taken = held.history("held")
    assert (expired.action, expired.actor, expired.holder) == ("LockExpired", None, "run:1")
    assert (taken.actor, taken.metadata) == ("user:2", {"request": "r2"})
    event = list(held.events())[1].event
    assert event.model_dump()["recorded_during"] == "take"
    assert event.metadata == {"request": "r2"}


def test_a_hold_keeps_the_metadata_of_the_call_that_began_it(held: LockLedger) -> None:
    held.extend("held", "run:1", 60, metadata={"extended": "there"})
    held.take("held", "run:1", metadata={"repeated": "elsewhere"})

    hold = held.holder_of("held")
    assert hold is not None
    assert hold.metadata == {"began": "here"}
    assert held.take("held", "run:1").metadata == {"began": "here"}
    held.release("held", "run:1", metadata={"ended": "now"})
    entry = newest(held)
    assert entry.before is not None
    assert (entry.before.metadata, entry.metadata) == ({"began": "here"}, {"ended": "now"})


def test_metadata_and_actor_take_no_part_in_any_comparison(held: LockLedger) -> None:
    grant = held.take("held", "run:1", actor="user:5", metadata={"n": 1})

    assert grant.created is False
    assert held.extend("held", "run:1", 5, actor="user:6", metadata={"n": 2}) == grant
    assert held.release("held", "run:1", token=grant.token, actor="user:7", metadata={"n": 3})


def test_what_the_caller_does_with_its_metadata_afterwards_changes_nothing(
    ledger: LockLedger,
) -> None:
    brought: dict[str, Any] = {"list": [1]}
    grant = ledger.take("k", "run:1", metadata=brought)
    brought["list"].append(2)
    brought["more"] = True

    assert grant.metadata == {"list": [1]}
    hold = ledger.holder_of("k")
    assert hold is not None
    assert hold.metadata == {"list": [1]}


# Plain values


def values(ledger: LockLedger, clock: SettableClock) -> list[BaseModel]:
    """One of each kind of answer."""
    grant = ledger.take("k", "run:1", ttl=10, metadata={"n": 1})
    hold = ledger.holder_of("k")
    clock.set(5)
    ended = ledger.force_release("k", actor="user:9", reason="why")
    assert hold is not None
    assert ended is not None
    return [grant, hold, ended, *ledger.history("k"), *[each.event for each in ledger.events()]]


def test_answers_are_frozen(ledger: LockLedger, clock: SettableClock) -> None:
    for value in values(ledger, clock):
        for name in type(value).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(value, name, None)


def test_answers_cross_processes_and_json(ledger: LockLedger, clock: SettableClock) -> None:
    for value in values(ledger, clock):
        assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - our own bytes
        assert type(value).model_validate_json(value.model_dump_json()) == value
        assert type(value).model_validate(value.model_dump(mode="json")) == value


def test_a_grant_that_came_by_json_releases(ledger: LockLedger) -> None:
    sent = ledger.take("k", "run:1").model_dump_json()

    grant = Grant.model_validate_json(sent)

    assert ledger.release(grant.key, grant.holder, token=grant.token)


def test_a_holds_three_shapes_are_one_object(ledger: LockLedger) -> None:
    """From the answer, from the current-holder row and from the event."""
    grant = ledger.take("k", "run:1", ttl=10, metadata={"n": 1})

    row, hold = ledger.current_holders()[0], ledger.holder_of("k")
    event = next(ledger.events()).event
    assert isinstance(event, LockTaken)
    assert row == hold == event.after()
    assert isinstance(row, Hold)
    assert row.grant(created=True) == grant


def test_refusals_carry_their_facts_through_pickle(ledger: LockLedger) -> None:
    ledger.take("k", "run:1")
    refusals: list[LockLedgerError] = []
    for call in (
        lambda: ledger.take("k", "run:2"),
        lambda: ledger.release("k", "run:2", token=1),
    ):
        with pytest.raises(LockLedgerError) as refusal:
            call()
        refusals.append(refusal.value)

    for error in refusals:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert type(copy) is type(error)
        assert (copy.code, copy.key, copy.current, str(copy)) == (
            error.code,
            "k",
            ledger.holder_of("k"),
            str(error),
        )


def test_a_refusal_says_who_holds_it_since_when_and_until_when(ledger: LockLedger) -> None:
    ledger.take("round:5", "run:1", ttl=60)
    with pytest.raises(LockedByOther) as refusal:
        ledger.take("round:5", "run:2")
    for told in ("'round:5'", "'run:1'", "2026-03-02T09:00:00+00:00", "09:01:00+00:00", "token 1"):
        assert told in str(refusal.value)
    with pytest.raises(HoldLost) as loss:
        ledger.release("round:5", "run:2", token=1)
    for told in ("'run:2'", "never had a hold with token 1", "held by 'run:1'"):
        assert told in str(loss.value)
