"""`take(wait=…)`: asking again until the lock is to be had, or the time is up.

No connection is held between two tries, and a try does not block behind another transaction. Pauses grow and are drawn
at random, so that many waiters neither ask in step nor without bound: one waiter asks at most seven times in its first
second, later twice a second at most and four times in three seconds on average. A try that starts in time but would be
recorded late records nothing: the deadline goes into the append itself. A ledger that listens may end a pause early.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from random import uniform
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from lockledger.adapters.engines import Source
from lockledger.adapters.identifiers import POSTGRESQL
from lockledger.adapters.store import EventStore
from lockledger.domain.errors import InvalidTtl, LockedByOther, WaitTimeout, shown
from lockledger.domain.events import LockReleased
from lockledger.domain.holds import Grant, Hold, RecordedEvent
from lockledger.domain.lock import Decision, Lock
from lockledger.door import Door
from lockledger.wishes import Command, Look, Performed

if TYPE_CHECKING:
    from lockledger.adapters.listener import Listener

T = TypeVar("T")
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
MAX_WAIT = timedelta(days=36525)


def checked_wait(wait: float | timedelta) -> float:
    """Seconds to wait for a lock, above 0 and at most 100 years. Raises `ValueError` or `TypeError`."""
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"wait is seconds or a timedelta, not {shown(wait)}")
    if not 0 < seconds <= MAX_WAIT.total_seconds():
        raise ValueError(
            f"wait={shown(wait)}: give more than 0 seconds and at most 100 years; leave it out not to wait"
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


class Wish:
    """A take that may have been carried out although its caller never gets the grant: cancelled, interrupted or cut off."""

    def __init__(self, command: Command[Grant]) -> None:
        self.command = replace(command, decide=self._decide)
        self._wished = command
        self.proposed: Grant | None = None
        """The new hold that was decided on last, whether or not it came to be."""

    def _decide(self, lock: Lock, now: datetime, look: Look) -> Decision[Grant]:
        self.proposed = None
        decision = self._wished.decide(lock, now, look)
        if decision.outcome.created:
            self.proposed = decision.outcome
        return decision

    def taken_back(self, door: Door) -> Command[bool] | None:
        """A release of the very hold that was proposed, should it have come to be; `None` when none was."""
        proposed, request = self.proposed, self._wished.request
        if proposed is None or request is None:
            return None
        asked = request(None)
        release = door.release(
            asked.key,
            asked.holder,
            token=proposed.token,
            reason="the call was broken off while it was being granted",
            actor=asked.actor,
            metadata=asked.metadata,
        )

        def decide(lock: Lock, now: datetime, look: Look) -> Decision[bool]:
            live = lock.live_hold(now)
            # The same holder may have got this token by another call, but hardly in the same microsecond.
            if live is None or (live.token, live.taken_at) != (proposed.token, proposed.taken_at):
                return Decision(False)
            return release.decide(lock, now, look)

        return replace(release, decide=decide)


class Rest:
    """How who waits sleeps between two tries; with `listen` it is woken when the hold in its way is released."""

    def __init__(self, source: Source, store: EventStore, *, listen: bool) -> None:
        self._source = source
        self._store = store
        self.listener = _listener(source, store) if listen else None

    def sleep(self, seconds: float, current: Hold | None) -> None:
        """Sleeps so long at most; `current` is the hold in the way, where it is known."""
        if self.listener is None or current is None:
            self._source.sleep(seconds)
        else:
            self.listener.sleep(self._store.lock_id(current.key), seconds)

    def ended(self, events: Iterable[RecordedEvent]) -> None:
        """These have been committed: whoever waits for a hold that they ended may ask now."""
        if self.listener is not None:
            released = [each.event for each in events if isinstance(each.event, LockReleased)]
            if released:
                self.listener.tell(event.originator_id for event in released)

    def cleared(self, keys: Iterable[str]) -> None:
        """Holds of these keys have been ended."""
        if self.listener is not None:
            self.listener.tell(map(self._store.lock_id, keys))

    def close(self) -> None:
        """Ends what listens."""
        if self.listener is not None:
            self.listener.close()


def _listener(source: Source, store: EventStore) -> "Listener":
    if source.dialect != POSTGRESQL:
        raise ValueError(f"listen=True needs PostgreSQL, not {source.dialect}; leave it out")
    from lockledger.adapters.listener import Listener

    return Listener(source, f"lockledger_{store.lock_id('').hex[:16]}")  # a name for this ledger


def pauses() -> Iterator[float]:
    """Seconds between tries: half to all of a length that doubles up to a second."""
    longest = SHORTEST_PAUSE
    while True:
        yield uniform(longest / 2, longest)
        longest = min(longest * 2, LONGEST_PAUSE)


def within_its_instant(command: Command[T]) -> Command[T]:
    """The same wish, given up with `InvalidTtl` once the instant up to which the lock was wanted has passed."""
    until = command.until
    if until is None:
        return command

    def decide(lock: Lock, now: datetime, look: Look) -> Decision[T]:
        try:
            return command.decide(lock, now, look)
        except LockedByOther as refused:
            if now < until:
                raise
            raise InvalidTtl(
                f"the instant {until.isoformat()} has passed while waiting for {shown(command.key)}"
            ) from refused

    return replace(command, decide=decide)


def wait_for(
    command: Command[T],
    attempt: Callable[[Command[T], Patience], Performed[T] | None],
    patience: Patience,
    sleep: Callable[[float, Hold | None], None],
    clock: Callable[[], datetime],
) -> Performed[T]:
    """Tries until it succeeds. `attempt` gives `None` when another transaction has the lock in hand.

    `clock` only says when it is worth while to ask. Raises `WaitTimeout` with the hold last seen, `InvalidTtl` when the
    instant up to which the lock was wanted has passed, and whatever an attempt raises but `LockedByOther`.
    """
    command = within_its_instant(command)
    spacing = pauses()
    while True:
        current: Hold | None = None
        same_holder = False
        try:
            performed = attempt(command, patience)
        except LockedByOther as refused:
            performed, current, same_holder = None, refused.current, refused.same_holder
        if performed is not None:
            return performed
        left = patience.left.total_seconds()
        if left <= 0:
            raise WaitTimeout(
                command.key, current, waited=patience.seconds, same_holder=same_holder
            )
        ends = None if current is None else current.expires_at
        sleep(min(next(spacing), left, *_until((command.until, ends), clock())), current)


def _until(instants: Iterable[datetime | None], now: datetime) -> Iterator[float]:
    """Seconds until shortly after these instants, if they are still to come. Not for all waiters in the same moment."""
    for instant in instants:
        if instant is not None and instant > now:
            yield (instant - now).total_seconds() + uniform(0.001, 0.05)
