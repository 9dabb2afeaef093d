"""One lock and what happens to it, told by seconds since T0: what the domain's tests are written in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import BaseModel

from lockledger.domain.errors import LockLedgerError
from lockledger.domain.events import LockEvent
from lockledger.domain.holds import Grant, Hold, Metadata
from lockledger.domain.keys import lock_id
from lockledger.domain.lock import Call, Decision, IfMine, Lock, Take, evolve
from lockledger.domain.reasons import check_reason
from lockledger.domain.ttl import Ttl, check_ttl
from support.model import Answer

T = TypeVar("T")
T0 = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
KEY = "round:5"
ID = lock_id("default", KEY)


def at(seconds: float | datetime) -> datetime:
    """The instant so many seconds after T0; an instant is itself."""
    return seconds if isinstance(seconds, datetime) else T0 + timedelta(seconds=seconds)


class Story:
    """One lock, the events recorded so far and the newest decision. `now` is the clock: seconds since T0, or an instant."""

    def __init__(self) -> None:
        self.lock = Lock(ID, KEY)
        self.events: list[LockEvent] = []
        self.decision: Decision[Any] = Decision(None)

    def take(
        self,
        holder: str,
        *,
        now: float | datetime = 0,
        ttl: Ttl = None,
        takeover_reason: str | None = None,
        if_mine: IfMine = "return",
        expected_token: int | None = None,
        actor: str | None = None,
        metadata: Metadata | None = None,
    ) -> Grant:
        instant = self.lock.now(at(now))
        wish = Take(
            holder,
            Call(actor or holder, metadata or {}),
            check_ttl(ttl, instant),
            check_reason(takeover_reason),
            if_mine,
            expected_token,
        )
        return self._record(self.lock.take(wish, instant))

    def release(
        self,
        holder: str,
        *,
        now: float | datetime = 0,
        token: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        metadata: Metadata | None = None,
    ) -> bool:
        call = Call(actor or holder, metadata or {})
        instant = self.lock.now(at(now))
        return self._record(
            self.lock.release(holder, token, check_reason(reason), call, instant, self.ended)
        )

    def extend(
        self,
        holder: str,
        ttl: Ttl,
        *,
        now: float | datetime = 0,
        token: int | None = None,
        actor: str | None = None,
        metadata: Metadata | None = None,
    ) -> Grant:
        call = Call(actor or holder, metadata or {})
        instant = self.lock.now(at(now))
        checked = check_ttl(ttl, instant)
        return self._record(self.lock.extend(holder, checked, token, call, instant, self.ended))

    def force_release(
        self,
        *,
        actor: str,
        reason: str,
        now: float | datetime = 0,
        expected_token: int | None = None,
        metadata: Metadata | None = None,
    ) -> Hold | None:
        why = check_reason(reason, mandatory=True)
        assert why is not None
        call = Call(actor, metadata or {})
        return self._record(
            self.lock.force_release(expected_token, why, call, self.lock.now(at(now)))
        )

    def expire(self, *, now: float | datetime = 0, metadata: Metadata | None = None) -> bool:
        """What a sweep does with a lock."""
        return self._record(self.lock.expire(metadata or {}, self.lock.now(at(now))))

    def live_hold(self, now: float | datetime) -> Hold | None:
        return self.lock.live_hold(self.lock.now(at(now)))

    def ended(self, token: int) -> Hold | None:
        """The ended hold with that token, found in the events."""
        for event in self.events:
            over = event.ended_hold()
            if over is not None and over.token == token:
                return over
        return None

    @property
    def actions(self) -> list[str]:
        return [event.action for event in self.events]

    def _record(self, decision: Decision[T]) -> T:
        self.decision = decision
        for event in decision.events:
            self.events.append(event)
            self.lock = evolve(event)
        return decision.outcome


_MICROSECOND_MORE = timedelta(seconds=100, microseconds=1)
Beginnings = dict[str, Callable[[Story], object]]

# How the lock may stand at second 100, when `run:1` comes. Before, `run:0` has taken it, token 1, and released it.
FREE: Beginnings = {
    "released": lambda story: None,
    "released by me": lambda story: (story.take("run:1"), story.release("run:1")),
    "forced free": lambda story: (
        story.take("run:2"),
        story.force_release(actor="user:9", reason="holiday"),
    ),
    "mine, run out unrecorded": lambda story: story.take("run:1", ttl=50),
    "another's, run out unrecorded": lambda story: story.take("run:2", ttl=50),
    "mine, runs out at this very instant": lambda story: story.take("run:1", ttl=100),
    "another's, runs out at this very instant": lambda story: story.take("run:2", ttl=100),
    "another's, run out and recorded": lambda story: (
        story.take("run:2", ttl=50),
        story.expire(now=60),
    ),
}
MINE: Beginnings = {
    "mine": lambda story: story.take("run:1", ttl=200),
    "mine without expiry": lambda story: story.take("run:1"),
    "mine for one more microsecond": lambda story: story.take("run:1", ttl=_MICROSECOND_MORE),
    "mine by takeover": lambda story: (
        story.take("run:2"),
        story.take("run:1", takeover_reason="urgent", ttl=200),
    ),
}
ANOTHERS: Beginnings = {
    "another's": lambda story: story.take("run:2", ttl=200),
    "another's without expiry": lambda story: story.take("run:2"),
    "another's for one more microsecond": lambda story: story.take("run:2", ttl=_MICROSECOND_MORE),
    "another's, taken over from me": lambda story: (
        story.take("run:1"),
        story.take("run:2", takeover_reason="urgent"),
    ),
}
BEGINNINGS: Beginnings = {**FREE, **MINE, **ANOTHERS}


def begun(situation: str) -> Story:
    """The story up to second 100."""
    story = Story()
    story.take("run:0", now=-10)
    story.release("run:0", now=-5)
    BEGINNINGS[situation](story)
    return story


def facts(value: Any) -> Any:
    """A hold, grant or entry as a dictionary of its facts; anything else as it is."""
    return value.model_dump() if isinstance(value, BaseModel) else value


def answer_of(call: Callable[[], object]) -> Answer:
    """What a verb answers, as the model says it; without the events, which a verb does not name."""
    try:
        return Answer(facts(call()))
    except LockLedgerError as error:
        told = {
            name: facts(fact)
            for name, fact in vars(error).items()
            if name != "key" and not name.startswith("_")
        }
        return Answer(refusal=type(error).__name__, facts=told)
