"""The async face: the same verbs, run through SQLAlchemy's greenlet on an async driver. There is no second copy."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from functools import partial, wraps
from time import monotonic
from traceback import clear_frames
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.util import greenlet_spawn

from lockledger.adapters.engines import Source, checked_busy_timeout
from lockledger.bound import BoundLedger
from lockledger.domain.holds import Grant, RecordedEvent
from lockledger.domain.keys import new_holder
from lockledger.domain.lock import IfMine
from lockledger.domain.policy import Clock, Names, Policy
from lockledger.domain.ttl import Ttl
from lockledger.door import Metadata
from lockledger.exporting import ExportingVerbs
from lockledger.holding import (
    LONGEST_FAREWELL,
    Heartbeat,
    Held,
    after_body,
    async_holding,
    beat,
    checked_heartbeat,
    first_pause,
)
from lockledger.importing import ImportingVerbs
from lockledger.ledger import LockLedger
from lockledger.past import PastVerbs
from lockledger.proving import ProvingVerbs
from lockledger.queries import checked_position, checked_text
from lockledger.subscription import Feed, poll_seconds
from lockledger.verbs import Verbs

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=PastVerbs | ProvingVerbs | ImportingVerbs | ExportingVerbs)


class AsyncVerbs(ABC):
    """The verbs, awaited. Where and on which connection they run is for the kind of ledger."""

    @abstractmethod
    async def _run(self, call: Callable[[Any], T]) -> T:
        """Runs a call on the sync verbs."""


def awaited(
    verb: Callable[Concatenate[V, P], T],
) -> Callable[Concatenate[AsyncVerbs, P], Coroutine[Any, Any, T]]:
    """The same verb, awaited: same arguments, answers and errors."""

    @wraps(verb)
    async def call(self: AsyncVerbs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(lambda verbs: getattr(verbs, verb.__name__)(*args, **kwargs))

    return call


class _EveryVerb(AsyncVerbs):
    take = awaited(Verbs.take)
    try_take = awaited(Verbs.try_take)
    release = awaited(Verbs.release)
    try_release = awaited(Verbs.try_release)
    extend = awaited(Verbs.extend)
    force_release = awaited(Verbs.force_release)
    take_all = awaited(Verbs.take_all)
    expire_due = awaited(Verbs.expire_due)
    release_all = awaited(Verbs.release_all)
    holder_of = awaited(Verbs.holder_of)
    is_locked = awaited(Verbs.is_locked)
    current_holders = awaited(Verbs.current_holders)
    history = awaited(Verbs.history)
    audit_trail = awaited(Verbs.audit_trail)
    holds = awaited(Verbs.holds)
    holder_at = awaited(Verbs.holder_at)
    holders_at = awaited(Verbs.holders_at)


class AsyncBoundLedger(_EveryVerb):
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
        with _letting_go():
            return await self._host.run_sync(
                lambda host: call(BoundLedger(self._workings, host, self._door))
            )


class AsyncSubscription(AsyncIterator[RecordedEvent]):
    """`Subscription` for asyncio: yields events as they settle, and waits for more. One consumer at a time.

    Cancelling a wait loses nothing. `close` ends the iteration, also one that waits in another task.
    """

    def __init__(
        self, ledger: LockLedger, after: int | Literal["now"], key_prefix: str | None, poll: float
    ) -> None:
        self._ledger = ledger
        self._after = after
        self._key_prefix = key_prefix
        self._feed: Feed | None = None
        self._poll = poll
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordedEvent:
        feed = await self._begun()
        while not self._closed.is_set():
            if recorded := feed.pop():
                return recorded
            events, reached = await greenlet_spawn(self._ledger.next_page, feed.reached)
            idle = not events and reached == feed.reached
            feed.put(events, reached)
            if idle:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), self._poll)
        raise StopAsyncIteration

    @property
    def position(self) -> int:
        """Pass it as `after` to go on from here."""
        if self._feed is None:
            return 0 if self._after == "now" else self._after
        return self._feed.position

    async def close(self) -> None:
        """Ends the iteration."""
        self._closed.set()

    async def _begun(self) -> Feed:
        """Where the subscription stands; `"now"` is when it is entered, or first asked."""
        if self._feed is None:
            after = self._after
            self._feed = Feed(
                await greenlet_spawn(self._ledger.settled_position) if after == "now" else after,
                self._key_prefix,
            )
        return self._feed


class AsyncLockLedger(_EveryVerb):
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
        await greenlet_spawn(self._ledger.close)

    async def migrate(self) -> None:
        """Brings the schema up to date; see `LockLedger.migrate`."""
        # One migration at a time in a process: a second task of this loop must not block the first one's thread.
        turns = _TURNS.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turns:
            await greenlet_spawn(self._ledger.migrate)

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

        hold = await _begun(begin, end)
        again = partial(ledger.extend, key, holder, ttl, actor=actor, metadata=metadata)
        try:
            async with _beating(hold, partial(again, token=hold.grant.token), beats):
                yield hold
        except BaseException as body:
            await _ended(hold, partial(after_body, hold, partial(end, hold), body))
            raise
        await _ended(hold, partial(after_body, hold, partial(end, hold), None))

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
        return await greenlet_spawn(self._ledger.display_names, ids)

    async def events(self, after: int = 0) -> AsyncIterator[RecordedEvent]:
        """The events after a position, in position order, up to what is settled; see `LockLedger.events`."""
        reached = checked_position(after)
        while True:
            events, following = await greenlet_spawn(self._ledger.next_page, reached)
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
        return await _spawned(partial(call, self._ledger))


@contextmanager
def _letting_go() -> Iterator[None]:
    """Lets nothing of a cancelled call live as long as its cancellation is kept and handled.

    A cursor left in a frame keeps SQLite's connection, closed as it is, and with it the write lock.
    """
    try:
        yield
    except asyncio.CancelledError as cancellation:
        clear_frames(cancellation.__traceback__)
        raise


async def _spawned(call: Callable[[], T]) -> T:
    with _letting_go():
        return await greenlet_spawn(call)


async def _begun(begin: Callable[[], Held], end: Callable[[Held], None]) -> Held:
    """Takes in a task of its own, which hears of a cancellation once, so that it can take back what it had begun."""
    task = asyncio.ensure_future(_spawned(begin))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await _over(task)
        if task.done() and not task.cancelled() and task.exception() is None:
            await _ended(task.result(), partial(end, task.result()))  # it came too late to stop it
        raise
    return task.result()


async def _ended(hold: Held, end: Callable[[], None]) -> None:
    """Carries out the end of a hold in a task of its own: a cancellation must not leave the lock behind.

    A forked child has no part in its parent's loop and hold, and awaits nothing.
    """
    if not hold.here:
        return
    task = asyncio.ensure_future(_spawned(end))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError as cancellation:
        await _over(task)
        if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
            cancellation.add_note(f"and at the end of the hold: {failure}")
        raise
    task.result()


async def _over(task: asyncio.Task[Any]) -> None:
    """Waits for a task however often it is cancelled itself meanwhile; at last, when nothing answers, gives it up."""
    ends = monotonic() + LONGEST_FAREWELL
    while not task.done() and (left := ends - monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=left)
    if not task.done():
        task.cancel()
        _GIVEN_UP.add(task)
        task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _GIVEN_UP.discard(task)
    if not task.cancelled():
        task.exception()  # nobody is left to hear of it


@asynccontextmanager
async def _beating(
    held: Held, extend: Callable[[], Grant], heartbeat: Heartbeat | None
) -> AsyncIterator[None]:
    """Extends in a task of its own for the length of a block."""
    if heartbeat is None:
        yield
        return
    over = asyncio.Event()

    async def beat_until_over(pause: float | None) -> None:
        while pause is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), pause)
            if over.is_set():
                return
            pause = await _spawned(partial(beat, held, extend, heartbeat))

    task = asyncio.create_task(beat_until_over(first_pause(held, heartbeat)))
    try:
        yield
    finally:
        if held.here:
            over.set()
            await asyncio.wait([task], timeout=LONGEST_FAREWELL)
            task.cancel()


_GIVEN_UP: set[asyncio.Task[Any]] = set()
"""Tasks that nothing answered; the event loop alone would let them be collected."""

_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
