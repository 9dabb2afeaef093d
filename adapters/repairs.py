"""Rows of projections put right: what is missing is inserted, which any role may; what is wrong only the owner can change.

The append-only triggers are put aside inside one short transaction, and are back when it ends, however it ends.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Table, Uuid

from lockledger.adapters.differences import COLUMNS, Projected
from lockledger.adapters.encoding import decode
from lockledger.adapters.identifiers import POSTGRESQL
from lockledger.adapters.scans import Row, form_of, named, selected
from lockledger.adapters.statements import run
from lockledger.adapters.store import EventStore
from lockledger.domain.events import EVENTS
from lockledger.domain.lock import evolve
from lockledger.projections import current_holders
from lockledger.projections.columns import Instant, Json

NUMBER: Final[dict[Projected, str | None]] = {"head": None, "audit": "version", "hold": "token"}
LONGEST_WAIT: Final = "50ms"
"""How long a repair waits for a table, and so how long a take may wait behind it."""

Key = tuple[Any, ...]
"""A row's lock id, as text, and its number where it has one."""


class Repairs:
    """Repairs of one ledger's projections, in the open write transaction of a connection."""

    def __init__(self, store: EventStore, connection: Connection) -> None:
        self._store = store
        self._connection = connection
        self._postgres = store.dialect == POSTGRESQL
        tables = store.tables
        self.tables: dict[Projected, Table] = {
            "head": tables.current_holders,
            "audit": tables.audit_trail,
            "hold": tables.holds,
        }

    def insert(self, table: Projected, row: Row) -> None:
        """A row that is missing, unless somebody has put it there meanwhile."""
        columns = COLUMNS[table]
        listed = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(self._mark(table, name) for name in columns)
        # SQLite's trigger refuses a key that is there, whatever the statement says about conflicts.
        conflict = " ON CONFLICT DO NOTHING" if self._postgres else ""
        sql = f"INSERT INTO {named(self.tables[table])} ({listed}) VALUES ({values}){conflict}"
        run(self._connection, sql, row)

    def there(self, table: Projected, key: Key) -> Row | None:
        """The row with this key, whosever it is."""
        columns = ", ".join(
            selected(self._store.dialect, self.tables[table], name) for name in COLUMNS[table]
        )
        sql = f"SELECT {columns} FROM {named(self.tables[table])} AS t WHERE {self._key(table)}"
        row = run(self._connection, sql, key).first()
        return None if row is None else tuple(row)

    def remove(self, table: Projected, key: Key) -> None:
        """The row with this key; that of an append-only table only while it is `unprotected`."""
        run(
            self._connection,
            f"DELETE FROM {named(self.tables[table])} AS t WHERE {self._key(table)}",
            key,
        )

    def settle_head(self, lock_id: UUID) -> bool:
        """Makes the head say what the lock's newest event says; `False` when another transaction has it.

        Under the row's lock, and by what the events say then: a take may have moved both since they were compared.
        """
        key = (str(lock_id) if self._postgres else lock_id.hex,)
        if self._postgres:
            # Nobody queues behind somebody who does not wait himself.
            sql = f"SELECT 1 FROM {named(self.tables['head'])} AS t WHERE {self._key('head')} FOR UPDATE SKIP LOCKED"
            locked = run(self._connection, sql, key).first()
            if locked is None and self.there("head", key) is not None:
                return False
        expected = self._head_of(lock_id, key)
        if self.there("head", key) is None:
            if expected is not None:
                self.insert("head", expected)
        elif expected is None:
            self.remove("head", key)
        else:
            self._update_head(key, expected)
        return True

    def _head_of(self, lock_id: UUID, key: Key) -> Row | None:
        events = named(self._store.tables.events)
        mark = "%s::uuid" if self._postgres else "?"
        sql = f"SELECT version, topic, state FROM {events} WHERE lock_id = {mark} ORDER BY version DESC LIMIT 1"
        newest = run(self._connection, sql, key).first()
        if newest is None:
            return None
        version, topic, state = newest
        ledger = self._store.ledger
        row = (
            current_holders.row(ledger, evolve(decode(lock_id, version, topic, state)))
            if topic in EVENTS
            else current_holders.foreign_row(ledger, lock_id, version)
        )
        return form_of(self._store.dialect, COLUMNS["head"])(row)

    def _update_head(self, key: Key, row: Row) -> None:
        changes = ", ".join(f'"{name}" = {self._mark("head", name)}' for name in COLUMNS["head"])
        head = named(self.tables["head"])
        run(
            self._connection,
            f"UPDATE {head} AS t SET {changes} WHERE {self._key('head')}",
            (*row, *key),
        )

    @contextmanager
    def unprotected(self, table: Projected) -> Iterator[None]:
        """Lets rows of an append-only table be changed until the end of the block, in the open transaction.

        On PostgreSQL it waits 50 ms at most for whoever is writing to the table, and fails then. Owners only.
        """
        protect = self._postgres_trigger if self._postgres else self._sqlite_triggers
        with protect(self.tables[table]):
            yield

    @contextmanager
    def _postgres_trigger(self, table: Table) -> Iterator[None]:
        trigger = f"{table.name}_append_only"
        run(self._connection, f"SET LOCAL lock_timeout = '{LONGEST_WAIT}'")
        known = run(
            self._connection,
            "SELECT 1 FROM pg_catalog.pg_trigger WHERE tgrelid = %s::regclass::oid AND tgname = %s",
            (named(table), trigger),
        ).first()
        alter = f"ALTER TABLE {named(table)}"
        if known is not None:
            run(self._connection, f'{alter} DISABLE TRIGGER "{trigger}"')
        yield
        if known is not None:
            run(self._connection, f'{alter} ENABLE ALWAYS TRIGGER "{trigger}"')

    @contextmanager
    def _sqlite_triggers(self, table: Table) -> Iterator[None]:
        sql = "SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
        triggers = run(self._connection, sql, (table.name,)).all()
        for name, _ in triggers:
            run(self._connection, f'DROP TRIGGER main."{name}"')
        yield
        for _, made_by in triggers:
            run(self._connection, made_by)

    def _key(self, table: Projected) -> str:
        number = NUMBER[table]
        lock = f"t.lock_id = {self._mark(table, 'lock_id')}"
        return lock if number is None else f"{lock} AND t.{number} = {self._mark(table, number)}"

    def _mark(self, table: Projected, name: str) -> str:
        if not self._postgres:
            return "?"
        kind = self.tables[table].c[name].type
        for column, cast in ((Uuid, "::uuid"), (Instant, "::timestamptz"), (Json, "::json")):
            if isinstance(kind, column):
                return f"%s{cast}"
        return "%s"


def key_of(table: Projected, row: Sequence[Any]) -> Key:
    """The key of a row in the form in which it is read."""
    columns, number = COLUMNS[table], NUMBER[table]
    lock = row[columns.index("lock_id")]
    return (lock,) if number is None else (lock, row[columns.index(number)])
