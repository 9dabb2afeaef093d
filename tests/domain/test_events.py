"""What each event says, and that the newest one alone rebuilds the lock."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta

import pytest
from pydantic import ValidationError

from lockledger.domain.events import (
    EVENTS,
    LockEvent,
    LockExpired,
    LockExtended,
    LockReleased,
    LockTaken,
    LockTakenOver,
    PreviousHold,
)
from lockledger.domain.holds import Hold
from lockledger.domain.lock import Lock, evolve
from support.stories import ID, KEY, Story, at


def told() -> Story:
    """A story in which everything happens that can happen to a lock."""
    story = Story()
    story.take("run:1", ttl=10, metadata={"request": "r1"})
    story.extend("run:1", 20, now=5, metadata={"request": "r2"})
    story.take("run:2", now=30, ttl=60, metadata={"request": "r3"})
    story.take("run:3", now=40, takeover_reason="urgent", actor="user:3")
    story.release("run:3", now=50, reason="done", actor="user:3")
    story.take("run:4", now=60)
    story.take("run:4", now=61, if_mine="replace")
    story.force_release(now=70, actor="user:9", reason="holiday", metadata={"request": "r4"})
    return story


STORY = told()
each_event = pytest.mark.parametrize(
    "event", STORY.events, ids=lambda event: f"{event.originator_version}-{event.action}"
)


def through_pickle(event: LockEvent) -> LockEvent:
    again = pickle.loads(pickle.dumps(event))  # noqa: S301 - our own bytes
    assert isinstance(again, LockEvent)
    return again


def through_json(event: LockEvent) -> LockEvent:
    return type(event).model_validate_json(event.model_dump_json())


def shallow(event: LockEvent) -> LockEvent:
    return copy.copy(event)


def deep(event: LockEvent) -> LockEvent:
    return copy.deepcopy(event)


def test_everything_happens_in_the_story() -> None:
    assert STORY.actions == [
        "LockTaken",
        "LockExtended",
        "LockExpired",
        "LockTaken",
        "LockTakenOver",
        "LockReleased",
        "LockTaken",
        "LockTakenOver",
        "LockReleased",
    ]


@each_event
@pytest.mark.parametrize("journey", [through_pickle, through_json, shallow, deep])
def test_an_event_arrives_as_it_left(
    event: LockEvent, journey: Callable[[LockEvent], LockEvent]
) -> None:
    again = journey(event)

    assert again == event
    assert (again.before(), again.after()) == (event.before(), event.after())
    assert again.model_dump_json() == event.model_dump_json()
    assert evolve(again) == evolve(event)


@each_event
def test_an_event_cannot_be_changed_and_takes_nothing_else(event: LockEvent) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        event.holder = "run:9"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        type(event).model_validate({**event.model_dump(), "other": 1})


def test_the_hold_that_a_takeover_ended_cannot_be_changed_either() -> None:
    takeover = STORY.events[4]
    assert isinstance(takeover, LockTakenOver)

    with pytest.raises(ValidationError, match="frozen"):
        takeover.previous.holder = "run:9"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        PreviousHold.model_validate({**takeover.previous.model_dump(), "other": 1})


@pytest.mark.parametrize("number", range(1, len(STORY.events) + 1))
def test_the_newest_event_alone_rebuilds_the_lock(number: int) -> None:
    so_far = STORY.events[:number]

    assert Lock.project(None, so_far) == evolve(so_far[-1])
    assert Lock.project(None, so_far[-1:]) == evolve(so_far[-1])
    assert Lock.project(evolve(so_far[0]), so_far[1:]) == evolve(so_far[-1])


def test_without_events_there_is_nothing_to_rebuild() -> None:
    lock = evolve(STORY.events[0])

    assert Lock.project(None, []) is None
    assert Lock.project(lock, []) is lock


@pytest.mark.parametrize("number", range(1, len(STORY.events)))
def test_what_was_before_an_event_is_what_was_after_the_one_before(number: int) -> None:
    assert STORY.events[number].before() == STORY.events[number - 1].after()


def test_before_and_after_are_live_holds_facts() -> None:
    sides = [(event.before(), event.after()) for event in STORY.events]

    assert sides[0][0] is None
    assert [(before is None, after is None) for before, after in sides] == [
        (True, False),
        (False, False),
        (False, True),
        (True, False),
        (False, False),
        (False, True),
        (True, False),
        (False, False),
        (False, True),
    ]
    for before, after in sides:
        for hold in (before, after):
            assert hold is None or hold.ended_by is None


def test_an_event_that_ends_a_hold_gives_it_with_its_end() -> None:
    ends: list[tuple[str, int, object]] = []
    for event in STORY.events:
        over = event.ended_hold()
        if over is not None:
            assert over.model_copy(update=dict.fromkeys(ENDS)) == event.before()
            ends.append((event.action, over.token, tuple(getattr(over, name) for name in ENDS)))

    assert ends == [
        ("LockExpired", 1, (at(25), "expiry", None, None)),
        ("LockTakenOver", 4, (at(40), "takeover", "urgent", "user:3")),
        ("LockReleased", 5, (at(50), "release", "done", "user:3")),
        ("LockTakenOver", 7, (at(61), "takeover", None, "run:4")),
        ("LockReleased", 8, (at(70), "forced", "holiday", "user:9")),
    ]


ENDS = ("ended_at", "ended_by", "end_reason", "ended_by_actor")


def test_two_times_differ_only_for_an_expiry() -> None:
    for event in STORY.events:
        assert (event.occurred_at == event.timestamp) == (event.action != "LockExpired")
    assert (STORY.events[2].occurred_at, STORY.events[2].timestamp) == (at(25), at(30))


def test_each_event_says_why_it_was_made() -> None:
    assert [event.why for event in STORY.events] == [
        None,
        None,
        None,
        None,
        "urgent",
        "done",
        None,
        None,
        "holiday",
    ]


def test_stored_names_and_formats_are_for_ever() -> None:
    """Stored events are decoded by these names: none may change, and each state carries its format's version."""
    assert {
        "lockledger.LockTaken": LockTaken,
        "lockledger.LockTakenOver": LockTakenOver,
        "lockledger.LockExtended": LockExtended,
        "lockledger.LockReleased": LockReleased,
        "lockledger.LockExpired": LockExpired,
    } == EVENTS
    for topic, kind in EVENTS.items():
        assert (kind.TOPIC, kind.class_version) == (topic, 1)
        assert kind.__name__ == topic.removeprefix("lockledger.")
    assert set(EVENTS.values()) == set(LockEvent.__subclasses__())


def test_nobody_acts_in_an_expiry() -> None:
    with pytest.raises(ValidationError):
        LockExpired.model_validate({**STORY.events[2].model_dump(), "actor": "run:2"})
    with pytest.raises(ValidationError):
        LockExpired.model_validate({**STORY.events[2].model_dump(), "recorded_during": "release"})


@each_event
def test_who_acts_is_always_said(event: LockEvent) -> None:
    """A forgotten actor is a mistake of ours, not a null; only an expiry has none."""
    silent = event.model_dump(exclude={"actor"})

    if isinstance(event, LockExpired):
        assert type(event).model_validate(silent) == event
    else:
        with pytest.raises(ValidationError, match="actor"):
            type(event).model_validate(silent)


def test_a_release_was_forced_only_where_it_says_so() -> None:
    silent = STORY.events[5].model_dump(exclude={"forced"})

    assert LockReleased.model_validate(silent) == STORY.events[5]
    over = LockReleased.model_validate(silent).ended_hold()
    assert over is not None
    assert over.ended_by == "release"


def test_an_event_without_a_kind_says_nothing_of_before_and_after() -> None:
    names = set(LockEvent.model_fields)
    bare = LockEvent.model_validate(STORY.events[0].model_dump(include=names))

    for ask in (bare.before, bare.after):
        with pytest.raises(TypeError, match="LockEvent is no event of a lock by itself"):
            ask()


def test_a_state_remembers_the_hold_and_when_it_changed() -> None:
    lock = evolve(STORY.events[3])

    assert (lock.id, lock.key, lock.version, lock.changed_at) == (ID, KEY, 4, at(30))
    assert lock.hold == Hold(
        key=KEY,
        holder="run:2",
        token=4,
        taken_at=at(30),
        expires_at=at(90),
        metadata={"request": "r3"},
    )
    assert evolve(STORY.events[5]).hold is None


# Every field of each event


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


def test_a_release_says_who_and_why() -> None:
    story = Story()
    story.take("run:1", ttl=60, metadata={"request": "r1"})

    story.release("run:1", now=5, reason=" done ", actor="user:1", metadata={"request": "r2"})

    assert story.events[-1].model_dump() == {
        "originator_id": ID,
        "originator_version": 2,
        "timestamp": at(5),
        "key": KEY,
        "holder": "run:1",
        "token": 1,
        "taken_at": at(0),
        "expires_at": at(60),
        "taken_over_from": None,
        "takeover_reason": None,
        "hold_metadata": {"request": "r1"},
        "actor": "user:1",
        "metadata": {"request": "r2"},
        "forced": False,
        "reason": "done",
    }
