"""Verbs awaited: the sync ones, run through SQLAlchemy's greenlet on an async driver. There is no second copy."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from traceback import clear_frames
from typing import Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple

from sqlalchemy.util import greenlet_spawn

from lockledger.exporting import ExportingVerbs
from lockledger.importing import ImportingVerbs
from lockledger.past import PastVerbs
from lockledger.proving import ProvingVerbs
from lockledger.verbs import Verbs

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
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


class EveryVerb(AsyncVerbs):
    """The verbs that work alone and in a caller's transaction."""

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


@contextmanager
def letting_go() -> Iterator[None]:
    """Lets nothing of a cancelled call live as long as its cancellation is kept and handled.

    A cursor left in a frame keeps SQLite's connection, closed as it is, and with it the write lock.
    """
    try:
        yield
    except asyncio.CancelledError as cancellation:
        clear_frames(cancellation.__traceback__)
        raise


async def spawned(call: Callable[[*Ts], T], *args: *Ts) -> T:
    """Runs a sync call that waits by awaiting, in SQLAlchemy's greenlet."""
    with letting_go():
        return await greenlet_spawn(call, *args)
