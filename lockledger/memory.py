"""What a ledger remembers of the locks that it changed last, so that whoever goes on with one need not read it first.

A memory is never believed, only tried: the append that is based on it compares all of it with what the database has,
and with the database's clock, and writes nothing where that differs. Then the lock is read.
"""

import os
from dataclasses import dataclass
from datetime import datetime
from threading import Lock as Mutex

from lockledger.adapters.store import Newest
from lockledger.domain.events import LockEvent, LockExtended, LockReleased

SIZE = 1000
"""Locks that are remembered at most."""

SHORT = 2048
"""Characters of an event's stored state beyond which its lock is not remembered: it may hold kilobytes of metadata."""

IN_A_ROW = 4
"""So many changes of a lock in a row were this ledger's before it tries to begin a hold from memory."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A lock as this ledger left it, and how many changes before that were its own too."""

    newest: Newest
    in_a_row: int

    def at(self, clock: datetime) -> Newest:
        """The lock as it is remembered, at that time."""
        newest = self.newest
        return Newest(newest.lock, newest.hash, clock, newest.remembered)

    def is_worth(self, events: tuple[LockEvent, ...]) -> bool:
        """Whether others hardly changed the lock meanwhile. A try that fails costs as much as one that succeeds saves.

        Whose hold it is goes on with it, or ends it. A free lock is anybody's.
        """
        goes_on = all(isinstance(event, LockReleased | LockExtended) for event in events)
        return bool(events) and (goes_on or self.in_a_row >= IN_A_ROW)


class Memories:
    """The newest memory of each lock, of the locks that were changed last; threads may share it.

    A forked process begins with none: what another thread had in hand at that moment stays in hand there for ever.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._memories: dict[str, Memory] = {}
        self._mutex = Mutex()
        self._process = os.getpid()

    def take_out(self, key: str) -> Memory | None:
        """The memory of a lock, which is nobody else's to try meanwhile."""
        if self._process != os.getpid():
            self._begin()
        with self._mutex:
            return self._memories.pop(key, None)

    def keep(self, newest: Newest, changes: int, before: Memory | None) -> None:
        """Remembers a lock after so many changes; `before` is what was remembered before them."""
        if newest.remembered is None or len(newest.remembered.state) > SHORT:
            return
        goes_on = before and before.newest.lock.version == newest.lock.version - changes
        in_a_row = changes + (before.in_a_row if before and goes_on else 0)
        with self._mutex:
            self._memories[newest.lock.key] = Memory(newest, in_a_row)
            if len(self._memories) > SIZE:
                del self._memories[next(iter(self._memories))]
