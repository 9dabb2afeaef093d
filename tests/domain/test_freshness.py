"""How long after its *now* a decision may still be recorded; past that, the call decides again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockledger.domain.ttl import Ttl
from support.stories import Story, at

QUARTER = timedelta(milliseconds=250)


@pytest.mark.parametrize(
    ("ttl", "fresh_for"),
    [
        (None, QUARTER),
        (3600, QUARTER),
        (0.25, QUARTER),
        (0.2, timedelta(milliseconds=200)),
        (timedelta(microseconds=1), timedelta(microseconds=1)),
        (at(0.1), timedelta(milliseconds=100)),
    ],
    ids=repr,
)
def test_a_take_is_fresh_for_what_the_new_hold_has_to_live(ttl: Ttl, fresh_for: timedelta) -> None:
    """A takeover for 1 s that waited 2.5 s must not be granted already expired."""
    story = Story()

    story.take("run:1", ttl=ttl)

    assert story.decision.fresh_for == fresh_for


@pytest.mark.parametrize("if_mine", ["return", "replace"])
def test_a_takeover_is_fresh_for_what_is_left_of_the_old_hold(if_mine: str) -> None:
    story = Story()
    story.take("run:1", ttl=10)

    if if_mine == "replace":
        story.take("run:1", now=9.9, if_mine="replace")
    else:
        story.take("run:2", now=9.9, takeover_reason="urgent")

    assert story.decision.fresh_for == timedelta(milliseconds=100)


def test_a_takeover_is_fresh_for_the_shorter_of_both_holds() -> None:
    story = Story()
    story.take("run:1", ttl=10)
    story.take("run:2", now=9.9, takeover_reason="urgent", ttl=0.05)
    assert story.decision.fresh_for == timedelta(milliseconds=50)


def test_a_take_of_what_ran_out_is_not_bound_to_the_old_hold() -> None:
    story = Story()
    story.take("run:1", ttl=10)
    story.take("run:2", now=11, ttl=0.2)
    assert story.decision.fresh_for == timedelta(milliseconds=200)


def test_an_extension_is_fresh_for_what_is_left_before_it() -> None:
    story = Story()
    story.take("run:1", ttl=10)
    story.extend("run:1", 60, now=9.9)
    assert story.decision.fresh_for == timedelta(milliseconds=100)


def test_a_release_is_fresh_for_what_is_left_of_the_hold() -> None:
    """Once the hold has run out, a release by its holder would answer otherwise."""
    story = Story()
    story.take("run:1", ttl=10)
    story.release("run:1", now=9.9)
    assert story.decision.fresh_for == timedelta(milliseconds=100)


def test_a_forced_release_is_fresh_for_what_is_left_of_the_hold() -> None:
    story = Story()
    story.take("run:1", ttl=10)
    story.force_release(now=9.9, actor="user:9", reason="holiday")
    assert story.decision.fresh_for == timedelta(milliseconds=100)


def test_what_has_no_expiry_is_fresh_for_a_quarter_of_a_second() -> None:
    story = Story()
    story.take("run:1")
    story.take("run:2", takeover_reason="urgent")
    assert story.decision.fresh_for == QUARTER
    story.release("run:2")
    assert story.decision.fresh_for == QUARTER
