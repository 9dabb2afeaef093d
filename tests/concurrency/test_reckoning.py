"""The database's clock, reckoned between its answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockledger import reckoning
from lockledger.reckoning import TRUSTED, Reckoning

MICROSECOND = 1000
SECOND = 10**9
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


class World:
    """This machine's clock in nanoseconds, and a database's, which is ahead of it by what `offset` says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.moment = 5 * SECOND
        self.offset = 0
        patch.setattr(reckoning, "monotonic_ns", lambda: self.moment)

    def true(self) -> datetime:
        return NOON + timedelta(microseconds=(self.moment + self.offset) // MICROSECOND)

    def ask(self, known: Reckoning, there: int, back: int) -> None:
        """A question that is so long under way, and its answer."""
        asked = self.moment
        self.moment += there
        told = self.true()
        self.moment += back
        known.learn(told, asked)


WAY = st.integers(1, 10**6).map(lambda microseconds: microseconds * MICROSECOND)


@given(st.lists(st.tuples(WAY, WAY, WAY), min_size=1, max_size=20))
def test_it_is_ahead_by_the_way_of_the_quickest_question_and_never_behind(
    questions: list[tuple[int, int, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world, known = World(patch), Reckoning()
        for there, back, pause in questions:
            world.ask(known, there, back)
            world.moment += pause
        now = known.now()
        assert now is not None
        quickest = min(there for there, _, _ in questions)
        assert now - world.true() == timedelta(microseconds=quickest // MICROSECOND)


@given(WAY, WAY, st.integers(-3600, 3600), WAY, WAY)
def test_a_clock_that_was_set_is_known_by_the_next_answer(
    there: int, back: int, seconds: int, there_again: int, back_again: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world, known = World(patch), Reckoning()
        world.ask(known, there, back)
        world.offset += seconds * SECOND
        world.ask(known, there_again, back_again)
        now = known.now()
        assert now is not None
        ahead = now - world.true()
        assert timedelta() <= ahead <= timedelta(microseconds=there_again // MICROSECOND) or (
            # As far as the answers tell, it may be either.
            seconds > 0 and -ahead <= timedelta(microseconds=back_again // MICROSECOND)
        )


def test_what_was_told_long_ago_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    world, known = World(monkeypatch), Reckoning()
    assert known.now() is None
    world.ask(known, MICROSECOND, MICROSECOND)
    world.moment += TRUSTED - 2 * MICROSECOND
    assert known.now() is not None
    world.moment += 1
    assert known.now() is None
    world.ask(known, MICROSECOND, MICROSECOND)
    assert known.now() is not None


def test_a_quick_answer_counts_among_slower_ones_and_no_longer_than_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the slow ones alone a drift of the clocks would not be seen."""
    world, known = World(monkeypatch), Reckoning()
    world.ask(known, MICROSECOND, MICROSECOND)
    for ahead in (timedelta(microseconds=1), timedelta(seconds=0.1)):
        world.moment += TRUSTED - SECOND
        world.ask(known, SECOND // 10, SECOND // 10)
        now = known.now()
        assert now is not None
        assert now - world.true() == ahead
