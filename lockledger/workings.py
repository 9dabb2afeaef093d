"""What a ledger is made of, whatever its colour and whoever owns the transaction; it works on a given connection."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Pool

from lockledger.adapters.clock import checked_now
from lockledger.adapters.failures import SERIALIZATION_FAILURE, sqlstate
from lockledger.adapters.schema import check_schema, outlasts_rollback
from lockledger.adapters.stores import store_on
from lockledger.commands import Commands
from lockledger.domain.errors import ConcurrencyConflict, shown
from lockledger.domain.holds import Grant
from lockledger.domain.policy import Clock, Names, Policy
from lockledger.door import Door, Metadata
from lockledger.groups import Groups
from lockledger.past import Past
from lockledger.queries import Queries
from lockledger.wishes import Command, Performed

T = TypeVar("T")


class Workings:
    """The store, the rules over it, and what the host plugged in."""

    def __init__(
        self,
        dialect: str,
        *,
        name: str,
        schema: str | None,
        clock: Clock | None,
        policy: Policy[Connection] | None,
        names: Names[Connection] | None,
        scopes: bool = False,
    ) -> None:
        _refuse_other_plugs(clock, policy, names)
        if not isinstance(scopes, bool):
            raise TypeError(f"scopes={shown(scopes)}: give True or False")
        self.schema = schema
        self.scopes = scopes
        self.store = store_on(dialect, name, schema)
        self.name = self.store.ledger
        self.commands = Commands(self.store, clock, policy, scopes=scopes)
        self.groups = Groups(self.store, self.commands, policy, scopes=scopes)
        self.queries = Queries(self.store, clock)
        self.past = Past(self.store, clock)
        self._clock = clock
        self._policy = policy
        self._names = names
        self._checked: WeakSet[Pool] = WeakSet()

    def door(self, *, actor: str | None = None, metadata: Metadata = None) -> Door:
        """A door whose verbs act as `actor`, with this metadata, unless they say otherwise."""
        return Door(self._clock, actor=actor, metadata=metadata)

    def now(self) -> datetime:
        """What the host's clock says, or this machine's: only a hint where the database's clock decides."""
        return checked_now(self._clock)

    def clock(self, connection: Connection) -> datetime:
        """What time it is by the clock that holds are judged by."""
        return self.store.clock(connection) if self._clock is None else checked_now(self._clock)

    def check(self, connection: Connection) -> None:
        """Raises `SchemaMismatch` unless the database has this release's schema; asked once per pool."""
        pool = connection.engine.pool
        if pool not in self._checked:
            check_schema(connection, self.schema)
            if outlasts_rollback(connection, self.schema):
                self._checked.add(pool)

    def perform_alone(self, connection: Connection, command: Command[T]) -> Performed[T]:
        """Carries out a command in a transaction of its own, on a connection in AUTOCOMMIT."""
        return self._alone(
            connection,
            command.key,
            lambda inside: self.commands.perform(connection, command, inside=inside),
        )

    def take_all_alone(
        self, connection: Connection, commands: Sequence[Command[Grant]]
    ) -> Performed[dict[str, Grant]]:
        """Takes all or none in a transaction of its own, on a connection in AUTOCOMMIT."""
        return self._alone(
            connection,
            None,
            lambda inside: self.groups.take_all(connection, commands, inside=inside),
        )

    def _alone(self, connection: Connection, key: str | None, call: Callable[[bool], T]) -> T:
        """Runs a call that is told whether a transaction is open.

        A policy runs in the transaction that makes the change, so with one there is one from the start. Where the
        database serializes by default, any statement may fail for that, and has left nothing: once more then, in a
        transaction at READ COMMITTED.
        """
        if self._policy is None:
            try:
                return call(False)
            except ConcurrencyConflict as conflict:
                if sqlstate(conflict.__cause__) != SERIALIZATION_FAILURE:
                    raise
        with self.store.transaction(connection, key=key):
            return call(True)

    @property
    def has_names(self) -> bool:
        """Whether the host gives display names."""
        return self._names is not None

    def display_names(
        self, connection: Connection, ids: Collection[str]
    ) -> Mapping[str, str | None]:
        """The host's names of these ids as they are now; `None` for those it does not know."""
        if isinstance(ids, str):
            raise TypeError(f"ids={shown(ids)}: give a list of ids, or [{shown(ids)}] for one")
        distinct = sorted(set(ids))
        if self._names is None or not distinct:
            return dict.fromkeys(distinct)
        known = self._names(connection, distinct)
        return {each: known.get(each) for each in distinct}


def _refuse_other_plugs(clock: object, policy: object, names: object) -> None:
    """Raises `TypeError` for what would only fail at the first verb."""
    for name, plug, what in (
        ("clock", clock, "a function that returns an aware datetime"),
        ("names", names, "a function of a connection and ids that returns a mapping"),
    ):
        if plug is not None and not callable(plug):
            raise TypeError(f"{name}={shown(plug)}: give {what}, or leave it out")
    hooks = ("lock_subject", "check_take", "recorded")
    missing = [hook for hook in hooks if not callable(getattr(policy, hook, None))]
    if policy is not None and (missing or isinstance(policy, type)):
        lacks = f" has no {', '.join(missing)}" if missing else " is a class"
        raise TypeError(
            f"policy={shown(policy)}{lacks}: subclass lockledger.Policy and give an instance"
        )
