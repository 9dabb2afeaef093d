"""One request and its answer: who asks, what the host says to it, and the transaction in which it is answered.

The work of a request is one plain function, run in a worker thread for a `LockLedger` and in SQLAlchemy's greenlet for
an `AsyncLockLedger`, so that both colours run the same code. It ends inside the host's transaction with an answer or a
refusal, either complete with names; then the transaction is left, and only then is the request answered.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from inspect import isawaitable
from typing import Any, Literal, TypeVar, get_args

from anyio.from_thread import run as run_on_the_loop
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import await_only

from lockledger.adapters.failures import translated
from lockledger.asynchronous import AsyncLockLedger
from lockledger.awaiting import spawned
from lockledger.domain.errors import HoldLost, LockLedgerError, NotLockable
from lockledger.domain.holds import Hold
from lockledger.door import Metadata
from lockledger.http.answers import people_in
from lockledger.http.asking import AskingLedger
from lockledger.http.problems import (
    HIDDEN,
    Refusal,
    forbidden,
    not_found,
    refused,
    status_of,
)
from lockledger.ledger import LockLedger

T = TypeVar("T")
Verb = Literal[
    "take",
    "takeover",
    "release",
    "extend",
    "force_release",
    "holder_of",
    "current_holders",
    "holds",
    "audit_trail",
]
"""What is asked for; `takeover` is a take with a reason while somebody else holds the lock."""

Verdict = Literal["allow", "forbid", "hide"]
Authorize = Callable[[Any, Verb, str | None, Hold | None], Verdict | Awaitable[Verdict]]
"""`authorize(principal, verb, key, current)`: may this principal do that to the lock with this key?

`current` is its live hold, `None` when it is free; for an entry of the audit trail the hold that the entry is about. A
list as a whole is asked about first, with `key` and `current` both `None`, then each item of it.
"""


class Exchange:
    """A request of somebody known, and the means to answer it."""

    def __init__(
        self,
        ledger: LockLedger | AsyncLockLedger,
        authorize: Authorize,
        *,
        principal: Any,
        holder: str,
        unit: Any,
        metadata: Metadata,
    ) -> None:
        self.holder = holder
        self._ledger = ledger
        self._authorize = authorize
        self._principal = principal
        self._unit = unit
        self._metadata = metadata
        self._worked = False

    def verdict(self, verb: Verb, key: str | None, current: Hold | None) -> Verdict:
        """What the host says to it. Anything but its three words is an error, never a yes."""
        said: Any = self._authorize(self._principal, verb, key, current)
        if isawaitable(said):
            said = self._awaited(said)
        if said not in get_args(Verdict):
            raise TypeError(f"authorize answered {said!r}: say 'allow', 'forbid' or 'hide'")
        return said  # type: ignore[no-any-return]  # one of the three words

    def require(self, verb: Verb, key: str | None, current: Hold | None) -> None:
        """Raises the refusal unless the host allows it."""
        verdict = self.verdict(verb, key, current)
        if verdict == "hide":
            raise not_found(key)
        if verdict == "forbid":
            raise forbidden(key)

    async def inside(
        self,
        verb: Verb | Callable[[Hold | None], Verb],
        key: str | None,
        work: Callable[[AskingLedger], T],
    ) -> T:
        """Works in the host's transaction, and leaves it before it gives the answer; a refusal rolls it back."""

        def question(asked: str, current: Hold | None) -> None:
            self.require(verb(current) if callable(verb) else verb, asked, current)

        def turn(host: Session | Connection) -> T:
            workings = self._sync_ledger.workings
            door = workings.door(actor=self.holder, metadata=self._metadata)
            ledger = AskingLedger(workings, host, door, question)
            try:
                answer = work(ledger)
            except LockLedgerError as error:
                if (status := status_of(error)) is None:
                    raise
                raise self._refusal(error, status, key, ledger) from error
            self._worked = True
            return answer

        try:
            return await self._transact(turn, key)
        except LockLedgerError as error:
            if (refusal := _nameless(error, key)) is None:
                raise
            raise refusal from error

    async def apart(self, work: Callable[[LockLedger], T]) -> T:
        """Works on connections of the ledger's own, where each statement sees what is committed by then."""
        try:
            if isinstance(self._ledger, LockLedger):
                return await run_in_threadpool(work, self._ledger)
            return await spawned(work, self._ledger.sync_ledger)
        except LockLedgerError as error:
            if (refusal := _nameless(error, None)) is None:
                raise
            raise refusal from error

    async def _transact(self, turn: Callable[[Session | Connection], T], key: str | None) -> T:
        try:
            if isinstance(self._ledger, LockLedger):
                return await run_in_threadpool(_in_thread, self._unit, turn)
            return await _in_greenlet(self._unit, turn)
        except DBAPIError:
            # When the work was done, it was the host's commit that failed.
            with translated(key=key, commits=self._worked):
                raise

    def _refusal(
        self, error: LockLedgerError, status: int, key: str | None, ledger: AskingLedger
    ) -> Refusal:
        """The refusal with its names, asked for while the transaction is still open."""
        if status not in (409, 412):
            return refused(error, status, key=key)
        # A policy that refuses does not say who holds it, and may have waited since the host was asked.
        by_policy = isinstance(error, NotLockable)
        current = ledger.look_again(key) if by_policy and key is not None else error.current
        detail = str(error)
        if not self._shows(current, key):
            current, detail = None, HIDDEN
        people = people_in([] if current is None else [current])
        if isinstance(error, HoldLost) and error.ended_by_actor is not None:
            people.add(error.ended_by_actor)
        names = ledger.display_names(people)
        return refused(error, status, key=key, current=current, names=names, detail=detail)

    def _shows(self, current: Hold | None, key: str | None) -> bool:
        """Whether the hold may be told: one of the key asked for has been allowed already."""
        if current is None or current.key == key:
            return True
        return self.verdict("holder_of", current.key, current) == "allow"

    @property
    def _sync_ledger(self) -> LockLedger:
        ledger = self._ledger
        return ledger if isinstance(ledger, LockLedger) else ledger.sync_ledger

    def _awaited(self, said: Awaitable[Any]) -> Any:
        if isinstance(self._ledger, LockLedger):
            return run_on_the_loop(_result, said)
        return await_only(said)


async def _result(said: Awaitable[T]) -> T:
    return await said


def _in_thread(unit: Any, turn: Callable[[Session | Connection], T]) -> T:
    _check(unit, AbstractContextManager)
    with unit as host:
        return turn(host)
    raise RuntimeError(_SWALLOWED)


async def _in_greenlet(unit: Any, turn: Callable[[Session | Connection], T]) -> T:
    _check(unit, AbstractAsyncContextManager)
    async with unit as opened:
        host = opened() if isinstance(opened, async_scoped_session) else opened
        return await host.run_sync(turn)  # type: ignore[no-any-return]  # what turn returns
    raise RuntimeError(_SWALLOWED)


_UNCOMMITTING = (
    *(Session, scoped_session, Connection),
    *(AsyncSession, async_scoped_session, AsyncConnection),
)
_SWALLOWED = "session's context manager swallowed the error it was left with; let it through, so that it is answered"


def _check(unit: Any, kind: type[Any]) -> None:
    if isinstance(unit, _UNCOMMITTING):
        raise TypeError(
            f"session gave a {type(unit).__name__}, which does not commit when it is left; give a context manager that"
            " does, such as sessions.begin()"
        )
    if not isinstance(unit, kind):
        wanted = kind.__name__.removeprefix("Abstract")
        raise TypeError(
            f"session gave {unit!r}, which is no {wanted}; give one that commits when it is left, such as"
            " sessions.begin() (of an async_sessionmaker where the ledger is an AsyncLockLedger)"
        )


def _nameless(error: LockLedgerError, key: str | None) -> Refusal | None:
    """The refusal where there is no transaction to ask for names, nor a hold to name; `None` if it is no refusal."""
    status = status_of(error)
    return None if status is None else refused(error, status, key=key)


Exchanges = Callable[[Collection[str]], Callable[..., Awaitable[Exchange]]]
"""Makes the dependency that opens an exchange, for a route that takes these parameters in its query."""
