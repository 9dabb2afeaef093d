"""Takes beside the table: tokens, ttls and repeats."""

from __future__ import annotations

from datetime import datetime

import pytest

from lockledger.domain.errors import HoldChanged, InvalidTtl, LockedByOther
from lockledger.domain.holds import Hold
from lockledger.domain.lock import Call, Take
from support.stories import ID, KEY, T0, Story, at


def test_a_lock_that_was_never_taken_is_taken_with_token_one() -> None:
    story = Story()

    grant = story.take("run:1", expected_token=0)

    assert (grant.token, grant.created, grant.expires_at) == (1, True, None)
    assert [(event.originator_id, event.originator_version) for event in story.events] == [(ID, 1)]


@pytest.mark.parametrize("expected_token", [1, 7, -1])
def test_a_lock_that_was_never_taken_is_at_token_zero_only(expected_token: int) -> None:
    with pytest.raises(HoldChanged) as refusal:
        Story().take("run:1", expected_token=expected_token)

    assert refusal.value.current is None


def test_a_repeated_take_ignores_ttl_and_token() -> None:
    story = Story()
    first = story.take("run:1", ttl=60)

    again = story.take("run:1", now=59, ttl=at(1), expected_token=99)

    assert again == first.model_copy(update={"created": False})
    assert len(story.events) == 1


def test_a_take_that_may_extend_needs_a_ttl_only_for_an_own_hold() -> None:
    story = Story()
    assert story.take("run:1", if_mine="extend").created

    with pytest.raises(InvalidTtl):
        story.take("run:1", if_mine="extend")


def test_a_take_that_may_extend_never_shortens() -> None:
    story = Story()
    story.take("run:1", ttl=60)

    grant = story.take("run:1", now=10, ttl=20, if_mine="extend")

    assert (grant.expires_at, grant.created, len(story.events)) == (at(60), False, 1)


def test_a_repeated_replacement_replaces_again() -> None:
    story = Story()

    tokens = [story.take("run:1", if_mine="replace").token for _ in range(3)]

    assert tokens == [1, 2, 3]
    assert story.actions == ["LockTaken", "LockTakenOver", "LockTakenOver"]


def test_a_repeated_takeover_gives_the_same_grant() -> None:
    story = Story()
    story.take("run:1")
    first = story.take("run:2", takeover_reason="urgent", expected_token=1)

    again = story.take("run:2", takeover_reason="urgent", expected_token=1)

    assert again == first.model_copy(update={"created": False})
    assert len(story.events) == 2


def test_the_reason_of_a_takeover_is_stripped() -> None:
    story = Story()
    story.take("run:1")

    grant = story.take("run:2", takeover_reason="\n  The deadline\nis today \t")

    assert grant.takeover_reason == "The deadline\nis today"


@pytest.mark.parametrize("situation", ["free", "another's, with a reason", "mine, replaced"])
@pytest.mark.parametrize("instant", [100, 99, -1000])
def test_an_instant_that_has_passed_begins_no_hold(situation: str, instant: float) -> None:
    story = Story()
    if situation != "free":
        story.take("run:2")
    before = story.lock

    with pytest.raises(InvalidTtl, match="has passed"):
        story.take(
            "run:2" if situation == "mine, replaced" else "run:1",
            now=100,
            ttl=at(instant),
            takeover_reason="urgent",
            if_mine="replace",
        )

    assert story.lock == before


def test_a_conflict_is_told_before_an_instant_that_has_passed() -> None:
    story = Story()
    story.take("run:2")

    with pytest.raises(LockedByOther):
        story.take("run:1", now=100, ttl=at(50))
    with pytest.raises(HoldChanged):
        story.take("run:1", now=100, ttl=at(50), expected_token=0, takeover_reason="urgent")


def test_the_ttl_runs_from_the_grant() -> None:
    story = Story()
    story.take("run:1", ttl=60)
    assert story.take("run:2", now=60, ttl=60).expires_at == at(120)
    assert story.take("run:3", now=130, ttl=at(131)).expires_at == at(131)


def test_a_clock_that_jumps_back_moves_nothing_back() -> None:
    story = Story()
    story.take("run:1", ttl=3600)
    story.take("run:2", now=3600, ttl=10)

    with pytest.raises(LockedByOther):
        story.take("run:3", now=0)
    grant = story.take("run:3", now=0, takeover_reason="urgent", ttl=10)

    assert (grant.taken_at, grant.expires_at, grant.token) == (at(3600), at(3610), 4)


# Holds of other keys, where holds cover what lies under them

ABOVE = Hold(key="round", holder="run:3", token=4, taken_at=T0)


class Above:
    """A hold above the lock, and who asked for it when."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, datetime]] = []

    def __call__(self, holder: str, now: datetime) -> Hold:
        self.asked.append((holder, now))
        return ABOVE


@pytest.mark.parametrize("reason", [None, "urgent"])
@pytest.mark.parametrize("taken", [False, True], ids=["free", "another's"])
def test_a_hold_above_is_in_the_way_and_is_not_taken_over(taken: bool, reason: str | None) -> None:
    story, above = Story(), Above()
    if taken:
        story.take("run:2")

    with pytest.raises(LockedByOther) as refusal:
        story.lock.take(Take("run:1", Call("user:1", {}), takeover_reason=reason), at(5), above)

    assert (refusal.value.key, refusal.value.current) == (KEY, ABOVE)
    assert not refusal.value.same_holder
    assert above.asked == [("run:1", at(5))]


def test_a_hold_above_is_not_in_the_way_of_who_holds_the_lock_already() -> None:
    story, above = Story(), Above()
    story.take("run:1", ttl=60)
    call = Call("user:1", {})

    again = story.lock.take(Take("run:1", call), at(5), above)
    anew = story.lock.take(Take("run:1", call, if_mine="replace"), at(5), above)

    assert (again.outcome.token, anew.outcome.token, above.asked) == (1, 2, [])


def test_a_lock_that_is_not_as_expected_is_told_before_a_hold_above() -> None:
    with pytest.raises(HoldChanged):
        Story().lock.take(Take("run:1", Call("user:1", {}), expected_token=7), at(5), Above())
