"""Ending a hold by force: what is recorded, and what the token that was seen is for."""

from __future__ import annotations

import pytest

from lockledger.domain.errors import HoldChanged, InvalidReason
from support.stories import ANOTHERS, FREE, ID, KEY, MINE, Story, at, begun


@pytest.mark.parametrize("with_token", [True, False], ids=["token", "no token"])
@pytest.mark.parametrize("situation", [*MINE, *ANOTHERS])
def test_a_live_hold_is_ended_and_given_with_its_end(situation: str, with_token: bool) -> None:
    story = begun(situation)
    version, hold = story.lock.version, story.lock.hold
    assert hold is not None

    over = story.force_release(
        now=100,
        actor="user:9",
        reason=" cancelled ",
        expected_token=hold.token if with_token else None,
    )

    assert over == hold.ended(at(100), "forced", actor="user:9", reason="cancelled")
    assert story.actions[version:] == ["LockReleased"]
    assert story.live_hold(now=100) is None


@pytest.mark.parametrize("expected_token", [None, 0])
@pytest.mark.parametrize("situation", FREE)
def test_where_nobody_holds_nothing_is_recorded(situation: str, expected_token: int | None) -> None:
    story = begun(situation)
    before = story.lock

    over = story.force_release(
        now=100, actor="user:9", reason="cancelled", expected_token=expected_token
    )

    assert over is None
    assert story.lock == before


def test_what_was_never_taken_is_not_ended() -> None:
    assert Story().force_release(actor="user:9", reason="cancelled") is None


@pytest.mark.parametrize("which", ["first", "zero", "last", "next"])
@pytest.mark.parametrize("situation", [*MINE, *ANOTHERS, *FREE])
def test_another_hold_than_the_one_that_was_seen_is_left_alone(situation: str, which: str) -> None:
    story = begun(situation)
    before, live = story.lock, story.live_hold(now=100)
    tokens = {"first": 1, "last": story.lock.version, "next": story.lock.version + 1, "zero": 0}
    if tokens[which] == (live.token if live else 0):
        tokens[which] = -1

    with pytest.raises(HoldChanged) as refusal:
        story.force_release(
            now=100, actor="user:9", reason="cancelled", expected_token=tokens[which]
        )

    assert (refusal.value.current, refusal.value.expected_token) == (live, tokens[which])
    assert story.lock == before


@pytest.mark.parametrize("reason", ["", " \n "])
def test_a_reason_is_mandatory(reason: str) -> None:
    story = Story()
    story.take("run:1")

    with pytest.raises(InvalidReason, match="mandatory"):
        story.force_release(actor="user:9", reason=reason)


def test_a_forced_release_says_who_and_why() -> None:
    """S72: the audit shows the actor, the victim, the reason and the hold that ended."""
    story = Story()
    story.take("run:1", ttl=60, metadata={"request": "r1"})

    story.force_release(now=5, actor="user:9", reason="holiday", metadata={"request": "r2"})

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
        "actor": "user:9",
        "metadata": {"request": "r2"},
        "forced": True,
        "reason": "holiday",
    }
