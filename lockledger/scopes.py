"""Where a hold covers every key under its own: what stands around a key, once its scopes are locked."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection

from lockledger.adapters.store import Around, EventStore


class InMotion(Exception):
    """No error: another transaction is just changing locks around the key, and nobody knows yet what they will be."""

    def __init__(self, streams: Sequence[UUID]) -> None:
        self.streams = streams
        super().__init__(streams)


class LetGo(Exception):
    """No error: it ends a scope so that the scope is rolled back."""


class Scopes:
    """Looks around keys whose scopes the open transaction has locked."""

    def __init__(self, store: EventStore) -> None:
        self._store = store

    def around(self, connection: Connection, key: str, holder: str, now: datetime) -> Around:
        """What stands above and under the key, to this holder; `now` was read before, under the locks of its scopes.

        From here on nobody else begins a hold there. A hold that had run out at `now` may have been extended in time by
        a transaction that has not ended: raises `InMotion`, as who waits must not hold the scopes.
        """
        around = self._store.around(connection, key, holder, now)
        if around.hold is not None or not around.moving:
            return around
        if not self._store.lock_moving(connection, around.moving, waiting=False):
            raise InMotion(around.moving)
        return self._store.around(connection, key, holder, now)


def wait_for(store: EventStore, connection: Connection, motion: InMotion) -> None:
    """Waits until those transactions have ended. Always raises `LetGo`, so that nothing stays locked."""
    store.lock_moving(connection, motion.streams, waiting=True)
    raise LetGo
