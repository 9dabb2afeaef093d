"""The Lock aggregate, a pure decider: commands look at a state and a time and return events; `evolve` folds events.

A hold is a lease. Its holder may believe in it until `expires_at` by the ledger's clock, and in its effects only while
it shows its token: whoever takes the lock later gets a higher one. Nothing here reads a clock or a database; `now` is
the lock's now, the later of the clock and the newest event, so that a clock that jumps back reverses nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

from lockledger.domain.errors import (
    HoldChanged,
    HoldLost,
    LockedByOther,
    NotHeld,
    NotLockHolder,
)
from lockledger.domain.events import (
    LockEvent,
    LockExpired,
    LockExtended,
    LockReleased,
    LockTaken,
    LockTakenOver,
    PreviousHold,
)
from lockledger.domain.holds import Grant, Hold, Metadata, plain_utc
from lockledger.domain.ttl import CheckedTtl, expiry, until_when

T = TypeVar("T")
IfMine = Literal["return", "extend", "refuse", "replace"]
EndedHolds = Callable[[int], Hold | None]
"""Finds a hold of this lock that has ended, by its token."""

InTheWay = Callable[[str, datetime], Hold | None]
"""Finds a live hold of another holder above or under the key, where holds cover what lies under them."""


def nothing_in_the_way(_holder: str, _now: datetime) -> None:
    """Without scopes, a hold covers its own key only."""
    return


FRESH = timedelta(milliseconds=250)


@dataclass(frozen=True, slots=True)
class Call:
    """Who acts, and what the call brings along for the audit."""

    actor: str
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Take:
    """A wish to hold a lock. The reason is stripped, `None` when blank."""

    holder: str
    call: Call
    ttl: CheckedTtl = None
    takeover_reason: str | None = None
    if_mine: IfMine = "return"
    expected_token: int | None = None


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """What is answered, what is recorded for it, and how long after `now` the decision may still be recorded."""

    outcome: T
    events: tuple[LockEvent, ...] = ()
    fresh_for: timedelta = FRESH


@dataclass(frozen=True, slots=True)
class Lock:
    """The state of one lock after its newest event. `hold` has not been ended, but may have run out."""

    id: UUID
    key: str
    version: int = 0
    hold: Hold | None = None
    changed_at: datetime | None = None

    @staticmethod
    def project(lock: "Lock | None", events: Iterable[LockEvent]) -> "Lock | None":
        """Folds events in version order; fits `eventsourcing`'s `projector_func`."""
        for event in events:
            lock = evolve(event)
        return lock

    def now(self, clock: datetime) -> datetime:
        """The lock's now, in UTC: the later of the clock and the newest event's time. `clock` is aware, else `ValueError`."""
        clock = plain_utc(clock)
        return clock if self.changed_at is None else max(clock, self.changed_at)

    def live_hold(self, now: datetime) -> Hold | None:
        """The hold that is live at `now`."""
        return self.hold if self.hold is not None and self.hold.is_live(now) else None

    def take(
        self, wish: Take, now: datetime, in_the_way: InTheWay = nothing_in_the_way
    ) -> Decision[Grant]:
        """The first row of the contract's table that fits decides."""
        live = self.live_hold(now)
        mine = live is not None and live.holder == wish.holder
        if live and mine and wish.if_mine == "return":
            return Decision(live.grant(created=False))
        if live and mine and wish.if_mine == "extend":
            return self._extended(live, until_when(wish.ttl), wish.call, now)
        if live and mine and wish.if_mine == "refuse":
            raise LockedByOther(self.key, live, same_holder=True)
        self._expect(wish.expected_token, live)
        if not mine and (other := in_the_way(wish.holder, now)) is not None:
            raise LockedByOther(self.key, other)
        if live and (mine or wish.takeover_reason is not None):
            return self._taken_over(live, wish, now)
        if live:
            raise LockedByOther(self.key, live)
        return self._taken(wish, now)

    def release(
        self,
        holder: str,
        token: int | None,
        reason: str | None,
        call: Call,
        now: datetime,
        ended: EndedHolds,
    ) -> Decision[bool]:
        """Ends the holder's hold. A repeated release of a hold that its own release ended is `False`, whatever came after."""
        live = self.live_hold(now)
        if live and live.holder == holder and token in (None, live.token):
            return self._released(live, True, call, reason, now, forced=False)
        if token is not None:
            past = self._past(holder, token, ended)
            if past and past.ended_by == "release":
                return Decision(False)
            raise self._lost(holder, token, past, live)
        if live:
            raise NotLockHolder(self.key, live, holder=holder)
        return Decision(False)

    def extend(
        self,
        holder: str,
        ttl: CheckedTtl,
        token: int | None,
        call: Call,
        now: datetime,
        ended: EndedHolds,
    ) -> Decision[Grant]:
        """Moves the holder's expiry to the later of the old one and the new; never shortens, never takes a lost hold back."""
        ttl = until_when(ttl)
        return self._extended(self.held_by(holder, token, now, ended), ttl, call, now)

    def force_release(
        self, expected_token: int | None, reason: str, call: Call, now: datetime
    ) -> Decision[Hold | None]:
        """Ends whoever's hold; nothing is recorded when there is none."""
        live = self.live_hold(now)
        self._expect(expected_token, live)
        if live is None:
            return Decision(None)
        over = live.ended(now, "forced", actor=call.actor, reason=reason)
        return self._released(live, over, call, reason, now, forced=True)

    def expire(self, metadata: Metadata, now: datetime) -> Decision[bool]:
        """Records a hold that has run out; no answer depends on when, or whether, that is done."""
        if self.hold is None or self.hold.is_live(now):
            return Decision(False)
        return Decision(True, self._expired(metadata, now, "sweep"))

    def held_by(self, holder: str, token: int | None, now: datetime, ended: EndedHolds) -> Hold:
        """The holder's live hold. Raises `HoldLost` when a token was shown, else `NotLockHolder` or `NotHeld`."""
        live = self.live_hold(now)
        if live and live.holder == holder and token in (None, live.token):
            return live
        if token is not None:
            raise self._lost(holder, token, self._past(holder, token, ended), live)
        if live:
            raise NotLockHolder(self.key, live, holder=holder)
        raise NotHeld(self.key, holder=holder)

    def _expect(self, expected_token: int | None, live: Hold | None) -> None:
        if expected_token is not None and expected_token != (live.token if live else 0):
            raise HoldChanged(self.key, live, expected_token=expected_token)

    def _past(self, holder: str, token: int, ended: EndedHolds) -> Hold | None:
        """The holder's hold with that token, with its end; `None` when the holder never had it."""
        if self.hold and self.hold.token == token:
            past = (
                self.hold.ended(self.hold.expires_at, "expiry", actor=None, reason=None)
                if self.hold.expires_at
                else None
            )
        else:
            past = ended(token)
        return past if past and past.holder == holder else None

    def _lost(self, holder: str, token: int, past: Hold | None, live: Hold | None) -> HoldLost:
        if past is None:
            return HoldLost(self.key, live, holder=holder, token=token)
        return HoldLost(
            self.key,
            live,
            holder=holder,
            token=token,
            ended_by=past.ended_by,
            ended_at=past.ended_at,
            ended_by_actor=past.ended_by_actor,
            reason=past.end_reason,
        )

    def _taken(self, wish: Take, now: datetime) -> Decision[Grant]:
        expired = self._expired(wish.call.metadata, now, "take")
        version = self.version + len(expired) + 1
        taken = LockTaken(**self._begun(wish, version, now))
        return Decision(
            taken.hold().grant(created=True), (*expired, taken), _lifetime(now, taken.expires_at)
        )

    def _taken_over(self, live: Hold, wish: Take, now: datetime) -> Decision[Grant]:
        taken = LockTakenOver(
            **self._begun(wish, self.version + 1, now),
            taken_over_from=live.holder,
            takeover_reason=wish.takeover_reason,
            reason=wish.takeover_reason,
            previous=PreviousHold.model_construct(
                **{name: getattr(live, name) for name in PreviousHold.model_fields}
            ),
        )
        # What is left of the old hold counts too: once it has run out, this is no takeover but a take.
        fresh_for = _lifetime(now, taken.expires_at, live.expires_at)
        return Decision(taken.hold().grant(created=True), (taken,), fresh_for)

    def _begun(self, wish: Take, version: int, now: datetime) -> dict[str, Any]:
        return {
            "originator_id": self.id,
            "originator_version": version,
            "timestamp": now,
            "key": self.key,
            "holder": wish.holder,
            "token": version,
            "taken_at": now,
            "expires_at": None if wish.ttl is None else expiry(wish.ttl, now),
            "hold_metadata": wish.call.metadata,
            "actor": wish.call.actor,
            "metadata": wish.call.metadata,
        }

    def _extended(
        self, live: Hold, ttl: timedelta | datetime, call: Call, now: datetime
    ) -> Decision[Grant]:
        if live.expires_at is None:
            return Decision(live.grant(created=False))
        until = expiry(ttl, now)
        if until <= live.expires_at:
            return Decision(live.grant(created=False))
        extended = LockExtended(
            **self._next(live, now),
            actor=call.actor,
            metadata=call.metadata,
            expires_at=until,
            previous_expires_at=live.expires_at,
        )
        return Decision(
            extended.hold().grant(created=False), (extended,), _lifetime(now, live.expires_at)
        )

    def _released(
        self, live: Hold, outcome: T, call: Call, reason: str | None, now: datetime, *, forced: bool
    ) -> Decision[T]:
        released = LockReleased(
            **self._next(live, now),
            expires_at=live.expires_at,
            actor=call.actor,
            metadata=call.metadata,
            forced=forced,
            reason=reason,
        )
        return Decision(outcome, (released,), _lifetime(now, live.expires_at))

    def _expired(
        self, metadata: Metadata, now: datetime, during: Literal["take", "sweep"]
    ) -> tuple[LockExpired, ...]:
        """The record of a hold that has run out; none when nothing has."""
        if self.hold is None or self.hold.expires_at is None:
            return ()
        expired = LockExpired(
            **self._next(self.hold, now),
            expires_at=self.hold.expires_at,
            expired_at=self.hold.expires_at,
            metadata=metadata,
            recorded_during=during,
        )
        return (expired,)

    def _next(self, hold: Hold, now: datetime) -> dict[str, Any]:
        """What the next event says of a hold that exists already, but for its expiry, which an extension moves."""
        return {
            "originator_id": self.id,
            "originator_version": self.version + 1,
            "timestamp": now,
            "key": self.key,
            "holder": hold.holder,
            "token": hold.token,
            "taken_at": hold.taken_at,
            "taken_over_from": hold.taken_over_from,
            "takeover_reason": hold.takeover_reason,
            "hold_metadata": hold.metadata,
        }


def evolve(event: LockEvent) -> Lock:
    """The lock after an event. Each event carries all that the state depends on, so the state before it is not needed."""
    return Lock(
        event.originator_id, event.key, event.originator_version, event.after(), event.timestamp
    )


def _lifetime(now: datetime, *ends: datetime | None) -> timedelta:
    """How long a decision made at `now` stays true: until the first of these ends, 250 milliseconds at most."""
    return min([FRESH, *(end - now for end in ends if end is not None)])
