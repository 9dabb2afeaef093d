"""Taking turns on a connection that is everybody's: that of a database in memory, or of a host's pool that has only one."""

import os
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from sqlalchemy import Pool
from sqlalchemy.pool import SingletonThreadPool, StaticPool


class Call:
    """A call that wants its turn."""


class Turns:
    """Whose turn it is: one call's at a time. It is over when the call says so, and also when nothing is left of it.

    An interruption may come at any instruction, also at the one after the turn was had; so nothing but the call itself
    says that it has it.
    """

    def __init__(self) -> None:
        self._whose: dict[str, ref[Call]] = {}

    def had(self, call: Call) -> bool:
        """Whether the call has its turn now, or has it already."""
        return self._whose.setdefault("now", ref(call, self._over))() is call

    def is_of(self, call: Call) -> bool:
        """Whether it is this call's turn."""
        held = self._whose.get("now")
        return held is not None and held() is call

    def end(self) -> None:
        """The turn of the call that has it is over."""
        del self._whose["now"]

    def _over(self, gone: "ref[Call]") -> None:
        if self._whose.get("now") is gone:
            del self._whose["now"]


_by_pool: WeakKeyDictionary[Pool, Turns] = WeakKeyDictionary()
_by_name: WeakValueDictionary[tuple[int, str], Turns] = WeakValueDictionary()


def turns_on(pool: Pool) -> Turns | None:
    """The turns on a host's pool that gives its one connection to every thread or task."""
    return _by_pool.setdefault(pool, Turns()) if isinstance(pool, StaticPool) else None


def turns_called(name: str) -> Turns:
    """The turns on what several connections of this process share under a name."""
    return _by_name.setdefault((os.getpid(), name), Turns())


def shared_driver(pool: Pool) -> Any:
    """The driver's connection that this pool would give to the next who asks, although others have it too.

    `None` where a pool gives each to one only, or has none yet.
    """
    record = None
    if isinstance(pool, StaticPool):
        record = vars(pool).get("connection")
    elif isinstance(pool, SingletonThreadPool):
        record = getattr(pool._conn, "current", lambda: None)()
    return None if record is None else record.driver_connection
