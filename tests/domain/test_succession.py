"""Which events may come next, when no verb has decided them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from lockledger.domain.events import LockEvent
from lockledger.domain.lock import Lock, evolve
from lockledger.domain.succession import misfit
from support.stories import BEGINNINGS, ID, KEY, Story, at, begun

FREE = Lock(ID, KEY)


def told() -> Story:
    """One event of each kind: taken, extended, run out, taken, taken over, replaced, released."""
    story = Story()
    story.take("run:1", ttl=10, metadata={"request": "r1"})
    story.extend("run:1", 20, now=5)
    story.take("run:2", now=30, ttl=100)
    story.take("run:3", now=31, takeover_reason="urgent", ttl=100)
    story.take("run:3", now=32, if_mine="replace", ttl=100)
    story.release("run:3", now=33, reason="done")
    return story


TAKEN, EXTENDED, EXPIRED, TAKEN_AGAIN, TAKEN_OVER, REPLACED, RELEASED = range(7)


def before(place: int) -> Lock:
    events = told().events
    return evolve(events[place - 1]) if place else FREE


def faults(place: int, **facts: Any) -> str | None:
    """What is wrong with this event of the story, once these facts of it are others."""
    event: LockEvent = told().events[place]
    return misfit(before(place), event.model_copy(update=facts))


@pytest.mark.parametrize("situation", BEGINNINGS)
def test_whatever_the_verbs_record_fits(situation: str) -> None:
    story = begun(situation)
    story.take("run:1", now=100, takeover_reason="urgent", if_mine="replace", ttl=5)
    story.force_release(now=101, actor="user:9", reason="holiday")
    story.take("run:1", now=102, ttl=5)
    story.expire(now=108)
    lock = FREE
    for event in story.events:
        assert misfit(lock, event) is None
        lock = evolve(event)
    assert lock == story.lock


@pytest.mark.parametrize("place", range(7))
def test_an_event_fits_only_its_own_place(place: int) -> None:
    events = told().events
    assert misfit(before(place), events[place]) is None
    for other in range(7):
        if other != place:
            assert misfit(before(other), events[place]) is not None


@pytest.mark.parametrize("place", range(7))
def test_an_event_belongs_to_its_lock(place: int) -> None:
    assert faults(place, key="round:6") == "it belongs to another lock"
    assert faults(place, originator_id=UUID(int=1)) == "it belongs to another lock"


@pytest.mark.parametrize("place", range(1, 7))
def test_an_event_is_no_earlier_than_the_one_before(place: int) -> None:
    assert faults(place, timestamp=at(-1)) == (
        f"it is earlier than the lock's newest event, of {told().events[place - 1].timestamp.isoformat()}"
    )


@pytest.mark.parametrize("place", range(7))
def test_versions_have_no_gaps(place: int) -> None:
    for version in (0, place, place + 2):
        assert faults(place, originator_version=version) == f"the lock is at version {place}"


ANOTHERS = "the lock's hold is not as it says"


@pytest.mark.parametrize("place", [EXTENDED, EXPIRED, RELEASED])
@pytest.mark.parametrize(
    "facts",
    [
        {"holder": "run:9"},
        {"token": 9},
        {"taken_at": at(-9)},
        {"hold_metadata": {"request": "r9"}},
        {"taken_over_from": "run:9"},
    ],
)
def test_an_event_speaks_of_the_hold_that_there_is(place: int, facts: dict[str, Any]) -> None:
    assert faults(place, **facts) == ANOTHERS


def test_a_takeover_speaks_of_the_hold_that_it_ends() -> None:
    event: Any = told().events[TAKEN_OVER]
    for facts in ({"token": 3}, {"holder": "run:9"}, {"expires_at": at(7)}):
        previous = event.previous.model_copy(update=facts)
        assert faults(TAKEN_OVER, previous=previous) == ANOTHERS


def test_only_a_free_lock_is_taken_and_only_a_held_one_is_anything_else() -> None:
    events = told().events
    held = evolve(events[TAKEN])
    again = events[TAKEN].model_copy(update={"originator_version": 2, "token": 2})
    assert misfit(held, again) == ANOTHERS
    for place in (EXTENDED, EXPIRED, TAKEN_OVER, RELEASED):
        first = events[place].model_copy(update={"originator_version": 1})
        assert misfit(FREE, first) == "the lock is not held"


def test_a_hold_that_has_run_out_only_expires() -> None:
    over = "the hold has run out; an expiry comes first"
    assert faults(EXTENDED, timestamp=at(10)) == over
    assert faults(TAKEN_OVER, timestamp=at(130)) == over
    assert faults(RELEASED, timestamp=at(132)) == over
    assert faults(RELEASED, timestamp=at(131.999999)) is None


def test_a_hold_expires_when_it_has_run_out() -> None:
    not_yet = "the hold has not run out"
    assert faults(EXPIRED, expired_at=at(24)) == not_yet
    assert faults(EXPIRED, timestamp=at(24)) == not_yet
    assert faults(EXPIRED, timestamp=at(25)) is None


def test_an_extension_extends() -> None:
    assert faults(EXTENDED, expires_at=None) == "it does not extend the hold"
    assert faults(EXTENDED, expires_at=at(10)) == "it does not extend the hold"
    assert faults(EXTENDED, expires_at=at(10.000001)) is None


@pytest.mark.parametrize("place", [TAKEN, TAKEN_AGAIN, TAKEN_OVER, REPLACED])
def test_a_hold_begins_with_the_event_that_begins_it(place: int) -> None:
    wrong = "a hold's token is the version, and its beginning the time, of the event that begins it"
    assert faults(place, token=place) == wrong
    assert faults(place, taken_at=at(-1)) == wrong
    assert faults(place, expires_at=told().events[place].timestamp) == (
        "the new hold has run out already"
    )
    assert faults(place, expires_at=None) is None


def test_who_takes_a_free_lock_takes_it_over_from_nobody() -> None:
    from_nobody = "a hold on a free lock is taken over from nobody"
    assert faults(TAKEN, taken_over_from="run:9") == from_nobody
    assert faults(TAKEN, takeover_reason="urgent") == from_nobody


def test_who_takes_over_says_from_whom_and_why() -> None:
    unsaid = "the new hold does not say from whom it was taken over, and why"
    assert faults(TAKEN_OVER, taken_over_from=None) == unsaid
    assert faults(TAKEN_OVER, takeover_reason="bored") == unsaid
    assert faults(TAKEN_OVER, reason=None, takeover_reason=None) == (
        "nobody takes a hold over from another without a reason"
    )
    assert faults(REPLACED, reason=None, takeover_reason=None) is None


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"actor": " user:1"}, "a key, holder or actor is surrounded by white space; strip it"),
        ({"metadata": {"x": float("nan")}}, "metadata holds nan"),
        ({"metadata": {"x": "y" * 9000}}, "metadata takes 9008 bytes"),
    ],
)
def test_no_event_is_beyond_the_limits_of_the_verbs(
    place: int, facts: dict[str, Any], fault: str
) -> None:
    assert (faults(place, **facts) or "").startswith(fault)


def test_reasons_are_such_as_the_verbs_keep() -> None:
    for reason in ("", "  ", " done"):
        assert faults(RELEASED, reason=reason) == (
            "its reason is blank, or surrounded by white space"
        )
    assert (faults(RELEASED, reason="x" * 2001) or "").startswith("the reason 'xxx")
    assert faults(RELEASED, forced=True) is None
    assert faults(RELEASED, forced=True, reason=None) == "a forced release needs a reason"


def test_somebody_acts_in_all_but_an_expiry() -> None:
    for place in (TAKEN, EXTENDED, TAKEN_OVER, RELEASED):
        assert faults(place, actor=None) == "nobody acts in it"
