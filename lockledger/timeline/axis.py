"""An axis of time: where its ticks stand, and what they say. All in UTC."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
LATEST: Final = datetime.max.replace(tzinfo=UTC)

_EPOCH: Final = datetime(1970, 1, 5, tzinfo=UTC)
"""A Monday, so that weeks begin on one."""
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True)
class Step:
    """The distance between two ticks: a length of time, or whole months of the calendar."""

    length: timedelta
    months: int = 0

    def before(self, instant: datetime) -> datetime:
        """The last tick not later than the instant; the earliest instant there is when no tick is."""
        with suppress(OverflowError):
            if not self.months:
                return instant - (instant - _EPOCH) % self.length
            whole = _month(instant) - _month(instant) % self.months
            if whole >= _month(EARLIEST):
                return _at_month(whole)
        return EARLIEST

    def after(self, instant: datetime) -> datetime:
        """The first tick not earlier than the instant; the latest instant there is when no tick is."""
        with suppress(OverflowError):
            if not self.months:
                return instant + (_EPOCH - instant) % self.length
            whole = _month(instant) + (-_month(instant)) % self.months
            if _at_month(_month(instant)) != instant and whole == _month(instant):
                whole += self.months
            if whole <= _month(LATEST):
                return _at_month(whole)
        return LATEST

    def ticks(self, since: datetime, until: datetime) -> Iterator[datetime]:
        """The ticks from `since` to `until`, both included."""
        tick = self.after(since)
        while tick <= until and tick < LATEST:
            yield tick
            tick = self.after(tick + timedelta(microseconds=1))

    def label(self, tick: datetime) -> str:
        """What stands at a tick, as much of ISO 8601 as the step needs; below a day only the time."""
        if self.months:
            return f"{tick.year:04d}" if self.months % 12 == 0 else f"{tick.year:04d}-{tick:%m}"
        if self.is_of_days:
            return day(tick)
        if self.length >= timedelta(minutes=1):
            return f"{tick:%H:%M}"
        if self.length >= timedelta(seconds=1):
            return f"{tick:%H:%M:%S}"
        return f"{tick:%H:%M:%S}.{tick.microsecond // 1000:03d}"

    @property
    def is_of_days(self) -> bool:
        """Whether its ticks stand at midnights, and say which day it is."""
        return self.length >= _DAY


def day(instant: datetime) -> str:
    """The date, with four digits of the year also where the platform would write fewer."""
    return f"{instant.year:04d}-{instant:%m-%d}"


def _month(instant: datetime) -> int:
    return instant.year * 12 + instant.month - 1


def _at_month(number: int) -> datetime:
    return datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)


def _lengths(seconds: Sequence[float]) -> list[Step]:
    return [Step(timedelta(seconds=each)) for each in seconds]


def _months(numbers: Sequence[int]) -> list[Step]:
    return [Step(timedelta(days=30.4) * each, each) for each in numbers]


STEPS: Final = (
    _lengths([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30])
    + _lengths([60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200])
    + _lengths([86_400 * days for days in (1, 2, 7, 14)])
    + _months([1, 2, 3, 6])
    + _months([12 * years for years in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)])
)
"""The steps an axis may have, from fine to coarse."""
