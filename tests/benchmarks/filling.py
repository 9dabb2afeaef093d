"""A large ledger in little time: sound events by COPY, and the indexes made afterwards.

The same rows as `support.crowd.record` writes through the store, event by event with its hash; only the way in differs.
For an empty PostgreSQL database with the schema, which nobody else uses meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, islice
from typing import Any, Final

from sqlalchemy import Connection, Engine

from lockledger.adapters.copying import Copying
from lockledger.adapters.encoding import FIRST
from lockledger.adapters.postgres import PostgresEventStore
from lockledger.adapters.schema import POSITION_SEQUENCE
from lockledger.adapters.store import Newest
from lockledger.domain.events import LockEvent
from lockledger.domain.lock import Lock, evolve
from lockledger.projections import audit_trail, current_holders, holds
from support.crowd import BEGIN

_AT_ONCE: Final = 20_000
_EVENT: Final = ("lock_id", "version", "topic", "state", "hash", "position", "ledger")
Rows = list[tuple[Any, ...]]


def fill(engine: Engine, lives: Iterable[Iterable[LockEvent]]) -> int:
    """Records these lives, whole locks one after the other; gives the number of events."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET maintenance_work_mem = '256MB'")
        indexes = connection.exec_driver_sql(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename LIKE 'lockledger%%'"
            " AND indexname NOT IN (SELECT conname FROM pg_constraint)"
        ).all()
        for name, _ in indexes:
            connection.exec_driver_sql(f"DROP INDEX {name}")
        told = _Filling(connection).of(lives)
        for _, made_by in indexes:
            connection.exec_driver_sql(made_by)
        connection.exec_driver_sql(
            f"SELECT setval('{POSITION_SEQUENCE}', %(last)s)", {"last": told}
        )
        connection.exec_driver_sql("VACUUM ANALYZE")
    return told


class _Filling:
    """Rows of all tables, gathered and sent together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._store = PostgresEventStore("default", None)
        self._positions = count(1)
        self._events, self._heads, self._audit, self._holds = Rows(), Rows(), Rows(), Rows()

    def of(self, lives: Iterable[Iterable[LockEvent]]) -> int:
        told = 0
        for life in lives:
            newest, remaining = None, iter(life)
            append = None
            while some := list(islice(remaining, 1000)):
                if newest is None:
                    newest = Newest(Lock(some[0].originator_id, some[0].key), FIRST, BEGIN)
                append = self._store.recording(newest, some)
                newest = Newest(evolve(some[-1]), append.events[-1].hash, BEGIN)
                self._gather(append)
                told += len(some)
                if len(self._events) >= _AT_ONCE:
                    self._send()
            if append is not None:
                self._heads.append(tuple(append.head[name] for name in current_holders.COLUMNS))
        self._send()
        return told

    def _gather(self, append: Any) -> None:
        for stored, entry in zip(append.events, append.audit, strict=True):
            position = next(self._positions)
            facts = (stored.lock_id, stored.version, stored.topic, stored.state, stored.hash)
            self._events.append((*facts, position, "default"))
            self._audit.append((*(entry[name] for name in audit_trail.COLUMNS), position))
        self._holds += [tuple(row[name] for name in holds.COLUMNS) for row in append.holds]

    def _send(self) -> None:
        tables = self._store.tables
        with self._store.transaction(self._connection):
            for table, columns, rows in (
                (tables.events, _EVENT, self._events),
                (tables.current_holders, current_holders.COLUMNS, self._heads),
                (tables.audit_trail, (*audit_trail.COLUMNS, "position"), self._audit),
                (tables.holds, holds.COLUMNS, self._holds),
            ):
                copying = Copying(self._connection, table, columns)
                copying.write_all(rows)
                copying.close()
                rows.clear()
