"""The verbs inside a caller's open transaction: locks and the host's own rows commit together or not at all."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from lockledger.adapters.sessions import begin_to_write, joined, refuse_what_has_no_transaction
from lockledger.domain.holds import Grant, Hold
from lockledger.door import Door
from lockledger.groups import swept
from lockledger.queries import MAX_LIMIT
from lockledger.verbs import Verbs
from lockledger.wishes import Clearance, Command, Performed
from lockledger.workings import Workings

T = TypeVar("T")
_OUTSIDE: Final = {
    "hold": "has transactions of its own: use ledger.hold(…) around this one, and guard(…) in it",
    "events": "tells only what is committed: use ledger.events(…) outside, or audit_trail(…) here",
    "subscribe": "waits for what others commit: use ledger.subscribe(…) outside",
}
"""What a ledger has and no caller's transaction: why, and what to do instead."""


class InATransaction:
    """What both colours say where somebody looks for a verb that works only outside a caller's transaction."""

    if not TYPE_CHECKING:  # to a type checker every name would be there

        def __getattr__(self, name: str) -> NoReturn:
            if name in _OUTSIDE:
                raise AttributeError(
                    f"{name}(…) is not in a caller's transaction: it {_OUTSIDE[name]}"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class BoundLedger(InATransaction, Verbs):
    """The ledger inside a caller's transaction, made by `ledger.using(session_or_connection)`.

    Nothing here begins, commits, rolls back or retries the caller's transaction; an append has a savepoint of its own,
    so a refusal leaves the transaction healthy and no row locked. A grant is provisional until the caller commits, and
    a rollback, also to a savepoint, takes it back. Reads see the transaction's own writes.

    `ConcurrencyConflict` means that the transaction is lost: roll it back and run it again. Lock the host's own row
    first (`Policy.lock_subject`), then the lock, and several keys in key order.
    """

    def __init__(
        self,
        workings: Workings,
        host: Session | scoped_session[Any] | Connection,
        door: Door,
    ) -> None:
        refuse_what_has_no_transaction(host)
        self._workings = workings
        self._host = host
        self._door = door
        self._queries = workings.queries
        self._past = workings.past

    def perform(self, command: Command[T]) -> Performed[T]:
        """Carries out a checked command in the caller's transaction, and tells what was recorded for it."""
        connection = self._writing()
        return self._workings.commands.perform(connection, command, inside=True)

    def guard(self, key: str, holder: str, *, token: int | None = None) -> Hold:
        """Asserts that `holder` holds the lock now, and keeps it so: nobody can commit an end of this hold before this
        transaction ends. Who wants to end it waits, and then sees what this transaction left. Extensions pass.

        A guard does not stop the clock: a hold may run out meanwhile, so keep guarded work shorter than the ttl. On
        SQLite it holds back every other writer.

        Raises `NotHeld`, `NotLockHolder`, with a `token` `HoldLost` with by whom, when and why.
        """
        assertion = self._door.guard(key, holder, token=token)
        return self._workings.commands.guard(self._writing(), assertion)

    def _wait(self, command: Command[Grant], seconds: float) -> Performed[Grant]:
        raise ValueError(
            f"wait={seconds:g} inside a transaction would keep it open all the while: wait outside with ledger.take(…),"
            " or take without wait here"
        )

    def display_names(self, ids: Collection[str]) -> Mapping[str, str | None]:
        """The host's names of holders and actors as they are now; `None` for those it does not know."""
        return self._workings.display_names(self._joined(), ids)

    def _ask(self, question: Callable[[Connection], T]) -> T:
        return question(self._joined())

    def _clear(self, clearance: Clearance) -> int:
        connection = self._writing()
        with self._workings.store.savepoint(connection):
            batches = self._selected(clearance, MAX_LIMIT)
            return sum(self._workings.groups.clear(connection, clearance, keys) for keys in batches)

    def _take_all(self, commands: Sequence[Command[Grant]]) -> dict[str, Grant]:
        return self._workings.groups.take_all(self._writing(), commands, inside=True).outcome

    def _expire_due(self, limit: int, expire: Callable[[str], Command[bool]]) -> int:
        connection = self._writing()
        return swept(
            limit,
            partial(self._workings.queries.due, connection),
            lambda keys: self._workings.groups.expire(connection, map(expire, keys)),
        )

    @property
    def _alone(self) -> bool:
        return False

    def _joined(self) -> Connection:
        connection = joined(self._host, self._workings.store.dialect)
        self._workings.check(connection)
        return connection

    def _writing(self) -> Connection:
        connection = joined(self._host, self._workings.store.dialect)
        begin_to_write(connection)
        self._workings.check(connection)
        return connection
