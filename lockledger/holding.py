"""`hold(…)`: a hold for the length of a `with` block, extended in the background while the block works.

What the holder may believe is measured by this process's monotonic clock, from before each question to the ledger: the
hold cannot have run out earlier than that plus what the ledger granted. A tenth of it before that (one second at most),
without an answer, the hold is suspect, and `check()` says so at once, without asking anybody.

A block belongs to the process that entered it: a forked child that leaves it ends and extends nothing.
"""

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncContextDecorator,
    ContextDecorator,
    contextmanager,
)
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Final, ParamSpec, Self
from weakref import WeakSet

from lockledger.domain.errors import HoldSuspect, NotHolding, shown
from lockledger.domain.holds import Grant, Hold
from lockledger.domain.ttl import Ttl, check_ttl

LONGEST_FAREWELL: Final = 5.0
"""Seconds to wait for a beat in flight; one that comes after the release finds the hold lost, and does nothing."""
P = ParamSpec("P")
_LONGEST_MARGIN = 1.0
_OVER: WeakSet[Event] = WeakSet()
"""What ends the heartbeats of this process."""
os.register_at_fork(after_in_child=_OVER.clear)  # a child has none of these threads


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How often a hold is extended, and for how long; both in seconds."""

    every: float
    ttl: float

    @property
    def patience(self) -> float:
        """Seconds until the next try after one that the database did not answer."""
        return min(self.every, max(self.ttl / 20, 0.05))


def checked_heartbeat(heartbeat: float | timedelta | None, ttl: Ttl) -> Heartbeat | None:
    """The heartbeat in seconds: above 0, and at most a third of the ttl, which must then be a duration.

    So two in a row may fail before the hold runs out. Raises `ValueError`, `InvalidTtl` or `TypeError`.
    """
    if heartbeat is None:
        return None
    every = heartbeat.total_seconds() if isinstance(heartbeat, timedelta) else heartbeat
    if isinstance(every, bool) or not isinstance(every, int | float):
        raise TypeError(f"heartbeat is seconds or a timedelta, not {shown(heartbeat)}")
    if ttl is None or isinstance(ttl, datetime):
        raise ValueError(
            "a heartbeat extends by the ttl: give it as seconds or a timedelta, or leave heartbeat out"
        )
    length = check_ttl(ttl, datetime.now(UTC))
    seconds = length.total_seconds() if isinstance(length, timedelta) else 0.0
    if not 0 < every <= seconds / 3:
        raise ValueError(
            f"heartbeat={shown(heartbeat)} with ttl={ttl!r}: it must be above 0 and at most a third of the ttl,"
            f" {seconds / 3:g} seconds here"
        )
    return Heartbeat(float(every), seconds)


class Held:
    """A hold inside its `with` block. `grant` is what the ledger said last; `created`: the block began the hold."""

    def __init__(self, grant: Grant, asked_at: float, lasts: float | None) -> None:
        self.grant = grant
        self.trouble: Exception | None = None
        self._process = os.getpid()
        self._loss: NotHolding | None = None
        self._confirm(asked_at, lasts)

    @property
    def here(self) -> bool:
        """Whether this process entered the block; one that was forked in it did not."""
        return os.getpid() == self._process

    @property
    def lost(self) -> bool:
        """Whether the hold is known to be lost, or suspect: work that needs it must stop."""
        return self._loss is not None or self._left() <= 0

    def check(self) -> None:
        """Raises `HoldLost`, with by whom, when and why, once the hold is known to be lost; `HoldSuspect` once it may be.

        Asks nobody, so it costs nothing. It cannot see a loss that no heartbeat has met yet: `guard` can.
        """
        if self._loss is not None:
            raise copy(self._loss)  # notes and traceback belong to one exception each
        if self._left() <= 0:
            raise HoldSuspect(
                self.grant.key,
                holder=self.grant.holder,
                token=self.grant.token,
                silent_for=monotonic() - self._asked_at,
            )

    def extended(self, grant: Grant, asked_at: float, lasts: float) -> None:
        """The ledger has confirmed the hold, to a question asked at `asked_at`."""
        self.grant = grant.model_copy(update={"created": self.grant.created})
        self._confirm(asked_at, None if grant.expires_at is None else lasts)

    def lose(self, loss: NotHolding) -> None:
        """The ledger has said that the hold is over; that is final."""
        self._loss = self._loss or loss

    def troubled(self, error: Exception) -> None:
        """The ledger could not be asked; `trouble` keeps why."""
        self.trouble = error

    def _confirm(self, asked_at: float, lasts: float | None) -> None:
        self._asked_at = asked_at
        self._suspect_at = None if lasts is None else asked_at + lasts - margin(lasts)

    def _left(self) -> float:
        return float("inf") if self._suspect_at is None else self._suspect_at - monotonic()


def margin(lasts: float) -> float:
    """How many seconds before a hold may have run out it becomes suspect."""
    return min(lasts / 10, _LONGEST_MARGIN)


def beat(held: Held, extend: Callable[[], Grant], heartbeat: Heartbeat) -> float | None:
    """Extends once; gives the seconds until the next beat, `None` when there is nothing left to extend.

    An error of the database is no loss: it is tried again soon, while the hold may still be ours.
    """
    asked_at = monotonic()
    try:
        held.extended(extend(), asked_at, heartbeat.ttl)
    except NotHolding as loss:
        held.lose(loss)
        return None
    except Exception as error:  # noqa: BLE001 - whatever it was, the hold turns suspect if it lasts
        held.troubled(error)
        return heartbeat.patience
    return heartbeat.every


@contextmanager
def beating(held: Held, extend: Callable[[], Grant], heartbeat: Heartbeat | None) -> Iterator[None]:
    """Extends in a thread of its own for the length of a block; a hold that was found is extended at once."""
    if heartbeat is None:
        yield
        return
    over = Event()
    _OVER.add(over)

    def beat_until_over(pause: float | None) -> None:
        while pause is not None and not over.wait(pause):
            pause = beat(held, extend, heartbeat)

    # A daemon: it must not keep the interpreter alive, which would keep the lock.
    thread = Thread(
        target=beat_until_over,
        args=(first_pause(held, heartbeat),),
        name=f"lockledger heartbeat {held.grant.key}",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        if held.here:
            over.set()
            thread.join(LONGEST_FAREWELL)


@atexit.register
def _end_all() -> None:
    """Before the interpreter takes itself apart, which no thread of it should see."""
    for over in list(_OVER):
        over.set()


def first_pause(held: Held, heartbeat: Heartbeat) -> float:
    """Seconds until the first beat: at once for a hold that was found in place, which may end any moment."""
    return heartbeat.every if held.grant.created else 0.0


def after_body(held: Held, release: Callable[[], object], body: BaseException | None) -> None:
    """Ends what the block began; a loss is raised when the body succeeded, else noted on the body's exception.

    A forked child that leaves the block ends nothing: the hold is its parent's.
    """
    if not held.here:
        return
    try:
        release()
    except Exception as failure:
        if not isinstance(failure, NotHolding):
            failure.add_note(may_remain(held.grant))
        if body is None:
            raise
        body.add_note(f"and at the end of the hold: {failure}")
        for note in getattr(failure, "__notes__", ()):
            body.add_note(note)


def may_remain(hold: Grant | Hold) -> str:
    """What to tell whoever could not release it."""
    until = (
        "until somebody ends it"
        if hold.expires_at is None
        else f"until {hold.expires_at.isoformat()}"
    )
    return f"the hold on {hold.key!r} with token {hold.token} could not be released and may remain {until}"


class Holding(ContextDecorator, AbstractContextManager[Held]):
    """What `hold(…)` gives: for one `with` block, or as a decorator, which holds anew in each call."""

    def __init__(self, make: Callable[[], AbstractContextManager[Held]]) -> None:
        self._make = make
        self._block: AbstractContextManager[Held] | None = None

    def _recreate_cm(self) -> Self:
        return type(self)(self._make)

    def __enter__(self) -> Held:
        if self._block is not None:
            raise RuntimeError(_ENTERED)
        self._block = self._make()
        return self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._block is None:
            raise RuntimeError(_NOT_ENTERED)
        return self._block.__exit__(kind, error, trace)


class AsyncHolding(AsyncContextDecorator, AbstractAsyncContextManager[Held]):
    """`Holding` for `async with`."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Held]]) -> None:
        self._make = make
        self._block: AbstractAsyncContextManager[Held] | None = None

    def _recreate_cm(self) -> Self:
        return type(self)(self._make)

    async def __aenter__(self) -> Held:
        if self._block is not None:
            raise RuntimeError(_ENTERED)
        self._block = self._make()
        return await self._block.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._block is None:
            raise RuntimeError(_NOT_ENTERED)
        return await self._block.__aexit__(kind, error, trace)


_ENTERED = "this hold(…) has been entered already: call hold(…) again for each with block"
_NOT_ENTERED = "this hold(…) was never entered: use it in a with block"


def holding(make: Callable[P, AbstractContextManager[Held]]) -> Callable[P, Holding]:
    """The same, but says so when one is entered twice."""

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> Holding:
        return Holding(lambda: make(*args, **kwargs))

    return call


def async_holding(
    make: Callable[P, AbstractAsyncContextManager[Held]],
) -> Callable[P, AsyncHolding]:
    """`holding` for `async with`."""

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> AsyncHolding:
        return AsyncHolding(lambda: make(*args, **kwargs))

    return call
