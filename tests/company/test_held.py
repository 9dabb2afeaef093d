"""What a holder may believe between two answers of the ledger: no clock but this process's monotonic one, no thread."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockledger import Grant, Held, HoldLost, HoldSuspect, NotHeld
from lockledger.holding import Heartbeat, after_body, beat, first_pause, margin
from support.stories import T0, at

EVERY_3_OF_10 = Heartbeat(every=3, ttl=10)


class Monotonic:
    """A monotonic clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def set(self, seconds: float) -> None:
        self.now = 1000.0 + seconds


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    """The monotonic clock that what is held is measured by, in seconds since the lock was asked for."""
    clock = Monotonic()
    monkeypatch.setattr("lockledger.holding.monotonic", clock)
    return clock


def grant(ends: float | None = 10, *, created: bool = True) -> Grant:
    return Grant(
        key="k",
        holder="run:1",
        token=4,
        taken_at=T0,
        expires_at=None if ends is None else at(ends),
        created=created,
    )


def held(ends: float | None = 10, *, created: bool = True) -> Held:
    return Held(grant(ends, created=created), 1000.0, ends)


def lost(holding: Held) -> bool:
    return holding.lost


LOST = HoldLost(
    "k", None, holder="run:1", token=4, ended_by="forced", ended_at=at(5), ended_by_actor="user:9"
)


def answering(*answers: Grant | Exception) -> Callable[[], Grant]:
    """A ledger that extends, or says no, in turn."""
    remaining = iter(answers)

    def extend() -> Grant:
        answer = next(remaining)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return extend


@pytest.mark.parametrize(
    ("lasts", "seconds"), [(0.5, 0.05), (3, 0.3), (10, 1), (60, 1), (86_400, 1)]
)
def test_a_hold_is_suspect_a_tenth_before_its_end_but_a_second_at_most(
    monotonic: Monotonic, lasts: float, seconds: float
) -> None:
    assert margin(lasts) == pytest.approx(seconds)
    holding = held(lasts)
    monotonic.set(lasts - seconds - 0.001)
    holding.check()
    assert not lost(holding)
    monotonic.set(lasts - seconds + 0.001)
    assert lost(holding)
    with pytest.raises(HoldSuspect):
        holding.check()


def test_a_hold_without_expiry_is_never_suspect(monotonic: Monotonic) -> None:
    holding = held(None)
    monotonic.set(1e9)
    holding.check()
    assert not lost(holding)


def test_a_suspicion_says_for_how_long_nothing_was_heard(monotonic: Monotonic) -> None:
    holding = held(10)
    monotonic.set(9.5)
    with pytest.raises(HoldSuspect) as suspect:
        holding.check()
    told = suspect.value
    assert (told.key, told.holder, told.token) == ("k", "run:1", 4)
    assert told.silent_for == pytest.approx(9.5)
    assert isinstance(told, HoldLost)
    assert told.ended_by is None
    assert told.current is None


def test_a_beat_counts_from_before_it_was_asked(monotonic: Monotonic) -> None:
    holding = held(10)
    monotonic.set(3)

    def extend() -> Grant:
        monotonic.set(7)  # the answer took four seconds
        return grant(17)

    assert beat(holding, extend, EVERY_3_OF_10) == 3
    monotonic.set(11.9)
    holding.check()
    monotonic.set(12.1)
    assert lost(holding)


def test_the_grant_is_what_the_ledger_said_last_and_still_the_hold_that_was_begun(
    monotonic: Monotonic,
) -> None:
    holding = held(10)
    monotonic.set(3)
    beat(holding, answering(grant(13, created=False)), EVERY_3_OF_10)
    assert holding.grant == grant(13, created=True)
    found = held(10, created=False)
    beat(found, answering(grant(13, created=False)), EVERY_3_OF_10)
    assert not found.grant.created


def test_a_beat_that_is_not_answered_is_tried_again_soon_and_loses_nothing_yet(
    monotonic: Monotonic,
) -> None:
    holding = held(10)
    trouble = ConnectionError("the server has gone away")
    monotonic.set(3)
    pause = beat(holding, answering(trouble), EVERY_3_OF_10)
    assert pause == 0.5
    assert holding.trouble is trouble
    holding.check()
    monotonic.set(8.9)
    assert beat(holding, answering(trouble), EVERY_3_OF_10) == 0.5
    holding.check()
    monotonic.set(9.1)
    assert beat(holding, answering(trouble), EVERY_3_OF_10) == 0.5
    assert lost(holding)


def test_tries_are_not_more_frequent_than_beats(monotonic: Monotonic) -> None:
    assert Heartbeat(0.1, 60).patience == 0.1
    assert Heartbeat(0.1, 0.3).patience == 0.05
    assert Heartbeat(0.01, 0.3).patience == 0.01
    assert Heartbeat(20, 60).patience == 3


def test_an_answer_in_the_last_moment_ends_the_suspicion(monotonic: Monotonic) -> None:
    holding = held(10)
    monotonic.set(9.5)
    assert lost(holding)
    assert beat(holding, answering(grant(19.5)), EVERY_3_OF_10) == 3
    assert not lost(holding)
    holding.check()


def test_a_loss_is_final_and_ends_the_beats(monotonic: Monotonic) -> None:
    holding = held(10)
    monotonic.set(6)
    assert beat(holding, answering(LOST), EVERY_3_OF_10) is None
    assert lost(holding)
    with pytest.raises(HoldLost, match="released by force by 'user:9'") as told:
        holding.check()
    assert not isinstance(told.value, HoldSuspect)
    holding.lose(NotHeld("k", holder="run:1"))
    with pytest.raises(HoldLost):
        holding.check()


def test_each_check_raises_an_error_of_its_own(monotonic: Monotonic) -> None:
    holding = held(10)
    holding.lose(LOST)
    errors = []
    for _ in range(2):
        with pytest.raises(HoldLost) as told:
            holding.check()
        told.value.add_note("seen here")
        errors.append(told.value)
    assert errors[0] is not errors[1]
    assert [error.__notes__ for error in errors] == [["seen here"], ["seen here"]]
    assert not hasattr(LOST, "__notes__")


def test_a_hold_that_was_found_is_extended_at_once() -> None:
    assert first_pause(held(10), EVERY_3_OF_10) == 3
    assert first_pause(held(10, created=False), EVERY_3_OF_10) == 0


def test_a_hold_without_expiry_that_was_found_is_asked_about_and_stays_so(
    monotonic: Monotonic,
) -> None:
    holding = held(None, created=False)
    assert beat(holding, answering(grant(None, created=False)), EVERY_3_OF_10) == 3
    monotonic.set(1e6)
    holding.check()
    assert beat(holding, answering(LOST), EVERY_3_OF_10) is None
    assert lost(holding)


def test_a_release_that_fails_says_that_the_hold_may_remain() -> None:
    def release() -> None:
        raise ConnectionError("the server has gone away")

    with pytest.raises(ConnectionError) as failed:
        after_body(held(10), release, None)
    assert failed.value.__notes__ == [
        f"the hold on 'k' with token 4 could not be released and may remain until {at(10).isoformat()}"
    ]
    body = ValueError("it broke")
    after_body(held(None), release, body)
    assert body.__notes__ == [
        "and at the end of the hold: the server has gone away",
        "the hold on 'k' with token 4 could not be released and may remain until somebody ends it",
    ]


def test_whatever_else_a_release_raises_is_raised() -> None:
    def release() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        after_body(held(10), release, ValueError("it broke"))


def test_a_loss_says_nothing_of_remaining() -> None:
    def release() -> None:
        raise LOST

    with pytest.raises(HoldLost) as told:
        after_body(held(10), release, None)
    assert not hasattr(told.value, "__notes__")
