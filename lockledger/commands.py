"""The writing verbs: what is checked at the door, and how a decision gets into the store.

A take goes through here like this: the door checks the arguments; the store reads the newest event of the lock, with
the clock; the `Lock` decides; the store appends, if the lock is still where it was and the decision still fresh; else
it is read and decided again. After two such refusals the lock's row is locked first, so a call always ends.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, Literal, TypeVar, cast, get_args

from sqlalchemy import Connection

from lockledger.adapters.clock import checked_now
from lockledger.adapters.failures import SERIALIZATION_FAILURE, sqlstate, translated
from lockledger.adapters.store import EventStore, Newest
from lockledger.domain.errors import ConcurrencyConflict, TamperedLedger
from lockledger.domain.events import LockEvent, LockExtended
from lockledger.domain.holds import Grant, Hold, RecordedEvent
from lockledger.domain.keys import check_holder, check_key
from lockledger.domain.lock import Call, Decision, EndedHolds, IfMine, Lock, Take
from lockledger.domain.metadata import check_metadata
from lockledger.domain.policy import Clock, Policy, TakeRequest
from lockledger.domain.reasons import check_reason
from lockledger.domain.ttl import CheckedTtl, Ttl, check_ttl

T = TypeVar("T")
Verb = Literal["take", "try_take"]
Metadata = Mapping[str, object] | None
_ANY_TIME = datetime.min.replace(tzinfo=UTC)
"""Where no instant is compared with the time, the clock is not asked."""


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """A checked wish: which lock, how it decides, and for takes what the policy is asked."""

    key: str
    decide: Callable[[Lock, datetime, EndedHolds], Decision[T]]
    request: Callable[[Hold | None], TakeRequest] | None = None


@dataclass(frozen=True, slots=True)
class Performed(Generic[T]):
    """The answer to a command, and the events recorded for it."""

    outcome: T
    events: tuple[RecordedEvent, ...] = ()


class Door:
    """Checks the arguments of every writing verb before anything else happens."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock

    def take(
        self,
        key: str,
        holder: str,
        *,
        ttl: Ttl = None,
        takeover_reason: str | None = None,
        if_mine: IfMine = "return",
        expected_token: int | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
        verb: Verb = "take",
    ) -> Command[Grant]:
        """A take; see the contract's table for what becomes of it."""
        key, holder = check_key(key), check_holder(holder)
        if if_mine not in get_args(IfMine):
            raise ValueError(
                f"if_mine={if_mine!r}: use one of {', '.join(map(repr, get_args(IfMine)))}"
            )
        call = _call(actor, holder, metadata)
        reason = check_reason(takeover_reason)
        wish = Take(
            holder, call, self._ttl(ttl), reason, if_mine, _token(expected_token, "expected_token")
        )

        def request(current: Hold | None) -> TakeRequest:
            return TakeRequest(verb, key, holder, call.actor, current, dict(call.metadata))

        return Command(key, lambda lock, now, _: lock.take(wish, now), request)

    def release(
        self,
        key: str,
        holder: str,
        *,
        token: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Command[bool]:
        """A release by the holder."""
        key, holder, token = check_key(key), check_holder(holder), _token(token, "token")
        call, why = _call(actor, holder, metadata), check_reason(reason)
        return Command(
            key, lambda lock, now, ended: lock.release(holder, token, why, call, now, ended)
        )

    def extend(
        self,
        key: str,
        holder: str,
        ttl: Ttl,
        *,
        token: int | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Command[Grant]:
        """An extension by the holder."""
        key, holder, token = check_key(key), check_holder(holder), _token(token, "token")
        call, length = _call(actor, holder, metadata), self._ttl(ttl)
        return Command(
            key, lambda lock, now, ended: lock.extend(holder, length, token, call, now, ended)
        )

    def force_release(
        self,
        key: str,
        *,
        actor: str,
        reason: str,
        expected_token: int | None = None,
        metadata: Metadata = None,
    ) -> Command[Hold | None]:
        """An end by somebody with the right to."""
        key, call = check_key(key), _call(actor, actor, metadata)
        why = cast(str, check_reason(reason, mandatory=True))
        token = _token(expected_token, "expected_token")
        return Command(key, lambda lock, now, _: lock.force_release(token, why, call, now))

    def _ttl(self, ttl: Ttl) -> CheckedTtl:
        return check_ttl(ttl, checked_now(self._clock) if isinstance(ttl, datetime) else _ANY_TIME)


def _call(actor: str | None, holder: str, metadata: Metadata) -> Call:
    acting = holder if actor is None else check_holder(actor, what="actor")
    return Call(acting, check_metadata(metadata))


def _token(token: int | None, name: str) -> int | None:
    if token is None:
        return None
    if isinstance(token, bool) or not isinstance(token, int):
        raise TypeError(f"{name} must be an int, not {token!r}; pass grant.token")
    if not 0 <= token < 2**63:
        raise ValueError(f"{name}={token}: tokens are 0 (nobody) and above; pass grant.token")
    return int(token)


class _TakenBack(Exception):
    """No error: it ends a scope so that the scope is rolled back."""


class Commands:
    """Carries commands out on a connection."""

    def __init__(
        self, store: EventStore, clock: Clock | None, policy: Policy[Connection] | None
    ) -> None:
        self._store = store
        self._clock = clock
        self._policy = policy

    @property
    def needs_transaction(self) -> bool:
        """A policy runs in the transaction that makes the change, so there must be one from the start."""
        return self._policy is not None

    def perform(self, connection: Connection, command: Command[T], *, inside: bool) -> Performed[T]:
        """Decides and records. `inside`: a transaction is open, and stays open and usable whatever happens here."""
        with translated(key=command.key):
            if self._policy is not None:
                self._policy.lock_subject(connection, command.key)
            for _ in range(self._store.optimistic_attempts):
                newest, decision = self._look(connection, command)
                if not decision.events:
                    return Performed(decision.outcome)
                performed = self._append_fresh(connection, command, newest, decision, inside)
                if performed is not None:
                    return performed
            return self._perform_locked(connection, command, inside)

    def _look(self, connection: Connection, command: Command[T]) -> tuple[Newest, Decision[T]]:
        newest = self._store.newest(connection, command.key)
        now = newest.lock.now(newest.clock if self._clock is None else checked_now(self._clock))
        if self._policy is not None and command.request is not None:
            self._policy.check_take(connection, command.request(newest.lock.live_hold(now)))

        def ended(token: int) -> Hold | None:
            return self._store.ended_hold(connection, command.key, token)

        return newest, command.decide(newest.lock, now, ended)

    def _append_fresh(
        self,
        connection: Connection,
        command: Command[T],
        newest: Newest,
        decision: Decision[T],
        inside: bool,
    ) -> Performed[T] | None:
        """Appends if the lock has not moved and the decision is still fresh; else nothing, and `None`."""
        until = newest.clock + decision.fresh_for
        # A first event's insert may wait for another's without looking at the clock again: it must be revocable.
        revocable = inside or newest.lock.version == 0
        try:
            if not revocable:
                with translated(key=command.key, commits=True):
                    return self._append(connection, newest, decision, until)
            with self._scope(connection, command.key, inside):
                return self._append(connection, newest, decision, until)
        except _TakenBack:
            return None
        except ConcurrencyConflict as conflict:
            # Alone, a statement that could not be serialized has left nothing: decide again, at READ COMMITTED.
            if inside or sqlstate(conflict.__cause__) != SERIALIZATION_FAILURE:
                raise
            return None

    def _perform_locked(
        self, connection: Connection, command: Command[T], inside: bool
    ) -> Performed[T]:
        """Looks once more, and if there is something to record, locks the lock's row before it decides."""
        _, decision = self._look(connection, command)
        if not decision.events:
            return Performed(decision.outcome)
        moves_token = not all(isinstance(event, LockExtended) for event in decision.events)
        try:
            with self._scope(connection, command.key, inside):
                self._store.lock_head(connection, command.key, moves_token=moves_token)
                newest, decision = self._look(connection, command)
                return self._append(connection, newest, decision, None)
        except _TakenBack:
            if decision.events:
                raise TamperedLedger(
                    command.key, "its head row refused the next version although it was locked"
                ) from None
            return Performed(decision.outcome)

    def _append(
        self, connection: Connection, newest: Newest, decision: Decision[T], until: datetime | None
    ) -> Performed[T]:
        if not decision.events:
            raise _TakenBack
        recording = self._store.recording(newest, decision.events)
        appended = self._store.append(connection, recording, until=until)
        if appended is None:
            raise _TakenBack
        # Only a first event may have been written past the bound, and only it can be taken back wherever we are.
        if until is not None and newest.lock.version == 0 and appended.clock >= until:
            raise _TakenBack
        events = _recorded(appended.positions, decision.events)
        if self._policy is not None:
            self._policy.recorded(connection, events)
        return Performed(decision.outcome, events)

    def _scope(
        self, connection: Connection, key: str, inside: bool
    ) -> AbstractContextManager[None]:
        """What can be taken back: a savepoint in an open transaction, else a transaction of our own."""
        return (
            self._store.savepoint(connection)
            if inside
            else self._store.transaction(connection, key=key)
        )

    @contextmanager
    def transaction(self, connection: Connection, key: str) -> Iterator[None]:
        """One explicit transaction for a call that a policy takes part in."""
        with self._store.transaction(connection, key=key):
            yield


def _recorded(positions: Sequence[int], events: tuple[LockEvent, ...]) -> tuple[RecordedEvent, ...]:
    return tuple(
        RecordedEvent(position, event) for position, event in zip(positions, events, strict=True)
    )
