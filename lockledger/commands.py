"""The writing verbs: how a decision gets into the store.

A take goes through here like this: the door checks the arguments; the store reads the newest event of the lock, with
the clock; the `Lock` decides; the store appends, if the lock is still where it was and the decision still fresh; else
it is read and decided again. After two such refusals the lock's row is locked first, so a call always ends.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic_ns
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from lockledger.adapters.clock import checked_now
from lockledger.adapters.failures import (
    LOCK_NOT_AVAILABLE,
    sqlstate,
    translated,
)
from lockledger.adapters.store import EventStore, Newest
from lockledger.domain.errors import ConcurrencyConflict, LockLedgerError, TamperedLedger
from lockledger.domain.events import LockEvent, LockExtended, LockTaken, LockTakenOver
from lockledger.domain.holds import Grant, Hold, RecordedEvent
from lockledger.domain.lock import (
    FRESH,
    Decision,
    InTheWay,
    nothing_in_the_way,
)
from lockledger.domain.policy import Clock, Policy
from lockledger.memory import Memories, Memory
from lockledger.reckoning import Reckoning
from lockledger.scopes import InMotion, LetGo, Scopes, wait_for
from lockledger.wishes import Command, Look, Performed

T = TypeVar("T")


class _TakenBack(Exception):
    """No error: it ends a scope so that the scope is rolled back."""


class _Covers(_TakenBack):
    """No error either: the locks of the scopes come first."""


class _Asked(Exception):
    """Nor this: a decision wants to know more than is remembered."""


def _asked(*_: object) -> None:
    raise _Asked


class Commands:
    """Carries commands out on a connection."""

    def __init__(
        self,
        store: EventStore,
        clock: Clock | None,
        policy: Policy[Connection] | None,
        *,
        scopes: bool,
    ) -> None:
        self._store = store
        self._clock = clock
        self._policy = policy
        self._scopes = Scopes(store) if scopes else None
        self._memories = Memories() if store.proves_memories else None
        self._reckoning = Reckoning()

    def perform(self, connection: Connection, command: Command[T], *, inside: bool) -> Performed[T]:
        """Decides and records. `inside`: a transaction is open, and stays open and usable whatever happens here."""
        with translated(key=command.key):
            if self._policy is not None:
                self._policy.lock_subject(connection, command.key)
            if inside or self._memories is None:
                return self._perform_read(connection, command, inside)
            memory = self._memories.take_out(command.key)
            performed = memory and self._perform_remembered(connection, command, memory)
            performed = performed or self._perform_read(connection, command, inside)
            if performed.left is not None:
                self._memories.keep(performed.left, len(performed.events), memory)
            return performed

    def _perform_remembered(
        self, connection: Connection, command: Command[T], memory: Memory
    ) -> Performed[T] | None:
        """Decides without a look, and records if the lock still is as it is remembered; else nothing, and `None`."""
        clock = self._reckoning.now()
        if clock is None:
            return None
        newest = memory.at(clock)
        look = Look(_asked, nothing_in_the_way if self._scopes is None else _asked)
        try:
            decision = command.decide(newest.lock, self._now(newest), look)
        except (LockLedgerError, _Asked):
            return None
        if not memory.is_worth(decision.events) or self._covers(decision):
            return None
        try:
            return self._append_fresh(connection, command, newest, decision, inside=False)
        except IntegrityError:
            return None  # there is an event that the head row does not know of, as a look will tell

    def _perform_read(
        self, connection: Connection, command: Command[T], inside: bool
    ) -> Performed[T]:
        for _ in range(self._store.optimistic_attempts):
            newest, decision = self._look(connection, command)
            if not decision.events:
                if inside and isinstance(decision.outcome, Grant):
                    self._store.confirm(connection, [command.key])
                return Performed(decision.outcome)
            if self._covers(decision):
                return self._perform_covered(connection, command, decision, inside)
            performed = self._append_fresh(connection, command, newest, decision, inside)
            if performed is not None:
                return performed
        return self._perform_locked(connection, command, inside)

    def _covers(self, decision: Decision[Any]) -> bool:
        """Whether a hold begins that covers every key under its own."""
        return self._scopes is not None and any(
            isinstance(event, LockTaken | LockTakenOver) for event in decision.events
        )

    def _refuse_to_cover(self, decision: Decision[Any]) -> None:
        if self._covers(decision) and not self._store.excludes_writers:
            raise _Covers

    def _perform_covered(
        self, connection: Connection, command: Command[T], decision: Decision[T], inside: bool
    ) -> Performed[T]:
        """Begins a hold that covers: the keys above and the own are locked before the last look."""
        while True:
            try:
                with self.scope(connection, command.key, inside):
                    self._store.lock_scopes(connection, [command.key])
                    self._store.lock_head(connection, command.key, moves_token=True)
                    newest, decision = self._look_covered(connection, command)
                    return self._append_surely(connection, newest, decision)
            except InMotion as motion:
                self.let_pass(connection, motion, command.key, inside)
            except _TakenBack:
                return _unchanged(command, decision)

    def let_pass(
        self, connection: Connection, motion: InMotion, key: str | None, inside: bool
    ) -> None:
        """Waits for transactions that change locks around a key."""
        with suppress(LetGo), self.scope(connection, key, inside):
            wait_for(self._store, connection, motion)

    def attempt(
        self, connection: Connection, command: Command[T], left: Callable[[], timedelta]
    ) -> Performed[T] | None:
        """One try of a call that waits, in a transaction of its own; `None` when another transaction is in the way.

        It records nothing once `left` has become nothing. It blocks behind no other transaction, but for the first take
        of a lock behind another first take, which leaves nothing to be seen before it commits, and for what the policy
        does; and then for no longer than what is left.
        """
        with translated(key=command.key):
            may_block, covers = self._policy is not None, self._scopes is not None
            if not may_block:
                newest, decision = self._look(connection, command)
                if not decision.events:
                    return Performed(decision.outcome)
                may_block, covers = newest.lock.version == 0, self._covers(decision)
            try:
                with (
                    translated(key=command.key),
                    self._store.transaction(connection, key=command.key),
                ):
                    if may_block:
                        self._store.bound_waits(connection, left())
                    return self._attempt_locked(connection, command, left, covers)
            except (_TakenBack, InMotion):
                pass
            except ConcurrencyConflict as conflict:
                gave_up = sqlstate(conflict.__cause__) == LOCK_NOT_AVAILABLE
                if not gave_up and not self._store.excludes_writers:
                    raise
            self._expect_no_holder(connection, command)
            return None

    def _attempt_locked(
        self,
        connection: Connection,
        command: Command[T],
        left: Callable[[], timedelta],
        covers: bool,
    ) -> Performed[T]:
        if self._policy is not None:
            self._policy.lock_subject(connection, command.key)
        if covers and not self._store.lock_scopes(connection, [command.key], waiting=False):
            raise _TakenBack
        if not self._store.try_lock_head(connection, command.key):
            raise _TakenBack
        newest, decision = self._look_covered(connection, command)
        if decision.events and newest.lock.version == 0:
            self._store.lock_head(connection, command.key, moves_token=True)
            newest, decision = self._look_covered(connection, command)
        if not decision.events:
            return Performed(decision.outcome)
        if self._covers(decision) and not covers:
            raise _TakenBack
        # Nobody else can move the lock now, so a decision stays fresh as long as what it is about, or the wait, lasts.
        fresh_for = left() if decision.fresh_for == FRESH else min(left(), decision.fresh_for)
        until = newest.clock + fresh_for
        return self._append_surely(connection, newest, decision, until, locked=True)

    def _expect_no_holder(self, connection: Connection, command: Command[T]) -> None:
        """Raises `LockedByOther` when what is committed stands in the way; the policy is not asked."""
        newest = self._store.newest(connection, command.key)
        command.decide(newest.lock, self._now(newest), self._look_around(connection, command))

    def guard(self, connection: Connection, assertion: Command[Hold]) -> Hold:
        """Asserts under a lock on the head row that lets extensions pass; a refusal keeps no row locked."""
        with translated(key=assertion.key):
            if self._policy is not None:
                self._policy.lock_subject(connection, assertion.key)
            with self._store.savepoint(connection):
                newest = self._store.guarded(connection, assertion.key)
                return self.decide(connection, assertion, newest).outcome

    def _look(self, connection: Connection, command: Command[T]) -> tuple[Newest, Decision[T]]:
        asked = monotonic_ns()
        newest = self._store.newest(connection, command.key)
        self._reckoning.learn(newest.clock, asked)
        return newest, self.decide(connection, command, newest)

    def _look_covered(
        self, connection: Connection, command: Command[T]
    ) -> tuple[Newest, Decision[T]]:
        """The last look, when the scopes of the command are locked, where there are any."""
        newest = self._store.newest(connection, command.key)
        return self.decide_covered(connection, command, newest)

    def decide_covered(
        self, connection: Connection, command: Command[T], newest: Newest
    ) -> tuple[Newest, Decision[T]]:
        """What a command comes to under the locks of its scopes, with the clock of after it has looked around.

        Whatever stood in the way before has ended by that clock. Raises `InMotion`.
        """
        if self._scopes is None or command.request is None:
            return newest, self.decide(connection, command, newest)
        holder = command.request(None).holder
        around = self._scopes.around(connection, command.key, holder, self._now(newest))
        newest = replace(newest, clock=around.clock)
        return newest, self.decide(connection, command, newest, lambda _holder, _now: around.hold)

    def decide(
        self,
        connection: Connection,
        command: Command[T],
        newest: Newest,
        in_the_way: InTheWay | None = None,
    ) -> Decision[T]:
        """What a command comes to on a lock as it was read, after the policy was asked."""
        now = self._now(newest)
        if self._policy is not None and command.request is not None:
            self._policy.check_take(connection, command.request(newest.lock.live_hold(now)))
        return command.decide(newest.lock, now, self._look_around(connection, command, in_the_way))

    def _now(self, newest: Newest) -> datetime:
        return newest.lock.now(newest.clock if self._clock is None else checked_now(self._clock))

    def _look_around(
        self, connection: Connection, command: Command[T], in_the_way: InTheWay | None = None
    ) -> Look:
        if in_the_way is None:
            in_the_way = (
                nothing_in_the_way
                if self._scopes is None
                else partial(self._store.in_the_way, connection, command.key)
            )
        return Look(partial(self._store.ended_hold, connection, command.key), in_the_way)

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
        try:
            if not inside:
                with translated(key=command.key, commits=True):
                    return self._append(connection, newest, decision, until, by_itself=True)
            with translated(key=command.key), self._store.savepoint(connection):
                return self._append_surely(connection, newest, decision, until)
        except _TakenBack:
            return None

    def _perform_locked(
        self, connection: Connection, command: Command[T], inside: bool
    ) -> Performed[T]:
        """Looks once more, and if there is something to record, locks the lock's row before it decides."""
        newest, decision = self._look(connection, command)
        if not decision.events:
            return Performed(decision.outcome)
        if self._covers(decision):
            return self._perform_covered(connection, command, decision, inside)
        moves_token = _moves_token(decision)
        until = newest.clock + decision.fresh_for
        try:
            with self.scope(connection, command.key, inside):
                self._store.lock_head(connection, command.key, moves_token=moves_token)
                # Nobody else can write now: what was read just before the wait is as good as a second look, if the
                # lock has not moved since and the wait was short.
                if self._store.excludes_writers:
                    performed = self._append(connection, newest, decision, until)
                    if performed is not None:
                        return performed
                newest, decision = self._look(connection, command)
                if _moves_token(decision) and not moves_token:
                    # The hold ran out during the wait. Who guards it is waited for before the decision, not after it.
                    self._store.lock_head(connection, command.key, moves_token=True)
                    newest, decision = self._look(connection, command)
                self._refuse_to_cover(decision)
                return self._append_surely(connection, newest, decision)
        except _Covers:
            # The hold that was to be extended is over: it is a new one that begins.
            return self._perform_covered(connection, command, decision, inside)
        except _TakenBack:
            return _unchanged(command, decision)

    def _append_surely(
        self,
        connection: Connection,
        newest: Newest,
        decision: Decision[T],
        until: datetime | None = None,
        *,
        locked: bool = False,
    ) -> Performed[T]:
        if not decision.events:
            raise _TakenBack
        performed = self._append(connection, newest, decision, until, locked=locked)
        if performed is None:
            raise _TakenBack
        return performed

    def _append(
        self,
        connection: Connection,
        newest: Newest,
        decision: Decision[T],
        until: datetime | None,
        *,
        locked: bool = False,
        by_itself: bool = False,
    ) -> Performed[T] | None:
        recording = self._store.recording(newest, decision.events)
        locked, asked = locked or until is None, monotonic_ns()
        appended = self._store.append(
            connection, recording, until=until, locked=locked, by_itself=by_itself
        )
        if appended is None:
            return None
        self._reckoning.learn(appended.clock, asked)
        # Only a first event may have been written past the bound, and only it can be taken back wherever we are.
        if until is not None and newest.lock.version == 0 and appended.clock >= until:
            raise _TakenBack
        events = _recorded(appended.positions, decision.events)
        if self._policy is not None:
            self._policy.recorded(connection, events)
        left = recording.left_at(appended.clock)
        return Performed(decision.outcome, events, left)

    def scope(
        self, connection: Connection, key: str | None, inside: bool
    ) -> AbstractContextManager[None]:
        """What can be taken back: a savepoint in an open transaction, else a transaction of our own."""
        return (
            self._store.savepoint(connection)
            if inside
            else self._store.transaction(connection, key=key)
        )


def _moves_token(decision: Decision[Any]) -> bool:
    """Whether a hold begins or ends, so that a guard must be waited for."""
    return not all(isinstance(event, LockExtended) for event in decision.events)


def _unchanged(command: Command[T], decision: Decision[T]) -> Performed[T]:
    """The answer when nothing was recorded under the lock's row, which is right only if there was nothing to record."""
    if decision.events:
        raise TamperedLedger(
            command.key, "its head row refused the next version although it was locked"
        )
    return Performed(decision.outcome)


def _recorded(positions: Sequence[int], events: tuple[LockEvent, ...]) -> tuple[RecordedEvent, ...]:
    return tuple(
        RecordedEvent(position, event) for position, event in zip(positions, events, strict=True)
    )
