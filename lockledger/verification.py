"""Proving a ledger: every event, every chain, the rules, and every projection against the fold, in one snapshot."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection

from lockledger.adapters.differences import Difference, fault_of
from lockledger.adapters.failures import translated
from lockledger.adapters.proof import Proof
from lockledger.adapters.scans import Scans
from lockledger.adapters.snapshots import snapshot
from lockledger.adapters.store import EventStore
from lockledger.checkpoints import Checkpoint, departures
from lockledger.domain.faults import MAX_FAULTS, Fault, FaultCount, FaultKind

MAX_NAMED: Final = 1000
"""Foreign streams that a verification names; more are only counted."""


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a long call has come: `done` of `total` events, after so many seconds."""

    done: int
    total: int
    seconds: float

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.done / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """How long the rest may take; `None` before anything is done."""
        return None if not self.done else max(self.total - self.done, 0) / self.rate


OnAdvance = Callable[[Advance], None] | None


class Verification(BaseModel):
    """What was looked at, and every fault that was found.

    `position` is that of the newest event seen. `faults` are the first 1,000; `fault_count` counts all, `by_kind` each
    kind. `foreign` names the streams of events that are no locks, the first 1,000. `checkpoint` is the position of the
    checkpoint that the ledger was held against.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger: str
    events: int
    locks: int
    foreign_streams: int
    audit_entries: int
    ended_holds: int
    position: int
    checkpoint: int | None
    fault_count: int
    by_kind: dict[FaultKind, int]
    faults: tuple[Fault, ...]
    foreign: tuple[UUID, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.fault_count == 0


class Course:
    """Tells whoever asked how far a call has come."""

    def __init__(self, told: OnAdvance, total: int) -> None:
        self._told = told
        self._total = total
        self._began = monotonic()
        self.before = 0
        """Events done in the parts that are over."""

    def tick(self, done: int) -> None:
        """So many events of the part under way are done."""
        if self._told is not None:
            done += self.before
            self._told(Advance(done, max(self._total, done), monotonic() - self._began))


def verify(
    connection: Connection,
    store: EventStore,
    *,
    checkpoint: Checkpoint | None,
    told: OnAdvance,
) -> Verification:
    """Proves the ledger on a connection in AUTOCOMMIT; see `LockLedger.verify`."""
    count, foreign = FaultCount(), list[UUID]()

    def name(stream: UUID) -> None:
        if len(foreign) < MAX_NAMED:
            foreign.append(stream)

    with translated(), snapshot(connection):
        scans = Scans(store, connection)
        total, newest = scans.count_events(), scans.newest_position()
        course = Course(told, total)
        proof = Proof(
            store,
            connection,
            last_position=scans.last_given_position(),
            tick=course.tick,
            name_foreign=name,
        )
        for finding in proof.findings():
            count.add(
                fault_of(finding, store.dialect) if isinstance(finding, Difference) else finding
            )
        if "position" not in count.by_kind:
            for fault in _doubled(scans):
                count.add(fault)
        if checkpoint is not None:
            for fault in departures(scans, checkpoint):
                count.add(fault)
        course.tick(proof.seen.events)
    seen = proof.seen
    return Verification(
        ledger=store.ledger,
        events=seen.events,
        locks=seen.locks,
        foreign_streams=seen.foreign_streams,
        audit_entries=seen.audit_entries,
        ended_holds=seen.ended_holds,
        position=newest,
        checkpoint=None if checkpoint is None else checkpoint.position,
        fault_count=count.total,
        by_kind=count.by_kind,
        faults=tuple(count.kept),
        foreign=tuple(foreign),
    )


def _doubled(scans: Scans) -> Iterator[Fault]:
    for position, events in scans.doubled_positions(MAX_FAULTS):
        yield Fault(
            kind="position", position=position, expected="one event", found=f"{events} events"
        )
