"""The event store on SQLite: separate statements in one write transaction, the same compare-and-swap.

SQLite lets one writer at a time in, so commit order is position order and what a reader sees has no gaps to come.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from lockledger.adapters import schema as names
from lockledger.adapters.encoding import StoredEvent
from lockledger.adapters.statements import run
from lockledger.adapters.store import (
    HEAD_FACTS,
    Append,
    Appended,
    EventStore,
    Newest,
    Row,
    Tail,
    in_the_place_of,
)
from lockledger.projections import audit_trail, current_holders, holds
from lockledger.projections.columns import instant_from_text, instant_to_text


class SQLiteEventStore(EventStore):
    """One ledger's events and projections in one SQLite file."""

    dialect = "sqlite"
    # Several statements make an append, so it needs a write transaction; and that locks more than any head row.
    optimistic_attempts = 0
    excludes_writers = True

    def begin(self, connection: Connection) -> None:
        if not connection.in_transaction():
            connection.begin()  # so that a policy finds the connection in the transaction that it is in
        run(connection, "BEGIN IMMEDIATE")

    # By SQL: with `autocommit=True`, which sqlite3 has since Python 3.12, its own commit() and rollback() do nothing.
    def _commit(self, connection: Connection) -> None:
        try:
            run(connection, "COMMIT")
        except BaseException as error:
            with in_the_place_of(error, connection):
                self._roll_back(connection)
            raise
        connection.commit()

    def _roll_back(self, connection: Connection) -> None:
        if self._savepoint_stands(connection):
            run(connection, "ROLLBACK")
        connection.rollback()

    def _savepoint_stands(self, connection: Connection) -> bool:
        if not super()._savepoint_stands(connection):
            return False
        # Some errors, a full disk among them, make SQLite roll back the whole transaction by itself.
        driver: Any = connection.connection.driver_connection
        return bool(driver.in_transaction)

    def lock_head(self, connection: Connection, key: str, *, moves_token: bool) -> None:
        """Nothing to do: the write transaction holds every row."""

    def try_lock_head(self, connection: Connection, key: str) -> bool:
        """Nothing to do: the write transaction holds every row."""
        return True

    def bound_waits(self, connection: Connection, longest: timedelta) -> None:
        """Nothing to do: the write transaction waits for nobody any more."""

    def clock(self, connection: Connection) -> datetime:
        return datetime.now(UTC)

    def lock_scopes(
        self, connection: Connection, keys: Sequence[str], *, waiting: bool = True
    ) -> bool:
        """Nothing to do: the write transaction keeps everybody out."""
        return True

    def confirm(self, connection: Connection, keys: Sequence[str]) -> None:
        pass  # a transaction whose snapshot is old can write nothing at all

    def guarded(self, connection: Connection, key: str) -> Newest:
        """The write transaction holds every row."""
        return self.newest(connection, key)

    def append(
        self,
        connection: Connection,
        append: Append,
        *,
        until: datetime | None = None,
        locked: bool = False,
        by_itself: bool = False,
    ) -> Appended | None:
        clock = datetime.now(UTC)
        if until is not None and clock >= until:
            return None
        head = _plain(append.head)
        if not self._head_moved(connection, head, append.expected):
            return None
        positions = [self._insert_event(connection, event) for event in append.events]
        self._project(connection, append, positions)
        return Appended(positions, clock)

    def lock_heads(self, connection: Connection, keys: Sequence[str], *, waiting: bool) -> set[str]:
        """Nothing to do: the write transaction holds every row."""
        return set(keys)

    def append_all(
        self,
        connection: Connection,
        appends: Sequence[Append],
        events: Sequence[StoredEvent],
        *,
        locked: bool = False,
    ) -> list[int] | None:
        for append in appends:
            if not self._head_moved(connection, _plain(append.head), append.expected):
                return None
        positions = [self._insert_event(connection, event) for event in events]
        places = {
            (event.lock_id, event.version): position
            for event, position in zip(events, positions, strict=True)
        }
        for append in appends:
            mine = [places[event.lock_id, event.version] for event in append.events]
            self._project(connection, append, mine)
        return positions

    def _project(self, connection: Connection, append: Append, positions: Sequence[int]) -> None:
        for row, position in zip(append.audit, positions, strict=False):
            run(connection, _INSERT_AUDIT, _plain(row) | {"position": position})
        for row in append.holds:
            run(connection, _INSERT_HOLD, _plain(row))

    def _head_moved(self, connection: Connection, head: Row, expected: int) -> bool:
        """A missing head may begin at the first version only, never at version 6."""
        if expected < 1 and run(connection, _INSERT_HEAD, head).rowcount == 1:
            return True
        return run(connection, _MOVE_HEAD, head | {"expected": expected}).rowcount == 1

    def _insert_event(self, connection: Connection, event: StoredEvent) -> int:
        values = (
            event.lock_id.hex,
            event.version,
            self.ledger,
            event.topic,
            event.state,
            event.hash,
        )
        position = run(connection, _INSERT_EVENT, values).lastrowid
        return int(position)

    def settled(self, connection: Connection, *, beyond: int = 0) -> int:
        return int(run(connection, _LAST_POSITION, (self.ledger,)).scalar() or beyond)

    def stored(
        self, connection: Connection, *, after: int, upto: int, limit: int
    ) -> list[tuple[int, StoredEvent]]:
        rows = run(connection, _STORED, (self.ledger, after, upto, limit))
        return [(row[0], StoredEvent(UUID(row[1]), *row[2:6])) for row in rows]

    def tails(self, connection: Connection, streams: Sequence[UUID]) -> dict[UUID, Tail]:
        return {stream: self._newest(connection, stream) for stream in streams}

    def _newest(self, connection: Connection, stream: UUID) -> Tail:
        row = run(connection, _NEWEST, (stream.hex, stream.hex)).one()
        clock = datetime.now(UTC)
        event, head = tuple(row[:4]), row[4:]
        if head[0] is None:
            return clock, None if event[0] is None else event, None
        facts: Row = dict(zip(HEAD_FACTS, head, strict=True))
        facts["expires_at"] = _instant_or_else(facts["expires_at"])
        return clock, None if event[0] is None else event, facts


def _instant_or_else(stored: Any) -> Any:
    """The instant that is stored, or what somebody put in its place, which will differ from any instant."""
    try:
        return None if stored is None else instant_from_text(stored)
    except (TypeError, ValueError):
        return stored


def _plain(row: Row) -> Row:
    """A row as the driver takes it: instants as fixed-width text, ids as hexadecimal digits."""
    plain: Row = {}
    for name, value in row.items():
        convert = _CONVERTED.get(type(value))
        plain[name] = value if convert is None else convert(value)
    return plain


_CONVERTED: dict[type, Callable[[Any], Any]] = {
    datetime: instant_to_text,
    UUID: attrgetter("hex"),
}
"""By the exact type: what comes out of an event is never a subclass."""


def _insert(table: str, columns: Sequence[str], *, quiet: bool = False) -> str:
    listed = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(f":{name}" for name in columns)
    conflict = " ON CONFLICT (lock_id) DO NOTHING" if quiet else ""
    return f"INSERT INTO {table} ({listed}) VALUES ({values}){conflict}"


_NEWEST = f"""
SELECT e.version, e.topic, e.state, e.hash, {", ".join(f"h.{name}" for name in HEAD_FACTS)}
FROM (SELECT 1) AS wanted
LEFT JOIN (
    SELECT version, topic, state, hash FROM {names.EVENTS} WHERE lock_id = ? ORDER BY version DESC LIMIT 1) AS e
LEFT JOIN {names.CURRENT_HOLDERS} AS h ON h.lock_id = ?
"""

_STORED = f"""
SELECT position, lock_id, version, topic, state, hash FROM {names.EVENTS}
WHERE ledger = ? AND position > ? AND position <= ? ORDER BY position LIMIT ?
"""

_LAST_POSITION = f"SELECT max(position) FROM {names.EVENTS} WHERE ledger = ?"

_MOVE_HEAD = f"""
UPDATE {names.CURRENT_HOLDERS}
SET {", ".join(f'"{name}" = :{name}' for name in current_holders.COLUMNS if name not in ("lock_id", "ledger"))}
WHERE lock_id = :lock_id AND ledger = :ledger AND version = :expected
"""

_INSERT_HEAD = _insert(names.CURRENT_HOLDERS, current_holders.COLUMNS, quiet=True)

_INSERT_EVENT = f"""
INSERT INTO {names.EVENTS} (lock_id, version, ledger, topic, state, hash) VALUES (?, ?, ?, ?, ?, ?)
"""

_INSERT_AUDIT = _insert(names.AUDIT_TRAIL, (*audit_trail.COLUMNS, "position"))

_INSERT_HOLD = _insert(names.HOLDS, holds.COLUMNS)
