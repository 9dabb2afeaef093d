"""What each event says, and that the newest one alone rebuilds the lock."""

from __future__ import annotations

from datetime import timedelta

from lockledger.domain.events import LockExpired, LockTaken
from support.stories import ID, KEY, Story, at


def test_an_expiry_is_recorded_with_the_take_that_finds_it() -> None:
    story = Story()
    story.take("run:1", ttl=10, metadata={"request": "r1"}, actor="user:1")

    story.take("run:2", now=11, ttl=10, metadata={"request": "r2"}, actor="user:2")

    _, expired, taken = story.events
    assert isinstance(expired, LockExpired)
    assert expired.model_dump() == {
        "originator_id": ID,
        "originator_version": 2,
        "timestamp": at(11),
        "key": KEY,
        "holder": "run:1",
        "token": 1,
        "taken_at": at(0),
        "expires_at": at(10),
        "taken_over_from": None,
        "takeover_reason": None,
        "hold_metadata": {"request": "r1"},
        "actor": None,
        "metadata": {"request": "r2"},
        "expired_at": at(10),
        "recorded_during": "take",
    }
    assert isinstance(taken, LockTaken)
    assert (taken.originator_version, taken.token, taken.timestamp) == (3, 3, at(11))


def test_a_take_says_everything_about_the_hold_it_begins() -> None:
    story = Story()

    story.take("run:1", now=1, ttl=10, actor="user:1", metadata={"request": "r1"})

    assert story.events[0].model_dump() == {
        "originator_id": ID,
        "originator_version": 1,
        "timestamp": at(1),
        "key": KEY,
        "holder": "run:1",
        "token": 1,
        "taken_at": at(1),
        "expires_at": at(11),
        "taken_over_from": None,
        "takeover_reason": None,
        "hold_metadata": {"request": "r1"},
        "actor": "user:1",
        "metadata": {"request": "r1"},
    }


def test_a_takeover_says_everything_about_both_holds() -> None:
    story = Story()
    story.take("run:1", ttl=100, metadata={"request": "r1"})
    story.take("run:2", now=1, takeover_reason="first", metadata={"request": "r2"}, ttl=100)

    story.take(
        "run:3",
        now=2,
        takeover_reason=" second ",
        actor="user:3",
        metadata={"request": "r3"},
        ttl=timedelta(minutes=1),
    )

    assert story.events[-1].model_dump() == {
        "originator_id": ID,
        "originator_version": 3,
        "timestamp": at(2),
        "key": KEY,
        "holder": "run:3",
        "token": 3,
        "taken_at": at(2),
        "expires_at": at(62),
        "taken_over_from": "run:2",
        "takeover_reason": "second",
        "hold_metadata": {"request": "r3"},
        "actor": "user:3",
        "metadata": {"request": "r3"},
        "reason": "second",
        "previous": {
            "holder": "run:2",
            "token": 2,
            "taken_at": at(1),
            "expires_at": at(101),
            "taken_over_from": "run:1",
            "takeover_reason": "first",
            "metadata": {"request": "r2"},
        },
    }
