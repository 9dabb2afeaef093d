"""The verbs that go through a whole ledger. They need transactions of their own, so none of them runs in a caller's."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from lockledger.adapters.engines import Source
from lockledger.checkpoints import Checkpoint, make_checkpoint
from lockledger.domain.errors import shown
from lockledger.rebuilding import Rebuilt, rebuild
from lockledger.replaying import Projection, replay
from lockledger.verification import OnAdvance, Verification, verify
from lockledger.workings import Workings


class ProvingVerbs(ABC):
    """Prove a ledger, keep a checkpoint of it, repair what is derived from its events, and derive more."""

    _workings: Workings
    _source: Source

    @abstractmethod
    def _connection(
        self, *, busy_timeout: float | None = None
    ) -> AbstractContextManager[Connection]:
        """A connection in AUTOCOMMIT, the schema looked at."""

    def verify(
        self, *, checkpoint: Checkpoint | None = None, progress: OnAdvance = None
    ) -> Verification:
        """Proves the ledger in one snapshot, while others go on: nothing is locked, nobody waits, memory stays flat.

        Each event's hash, each lock's chain and versions, that every event can be read and could have been recorded by
        a verb after those before it, positions, and that current holders, audit trail and ended holds say exactly what
        follows from the events. With a `checkpoint` also that every event it covers is still there, unchanged and at
        its position: only that finds the loss of a lock's newest events, or of a lock, with all that was derived.

        Faults are no errors: look at `Verification.ok` and `.faults`, of which it keeps the first 1,000. `progress` is
        called now and then with an `Advance`.

        Raises `ValueError` for another ledger's checkpoint, `EventFormatMismatch` for events of a later release.
        """
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            raise TypeError(
                f"checkpoint must be a Checkpoint, not {shown(checkpoint)}: read a kept one with Checkpoint.from_json(…)"
            )
        if checkpoint is not None and checkpoint.ledger != self._workings.name:
            raise ValueError(
                f"the checkpoint is of the ledger {checkpoint.ledger!r}, this one is {self._workings.name!r}"
            )
        with self._connection() as connection:
            return verify(connection, self._workings.store, checkpoint=checkpoint, told=progress)

    def checkpoint(self) -> Checkpoint:
        """A hash over every settled event, for an auditor to keep where nobody who may write here can.

        Events of transactions that are open now, and what was recorded after they began, may be left out. Keep
        `Checkpoint.to_json()` in a file; `Checkpoint.from_json` reads it back for `verify`.
        """
        with self._connection() as connection:
            return make_checkpoint(
                connection, self._workings.store, self._workings.clock(connection)
            )

    def rebuild(self, *, progress: OnAdvance = None) -> Rebuilt:
        """Makes current holders, audit trail and ended holds say what follows from the events, while takes go on.

        Only rows that differ are touched. Missing ones are inserted, which any role may that uses the ledger. Wrong
        ones of current holders are corrected under their row's lock. Wrong ones of the append-only tables only the
        tables' owner can correct: their triggers are put aside inside short transactions, which on PostgreSQL wait 50
        milliseconds at most for writers, and are tried again. Nobody is kept waiting longer than that, everything
        keeps serving, and stopped at any moment it leaves whole rows behind: run it again. On SQLite writers wait for
        each part of about 20,000 events in which something is repaired.

        The events are believed where their chain of hashes is right; what follows from the others is left alone, and
        told in `Rebuilt.left`. Uses two connections at once. `progress` is called now and then with an `Advance`.
        """
        return rebuild(
            self._connection, self._workings.store, sleep=self._source.sleep, told=progress
        )

    def replay(
        self, projection: Projection, *, restart: bool = False, progress: OnAdvance = None
    ) -> int:
        """Brings a projection of the host's up to what is settled, and gives the position that it has come to.

        From where it stands, which `lockledger_consumer_positions` keeps under its name: the first time from the first
        event, and with `restart` too, after its `reset`. Each 500 events are applied in one transaction that moves the
        position with them, so each comes once, in position order, whoever else replays or is killed. Call it again to
        keep up, or whenever a subscription yields something.

        What the projection raises comes through, and its events with it the next time. `progress` is called after each
        transaction with an `Advance`.
        """
        with self._connection() as connection:
            return replay(
                connection, self._workings.store, projection, restart=restart, told=progress
            )
