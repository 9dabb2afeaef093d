"""`take(wait=…)`: asking again until the lock is to be had, or the time is up.

No connection is held between two tries, and a try never blocks behind another transaction's lock. Pauses grow and are
drawn at random, so that many waiters neither ask in step nor without bound; the longest is a second. A try that starts
in time but would be recorded late records nothing: the deadline goes into the append itself.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from random import uniform
from time import monotonic
from typing import TypeVar

from lockledger.commands import Command, Performed
from lockledger.domain.errors import InvalidTtl, LockedByOther, WaitTimeout
from lockledger.domain.holds import Hold

T = TypeVar("T")
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
MAX_WAIT = timedelta(days=36525)


def checked_wait(wait: float | timedelta) -> float:
    """Seconds to wait for a lock, above 0 and at most 100 years. Raises `ValueError` or `TypeError`."""
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"wait is seconds or a timedelta, not {wait!r}")
    if not 0 < seconds <= MAX_WAIT.total_seconds():
        raise ValueError(
            f"wait={wait!r}: give more than 0 seconds and at most 100 years; leave it out not to wait"
        )
    return float(seconds)


class Patience:
    """How much of a wait is left, by the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked_at = monotonic()
        """When the last try began, by the monotonic clock."""
        self._ends = self.asked_at + seconds

    @property
    def left(self) -> timedelta:
        """What is left of the wait, never less than nothing."""
        return timedelta(seconds=max(0.0, self._ends - monotonic()))


def pauses() -> Iterator[float]:
    """Seconds between tries: half to all of a length that doubles up to a second."""
    longest = SHORTEST_PAUSE
    while True:
        yield uniform(longest / 2, longest)
        longest = min(longest * 2, LONGEST_PAUSE)


def wait_for(
    command: Command[T],
    attempt: Callable[[Command[T], Patience], Performed[T] | None],
    patience: Patience,
    sleep: Callable[[float], None],
    clock: Callable[[], datetime],
) -> Performed[T]:
    """Tries until it succeeds. `attempt` gives `None` when another transaction has the lock in hand.

    Raises `WaitTimeout` with the hold last seen, `InvalidTtl` when the instant up to which the lock was wanted has
    passed, and whatever an attempt raises but `LockedByOther`.
    """
    seen: Hold | None = None
    spacing = pauses()
    while True:
        try:
            performed = attempt(command, patience)
        except LockedByOther as refused:
            performed, seen = None, refused.current
        if performed is not None:
            return performed
        now = clock()
        if command.until is not None and command.until <= now:
            raise InvalidTtl(
                f"the instant {command.until.isoformat()} has passed while waiting for {command.key!r}"
            )
        left = patience.left.total_seconds()
        if left <= 0:
            raise WaitTimeout(command.key, seen, waited=patience.seconds)
        sleep(min(next(spacing), left, *_until_free(seen, now)))


def _until_free(seen: Hold | None, now: datetime) -> Iterator[float]:
    """Seconds until the hold runs out by a clock that only says when it is worth while to ask."""
    if seen is not None and seen.expires_at is not None and seen.expires_at > now:
        yield (seen.expires_at - now).total_seconds() + 0.001
