"""What an extension moves, and what it never does."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from lockledger.domain.errors import HoldLost, InvalidTtl, NotHeld
from lockledger.domain.ttl import Ttl
from support.stories import ID, KEY, Story, at


@pytest.mark.parametrize("ttl", [20, 20.0, timedelta(seconds=20), at(30)])
def test_an_extension_moves_the_expiry_to_now_plus_ttl_or_to_the_instant(ttl: Ttl) -> None:
    story = Story()
    first = story.take("run:1", ttl=15)

    grant = story.extend("run:1", ttl, now=10)

    assert grant == first.model_copy(update={"expires_at": at(30), "created": False})
    assert story.actions == ["LockTaken", "LockExtended"]


@pytest.mark.parametrize("ttl", [1, 5, timedelta(seconds=5), at(11), at(15)])
def test_an_extension_never_shortens_and_records_nothing_then(ttl: Ttl) -> None:
    story = Story()
    first = story.take("run:1", ttl=15)

    grant = story.extend("run:1", ttl, now=10)

    assert grant == first.model_copy(update={"created": False})
    assert story.actions == ["LockTaken"]


def test_a_repeated_extension_does_not_add_up() -> None:
    """S22: the new expiry is now + ttl, not the old one + ttl."""
    story = Story()
    story.take("run:1", ttl=10)

    ends = [story.extend("run:1", 10, now=2).expires_at for _ in range(2)]

    assert ends == [at(12), at(12)]
    assert story.actions == ["LockTaken", "LockExtended"]


@pytest.mark.parametrize("ttl", [1, timedelta(days=1), at(1), at(10_000)])
def test_a_hold_without_expiry_stays_so(ttl: Ttl) -> None:
    """S14: no sentinel arithmetic turns "never" into a moment."""
    story = Story()
    first = story.take("run:1")

    grant = story.extend("run:1", ttl, now=2)

    assert grant == first.model_copy(update={"created": False})
    assert story.actions == ["LockTaken"]


@pytest.mark.parametrize("instant", [at(10), at(9), at(-1000)])
def test_an_instant_that_has_passed_extends_nothing(instant: datetime) -> None:
    story = Story()
    story.take("run:1", ttl=15)
    before = story.lock

    with pytest.raises(InvalidTtl, match="has passed"):
        story.extend("run:1", instant, now=10)

    assert story.lock == before


@pytest.mark.parametrize("holder", ["run:1", "run:2"])
@pytest.mark.parametrize("token", [None, 1, 7])
def test_an_extension_without_ttl_is_bad_input_whoever_asks(holder: str, token: int | None) -> None:
    story = Story()
    story.take("run:1", ttl=15)

    with pytest.raises(InvalidTtl):
        story.extend(holder, None, token=token)


def test_a_hold_can_be_extended_until_it_runs_out_and_no_longer() -> None:
    """S44: holds are half-open, at equality it is over."""
    story = Story()
    story.take("run:1", ttl=10)

    story.extend("run:1", 10, now=9.999999)
    with pytest.raises(NotHeld):
        story.extend("run:1", 10, now=19.999999)

    assert story.take("run:2", now=19.999999).created


def test_a_taken_over_holder_can_no_longer_extend() -> None:
    """S06, S11: a heartbeat of the former holder does not steal the lock back."""
    story = Story()
    first = story.take("run:1", ttl=10)
    story.take("run:2", now=8, takeover_reason="urgent")

    with pytest.raises(HoldLost) as refusal:
        story.extend("run:1", 10, now=9, token=first.token)

    assert (refusal.value.ended_by, refusal.value.reason) == ("takeover", "urgent")
    held = story.live_hold(now=9)
    assert held is not None
    assert held.holder == "run:2"


def test_an_extension_keeps_token_and_beginning() -> None:
    story = Story()
    story.take("run:1", ttl=10)
    story.take("run:2", now=1, ttl=10, takeover_reason="urgent", metadata={"request": "r2"})

    grant = story.extend("run:2", 60, now=5, actor="user:2", metadata={"request": "r3"})

    assert grant.model_dump() == {
        "key": KEY,
        "holder": "run:2",
        "token": 2,
        "taken_at": at(1),
        "expires_at": at(65),
        "taken_over_from": "run:1",
        "takeover_reason": "urgent",
        "metadata": {"request": "r2"},
        "created": False,
    }
    assert story.events[-1].model_dump() == {
        "originator_id": ID,
        "originator_version": 3,
        "timestamp": at(5),
        "key": KEY,
        "holder": "run:2",
        "token": 2,
        "taken_at": at(1),
        "expires_at": at(65),
        "taken_over_from": "run:1",
        "takeover_reason": "urgent",
        "hold_metadata": {"request": "r2"},
        "actor": "user:2",
        "metadata": {"request": "r3"},
        "previous_expires_at": at(11),
    }
