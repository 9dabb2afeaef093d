"""What both event stores share: reading a lock's newest event, and what one append writes.

A store works on a connection that somebody else opened and decides nothing. Every change of a lock goes through
`append`, which compares the version of the lock's head row (the current-holder table) and swaps it, and writes events,
audit entries and ended holds with it, or nothing at all.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Select, func, select

from lockledger.adapters.encoding import FIRST, StoredEvent, chain, decode
from lockledger.adapters.failures import readable, translated
from lockledger.adapters.schema import Tables, declared
from lockledger.adapters.statements import ask, run
from lockledger.domain.errors import TamperedLedger
from lockledger.domain.events import EVENTS, LockEvent, LockExtended
from lockledger.domain.holds import Hold, RecordedEvent
from lockledger.domain.keys import lock_id
from lockledger.domain.lock import Lock, evolve
from lockledger.projections import audit_trail, current_holders, holds

Row = dict[str, Any]
Tail = tuple[datetime, tuple[int, str, str, bytes] | None, Row | None]
"""Where a stream ends: the clock, the newest event's version, topic, state and hash, the head row's `HEAD_FACTS`."""
SAVEPOINT: Final = "lockledger_append"


@dataclass(frozen=True, slots=True)
class Newest:
    """A lock as its newest event tells it, that event's hash, and the database's clock when it was read.

    `remembered`: that event as it is stored, where it has not been read now: an append on it has to prove that the lock
    still is so, and that the database's clock has come to this one.
    """

    lock: Lock
    hash: bytes
    clock: datetime
    remembered: StoredEvent | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """All that one append writes to one stream. `moves_token`: a hold begins or ends, so a guard must be waited for.

    `left`: the lock as its last event leaves it. `remembered`: what it is based on, where that has not been read.
    """

    stream: UUID
    expected: int
    events: Sequence[StoredEvent]
    head: Row
    audit: Sequence[Row] = ()
    holds: Sequence[Row] = ()
    moves_token: bool = True
    left: Lock | None = None
    remembered: Newest | None = None

    def left_at(self, clock: datetime) -> "Newest | None":
        """The lock as this leaves it, when it was written at that time."""
        if self.left is None:
            return None
        newest = self.events[-1]
        return Newest(self.left, newest.hash, clock, remembered=newest)


@dataclass(frozen=True, slots=True)
class Appended:
    """Positions in version order, and the database's clock once the lock's head had moved."""

    positions: Sequence[int]
    clock: datetime


@dataclass(frozen=True, slots=True)
class Around:
    """What stands above and under a key, and the database's clock after that was looked up.

    `moving`: locks whose hold has run out, but whose rows another transaction may have in hand: it may have extended
    the hold in time, and not have committed yet.
    """

    clock: datetime
    hold: Hold | None
    moving: Sequence[UUID] = ()


class EventStore(ABC):
    """One ledger's events and projections on one kind of database."""

    dialect: str
    optimistic_attempts: int
    """How often an append is tried on a decision that was made before the lock's head was locked."""
    proves_memories: bool = False
    """Whether an append may be based on what is remembered of a lock instead of a read, as it compares all of that."""
    excludes_writers: bool = False
    """Whether a write transaction keeps all other writers out, whatever lock they want."""

    def __init__(self, ledger: str, schema: str | None) -> None:
        self.ledger = ledger
        self.schema = schema
        self.tables: Tables = declared(self.dialect, schema)
        self.namespace = namespace(self.tables.events.schema or "", ledger)

    def lock_id(self, key: str) -> UUID:
        """The id of the lock with this key in this ledger."""
        return lock_id(self.ledger, key)

    def newest(self, connection: Connection, key: str) -> Newest:
        """The lock with this key: one statement, one index lookup, however many events it has.

        Raises `TamperedLedger` when the lock's head row does not say what its newest event says.
        """
        return self.newest_of(key, self._newest(connection, self.lock_id(key)))

    def newest_of(self, key: str, tail: Tail) -> Newest:
        """The lock with this key, of which `tail` was read. Raises what `newest` raises."""
        stream = self.lock_id(key)
        clock, event, head = tail
        if event is None:
            if head is not None and head["version"] != 0:
                raise TamperedLedger(
                    key, f"its head row is at version {head['version']}, but it has no event"
                )
            return Newest(Lock(stream, key), FIRST, clock)
        version, topic, state, event_hash = event
        if topic not in EVENTS:
            raise TamperedLedger(key, f"its newest event, version {version}, is a foreign {topic}")
        try:
            lock = evolve(decode(stream, version, topic, state))
        except TamperedLedger as fault:
            raise TamperedLedger(
                key, f"its newest event, version {version}, is no readable {topic}"
            ) from fault
        if lock.key != key:
            raise TamperedLedger(key, f"its stream holds events of {lock.key!r}")
        expected = current_holders.row(self.ledger, lock)
        wrong = [name for name in HEAD_FACTS if head is None or head[name] != expected[name]]
        if wrong:
            found = "is missing" if head is None else f"differs in {', '.join(wrong)}"
            raise TamperedLedger(
                key, f"its head row {found}, its newest event is version {version}"
            )
        return Newest(lock, bytes(event_hash), clock)

    def recording(self, newest: Newest, events: Sequence[LockEvent]) -> Append:
        """What has to be written so that these events follow the newest one."""
        stored = tuple(chain(self.ledger, newest.hash, events))
        return self.recording_stored(
            newest.lock.version, events, stored, remembered=newest if newest.remembered else None
        )

    def recording_stored(
        self,
        expected: int,
        events: Sequence[LockEvent],
        stored: Sequence[StoredEvent],
        *,
        remembered: Newest | None = None,
    ) -> Append:
        """What has to be written so that these events, already in their stored form, follow version `expected`."""
        left = evolve(events[-1])
        return Append(
            stream=events[-1].originator_id,
            expected=expected,
            events=stored,
            head=current_holders.row(self.ledger, left),
            audit=[
                audit_trail.row(self.ledger, event, each.hash)
                for event, each in zip(events, stored, strict=True)
            ],
            holds=[row for event in events if (row := holds.row(self.ledger, event)) is not None],
            moves_token=not all(isinstance(event, LockExtended) for event in events),
            left=left,
            remembered=remembered,
        )

    def ended_hold(self, connection: Connection, key: str, token: int) -> Hold | None:
        """The hold of this lock with that token, when it has ended."""
        query = holds.ended_hold(self.tables.holds, self.lock_id(key), token)
        return self._hold(connection, query, key)

    def settled_page(
        self, connection: Connection, after: int, limit: int
    ) -> tuple[list[RecordedEvent], int]:
        """The next settled lock events after a position, and the position up to which none is left to read.

        That is always an event's position: a crash may give positions that never came to be a second time.
        Outside any transaction: in an old snapshot the cursor would pass what it cannot see.
        """
        with translated():
            upto = self.settled(connection, beyond=after)
            if upto <= after:
                return [], after
            rows = self.stored(connection, after=after, upto=upto, limit=limit)
        events = [
            RecordedEvent(position, decode(event.lock_id, event.version, event.topic, event.state))
            for position, event in rows
            if event.topic in EVENTS
        ]
        return events, rows[-1][0] if rows else after

    def newest_settled(self, connection: Connection) -> int:
        """The position of the newest event below which none can appear any more, 0 when there is none.

        Unlike `settled` it is a place to go on from also after a crash. Asked outside any transaction.
        """
        c = self.tables.events.c
        with translated():
            upto = self.settled(connection)
            newest = select(func.max(c.position)).where(c.ledger == self.ledger, c.position <= upto)
            return int(ask(connection, newest).scalar() or 0)

    @contextmanager
    def savepoint(self, connection: Connection) -> Iterator[None]:
        """A savepoint of ours inside an open transaction: an error takes back what was done since, row locks too.

        SQL and not SQLAlchemy's nested transaction, whose bookkeeping and events are the host's.
        """
        run(connection, f"SAVEPOINT {SAVEPOINT}")
        try:
            yield
        except BaseException as error:
            with in_the_place_of(error, connection):
                if self._savepoint_stands(connection):
                    run(connection, f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
                    run(connection, f"RELEASE SAVEPOINT {SAVEPOINT}")
            raise
        run(connection, f"RELEASE SAVEPOINT {SAVEPOINT}")

    @contextmanager
    def transaction(self, connection: Connection, *, key: str | None = None) -> Iterator[None]:
        """A write transaction of our own on an AUTOCOMMIT connection."""
        with translated(key=key):
            self.begin(connection)
        try:
            yield
        except BaseException as error:
            with in_the_place_of(error, connection):
                if not connection.invalidated:
                    self._roll_back(connection)
            raise
        with translated(key=key, commits=True):
            self._commit(connection)

    def _savepoint_stands(self, connection: Connection) -> bool:
        """Whether there is a savepoint left to roll back to after an error."""
        return not connection.invalidated

    def _commit(self, connection: Connection) -> None:
        connection.commit()

    def _roll_back(self, connection: Connection) -> None:
        connection.rollback()

    @abstractmethod
    def begin(self, connection: Connection) -> None:
        """Begins a write transaction on an AUTOCOMMIT connection; `transaction` ends it."""

    @abstractmethod
    def lock_head(self, connection: Connection, key: str, *, moves_token: bool) -> None:
        """Locks the lock's head row in the open transaction, making one at version 0 when there is none."""

    @abstractmethod
    def try_lock_head(self, connection: Connection, key: str) -> bool:
        """Locks the lock's head row, if there is one, in the open transaction; `False` when another one has it."""

    @abstractmethod
    def bound_waits(self, connection: Connection, longest: timedelta) -> None:
        """Lets no statement of the open transaction wait for a lock for longer than this, or than it would have anyway."""

    @abstractmethod
    def clock(self, connection: Connection) -> datetime:
        """What time it is by the clock that holds are judged by."""

    def in_the_way(
        self, connection: Connection, key: str, holder: str, now: datetime
    ) -> Hold | None:
        """A hold of another holder that is live at `now` on a key above or under this one, the first by key."""
        query = current_holders.live_around(
            self.tables.current_holders, self.ledger, key, holder, now
        )
        return self._hold(connection, query, None)

    def _hold(self, connection: Connection, query: Select[Any], key: str | None) -> Hold | None:
        with readable(key=key):
            found = ask(connection, query).mappings().first()
            return None if found is None else current_holders.hold_of(found)

    def around(self, connection: Connection, key: str, holder: str, now: datetime) -> Around:
        """What `in_the_way` gives, with all that could make it wrong."""
        hold = self.in_the_way(connection, key, holder, now)
        return Around(self.clock(connection), hold)

    def lock_moving(
        self, connection: Connection, streams: Sequence[UUID], *, waiting: bool
    ) -> bool:
        """Locks the rows of these locks against every change, in their order, in the open transaction.

        `False` when not `waiting` and another transaction has one.
        """
        return True

    @abstractmethod
    def lock_scopes(
        self, connection: Connection, keys: Sequence[str], *, waiting: bool = True
    ) -> bool:
        """Keeps others from beginning a hold above, on or under these keys before the open transaction ends.

        Siblings never wait for each other. `False` when not `waiting` and another transaction is in the way.
        """

    @abstractmethod
    def guarded(self, connection: Connection, key: str) -> Newest:
        """As `newest`, with the head row locked against whatever sets its token, in the open transaction.

        Extensions do not set it. The clock is that of after the wait for the row.
        """

    @abstractmethod
    def confirm(self, connection: Connection, keys: Sequence[str]) -> None:
        """Raises the database's verdict when holds of these locks, as the open transaction's snapshot shows them, are over.

        Only what has been committed counts; it waits for nobody and keeps nothing locked.
        """

    @abstractmethod
    def append(
        self,
        connection: Connection,
        append: Append,
        *,
        until: datetime | None = None,
        locked: bool = False,
        by_itself: bool = False,
    ) -> Appended | None:
        """Writes all of it, or nothing and returns `None`, when the lock's head is not at the expected version.

        `until`: nothing is written either once the database's clock has reached it, but for a lock's first event, which
        the caller takes back when `Appended.clock` has. `locked`: `lock_head` was called in this transaction.
        `by_itself`: there is no transaction, so that a first event that comes too late takes itself back.
        """

    @abstractmethod
    def lock_heads(self, connection: Connection, keys: Sequence[str], *, waiting: bool) -> set[str]:
        """Locks the head rows of these keys, in the order given, in the open transaction; gives those it got.

        `waiting`: waits for each, and makes one at version 0 where there is none; else passes over those that are not
        there or that another transaction has.
        """

    @abstractmethod
    def append_all(
        self,
        connection: Connection,
        appends: Sequence[Append],
        events: Sequence[StoredEvent],
        *,
        locked: bool = False,
    ) -> list[int] | None:
        """Writes several streams' appends in the open transaction or savepoint, heads first and in order of lock ids.

        `events` are those of all the appends, in the order in which they get positions; these are returned, in that
        order. `None` when a head is not at the expected version: then what was written has to be rolled back.
        `locked`: `lock_heads` was called for all of them, waiting, in this transaction.
        """

    @abstractmethod
    def tails(self, connection: Connection, streams: Sequence[UUID]) -> dict[UUID, Tail]:
        """Where each of these streams ends, whosever they are."""

    @abstractmethod
    def settled(self, connection: Connection, *, beyond: int = 0) -> int:
        """The position up to which no event can appear any more while the server runs; asked outside any transaction.

        No place to go on from after a crash, which may take back positions that no committed event had.

        Who knows already that everything up to `beyond` is settled is spared half the question when nothing is new.
        """

    @abstractmethod
    def stored(
        self, connection: Connection, *, after: int, upto: int, limit: int
    ) -> list[tuple[int, StoredEvent]]:
        """The stored events in (after, upto], at most `limit`, in position order."""

    @abstractmethod
    def _newest(self, connection: Connection, stream: UUID) -> Tail:
        """Where one stream ends."""


@contextmanager
def in_the_place_of(error: BaseException, connection: Connection) -> Iterator[None]:
    """What fails while this error is cleaned up after takes its place, but never that of a cancellation."""
    try:
        yield
    except Exception as failure:
        if isinstance(error, Exception):
            raise
        if not connection.invalidated:
            connection.invalidate(failure)


HEAD_FACTS: Final = ("version", "ledger", "key", "holder", "token", "expires_at")
"""What the read before a decision compares between the head row and the newest event."""


def namespace(schema: str, ledger: str) -> int:
    """16 bits, never 0, that tell this ledger's advisory locks from others'; a collision only delays readers."""
    digest = sha256(f"{schema}\0{ledger}".encode()).digest()
    return int.from_bytes(digest[:2], "big") or 1
