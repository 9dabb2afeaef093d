"""The ticks of an axis stand at whole times, wherever one looks for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lockledger.timeline.axis import EARLIEST, LATEST, STEPS, Step

INSTANTS = st.datetimes(timezones=st.just(UTC))


@given(st.sampled_from(STEPS), INSTANTS)
def test_a_tick_lies_on_either_side_of_an_instant(step: Step, instant: datetime) -> None:
    before, after = step.before(instant), step.after(instant)
    assert before <= instant <= after
    assert before == step.before(before)
    if after < LATEST:
        assert after == step.after(after) == step.before(after)
    if EARLIEST < before < instant and after < LATEST:
        assert list(step.ticks(before, after)) == [before, after]


def test_steps_grow_and_months_are_those_of_the_calendar() -> None:
    assert list(STEPS) == sorted(STEPS, key=lambda step: step.length)
    quarters = next(step for step in STEPS if step.months == 3)
    begin = datetime(2023, 12, 31, 23, 59, 59, 999_999, UTC)
    ticks = quarters.ticks(begin, begin + timedelta(days=200))
    assert [quarters.label(tick) for tick in ticks] == ["2024-01", "2024-04", "2024-07"]
    assert quarters.after(begin) == datetime(2024, 1, 1, tzinfo=UTC)
