"""The functions that the pipeline's own lock table had, now on a ledger: callers need not change.

A lock names a scope (`round:5`, `round:5:band:2`), may belong to a run, and may expire.
"""

from datetime import datetime, timedelta

from lockledger import BoundLedger, Grant, LockLedger, lock_key

NOBODY = "pipeline"
"""Holds what is taken for no run in particular."""


def round_key(number: int, band: int | None = None) -> str:
    """The scope of a round, or of one band of it."""
    return lock_key("round", number) if band is None else lock_key("round", number, "band", band)


def run_holder(run_id: int | None) -> str:
    """The id by which a run holds locks."""
    return NOBODY if run_id is None else lock_key("run", run_id)


class ScopeLocks:
    """Take, release and check by key. Over a ledger each is its own transaction; over `ledger.using(session)`, yours."""

    def __init__(self, ledger: LockLedger | BoundLedger) -> None:
        self._ledger = ledger

    def take(
        self,
        key: str,
        *,
        run_id: int | None = None,
        expires: float | timedelta | datetime | None = None,
    ) -> Grant | None:
        """The lock, or nothing when anybody holds it, this very run included.

        `expires`: seconds, a duration or an instant. An expired lock never blocks. Errors of the database pass.
        """
        return self._ledger.try_take(key, run_holder(run_id), ttl=expires, if_mine="refuse")

    def release(self, key: str, *, run_id: int | None = None) -> bool:
        """Releases the lock, with `run_id` only if that run holds it; tells whether there was something to release."""
        if run_id is not None:
            return self._ledger.try_release(key, run_holder(run_id))
        ended = self._ledger.force_release(key, actor=NOBODY, reason="released by its key alone")
        return ended is not None

    def is_locked(self, key: str) -> bool:
        """Whether there is a live lock."""
        return self._ledger.is_locked(key)
