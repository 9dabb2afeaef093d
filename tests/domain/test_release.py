"""The contract's table of `release`, and of `extend` and `guard`, which follow the same columns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockledger.domain.errors import HoldLost, NotHeld, NotHolding, NotLockHolder
from lockledger.domain.holds import Hold
from support.stories import ANOTHERS, FREE, MINE, Story, at, begun

# Tokens that are not those of the live hold, none of which `run:1` ever released.
WRONG = ("of run:0's first hold", "zero", "of the future", "negative")


def wrong_token(story: Story, which: str) -> int:
    tokens = {
        "of run:0's first hold": 1,
        "zero": 0,
        "of the future": story.lock.version + 1,
        "negative": -1,
    }
    return tokens[which]


def token_of(story: Story) -> int:
    live = story.live_hold(now=100)
    assert live is not None
    return live.token


# release


@pytest.mark.parametrize("situation", MINE)
@pytest.mark.parametrize("shown", [True, False], ids=["token", "no token"])
def test_a_holder_releases_its_hold(situation: str, shown: bool) -> None:
    story = begun(situation)
    version = story.lock.version

    assert story.release("run:1", now=100, token=token_of(story) if shown else None)

    assert story.actions[version:] == ["LockReleased"]
    assert story.live_hold(now=100) is None


@pytest.mark.parametrize("situation", ANOTHERS)
def test_another_holders_hold_is_not_released(situation: str) -> None:
    story = begun(situation)

    with pytest.raises(NotLockHolder) as refusal:
        story.release("run:1", now=100)

    assert (refusal.value.current, refusal.value.holder) == (story.lock.hold, "run:1")


@pytest.mark.parametrize("situation", FREE)
def test_releasing_what_nobody_holds_is_quietly_nothing(situation: str) -> None:
    story = begun(situation)
    events = len(story.events)

    assert story.release("run:1", now=100) is False

    assert len(story.events) == events


def test_releasing_what_was_never_taken_is_quietly_nothing() -> None:
    story = Story()

    assert story.release("run:1") is False
    assert story.events == []


@pytest.mark.parametrize("which", WRONG)
@pytest.mark.parametrize("situation", [*MINE, *ANOTHERS, *FREE])
def test_a_token_that_was_never_mine_is_a_lost_hold_without_an_end(
    situation: str, which: str
) -> None:
    story = begun(situation)
    before = story.lock

    with pytest.raises(HoldLost) as refusal:
        story.release("run:1", now=100, token=wrong_token(story, which))

    lost = refusal.value
    assert (lost.ended_by, lost.ended_at, lost.ended_by_actor, lost.reason) == (None,) * 4
    assert lost.current == story.live_hold(now=100)
    assert story.lock == before


@pytest.mark.parametrize("situation", ANOTHERS)
def test_the_token_of_the_live_hold_is_of_no_use_to_another(situation: str) -> None:
    story = begun(situation)

    with pytest.raises(HoldLost) as refusal:
        story.release("run:1", now=100, token=token_of(story))

    assert (refusal.value.ended_by, refusal.value.current) == (None, story.lock.hold)


# How a hold with token 1 of `run:1`, extended once, may have ended by second 100; and what is told of it.
ENDINGS: dict[str, tuple[Callable[[Story], object], tuple[object, ...]]] = {
    "forced": (
        lambda story: story.force_release(now=5, actor="user:9", reason="cancelled"),
        ("forced", at(5), "user:9", "cancelled"),
    ),
    "taken over": (
        lambda story: story.take("run:2", now=5, takeover_reason="urgent", actor="user:2"),
        ("takeover", at(5), "user:2", "urgent"),
    ),
    "replaced by itself": (
        lambda story: story.take("run:1", now=5, if_mine="replace"),
        ("takeover", at(5), "run:1", None),
    ),
    "ran out": (lambda story: None, ("expiry", at(20), None, None)),
    "ran out, recorded": (
        lambda story: story.expire(now=90),
        ("expiry", at(20), None, None),
    ),
    "ran out, recorded by the next take": (
        lambda story: story.take("run:2", now=50),
        ("expiry", at(20), None, None),
    ),
}
AFTERWARDS: dict[str, Callable[[Story], object]] = {
    "nothing since": lambda story: None,
    "another holds it": lambda story: story.take("run:3", now=95, takeover_reason="mine now"),
    "run:1 holds it again": lambda story: story.take("run:1", now=95, takeover_reason="back"),
}


def ended(ending: str, afterwards: str) -> Story:
    story = Story()
    story.take("run:1", ttl=10)
    story.extend("run:1", 16, now=4)
    ENDINGS[ending][0](story)
    AFTERWARDS[afterwards](story)
    return story


@pytest.mark.parametrize("afterwards", AFTERWARDS)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("verb", ["release", "extend", "guard"])
def test_a_lost_hold_is_told_with_how_it_ended(verb: str, ending: str, afterwards: str) -> None:
    story = ended(ending, afterwards)
    before = story.lock

    with pytest.raises(HoldLost) as refusal:
        act(story, verb, "run:1", token=1)

    lost = refusal.value
    told = (lost.ended_by, lost.ended_at, lost.ended_by_actor, lost.reason)
    assert told == ENDINGS[ending][1]
    assert (lost.holder, lost.token) == ("run:1", 1)
    assert lost.current == story.live_hold(now=100)
    assert story.lock == before


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("verb", ["release", "extend", "guard"])
def test_the_end_of_a_hold_is_told_to_its_holder_only(verb: str, ending: str) -> None:
    story = ended(ending, "nothing since")

    with pytest.raises(HoldLost) as refusal:
        act(story, verb, "run:7", token=1)

    assert refusal.value.ended_by is None


@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_a_repeated_release_by_token_is_quietly_nothing_whatever_came_after(
    afterwards: str,
) -> None:
    story = Story()
    story.take("run:1", ttl=10)
    story.release("run:1", now=5, token=1)
    AFTERWARDS[afterwards](story)
    before = story.lock

    assert story.release("run:1", now=100, token=1) is False
    assert story.lock == before


@pytest.mark.parametrize("verb", ["extend", "guard"])
def test_a_released_hold_is_lost_to_every_other_verb(verb: str) -> None:
    story = Story()
    story.take("run:1")
    story.release("run:1", now=5, reason="done", actor="user:1")

    with pytest.raises(HoldLost) as refusal:
        act(story, verb, "run:1", token=1)

    lost = refusal.value
    told = (lost.ended_by, lost.ended_at, lost.ended_by_actor, lost.reason)
    assert told == ("release", at(5), "user:1", "done")


def test_a_retried_release_of_an_old_hold_leaves_the_new_one() -> None:
    """S07: one holder, two holds; the first one's release is repeated after its answer was lost."""
    story = Story()
    story.take("run:1")
    story.release("run:1", token=1)
    second = story.take("run:1")

    assert story.release("run:1", token=1) is False
    assert story.live_hold(now=0) == Hold(**second.model_dump(exclude={"created"}))


def test_a_release_after_the_expiry_leaves_the_next_holders_lock() -> None:
    """S01: the former holder's late release must not free the lock of whoever took it since."""
    story = Story()
    story.take("run:1", ttl=10)
    story.take("run:2", now=11, ttl=10)

    with pytest.raises(NotLockHolder):
        story.release("run:1", now=12)

    assert story.actions == ["LockTaken", "LockExpired", "LockTaken"]
    held = story.live_hold(now=13)
    assert held is not None
    assert held.holder == "run:2"


# extend and guard


def act(story: Story, verb: str, holder: str, token: int | None = None) -> Hold | None:
    """Does it at second 100; gives the hold that the verb answers with."""
    if verb == "release":
        story.release(holder, now=100, token=token)
        return None
    if verb == "extend":
        grant = story.extend(holder, 300, now=100, token=token)
        return Hold(**grant.model_dump(exclude={"created"}))
    return story.lock.held_by(holder, token, story.lock.now(at(100)), story.ended)


@pytest.mark.parametrize("shown", [True, False], ids=["token", "no token"])
@pytest.mark.parametrize("situation", MINE)
@pytest.mark.parametrize("verb", ["extend", "guard"])
def test_a_holder_extends_and_guards_its_hold(verb: str, situation: str, shown: bool) -> None:
    story = begun(situation)

    hold = act(story, verb, "run:1", token=token_of(story) if shown else None)

    assert hold == story.lock.hold


@pytest.mark.parametrize("situation", ANOTHERS)
@pytest.mark.parametrize("verb", ["extend", "guard"])
def test_another_holders_hold_is_neither_extended_nor_guarded(verb: str, situation: str) -> None:
    story = begun(situation)

    with pytest.raises(NotLockHolder) as refusal:
        act(story, verb, "run:1")

    assert (refusal.value.current, refusal.value.holder) == (story.lock.hold, "run:1")


@pytest.mark.parametrize("situation", FREE)
@pytest.mark.parametrize("verb", ["extend", "guard"])
def test_what_nobody_holds_is_neither_extended_nor_guarded(verb: str, situation: str) -> None:
    """S11: an extension never takes back a hold that ran out."""
    story = begun(situation)
    before = story.lock

    with pytest.raises(NotHeld) as refusal:
        act(story, verb, "run:1")

    assert refusal.value.holder == "run:1"
    assert story.lock == before


@pytest.mark.parametrize("which", WRONG)
@pytest.mark.parametrize("situation", [*MINE, *ANOTHERS, *FREE])
@pytest.mark.parametrize("verb", ["extend", "guard"])
def test_a_wrong_token_neither_extends_nor_guards(verb: str, situation: str, which: str) -> None:
    story = begun(situation)
    before = story.lock

    with pytest.raises(HoldLost) as refusal:
        act(story, verb, "run:1", token=wrong_token(story, which))

    assert refusal.value.ended_by is None
    assert story.lock == before


def test_not_holding_is_one_kind_of_error_for_a_finally() -> None:
    assert all(issubclass(kind, NotHolding) for kind in (NotLockHolder, HoldLost, NotHeld))
