"""Which holds are drawn, and from when to when."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lockledger.domain.holds import Hold
from lockledger.timeline.axis import EARLIEST, LATEST, STEPS, Step

_SHORTEST: Final = timedelta(seconds=10)
"""What is drawn of time around one instant."""
_LONGEST_QUIET: Final = 3
"""A drawing ends now, unless nothing has changed for longer than so many times all that it shows before."""


@dataclass(frozen=True)
class Period:
    """The time that is drawn, from `since` to `until`; `first` and `last` are the same without the margins."""

    since: datetime
    until: datetime
    first: datetime
    last: datetime
    now: datetime

    @classmethod
    def of(
        cls, holds: Sequence[Hold], since: datetime | None, until: datetime | None, now: datetime
    ) -> "Period":
        """The period asked for; where a side is open, what the holds need and a little more."""
        instants = [hold.taken_at for hold in holds]
        instants += [hold.ended_at for hold in holds if hold.ended_at is not None]
        first = since or min(instants, default=until or now)
        last = until or max([*instants, first])
        open_end = until is None and any(hold.ended_at is None for hold in holds)
        if open_end and (first == last or now - last <= _LONGEST_QUIET * (last - first)):
            last = max(last, now)
        around = max((last - first) / 40, (_SHORTEST - (last - first)) / 2)
        return cls(
            since or max(first, EARLIEST + around) - around,
            until or min(last, LATEST - around) + around,
            first,
            last,
            now,
        )

    @property
    def shows_now(self) -> bool:
        """Whether now lies inside."""
        return self.since < self.now < self.until

    def part(self, instant: datetime) -> float:
        """Where an instant stands: 0 at the beginning, 1 at the end; one outside stands at the side it lies on."""
        part = (instant - self.since) / (self.until - self.since)
        return min(1.0, max(0.0, part))

    def step(self, width: float, room: Callable[[str], float]) -> Step:
        """The finest step between whose ticks, over this width, there is the room that a label needs."""
        for step in STEPS:
            if width * (step.length / (self.until - self.since)) >= room(step.label(self.since)):
                return step
        return STEPS[-1]


def as_of(hold: Hold, now: datetime) -> Hold:
    """The hold as it is now: one that has run out has ended at its expiry, recorded or not."""
    if hold.ended_at is not None or hold.expires_at is None or hold.is_live(now):
        return hold
    return hold.ended(hold.expires_at, "expiry", actor=None, reason=None)


def was_live(hold: Hold, since: datetime | None, until: datetime | None) -> bool:
    """Whether the hold was live at an instant of [since, until); an instantaneous one counts where it stands."""
    begins_before = until is None or hold.taken_at < until
    ends_after = (
        since is None or hold.ended_at is None or hold.ended_at > since or hold.taken_at >= since
    )
    return begins_before and ends_after
