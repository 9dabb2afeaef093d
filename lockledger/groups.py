"""Verbs for many locks at once: the rows of all of them are locked in key order, read in one statement, decided each by
itself, and appended together.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import Connection

from lockledger.adapters.failures import translated
from lockledger.adapters.store import EventStore, Newest
from lockledger.commands import Commands
from lockledger.domain.errors import LockedByOther, LockLedgerError, NotLockable, TamperedLedger
from lockledger.domain.holds import Grant, Hold, RecordedEvent
from lockledger.domain.lock import Decision
from lockledger.domain.policy import Policy
from lockledger.scopes import InMotion
from lockledger.wishes import Clearance, Command, Performed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Decided(Generic[T]):
    newest: Newest
    decision: Decision[T]


class Groups:
    """Carries out one command for each of many keys, all or nothing, in an open transaction."""

    def __init__(
        self,
        store: EventStore,
        commands: Commands,
        policy: Policy[Connection] | None,
        *,
        scopes: bool,
    ) -> None:
        self._store = store
        self._commands = commands
        self._policy = policy
        self._scopes = scopes

    def take_all(
        self, connection: Connection, commands: Sequence[Command[Grant]], *, inside: bool
    ) -> Performed[dict[str, Grant]]:
        """Takes all of them. Raises the first refusal in key order, with all of them in `.refusals`.

        `inside`: a transaction is open; else one is begun once there is something to record.
        """
        ordered = sorted(commands, key=lambda command: command.key)
        with translated():
            self._lock_subjects(connection, ordered)
            decided = self._decided(connection, ordered)
            if not any(each.decision.events for each in decided):
                if inside:
                    self._store.confirm(connection, _keys(ordered))
                return Performed(_outcomes(decided))
            while True:
                try:
                    with self._commands.scope(connection, None, inside):
                        if self._scopes:
                            self._store.lock_scopes(connection, _keys(ordered))
                        self._store.lock_heads(connection, _keys(ordered), waiting=True)
                        decided = self._decided(connection, ordered, covered=True)
                        return Performed(_outcomes(decided), self._recorded(connection, decided))
                except InMotion as motion:
                    self._commands.let_pass(connection, motion, None, inside)

    def clear(self, connection: Connection, clearance: Clearance, keys: Sequence[str]) -> int:
        """Ends what is left of the selected holds of these keys, which come in key order; counts them."""
        commands: list[Command[Hold | None]] = [clearance.of(key) for key in keys]
        with translated(), self._store.savepoint(connection):
            self._lock_subjects(connection, commands)
            self._store.lock_heads(connection, keys, waiting=True)
            decided = self._decided(connection, commands)
            self._recorded(connection, decided)
            return sum(each.decision.outcome is not None for each in decided)

    def expire(self, connection: Connection, commands: Iterable[Command[bool]]) -> int:
        """Records what has run out of these, but for those that another transaction has in hand; counts them."""
        ordered = sorted(commands, key=lambda command: command.key)
        with translated(), self._store.savepoint(connection):
            self._lock_subjects(connection, ordered)
            mine = self._store.lock_heads(connection, _keys(ordered), waiting=False)
            decided = self._decided(connection, [each for each in ordered if each.key in mine])
            self._recorded(connection, decided)
            return sum(each.decision.outcome for each in decided)

    def _lock_subjects(self, connection: Connection, commands: Sequence[Command[T]]) -> None:
        if self._policy is not None:
            for command in commands:
                self._policy.lock_subject(connection, command.key)

    def _decided(
        self, connection: Connection, commands: Sequence[Command[T]], *, covered: bool = False
    ) -> list[_Decided[T]]:
        """Reads all of them in one statement and decides each; raises when any of them is refused.

        `covered`: they are takes, and their scopes are locked, where there are any.
        """
        streams = {command.key: self._store.lock_id(command.key) for command in commands}
        tails = self._store.tails(connection, list(streams.values()))
        decided: list[_Decided[T]] = []
        refusals: list[LockLedgerError] = []
        for command in commands:
            newest = self._store.newest_of(command.key, tails[streams[command.key]])
            try:
                if covered:
                    newest, decision = self._commands.decide_covered(connection, command, newest)
                else:
                    decision = self._commands.decide(connection, command, newest)
            except (LockedByOther, NotLockable) as refusal:
                refusals.append(refusal)
            else:
                decided.append(_Decided(newest, decision))
        if refusals:
            refusals[0].refusals = tuple(refusals)
            raise refusals[0]
        return decided

    def _recorded(
        self, connection: Connection, decided: Sequence[_Decided[T]]
    ) -> tuple[RecordedEvent, ...]:
        changed = [each for each in decided if each.decision.events]
        if not changed:
            return ()
        appends = [self._store.recording(each.newest, each.decision.events) for each in changed]
        stored = [event for append in appends for event in append.events]
        positions = self._store.append_all(connection, appends, stored, locked=True)
        if positions is None:
            raise TamperedLedger(None, "a head row refused the next version although it was locked")
        events = [event for each in changed for event in each.decision.events]
        recorded = tuple(map(RecordedEvent, positions, events))
        if self._policy is not None:
            self._policy.recorded(connection, recorded)
        return recorded


def _keys(commands: Iterable[Command[T]]) -> list[str]:
    return [command.key for command in commands]


def _outcomes(decided: Iterable[_Decided[Grant]]) -> dict[str, Grant]:
    return {each.newest.lock.key: each.decision.outcome for each in decided}


def swept(
    limit: int, due: Callable[[int, int], list[str]], expire: Callable[[list[str]], int]
) -> int:
    """Lets what is due be recorded until it is `limit`, and counts it; what others have in hand is passed over.

    `due` gives so many keys after so many of the longest due, `expire` records expiries of keys and counts them.
    """
    recorded = passed = 0
    while recorded < limit:
        wanted = limit - recorded
        keys = due(wanted, passed)
        ended = expire(keys)
        recorded += ended
        passed += len(keys) - ended
        if len(keys) < wanted:
            break
    return recorded
