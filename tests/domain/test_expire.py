"""A sweep records what has run out, and changes no answer."""

from __future__ import annotations

import pytest

from lockledger.domain.events import LockExpired
from support.stories import FREE, ID, KEY, Story, at, begun


@pytest.mark.parametrize("situation", [name for name in FREE if "unrecorded" in name])
def test_a_hold_that_ran_out_is_recorded_once(situation: str) -> None:
    story = begun(situation)
    hold = story.lock.hold
    events = len(story.events)

    assert story.expire(now=100)
    assert not story.expire(now=100)

    assert story.actions[events:] == ["LockExpired"]
    assert hold is not None
    assert hold.expires_at is not None
    assert story.ended(hold.token) == hold.ended(hold.expires_at, "expiry", actor=None, reason=None)


def test_at_its_expiry_a_hold_has_run_out_and_before_it_has_not() -> None:
    story = Story()
    story.take("run:1", ttl=10)

    assert not story.expire(now=9.999999)
    assert story.expire(now=10)


def test_there_may_be_nothing_to_record() -> None:
    story = Story()
    assert not story.expire()
    story.take("run:1")
    assert not story.expire(now=1e9)
    story.release("run:1")
    assert not story.expire(now=1e9)


def test_a_recorded_expiry_says_when_it_happened_and_what_found_it() -> None:
    story = Story()
    story.take("run:1", ttl=10, metadata={"request": "r1"})

    story.expire(now=60, metadata={"sweep": "s1"})

    event = story.events[-1]
    assert isinstance(event, LockExpired)
    assert event.model_dump() == {
        "originator_id": ID,
        "originator_version": 2,
        "timestamp": at(60),
        "key": KEY,
        "holder": "run:1",
        "token": 1,
        "taken_at": at(0),
        "expires_at": at(10),
        "taken_over_from": None,
        "takeover_reason": None,
        "hold_metadata": {"request": "r1"},
        "actor": None,
        "metadata": {"sweep": "s1"},
        "expired_at": at(10),
        "recorded_during": "sweep",
    }


def test_a_take_after_a_sweep_records_no_second_expiry() -> None:
    story = Story()
    story.take("run:1", ttl=10)
    story.expire(now=60)

    assert story.take("run:2", now=61).token == 3
    assert story.actions == ["LockTaken", "LockExpired", "LockTaken"]
