"""Checked wishes, and what became of them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from lockledger.adapters.store import Newest
from lockledger.domain.holds import Hold, RecordedEvent
from lockledger.domain.lock import Call, Decision, EndedHolds, InTheWay, Lock
from lockledger.domain.policy import TakeRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """A checked wish: which lock, how it decides, and for takes what the policy is asked."""

    key: str
    decide: Callable[[Lock, datetime, "Look"], Decision[T]]
    request: Callable[[Hold | None], TakeRequest] | None = None
    until: datetime | None = None
    """The instant up to which a take wants the lock, where it is given as one."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a decision may want to know beyond its lock's newest event; asked only then."""

    ended: EndedHolds
    in_the_way: InTheWay


@dataclass(frozen=True, slots=True)
class Performed(Generic[T]):
    """The answer to a command, the events recorded for it, and the lock as they left it."""

    outcome: T
    events: tuple[RecordedEvent, ...] = ()
    left: Newest | None = None


@dataclass(frozen=True, slots=True)
class Clearance:
    """A checked wish to end every live hold that all given selectors select."""

    holder: str | None
    under: str | None
    reason: str
    call: Call

    def of(self, key: str) -> Command[Hold | None]:
        """The end of one of them, if it is still as selected."""

        def decide(lock: Lock, now: datetime, _: Look) -> Decision[Hold | None]:
            live = lock.live_hold(now)
            if live is None or self.holder not in (None, live.holder):
                return Decision(None)
            return lock.force_release(None, self.reason, self.call, now)

        return Command(key, decide)
