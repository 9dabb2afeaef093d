"""A small model of what the verbs must answer and record, written from the contract's tables alone.

It knows nothing of the library: locks are dictionaries, a take is a list of rows of which the first that fits
decides. A test runs the same calls against it and against the real thing and compares the `Answer`s, the trail and
the holders. It serves one `Lock` as well as a whole ledger, for any number of keys.

`now` is what the clock says at the call; the lock's own now, the later of that and its newest event, is the model's
business. Texts must be within the limits already: the model judges ttls, and no keys, holders, reasons or metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

Facts = dict[str, Any]
Ttl = float | timedelta | datetime | None
CENTURY = timedelta(days=36525)


@dataclass(frozen=True)
class Answer:
    """What one call answers: an outcome, or the name and the facts of the error that refuses it.

    Grants and holds are dictionaries of their facts. `events` names what the call records, in order; a refusal
    records nothing.
    """

    outcome: Any = None
    refusal: str | None = None
    facts: Facts = field(default_factory=dict)
    events: tuple[str, ...] = ()


@dataclass
class ModelledLock:
    """All that ever happened to one key. The last of `holds` is the one that has not been ended, if any."""

    version: int = 0
    newest: datetime | None = None
    holds: list[Facts] = field(default_factory=list)
    trail: list[Facts] = field(default_factory=list)

    def now(self, clock: datetime) -> datetime:
        return clock if self.newest is None or clock > self.newest else self.newest

    def unended(self) -> Facts | None:
        return self.holds[-1] if self.holds and self.holds[-1]["ended_by"] is None else None

    def live(self, now: datetime) -> Facts | None:
        hold = self.unended()
        if hold is None or (hold["expires_at"] is not None and now >= hold["expires_at"]):
            return None
        return hold


@dataclass(frozen=True)
class Call:
    """Who acts at which instant, and what the call brings along."""

    key: str
    lock: ModelledLock
    now: datetime
    actor: str
    metadata: Facts


class Model:
    """A ledger of locks as the contract describes it, without scopes."""

    def __init__(self) -> None:
        self.locks: dict[str, ModelledLock] = {}

    # What a reader may ask.

    def holder_of(self, key: str, now: datetime) -> Facts | None:
        """The live hold, as a dictionary of `Hold`'s facts."""
        lock = self.locks.get(key)
        live = None if lock is None else lock.live(lock.now(now))
        return None if live is None else dict(live)

    def current_holders(self, now: datetime) -> list[Facts]:
        """All live holds, by key in code point order."""
        found = (self.holder_of(key, now) for key in sorted(self.locks))
        return [hold for hold in found if hold is not None]

    def trail(self, key: str) -> list[Facts]:
        """The audit entries of a lock, oldest first, without position and hash."""
        return list(self.locks[key].trail) if key in self.locks else []

    def version(self, key: str) -> int:
        """The number of the lock's newest event, 0 when it has none."""
        return self.locks[key].version if key in self.locks else 0

    def holds(self, key: str) -> list[Facts]:
        """Every hold that the lock ever had, by token; the last may not have been ended."""
        return [dict(hold) for hold in self.locks[key].holds] if key in self.locks else []

    # The verbs.

    def take(
        self,
        key: str,
        holder: str,
        *,
        now: datetime,
        ttl: Ttl = None,
        takeover_reason: str | None = None,
        if_mine: str = "return",
        expected_token: int | None = None,
        actor: str | None = None,
        metadata: Facts | None = None,
    ) -> Answer:
        if not _sound(ttl, now):
            return Answer(refusal="InvalidTtl")
        call = self._call(key, now, actor or holder, metadata)
        live = call.lock.live(call.now)
        mine = live is not None and live["holder"] == holder
        reason = _stripped(takeover_reason)
        elsewhere = expected_token not in (None, live["token"] if live else 0)
        rows: list[tuple[bool, Callable[[], Answer]]] = [
            (mine and if_mine == "return", lambda: Answer(_grant(live, created=False))),
            (mine and if_mine == "extend", lambda: _extend(call, live, ttl)),
            (mine and if_mine == "refuse", lambda: _locked_by_other(live, same_holder=True)),
            (elsewhere, lambda: _hold_changed(live, expected_token)),
            (mine and if_mine == "replace", lambda: _take_over(call, live, holder, ttl, reason)),
            (live is None, lambda: _take_free(call, holder, ttl)),
            (reason is None, lambda: _locked_by_other(live, same_holder=False)),
            (reason is not None, lambda: _take_over(call, live, holder, ttl, reason)),
        ]
        return next(then for fits, then in rows if fits)()

    def release(
        self,
        key: str,
        holder: str,
        *,
        now: datetime,
        token: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        metadata: Facts | None = None,
    ) -> Answer:
        call = self._call(key, now, actor or holder, metadata)
        live = call.lock.live(call.now)
        if _holds(live, holder, token):
            _end(call, live, "release", _stripped(reason))
            return Answer(True, events=("LockReleased",))
        if token is None:
            return Answer(False) if live is None else _not_lock_holder(live, holder)
        past = _past(call, holder, token)
        if past and past["ended_by"] == "release":
            return Answer(False)
        return _hold_lost(live, holder, token, past)

    def extend(
        self,
        key: str,
        holder: str,
        ttl: Ttl,
        *,
        now: datetime,
        token: int | None = None,
        actor: str | None = None,
        metadata: Facts | None = None,
    ) -> Answer:
        if ttl is None or not _sound(ttl, now):
            return Answer(refusal="InvalidTtl")
        call = self._call(key, now, actor or holder, metadata)
        live = call.lock.live(call.now)
        if _holds(live, holder, token):
            return _extend(call, live, ttl)
        if token is not None:
            return _hold_lost(live, holder, token, _past(call, holder, token))
        if live is None:
            return Answer(refusal="NotHeld", facts={"holder": holder})
        return _not_lock_holder(live, holder)

    def force_release(
        self,
        key: str,
        *,
        now: datetime,
        actor: str,
        reason: str,
        expected_token: int | None = None,
        metadata: Facts | None = None,
    ) -> Answer:
        call = self._call(key, now, actor, metadata)
        live = call.lock.live(call.now)
        if expected_token not in (None, live["token"] if live else 0):
            return _hold_changed(live, expected_token)
        if live is None:
            return Answer(None)
        _end(call, live, "forced", _stripped(reason))
        return Answer(dict(live), events=("LockReleased",))

    def expire(self, key: str, *, now: datetime, metadata: Facts | None = None) -> Answer:
        """What a sweep does with one lock: whether it had run out."""
        call = self._call(key, now, "", metadata)
        ran_out = call.lock.unended()
        if ran_out is None or call.lock.live(call.now):
            return Answer(False)
        _end(call, ran_out, "expiry", None)
        return Answer(True, events=("LockExpired",))

    def _call(self, key: str, now: datetime, actor: str, metadata: Facts | None) -> Call:
        lock = self.locks.setdefault(key, ModelledLock())
        return Call(key, lock, lock.now(now), actor, dict(metadata or {}))


def _stripped(reason: str | None) -> str | None:
    return (reason or "").strip() or None


def _sound(ttl: Ttl, now: datetime) -> bool:
    """Sign and size, which are judged at the door; whether an instant has passed is judged later."""
    if ttl is None:
        return True
    if isinstance(ttl, datetime):
        return ttl - now <= CENTURY
    if isinstance(ttl, timedelta):
        return timedelta() < ttl <= CENTURY
    return 0 < ttl <= CENTURY.total_seconds() and timedelta(seconds=ttl) > timedelta()


def _until(call: Call, ttl: float | timedelta | datetime) -> datetime:
    if isinstance(ttl, datetime):
        return ttl
    return call.now + (ttl if isinstance(ttl, timedelta) else timedelta(seconds=ttl))


def _holds(live: Facts | None, holder: str, token: int | None) -> bool:
    return live is not None and live["holder"] == holder and token in (None, live["token"])


def _live_facts(hold: Facts | None) -> Facts | None:
    """What is true of a hold while it lives."""
    if hold is None:
        return None
    ends = ("ended_at", "ended_by", "end_reason", "ended_by_actor")
    return {**hold, **dict.fromkeys(ends)}


def _grant(hold: Facts | None, *, created: bool) -> Facts:
    assert hold is not None
    facts = {name: fact for name, fact in hold.items() if not name.startswith("end")}
    return {**facts, "created": created}


# Refusals.


def _locked_by_other(live: Facts | None, *, same_holder: bool) -> Answer:
    return Answer(
        refusal="LockedByOther", facts={"current": _live_facts(live), "same_holder": same_holder}
    )


def _hold_changed(live: Facts | None, expected_token: int | None) -> Answer:
    return Answer(
        refusal="HoldChanged",
        facts={"current": _live_facts(live), "expected_token": expected_token},
    )


def _not_lock_holder(live: Facts | None, holder: str) -> Answer:
    return Answer(refusal="NotLockHolder", facts={"current": _live_facts(live), "holder": holder})


def _hold_lost(live: Facts | None, holder: str, token: int, past: Facts | None) -> Answer:
    end = past or {}
    return Answer(
        refusal="HoldLost",
        facts={
            "current": _live_facts(live),
            "holder": holder,
            "token": token,
            "ended_by": end.get("ended_by"),
            "ended_at": end.get("ended_at"),
            "ended_by_actor": end.get("ended_by_actor"),
            "reason": end.get("end_reason"),
        },
    )


def _past(call: Call, holder: str, token: int) -> Facts | None:
    """How the holder's hold with that token ended; one that ran out unrecorded has ended too."""
    for hold in call.lock.holds:
        if hold["token"] == token and hold["holder"] == holder:
            if hold["ended_by"] is None:
                return {**hold, "ended_by": "expiry", "ended_at": hold["expires_at"]}
            return hold
    return None


# Changes.


def _take_free(call: Call, holder: str, ttl: Ttl) -> Answer:
    if isinstance(ttl, datetime) and ttl <= call.now:
        return Answer(refusal="InvalidTtl")
    events: tuple[str, ...] = ("LockTaken",)
    ran_out = call.lock.unended()
    if ran_out is not None:
        _end(call, ran_out, "expiry", None)
        events = ("LockExpired", "LockTaken")
    hold = _begin(call, holder, ttl, taken_over_from=None, reason=None)
    _enter(call, "LockTaken", hold, before=None, after=hold)
    return Answer(_grant(hold, created=True), events=events)


def _take_over(call: Call, live: Facts | None, holder: str, ttl: Ttl, reason: str | None) -> Answer:
    assert live is not None
    if isinstance(ttl, datetime) and ttl <= call.now:
        return Answer(refusal="InvalidTtl")
    before = _live_facts(live)
    live.update(
        ended_at=call.now, ended_by="takeover", end_reason=reason, ended_by_actor=call.actor
    )
    hold = _begin(call, holder, ttl, taken_over_from=live["holder"], reason=reason)
    _enter(
        call,
        "LockTakenOver",
        hold,
        before=before,
        after=hold,
        reason=reason,
        previous_holder=live["holder"],
    )
    return Answer(_grant(hold, created=True), events=("LockTakenOver",))


def _extend(call: Call, live: Facts | None, ttl: Ttl) -> Answer:
    assert live is not None
    if ttl is None:
        return Answer(refusal="InvalidTtl")
    if live["expires_at"] is None:
        return Answer(_grant(live, created=False))
    if isinstance(ttl, datetime) and ttl <= call.now:
        return Answer(refusal="InvalidTtl")
    until = _until(call, ttl)
    if until <= live["expires_at"]:
        return Answer(_grant(live, created=False))
    before = _live_facts(live)
    live["expires_at"] = until
    call.lock.version += 1
    _enter(call, "LockExtended", live, before=before, after=live)
    return Answer(_grant(live, created=False), events=("LockExtended",))


def _begin(
    call: Call, holder: str, ttl: Ttl, *, taken_over_from: str | None, reason: str | None
) -> Facts:
    call.lock.version += 1
    hold = {
        "key": call.key,
        "holder": holder,
        "token": call.lock.version,
        "taken_at": call.now,
        "expires_at": None if ttl is None else _until(call, ttl),
        "taken_over_from": taken_over_from,
        "takeover_reason": reason,
        "metadata": call.metadata,
        "ended_at": None,
        "ended_by": None,
        "end_reason": None,
        "ended_by_actor": None,
    }
    call.lock.holds.append(hold)
    return hold


def _end(call: Call, hold: Facts | None, by: str, reason: str | None) -> None:
    assert hold is not None
    before = _live_facts(hold)
    expiry = by == "expiry"
    hold.update(
        ended_at=hold["expires_at"] if expiry else call.now,
        ended_by=by,
        end_reason=reason,
        ended_by_actor=None if expiry else call.actor,
    )
    call.lock.version += 1
    action = "LockExpired" if expiry else "LockReleased"
    _enter(call, action, hold, before=before, after=None, reason=reason)


def _enter(
    call: Call,
    action: str,
    hold: Facts,
    *,
    before: Facts | None,
    after: Facts | None,
    reason: str | None = None,
    previous_holder: str | None = None,
) -> None:
    """The event's entry in the audit trail; its version is the lock's by now."""
    expiry = action == "LockExpired"
    call.lock.newest = call.now
    call.lock.trail.append(
        {
            "key": call.key,
            "version": call.lock.version,
            "action": action,
            "actor": None if expiry else call.actor,
            "holder": hold["holder"],
            "previous_holder": previous_holder,
            "token": hold["token"],
            "occurred_at": hold["expires_at"] if expiry else call.now,
            "recorded_at": call.now,
            "reason": reason,
            "before": before,
            "after": _live_facts(after),
            "metadata": call.metadata,
        }
    )
