"""What the database's clock shows, reckoned from its answers by the clock of this machine that nobody sets.

Each answer tells the database's clock at some moment between question and answer. Taken for that of the question, it is
ahead by the way of the question; the answer whose question was quickest to arrive is ahead least, and counts on.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic_ns
from typing import Final

TRUSTED: Final = 60 * 10**9
"""Nanoseconds for which an answer counts: two clocks that nobody corrects may be milliseconds apart by then."""


@dataclass(frozen=True, slots=True)
class _Answer:
    clock: datetime
    asked: int

    def at(self, moment: int) -> datetime:
        """What the database's clock shows then, at the latest."""
        return self.clock + timedelta(microseconds=-((self.asked - moment) // 1000))


class Reckoning:
    """The database's clock by its answers; threads may share it."""

    def __init__(self) -> None:
        self._known: _Answer | None = None

    def learn(self, clock: datetime, asked: int) -> None:
        """The database has just told its clock, by an answer to what was asked at that moment of `monotonic_ns`."""
        answered, known = monotonic_ns(), self._known
        # Beyond what is known at the latest, one of the clocks was set, or runs faster than the other.
        if (
            known is None
            or asked - known.asked > TRUSTED
            or not known.at(asked) < clock <= known.at(answered)
        ):
            self._known = _Answer(clock, asked)

    def now(self) -> datetime | None:
        """What the database's clock shows: exactly, or ahead by as much as a question takes to arrive at best.

        `None` when what is known is older than a minute. Clocks that were set or slept meanwhile make it wrong in any way.
        """
        known, moment = self._known, monotonic_ns()
        return None if known is None or moment - known.asked > TRUSTED else known.at(moment)
