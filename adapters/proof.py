"""What a ledger's projections say beside what follows from its events: four tables, merged in the order of locks.

An append writes events and projections in one transaction, so that in one snapshot they agree at any moment, whoever is
writing. What follows from an event that cannot be believed is not judged.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from lockledger.adapters.chains import Chain
from lockledger.adapters.differences import COLUMNS, Difference, Expected, Projected, differing
from lockledger.adapters.identifiers import POSTGRESQL
from lockledger.adapters.scans import (
    AUDIT_TRAIL,
    EVENTS,
    EVERYTHING,
    HEADS,
    HOLDS,
    Between,
    Row,
    Scans,
    agreement_of,
    form_of,
)
from lockledger.adapters.store import EventStore
from lockledger.domain.errors import shown
from lockledger.domain.events import LockEvent
from lockledger.domain.faults import Fault
from lockledger.domain.lock import evolve
from lockledger.projections import audit_trail, current_holders, holds

_EVENTS_BETWEEN_TICKS: Final = 1000


@dataclass(slots=True)
class Seen:
    """What was read so far."""

    events: int = 0
    locks: int = 0
    foreign_streams: int = 0
    audit_entries: int = 0
    ended_holds: int = 0
    heads: int = 0


class _Tape:
    """Rows in order, with the next one in view."""

    __slots__ = ("_rows", "next")

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self.next: Row | None = None
        self.forward()

    def forward(self) -> None:
        self.next = next(self._rows, None)

    def precedes(self, lock_id: str, number: int) -> bool:
        """Whether the next row is of this lock and before this number."""
        row = self.next
        return row is not None and row[1] < number and row[0] == lock_id


class Proof:
    """Goes through a ledger in one snapshot, and tells what is wrong; `tick` is called about every thousand events."""

    def __init__(
        self,
        store: EventStore,
        connection: Connection,
        *,
        between: Between = EVERYTHING,
        last_position: int | None = None,
        rules: bool = True,
        tick: Callable[[int], None] | None = None,
        name_foreign: Callable[[UUID], None] | None = None,
    ) -> None:
        self.seen = Seen()
        self._scans = Scans(store, connection)
        self._between = between
        self._store = store
        self._last_position = last_position
        self._rules = rules
        self._tick = tick
        self._name_foreign = name_foreign
        self._unreadable: list[Fault] = []
        self._events = self._heads = self._audit = self._holds = _Tape(iter(()))
        self._form = {table: form_of(store.dialect, columns) for table, columns in COLUMNS.items()}
        self._agree = {
            table: agreement_of(store.dialect, columns) for table, columns in COLUMNS.items()
        }

    def findings(self) -> Iterator[Fault | Difference]:
        """All that is wrong, in the order of locks; to be asked for inside the snapshot."""
        scans, between = self._scans, self._between
        self._events = _Tape(self._readable(scans.events(between), EVENTS, 2))
        self._heads = _Tape(self._readable(scans.heads(between), HEADS, 1))
        self._audit = _Tape(self._readable(scans.audit_trail(between), AUDIT_TRAIL, 2))
        self._holds = _Tape(self._readable(scans.holds(between), HOLDS, 2))
        tapes = (self._events, self._heads, self._audit, self._holds)
        while rows := [tape.next for tape in tapes if tape.next is not None]:
            yield from self._lock(min(map(itemgetter(0), rows)))
            while self._unreadable:
                yield self._unreadable.pop()
        yield from self._unreadable

    def _readable(self, rows: Iterator[Row], columns: Sequence[str], keys: int) -> Iterator[Row]:
        """Rows whose key is one; SQLite keeps anything in any column."""
        if self._store.dialect == POSTGRESQL:
            return rows
        return self._readable_of_any(rows, columns, keys)

    def _readable_of_any(
        self, rows: Iterator[Row], columns: Sequence[str], keys: int
    ) -> Iterator[Row]:
        known: Any = None
        for row in rows:
            readable = row[0] == known or _is_id(row[0])
            if readable:
                known = row[0]
                readable = keys == 1 or isinstance(row[1], int)
            if readable:
                yield row
            else:
                found = ", ".join(
                    f"{name}={shown(value)}" for name, value in zip(columns, row, strict=True)
                )
                self._unreadable.append(
                    Fault(kind="row_unreadable", expected="a lock's id and a number", found=found)
                )

    def _lock(self, lock_id: str) -> Iterator[Fault | Difference]:
        chain = Chain(
            self._store.ledger,
            UUID(lock_id),
            key=self._key(lock_id),
            last_position=self._last_position,
            rules=self._rules,
        )
        newest: LockEvent | None = None
        began = False
        while (row := self._events.next) is not None and row[0] == lock_id:
            began = True
            self._events.forward()
            _, version, position, topic, state, stored = row
            if version > chain.version + 1:
                yield chain.skip_to(version)
            if self._audit.precedes(lock_id, version):
                yield from self._earlier_entries(lock_id, chain, version)
            yield from chain.follow(version, position, topic, state, stored)
            newest = chain.event
            if newest is None:
                yield from self._unjudged(lock_id, chain, version)
            else:
                yield from self._entry(lock_id, chain, newest, version, position, stored)
                yield from self._ended(lock_id, chain, newest)
            self.seen.events += 1
            if self._tick is not None and self.seen.events % _EVENTS_BETWEEN_TICKS == 0:
                self._tick(self.seen.events)
        if began and chain.foreign:
            self.seen.foreign_streams += 1
            if self._name_foreign is not None:
                self._name_foreign(chain.stream)
        elif began:
            self.seen.locks += 1
        yield from self._end_of_lock(lock_id, chain, newest)

    def _key(self, lock_id: str) -> str | None:
        """What other tables call the lock."""
        for tape, place in ((self._heads, _KEY_OF_HEAD), (self._audit, _KEY_OF_ENTRY)):
            row = tape.next
            if row is not None and row[0] == lock_id and isinstance(row[place], str):
                return str(row[place])
        return None

    def _unjudged(self, lock_id: str, chain: Chain, version: int) -> Iterator[Difference]:
        """Nothing can be said of the entry; but it may know what the next event is chained to."""
        row = self._audit.next
        if row is None or row[0] != lock_id or row[1] != version:
            return
        self._take_entry()
        if chain.foreign:
            yield self._extra("audit", chain, row)
        else:
            chain.witnessed(row[_HASH])

    def _earlier_entries(self, lock_id: str, chain: Chain, version: int) -> Iterator[Difference]:
        """Entries before a version that no event stands for, unless the event is known to be missing."""
        while (row := self._audit.next) is not None and row[0] == lock_id and row[1] < version:
            self._take_entry()
            if row[1] not in chain.gap:
                yield self._extra("audit", chain, row)
            elif row[1] == version - 1:
                chain.witnessed(row[_HASH])

    def _entry(
        self, lock_id: str, chain: Chain, event: LockEvent, version: int, position: Any, stored: Any
    ) -> list[Difference]:
        expected = audit_trail.row(self._store.ledger, event, stored)
        expected["position"] = position
        row = self._audit.next
        if row is None or row[0] != lock_id or row[1] != version:
            return [self._difference("audit", chain, version, expected, None, position=position)]
        self._take_entry()
        columns = self._differing("audit", expected, row)
        if chain.misplaced and "position" in columns:
            columns.remove("position")
        if not columns:
            return []
        if columns == ["position"]:
            chain.position = (
                min(position, row[_POSITION]) if isinstance(row[_POSITION], int) else position
            )
        return [self._difference("audit", chain, version, expected, row, columns, position)]

    def _ended(self, lock_id: str, chain: Chain, event: LockEvent) -> Iterator[Difference]:
        expected = holds.row(self._store.ledger, event)
        if expected is None:
            return
        token = expected["token"]
        if token <= chain.ended_token:
            return  # a hold ends once; that an event ends it again breaks a rule
        chain.ended_token = token
        yield from self._unended(lock_id, chain, token)
        row = self._holds.next
        if row is None or row[0] != lock_id or row[1] != token:
            yield self._difference("hold", chain, token, expected, None)
            return
        self._take_hold()
        if columns := self._differing("hold", expected, row):
            yield self._difference("hold", chain, token, expected, row, columns)

    def _unended(self, lock_id: str, chain: Chain, before: int | None) -> Iterator[Difference]:
        """Ended holds before a token that no event ended, unless an event that might have is missing or wrong."""
        while (row := self._holds.next) is not None and row[0] == lock_id:
            if before is not None and row[1] >= before:
                return
            self._take_hold()
            if not chain.faulty:
                yield self._extra("hold", chain, row)

    def _end_of_lock(
        self, lock_id: str, chain: Chain, newest: LockEvent | None
    ) -> Iterator[Fault | Difference]:
        head = self._heads.next
        if head is not None and head[0] == lock_id:
            self._heads.forward()
            self.seen.heads += 1
        else:
            head = None
        cut = yield from self._cut_tail(lock_id, chain, head)
        while (row := self._audit.next) is not None and row[0] == lock_id:
            self._take_entry()
            if not cut:
                yield self._extra("audit", chain, row)
        yield from self._unended(lock_id, chain, None)
        if not cut:
            yield from self._head(chain, newest, head)

    def _cut_tail(
        self, lock_id: str, chain: Chain, head: Row | None
    ) -> Generator[Fault, None, bool]:
        """Whether audit trail and head, or what is left of them, agree that there were more events."""
        row = self._audit.next
        if row is None or row[0] != lock_id or row[1] != chain.version + 1 or chain.foreign:
            return False
        if head is not None and head[_VERSION_OF_HEAD] <= chain.version:
            return False
        last = row[1]
        while (row := self._audit.next) is not None and row[0] == lock_id:
            self._take_entry()
            last = row[1]
        yield chain.ends_at(last)
        return True

    def _head(
        self, chain: Chain, newest: LockEvent | None, head: Row | None
    ) -> Iterator[Difference]:
        ledger = self._store.ledger
        if chain.foreign is None:
            # One at version 0 was made to be locked by a call that recorded nothing.
            if head is not None and head[_VERSION_OF_HEAD] != 0:
                yield self._extra("head", chain, head)
            return
        if chain.foreign:
            expected = current_holders.foreign_row(ledger, chain.stream, chain.version)
        elif newest is not None:
            expected = current_holders.row(ledger, evolve(newest))
        else:
            return
        if head is None:
            yield self._difference("head", chain, chain.version, expected, None)
        elif columns := self._differing("head", expected, head):
            yield self._difference("head", chain, chain.version, expected, head, columns)

    def _differing(self, table: Projected, expected: Expected, found: Row) -> list[str]:
        """The columns in which a row is not as it should be."""
        if self._agree[table](expected, found):
            return []
        return differing(table, self._form[table](expected), found)

    def _take_entry(self) -> None:
        self._audit.forward()
        self.seen.audit_entries += 1

    def _take_hold(self) -> None:
        self._holds.forward()
        self.seen.ended_holds += 1

    def _extra(self, table: Projected, chain: Chain, row: Row) -> Difference:
        position = row[_POSITION] if table == "audit" else None
        number = None if table == "head" else row[1]
        key = row[COLUMNS[table].index("key")]
        return Difference(
            table,
            chain.stream,
            chain.key or (key if isinstance(key, str) else None),
            number,
            position if isinstance(position, int) else None,
            None,
            row,
        )

    def _difference(
        self,
        table: Projected,
        chain: Chain,
        number: int,
        expected: Expected,
        found: Row | None,
        columns: Sequence[str] = (),
        position: int | None = None,
    ) -> Difference:
        return Difference(
            table, chain.stream, chain.key, number, position, expected, found, columns
        )


_HASH: Final = AUDIT_TRAIL.index("event_hash")
_POSITION: Final = AUDIT_TRAIL.index("position")
_KEY_OF_ENTRY: Final = AUDIT_TRAIL.index("key")
_KEY_OF_HEAD: Final = HEADS.index("key")
_VERSION_OF_HEAD: Final = HEADS.index("version")


def _is_id(value: Any) -> bool:
    try:
        lock_id = UUID(value)
    except (ValueError, TypeError, AttributeError):
        return False
    return value in (str(lock_id), lock_id.hex)
