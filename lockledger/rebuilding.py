"""Making what is derived from the events what follows from them, while takes and reads go on.

Nothing is swapped. A part of the locks at a time is compared in a snapshot, and only what differs is touched, in short
transactions: whoever stops it at any moment leaves whole rows, and the next one goes on with what still differs.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import monotonic
from typing import Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection

from lockledger.adapters.failures import UNIQUE_VIOLATION, sqlstate, translated
from lockledger.adapters.identifiers import SQLITE
from lockledger.adapters.mending import Tally
from lockledger.adapters.postgres_mending import PostgresMender
from lockledger.adapters.proof import Proof
from lockledger.adapters.repairs import Repairs
from lockledger.adapters.scans import Between, Scans
from lockledger.adapters.snapshots import any_text, snapshot
from lockledger.adapters.sqlite_mending import SQLiteMender
from lockledger.adapters.store import EventStore
from lockledger.domain.faults import Fault, FaultCount, FaultKind
from lockledger.verification import Course, OnAdvance

EVENTS_IN_A_PART: Final = 20_000

Opened = Callable[[], AbstractContextManager[Connection]]


class Rebuilt(BaseModel):
    """What a rebuild did.

    `inserted`, `corrected` and `removed` count rows. `left` are differences that remain: the role does not own the
    tables, a transaction stood in the way for a minute, or the events themselves are faulty; the first 1,000,
    `left_count` counts all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger: str
    events: int
    seconds: float
    inserted: int
    corrected: int
    removed: int
    left_count: int
    by_kind: dict[FaultKind, int]
    left: tuple[Fault, ...]
    needs_owner: bool

    @property
    def ok(self) -> bool:
        """Whether all projections say now what follows from the events."""
        return self.left_count == 0


def rebuild(
    opened: Opened, store: EventStore, *, sleep: Callable[[float], None], told: OnAdvance
) -> Rebuilt:
    """Repairs the ledger's projections on connections in AUTOCOMMIT; see `LockLedger.rebuild`."""
    tally, began = Tally(store.dialect), monotonic()
    with translated(), opened() as connection:
        with snapshot(connection):
            total = Scans(store, connection).count_events()
        course = Course(told, total)
        mend = _mend_on_sqlite if store.dialect == SQLITE else _mend_on_postgres
        for part in parts(total):
            course.before += mend(opened, connection, store, part, tally, course, sleep)
            course.tick(0)
    return Rebuilt(
        ledger=store.ledger,
        events=course.before,
        seconds=monotonic() - began,
        inserted=tally.inserted,
        corrected=tally.corrected,
        removed=tally.removed,
        left_count=tally.left.total,
        by_kind=tally.left.by_kind,
        left=tuple(tally.left.kept),
        needs_owner=tally.needs_owner,
    )


def parts(events: int) -> Iterator[Between]:
    """All locks, in parts of about equal size: ids of locks are hashes, so equal shares of them have equally many."""
    count = max(1, -(-events // EVENTS_IN_A_PART))
    bounds = [UUID(int=(1 << 128) * number // count) for number in range(1, count)]
    yield from map(Between, [None, *bounds], [*bounds, None])


def _mend_on_sqlite(
    _opened: Opened,
    connection: Connection,
    store: EventStore,
    part: Between,
    tally: Tally,
    course: Course,
    _sleep: Callable[[float], None],
) -> int:
    """One part. Only where something differs is the write lock taken, and the part compared again under it."""
    with snapshot(connection):
        proof = Proof(store, connection, between=part, rules=False, tick=course.tick)
        sound = not any(True for _ in proof.findings())
    if sound:
        return proof.seen.events
    mended, found = Tally(store.dialect), FaultCount()
    with any_text(connection), store.transaction(connection):
        proof = Proof(store, connection, between=part, rules=False)
        mender = SQLiteMender(Repairs(store, connection), mended)
        for finding in proof.findings():
            if isinstance(finding, Fault):
                found.add(finding)
            else:
                mender.mend(finding)
        mender.finish()
    tally.add(mended)
    tally.left.extend(found)
    return proof.seen.events


def _mend_on_postgres(
    opened: Opened,
    connection: Connection,
    store: EventStore,
    part: Between,
    tally: Tally,
    course: Course,
    sleep: Callable[[float], None],
) -> int:
    """One part, compared on one connection and repaired on another, which is opened when something differs."""
    copying = True
    while True:
        found = FaultCount()
        proof = Proof(store, connection, between=part, rules=False, tick=course.tick)
        mender = PostgresMender(opened, store, tally, sleep, copying=copying)
        try:
            with mender:
                with snapshot(connection):
                    for finding in proof.findings():
                        if isinstance(finding, Fault):
                            found.add(finding)
                        else:
                            mender.mend(finding)
                mender.finish()
        except Exception as error:
            # Another rebuild was there first, or the row is another ledger's: look at each row before inserting it.
            if not copying or sqlstate(error) != UNIQUE_VIOLATION:
                raise
            copying = False
            continue
        tally.left.extend(found)
        return proof.seen.events
