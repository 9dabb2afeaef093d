"""The async face of the ledger."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

from lockledger.adapters.engines import Source, checked_busy_timeout
from lockledger.async_holding import beating, begun, ended
from lockledger.async_subscription import AsyncSubscription
from lockledger.awaiting import EveryVerb, awaited, letting_go, spawned
from lockledger.bound import BoundLedger, InATransaction
from lockledger.domain.holds import RecordedEvent
from lockledger.domain.keys import new_holder
from lockledger.domain.lock import IfMine
from lockledger.domain.policy import Clock, Names, Policy
from lockledger.domain.ttl import Ttl
from lockledger.door import Metadata
from lockledger.holding import Held, after_body, async_holding, checked_heartbeat
from lockledger.ledger import LockLedger
from lockledger.queries import checked_position, checked_text
from lockledger.subscription import poll_seconds

T = TypeVar("T")


class AsyncBoundLedger(InATransaction, EveryVerb):
    """`BoundLedger` for an `AsyncSession` or `AsyncConnection`: the verbs awaited, in the caller's open transaction.

    A call that is cancelled loses the transaction: roll it back.
    """

    def __init__(
        self,
        ledger: LockLedger,
        host: AsyncSession | async_scoped_session[Any] | AsyncConnection,
        *,
        actor: str | None,
        metadata: Metadata,
    ) -> None:
        if not isinstance(host, AsyncSession | async_scoped_session | AsyncConnection):
            raise TypeError(f"using(…) wants an AsyncSession or AsyncConnection, not {host!r}")
        self._workings = ledger.workings
        self._host = host() if isinstance(host, async_scoped_session) else host
        self._door = self._workings.door(actor=actor, metadata=metadata)

    guard = awaited(BoundLedger.guard)
    display_names = awaited(BoundLedger.display_names)

    async def _run(self, call: Callable[[Any], T]) -> T:
        with letting_go():
            return await self._host.run_sync(
                lambda host: call(BoundLedger(self._workings, host, self._door))
            )


class AsyncLockLedger(EveryVerb):
    """`LockLedger` for asyncio: the verbs awaited, with the same guarantees.

    `url_or_engine`: a URL (`postgresql+psycopg://…`, `sqlite:///…`, which needs the extra `sqlite-async`) or an
    `AsyncEngine` of the host's. `clock`, `policy` and `names` are plain functions, given the sync `Connection`; they
    must not block for long. One event loop may run any number of verbs at once, as far as the pool reaches.

    A verb that is cancelled gives its connection back; when its commit was under way, the change may have been made,
    and repeating the verb is safe.
    """

    def __init__(
        self,
        url_or_engine: str | URL | AsyncEngine,
        *,
        name: str = "default",
        schema: str | None = None,
        scopes: bool = False,
        clock: Clock | None = None,
        policy: Policy[Connection] | None = None,
        names: Names[Connection] | None = None,
        busy_timeout: float | timedelta = 30,
        listen: bool = False,
    ) -> None:
        source = Source(
            url_or_engine, busy_timeout=checked_busy_timeout(busy_timeout), asynchronous=True
        )
        self._ledger = LockLedger.over(
            source,
            name=name,
            schema=schema,
            scopes=scopes,
            clock=clock,
            policy=policy,
            names=names,
            listen=listen,
        )

    @property
    def name(self) -> str:
        """The ledger's name."""
        return self._ledger.name

    @property
    def sync_ledger(self) -> LockLedger:
        """The ledger that this one awaits; it works only inside SQLAlchemy's greenlet, as under `run_sync`."""
        return self._ledger

    @property
    def schema(self) -> str | None:
        """The PostgreSQL schema that holds the ledger's tables, as it was given."""
        return self._ledger.schema

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Gives back what the ledger itself opened. A closed ledger raises `RuntimeError`."""
        await spawned(self._ledger.close)

    async def migrate(self) -> None:
        """Brings the schema up to date; see `LockLedger.migrate`."""
        # One migration at a time in a process: a second task of this loop must not block the first one's thread.
        turns = _TURNS.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turns:
            await spawned(self._ledger.migrate)

    @async_holding
    @asynccontextmanager
    async def hold(
        self,
        key: str,
        holder: str | None = None,
        *,
        ttl: Ttl = None,
        heartbeat: float | timedelta | None = None,
        if_mine: IfMine = "refuse",
        takeover_reason: str | None = None,
        expected_token: int | None = None,
        wait: float | timedelta | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> AsyncIterator[Held]:
        """Holds the lock for the length of an `async with` block; see `LockLedger.hold`. Heartbeats are a task."""
        beats = checked_heartbeat(heartbeat, ttl)
        holder = new_holder() if holder is None else holder
        ledger = self._ledger
        begin = partial(
            ledger.begin_hold,
            key,
            holder,
            wait=wait,
            ttl=ttl,
            takeover_reason=takeover_reason,
            if_mine=if_mine,
            expected_token=expected_token,
            actor=actor,
            metadata=metadata,
        )

        def end(hold: Held) -> None:
            ledger.end_hold(hold.grant, actor=actor, metadata=metadata)

        hold = await begun(begin, end)
        again = partial(ledger.extend, key, holder, ttl, actor=actor, metadata=metadata)
        try:
            async with beating(hold, partial(again, token=hold.grant.token), beats):
                yield hold
        except BaseException as body:
            await ended(hold, partial(after_body, hold, partial(end, hold), body))
            raise
        await ended(hold, partial(after_body, hold, partial(end, hold), None))

    def using(
        self,
        session_or_connection: AsyncSession | async_scoped_session[Any] | AsyncConnection,
        *,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> AsyncBoundLedger:
        """The verbs inside the caller's open transaction; see `LockLedger.using`."""
        return AsyncBoundLedger(self._ledger, session_or_connection, actor=actor, metadata=metadata)

    verify = awaited(LockLedger.verify)
    checkpoint = awaited(LockLedger.checkpoint)
    rebuild = awaited(LockLedger.rebuild)
    replay = awaited(LockLedger.replay)
    import_locks = awaited(LockLedger.import_locks)
    export_audit_trail = awaited(LockLedger.export_audit_trail)
    export_holds = awaited(LockLedger.export_holds)

    async def display_names(self, ids: Collection[str]) -> Mapping[str, str | None]:
        """The host's names of holders and actors as they are now; `None` for those it does not know."""
        return await spawned(self._ledger.display_names, ids)

    async def events(self, after: int = 0) -> AsyncIterator[RecordedEvent]:
        """The events after a position, in position order, up to what is settled; see `LockLedger.events`."""
        reached = checked_position(after)
        while True:
            events, following = await spawned(self._ledger.next_page, reached)
            for recorded in events:
                yield recorded
            if following == reached:
                return
            reached = following

    def subscribe(
        self,
        *,
        after: int | Literal["now"] = 0,
        key_prefix: str | None = None,
        poll: float | timedelta = 0.25,
    ) -> AsyncSubscription:
        """As `events`, but goes on waiting for new ones: an async context manager that yields an async iterator."""
        if after != "now":
            after = checked_position(after)
        prefix = checked_text(key_prefix, "key_prefix")
        return AsyncSubscription(self._ledger, after, prefix, poll_seconds(poll))

    async def _run(self, call: Callable[[Any], T]) -> T:
        return await spawned(call, self._ledger)


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
