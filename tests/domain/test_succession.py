"""Events that no verb decided: what may come next in a lock, and what no verb could have recorded."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from lockledger.domain.events import LockEvent
from lockledger.domain.lock import Lock, evolve
from lockledger.domain.succession import misfit
from support.stories import ID, KEY, Story, at


def told() -> list[LockEvent]:
    """A story in which everything happens that can happen to a lock."""
    story = Story()
    story.take("run:1", ttl=10)
    story.extend("run:1", 20, now=5)
    story.take("run:2", now=30, ttl=60)
    story.take("run:3", now=40, takeover_reason="urgent", ttl=60)
    story.release("run:3", now=50, reason="done")
    story.take("run:4", now=60)
    story.take("run:4", now=61, if_mine="replace")
    story.force_release(now=70, actor="user:9", reason="holiday")
    return story.events


EVENTS = told()
TAKEN, EXTENDED, EXPIRED, TAKEN_AGAIN, TAKEN_OVER, RELEASED, _, REPLACED, FORCED = EVENTS


def before(event: LockEvent) -> Lock:
    """The lock as the event finds it."""
    number = event.originator_version
    return evolve(EVENTS[number - 2]) if number > 1 else Lock(ID, KEY)


def changed(event: LockEvent, **facts: Any) -> LockEvent:
    return event.model_copy(update=facts)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.originator_version)
def test_what_a_verb_recorded_fits(event: LockEvent) -> None:
    assert misfit(before(event), event) is None


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.originator_version)
def test_what_a_verb_recorded_fits_nowhere_else(event: LockEvent) -> None:
    for other in EVENTS:
        if other is not event:
            assert misfit(before(other), event) is not None


@pytest.mark.parametrize(
    ("event", "facts", "complaint"),
    [
        (TAKEN, {"originator_id": UUID(int=1)}, "it belongs to another lock"),
        (TAKEN, {"key": "round:6"}, "it belongs to another lock"),
        (TAKEN, {"originator_version": 2, "token": 2}, "the lock is at version 0"),
        (TAKEN_AGAIN, {"timestamp": at(29), "taken_at": at(29)}, "earlier than the lock's newest"),
        (TAKEN, {"token": 2}, "a hold's token is the version"),
        (TAKEN, {"taken_at": at(-1)}, "a hold's token is the version"),
        (TAKEN, {"expires_at": at(0)}, "the new hold has run out already"),
        (TAKEN, {"taken_over_from": "run:0"}, "taken over from nobody"),
        (TAKEN, {"takeover_reason": "urgent"}, "taken over from nobody"),
        (TAKEN, {"holder": " run:1"}, "a key, holder or actor is surrounded by white space"),
        (TAKEN, {"actor": ""}, "a key, holder or actor is empty"),
        (TAKEN, {"actor": None}, "nobody acts in it"),
        (TAKEN, {"metadata": {"a": float("nan")}}, "metadata holds nan"),
        (TAKEN, {"hold_metadata": {"a": "x" * 9000}}, "metadata takes 9008 bytes"),
        (EXTENDED, {"holder": "run:2"}, "the lock's hold is not as it says"),
        (EXTENDED, {"previous_expires_at": at(9)}, "the lock's hold is not as it says"),
        (EXTENDED, {"takeover_reason": "urgent"}, "the lock's hold is not as it says"),
        (EXTENDED, {"timestamp": at(10)}, "the hold has run out; an expiry comes first"),
        (EXTENDED, {"expires_at": at(10)}, "it does not extend the hold"),
        (EXTENDED, {"expires_at": None}, "it does not extend the hold"),
        (EXPIRED, {"timestamp": at(24)}, "the hold has not run out"),
        (EXPIRED, {"expired_at": at(24)}, "the hold has not run out"),
        (EXPIRED, {"holder": "run:2"}, "the lock's hold is not as it says"),
        (TAKEN_OVER, {"timestamp": at(90), "taken_at": at(90)}, "an expiry comes first"),
        (TAKEN_OVER, {"taken_over_from": "run:9"}, "from whom it was taken over, and why"),
        (TAKEN_OVER, {"takeover_reason": "other"}, "from whom it was taken over, and why"),
        (TAKEN_OVER, {"reason": None, "takeover_reason": None}, "without a reason"),
        (TAKEN_OVER, {"reason": " x", "takeover_reason": " x"}, "surrounded by white space"),
        (TAKEN_OVER, {"reason": "", "takeover_reason": ""}, "its reason is blank"),
        (RELEASED, {"token": 1}, "the lock's hold is not as it says"),
        (RELEASED, {"reason": "a\rb"}, "holds '\\r'"),
        (FORCED, {"reason": None}, "a forced release needs a reason"),
    ],
)
def test_what_no_verb_could_have_recorded_is_told(
    event: LockEvent, facts: dict[str, Any], complaint: str
) -> None:
    assert complaint in (misfit(before(event), changed(event, **facts)) or "it fits")
