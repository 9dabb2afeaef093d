"""Bringing the past along: lock tables and exported audit trails into a ledger, as events at their own times.

Everything is read first and sorted by lock. Then a batch of whole locks at a time is looked at, and what is missing is
appended in one transaction, with the locks' rows locked in key order: whoever imports the same or takes a lock at the
same time waits, and finds the lock imported or not at all.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, select

from lockledger.adapters.encoding import decode, encode
from lockledger.adapters.failures import translated
from lockledger.adapters.statements import ask
from lockledger.adapters.store import Newest
from lockledger.domain.errors import TamperedLedger, shown
from lockledger.domain.events import LockEvent
from lockledger.domain.lock import evolve
from lockledger.domain.past_holds import Unfit
from lockledger.importing_export import AuditExport
from lockledger.importing_rows import Life, Origin, Refusal, Spool, Told, spool
from lockledger.importing_tables import Database, LiveLocks, LocksWithHistory, TableOrigin
from lockledger.scopes import InMotion, Scopes
from lockledger.verification import Course, OnAdvance
from lockledger.workings import Workings

LOCKS_IN_A_BATCH: Final = 5000
EVENTS_IN_A_BATCH: Final = 20_000
LOCKS_IN_A_QUESTION: Final = 500
MAX_REFUSALS: Final = 1000


class ImportReport(BaseModel):
    """What an import did, or with `dry_run` would have done.

    `rows` were read. `locks` were imported, with `events` in all; `unchanged` locks were there already. `refused` are
    the first 1,000 refusals, `refused_count` counts all: each names a row, and nothing of that row's lock was imported.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger: str
    source: str
    dry_run: bool
    rows: int
    locks: int
    events: int
    unchanged: int
    refused_count: int
    refused: tuple[Refusal, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was refused."""
        return self.refused_count == 0


class ImportingVerbs(ABC):
    """Imports what other systems, or other ledgers, have kept."""

    _workings: Workings

    @abstractmethod
    def _connection(
        self, *, busy_timeout: float | None = None
    ) -> AbstractContextManager[Connection]:
        """A connection in AUTOCOMMIT, the schema looked at."""

    def import_locks(
        self,
        source: LiveLocks | LocksWithHistory | AuditExport,
        *,
        database: Database = None,
        dry_run: bool = False,
        refused: Callable[[Refusal], None] | None = None,
        progress: OnAdvance = None,
    ) -> ImportReport:
        """Imports locks with their past, each as a whole or not at all; what is refused is reported, and no error.

        `database` is where the tables of `LiveLocks` and `LocksWithHistory` are: a URL, an engine or a connection of
        SQLAlchemy, which is only read from; the ledger's own database unless given. `dry_run` changes nothing and tells
        what would be done. `refused` is called with each refusal, of which the report keeps the first 1,000 only.
        `progress` is called after each batch with an `Advance`, which counts rows here.

        Run it again as often as you like: locks that are there already are left alone, and where rows have been added
        to a lock since, what follows is added. A lock that has other events than the source tells of is refused. Each
        batch of up to 5,000 locks or 20,000 events commits by itself: an import that was broken off is run again. Takes go
        on meanwhile. The policy is not asked and not told. Memory is that of a batch; rows are sorted in a temporary
        file.

        Raises `ValueError` for a table or column that is not there, or a file that cannot be read to its end, before
        anything is imported; `OutcomeUnknown` when a batch's commit was lost: run it again.
        """
        origin = _origin(source, database, self._connection)
        tally = _Tally(refused)
        with spool() as rows:
            rows.fill(origin.rows(), tally.refuse)
            course = Course(progress, rows.count)
            most_locks = 1 if self._workings.scopes else LOCKS_IN_A_BATCH
            most_rows = EVENTS_IN_A_BATCH // origin.events_of_a_row
            with self._connection() as connection, translated():
                run = _Import(connection, self._workings, origin, tally, dry_run=dry_run)
                for batch in _batches(rows, locks=most_locks, rows=most_rows):
                    run.take_in(batch)
                    course.before += sum(len(life.rows) for life in batch)
                    course.tick(0)
        return ImportReport(
            ledger=self._workings.name,
            source=origin.name,
            dry_run=dry_run,
            rows=rows.count,
            locks=tally.locks,
            events=tally.events,
            unchanged=tally.unchanged,
            refused_count=tally.refused_count,
            refused=tuple(tally.refused),
        )


def _origin(
    source: LiveLocks | LocksWithHistory | AuditExport,
    database: Database,
    own: Callable[[], AbstractContextManager[Connection]],
) -> Origin:
    if isinstance(source, AuditExport):
        if database is not None:
            raise TypeError("database= is for tables; an audit export is read from its file")
        return source.origin()
    if isinstance(source, LiveLocks | LocksWithHistory):
        return TableOrigin(source, database, own)
    raise TypeError(
        f"import_locks wants LiveLocks, LocksWithHistory or AuditExport, not {shown(source)}"
    )


def _batches(spooled: Spool, *, locks: int, rows: int) -> Iterator[list[Life]]:
    """Whole locks, so many at most, with so many rows at most unless it is a single one."""
    batch: list[Life] = []
    size = 0
    for life in spooled.lives():
        if batch and (len(batch) == locks or size + len(life.rows) > rows):
            yield batch
            batch, size = [], 0
        batch.append(life)
        size += len(life.rows)
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class _Decided:
    """What becomes of one lock: the events that are to follow its newest one, none when it is there, or why not."""

    life: Life
    newest: Newest
    events: Sequence[LockEvent] = ()
    ranks: Sequence[object] = ()
    refusal: Refusal | None = None


class _TakenBack(Exception):
    """No error: it ends a transaction in which nothing was recorded, so that no row that was made to be locked stays."""

    def __init__(self, decided: Sequence[_Decided]) -> None:
        self.decided = decided
        super().__init__(decided)


class _Tally:
    """What was done so far."""

    def __init__(self, told: Callable[[Refusal], None] | None) -> None:
        self._told = told
        self.locks = self.events = self.unchanged = self.refused_count = 0
        self.refused: list[Refusal] = []

    def refuse(self, refusal: Refusal) -> None:
        """Counts it, and tells whoever asked."""
        self.refused_count += 1
        if len(self.refused) < MAX_REFUSALS:
            self.refused.append(refusal)
        if self._told is not None:
            self._told(refusal)

    def count(self, decided: _Decided) -> None:
        """Counts what became of a lock."""
        if decided.refusal is not None:
            self.refuse(decided.refusal)
        elif decided.events:
            self.locks += 1
            self.events += len(decided.events)
        else:
            self.unchanged += 1


class _Import:
    """One import into one ledger, on a connection in AUTOCOMMIT."""

    def __init__(
        self,
        connection: Connection,
        workings: Workings,
        origin: Origin,
        tally: _Tally,
        *,
        dry_run: bool,
    ) -> None:
        self._connection = connection
        self._workings = workings
        self._store = workings.store
        self._origin = origin
        self._now = workings.clock(connection)
        self._tally = tally
        self._dry_run = dry_run

    def take_in(self, lives: Sequence[Life]) -> None:
        """Imports what is missing of these locks."""
        usable = [life for life in lives if not self._faulty(life)]
        decided = self._decided(usable, {})
        missing = {each.life.key: each for each in decided if each.events}
        if missing and not self._dry_run:
            for each in self._recorded(missing):
                missing[each.life.key] = each
            decided = [missing.get(each.life.key, each) for each in decided]
        for each in decided:
            self._tally.count(each)

    def _faulty(self, life: Life) -> bool:
        faulty = [row for row in life.rows if row.fault is not None]
        for row in faulty:
            self._tally.refuse(Refusal(row=row.id, key=life.key, reason=row.fault or ""))
        return bool(faulty)

    def _recorded(self, missing: dict[str, _Decided]) -> Sequence[_Decided]:
        """Appends in a transaction of its own, once the locks' rows are locked and looked at again."""
        while True:
            try:
                with self._store.transaction(self._connection):
                    return self._record(missing)
            except _TakenBack as nothing:
                return nothing.decided
            except InMotion as motion:
                self._workings.commands.let_pass(self._connection, motion, None, inside=False)

    def _record(self, missing: dict[str, _Decided]) -> Sequence[_Decided]:
        keys = sorted(missing)
        if self._workings.scopes:
            self._store.lock_scopes(self._connection, keys)
        self._store.lock_heads(self._connection, keys, waiting=True)
        decided = self._decided([missing[key].life for key in keys], missing)
        decided = [self._in_scope(each) for each in decided]
        appending = [each for each in decided if each.events]
        if not appending:
            raise _TakenBack(decided)
        self._append(appending)
        return decided

    def _append(self, decided: Sequence[_Decided]) -> None:
        appends = [self._store.recording(each.newest, each.events) for each in decided]
        ranked = [
            (rank, number, event)
            for number, (each, append) in enumerate(zip(decided, appends, strict=True))
            for rank, event in zip(each.ranks, append.events, strict=True)
        ]
        ranked.sort(key=lambda each: each[:2])
        stored = [event for _, _, event in ranked]
        if self._store.append_all(self._connection, appends, stored, locked=True) is None:
            raise TamperedLedger(None, "a head row refused the next version although it was locked")

    def _in_scope(self, decided: _Decided) -> _Decided:
        """The same, unless it ends held where another holder has a live hold above or under it."""
        live = evolve(decided.events[-1]).live_hold(self._now) if decided.events else None
        if live is None or not self._workings.scopes:
            return decided
        newest = decided.newest
        now = newest.lock.now(newest.clock)
        around = Scopes(self._store).around(self._connection, live.key, live.holder, now)
        if around.hold is None:
            return decided
        return self._refused(
            decided.life,
            newest,
            decided.life.rows[-1].id,
            f"{shown(live.holder)} would hold it, but {shown(around.hold.holder)} holds"
            f" {shown(around.hold.key)}; end one of the two holds first",
        )

    def _decided(self, lives: Sequence[Life], before: dict[str, _Decided]) -> list[_Decided]:
        """What becomes of each; `before` is what was decided already, which holds where the lock has not moved."""
        ids = {life.key: self._store.lock_id(life.key) for life in lives}
        tails = self._store.tails(self._connection, list(ids.values()))
        newest = {life.key: self._store.newest_of(life.key, tails[ids[life.key]]) for life in lives}
        moved = [
            life
            for life in lives
            if life.key not in before
            or before[life.key].newest.lock.version != newest[life.key].lock.version
        ]
        there = self._there([life for life in moved if newest[life.key].lock.version])
        anew = {life.key for life in moved}
        return [
            self._decide(life, newest[life.key], there.get(life.key, []))
            if life.key in anew
            else _renewed(before[life.key], newest[life.key])
            for life in lives
        ]

    def _there(self, lives: Sequence[Life]) -> dict[str, list[LockEvent]]:
        """The first events that the ledger has of these locks, as many as their rows could tell of."""
        there: dict[str, list[LockEvent]] = {life.key: [] for life in lives}
        c = self._store.tables.events.c
        for start in range(0, len(lives), LOCKS_IN_A_QUESTION):
            some = {
                self._store.lock_id(life.key): life
                for life in lives[start : start + LOCKS_IN_A_QUESTION]
            }
            most = max(map(self._most_events, some.values()))
            query = select(c.lock_id, c.version, c.topic, c.state).order_by(c.lock_id, c.version)
            query = query.where(c.lock_id.in_(some), c.version <= most)
            for stream, version, topic, state in ask(self._connection, query):
                if version <= self._most_events(some[stream]):
                    there[some[stream].key].append(decode(stream, version, topic, state))
        return there

    def _most_events(self, life: Life) -> int:
        return len(life.rows) * self._origin.events_of_a_row

    def _decide(self, life: Life, newest: Newest, there: Sequence[LockEvent]) -> _Decided:
        try:
            told = self._origin.told(self._store, life.key, life.rows, there, self._now)
        except Unfit as fault:
            return self._refused(life, newest, fault.row, fault.why)
        same = _same(told, there)
        if same < min(len(there), len(told.events)) and same < told.needed:
            return self._refused(life, newest, life.rows[0].id, _other(told, there, same))
        if newest.lock.version > same or same == len(told.events):
            return _Decided(life, newest)
        return _Decided(life, newest, told.events[same:], told.ranks[same:])

    def _refused(self, life: Life, newest: Newest, row: int | str, why: str) -> _Decided:
        return _Decided(life, newest, refusal=Refusal(row=row, key=life.key, reason=why))


def _renewed(before: _Decided, newest: Newest) -> _Decided:
    return _Decided(before.life, newest, before.events, before.ranks, before.refusal)


def _same(told: Told, there: Sequence[LockEvent]) -> int:
    """How many events from the first are the same, to the letter."""
    same = 0
    for event, other in zip(told.events, there, strict=False):
        if encode(event) != encode(other):
            break
        same += 1
    return same


def _other(told: Told, there: Sequence[LockEvent], same: int) -> str:
    found, expected = there[same], told.events[same]
    return (
        f"the lock has other events already: its version {same + 1} is a {found.action} by"
        f" {shown(found.holder)} at {found.timestamp.isoformat()}, and not the {expected.action} by"
        f" {shown(expected.holder)} at {expected.timestamp.isoformat()} that the source tells of;"
        f" they differ in {', '.join(_differing(found, expected))}"
    )


def _differing(one: LockEvent, other: LockEvent) -> list[str]:
    ours, theirs = one.model_dump(), other.model_dump()
    names = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    return names if type(one) is type(other) else ["action", *names]
