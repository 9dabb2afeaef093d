"""What the rules look at, and what they answer, are values: nobody who was handed one can change it for another."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from lockledger.domain.holds import RecordedEvent
from lockledger.domain.lock import Call, Decision, Take
from lockledger.domain.past_holds import PastHold
from lockledger.domain.policy import TakeRequest
from support.stories import KEY, T0, Story


def values() -> list[Any]:
    story = Story()
    story.take("run:1")
    call = Call("user:1", {})
    return [
        story.lock,
        call,
        Take("run:1", call),
        Decision(True),
        RecordedEvent(1, story.events[0]),
        PastHold(1, "run:1", T0),
        TakeRequest("take", KEY, "run:1", "user:1", None, {}),
    ]


@pytest.mark.parametrize("value", values(), ids=lambda value: type(value).__name__)
def test_no_fact_of_a_value_can_be_set_or_dropped(value: Any) -> None:
    for each in fields(value):
        before = getattr(value, each.name)
        with pytest.raises(AttributeError):
            setattr(value, each.name, None)
        with pytest.raises(AttributeError):
            delattr(value, each.name)
        assert getattr(value, each.name) is before
