"""The event store on PostgreSQL: an append is one statement, locks only its own lock's row, and never the table."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from lockledger.adapters.encoding import StoredEvent
from lockledger.adapters.failures import UNREADABLE_TEXT, sqlstate
from lockledger.adapters.postgres_append import append_statement, append_values
from lockledger.adapters.postgres_bulk import (
    HEAD,
    IN_UTC,
    PostgresBulk,
    id_of,
    objects,
    tail_of,
)
from lockledger.adapters.postgres_confirmation import Confirmed, confirm, looks_at_a_snapshot
from lockledger.adapters.postgres_scopes import around, lock_moving, lock_scopes
from lockledger.adapters.sessions import driver_of
from lockledger.adapters.statements import run
from lockledger.adapters.store import Append, Appended, Around, Newest, Tail
from lockledger.domain.errors import TamperedLedger


class PostgresEventStore(PostgresBulk):
    """One ledger's events and projections on PostgreSQL."""

    dialect = "postgresql"
    optimistic_attempts = 2
    proves_memories = True

    def __init__(self, ledger: str, schema: str | None) -> None:
        super().__init__(ledger, schema)
        self._fence = f"lockledger.fence_{self.namespace:04x}"
        self._sql = _statements(schema)

    def begin(self, connection: Connection) -> None:
        if not connection.in_transaction():
            connection.begin()  # so that its commit() and rollback() reach the driver
        # READ COMMITTED whatever the server's default: a loser must see what it lost to.
        run(connection, "BEGIN ISOLATION LEVEL READ COMMITTED")

    def _commit(self, connection: Connection) -> None:
        # Who caught an error of the database, a policy say, has lost the transaction: the server answers COMMIT with a
        # ROLLBACK, and no error.
        if driver_of(connection).info.transaction_status.name == "INERROR":
            try:
                run(connection, "SELECT 1")
            finally:
                self._roll_back(connection)
        super()._commit(connection)

    def newest(self, connection: Connection, key: str) -> Newest:
        with _readable_head(key):
            return super().newest(connection, key)

    def lock_head(self, connection: Connection, key: str, *, moves_token: bool) -> None:
        head = {"lock_id": self.lock_id(key), "ledger": self.ledger}
        lock = self._sql["lock to end" if moves_token else "lock to extend"]
        if run(connection, lock, head).first() is None:
            run(connection, self._sql["empty head"], head)
            run(connection, lock, head)

    def try_lock_head(self, connection: Connection, key: str) -> bool:
        head = {"lock_id": self.lock_id(key)}
        return bool(run(connection, self._sql["try lock"], head).scalar())

    def bound_waits(self, connection: Connection, longest: timedelta) -> None:
        milliseconds = min(max(1, math.ceil(longest.total_seconds() * 1000)), _LONGEST_LOCK_TIMEOUT)
        run(connection, _BOUND_WAITS, {"milliseconds": milliseconds})

    def clock(self, connection: Connection) -> datetime:
        now: datetime = run(connection, f"SELECT clock_timestamp() {IN_UTC}").scalar_one()
        return now.replace(tzinfo=UTC)

    def lock_scopes(
        self, connection: Connection, keys: Sequence[str], *, waiting: bool = True
    ) -> bool:
        return lock_scopes(connection, self.namespace, keys, waiting=waiting)

    def around(self, connection: Connection, key: str, holder: str, now: datetime) -> Around:
        return around(connection, self.schema, self.ledger, key, holder, now)

    def lock_moving(
        self, connection: Connection, streams: Sequence[UUID], *, waiting: bool
    ) -> bool:
        return lock_moving(connection, self.schema, streams, waiting=waiting)

    def guarded(self, connection: Connection, key: str) -> Newest:
        with _readable_head(key):
            row = run(connection, self._sql["guarded"], {"lock_id": self.lock_id(key)}).one()
        tail = tail_of(row)
        _, event, head = tail
        if event is None or head is None or head["version"] <= event[0]:
            return self.newest_of(key, tail)
        # The row moved while it was waited for: its event is in no snapshot of before the wait.
        return self.newest(connection, key)

    def confirm(self, connection: Connection, keys: Sequence[str]) -> None:
        if looks_at_a_snapshot(connection):
            lock_ids = [self.lock_id(key) for key in keys]
            with suppress(Confirmed), self.savepoint(connection):
                confirm(connection, self.schema, lock_ids)

    def append(
        self,
        connection: Connection,
        append: Append,
        *,
        until: datetime | None = None,
        locked: bool = False,
        by_itself: bool = False,
    ) -> Appended | None:
        begins_head = append.expected < 1 and append.head["token"] is not None and not locked
        sql = append_statement(self.schema, append, begins_head=begins_head, by_itself=by_itself)
        values = append_values(append)
        values["until"] = until or "infinity"
        values["fence"] = self._fence
        values["namespace"] = self.namespace
        try:
            rows = run(connection, sql, values).all()
        except DataError as late:
            if begins_head and by_itself and sqlstate(late) == UNREADABLE_TEXT:
                return None
            raise
        if not rows:
            return None
        return Appended([position for position, _ in rows], rows[0][1].replace(tzinfo=UTC))

    def settled(self, connection: Connection, *, beyond: int = 0) -> int:
        # In this order: whoever brings a position up to `high` held its fence before `high` was read.
        high, is_standby = run(connection, self._sql["last position"]).one()
        if is_standby:
            raise ValueError(
                "this server is a standby, where no fence of a writer is seen, so that a reader would skip events;"
                " read them on the primary"
            )
        if high is None:
            # Who may not read the sequence is told so by the server, in its own words.
            if not run(connection, self._sql["may count"]).scalar():
                run(connection, self._sql["count"]).one()
            raise TamperedLedger(None, "the position sequence was never advanced")
        if high <= beyond:
            return int(high)
        fence = run(connection, _LOWEST_FENCE, {"namespace": self.namespace}).scalar()
        return int(high if fence is None else min(high, fence))

    def stored(
        self, connection: Connection, *, after: int, upto: int, limit: int
    ) -> list[tuple[int, StoredEvent]]:
        wanted = {"ledger": self.ledger, "after": after, "upto": upto, "limit": limit}
        rows = run(connection, self._sql["stored"], wanted)
        return [
            (row[0], StoredEvent(id_of(row[1]), row[2], row[3], row[4], bytes(row[5])))
            for row in rows
        ]

    def _newest(self, connection: Connection, stream: UUID) -> Tail:
        row = run(connection, self._sql["newest"], {"lock_id": stream}).one()
        return tail_of(row)


@contextmanager
def _readable_head(key: str) -> Iterator[None]:
    try:
        yield
    except DataError as fault:
        if sqlstate(fault) is not None:
            raise
        # Not the server but the driver, which cannot read it: an `infinity`, say.
        raise TamperedLedger(
            key, "its head row holds an instant that is in no calendar of ours"
        ) from fault


# One index lookup for the event however many there are, and the head in the same snapshot. clock_timestamp() and never
# now(), which stands still inside a transaction.
_NEWEST = """
SELECT clock_timestamp() {in_utc}, e.version, e.topic, e.state, e.hash, {head_facts}
FROM (SELECT %(lock_id)s::uuid AS lock_id) AS wanted
LEFT JOIN LATERAL (
    SELECT version, topic, state, hash FROM {events} AS newest
    WHERE newest.lock_id = wanted.lock_id ORDER BY newest.version DESC LIMIT 1) AS e ON true
LEFT JOIN {heads} AS h ON h.lock_id = wanted.lock_id
"""

# The row is locked before the clock is read. An extension need not wait for this lock, nor this for an extension.
_GUARDED = f"""
WITH locked AS MATERIALIZED (SELECT * FROM {{heads}} WHERE lock_id = %(lock_id)s::uuid FOR KEY SHARE)
{_NEWEST.replace("{heads}", "locked")}
"""

_LOCK = "SELECT 1 FROM {heads} WHERE lock_id = %(lock_id)s::uuid FOR {strength}"

# Locks in a subquery: the row is locked before the other question is asked.
_TRY_LOCK = """
SELECT EXISTS (SELECT 1 FROM (SELECT 1 FROM {heads} WHERE lock_id = %(lock_id)s::uuid FOR UPDATE SKIP LOCKED) AS mine)
    OR NOT EXISTS (SELECT 1 FROM {heads} WHERE lock_id = %(lock_id)s::uuid)
"""

_EMPTY_HEAD = """
INSERT INTO {heads} (lock_id, ledger, version) VALUES (%(lock_id)s::uuid, %(ledger)s, 0)
ON CONFLICT (lock_id) DO NOTHING
"""

_LONGEST_LOCK_TIMEOUT = 2**31 - 1

# Zero means no timeout at all, for PostgreSQL too. Numbers have their type: it has no operator for (numeric, integer).
_BOUND_WAITS = """
SELECT set_config('lock_timeout', least(%(milliseconds)s::bigint, nullif(
    extract(epoch FROM current_setting('lock_timeout')::interval) * 1000::numeric, 0::numeric)::bigint)::text, true)
"""

_LAST_POSITION = """
SELECT pg_sequence_last_value('{sequence}'::regclass), pg_is_in_recovery()
"""

_MAY_COUNT = "SELECT has_sequence_privilege('{sequence}'::regclass, 'USAGE, SELECT')"

_LOWEST_FENCE = """
SELECT min((classid::bigint << 32 | objid::bigint) & ((1::bigint << 48) - 1)) FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND mode = 'ShareLock'
  AND (classid::bigint >> 16) = %(namespace)s
  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
"""

_STORED = """
SELECT position, lock_id, version, topic, state, hash FROM {events}
WHERE ledger = %(ledger)s AND position > %(after)s AND position <= %(upto)s ORDER BY position LIMIT %(limit)s
"""


@lru_cache(maxsize=256)
def _statements(schema: str | None) -> dict[str, str]:
    named = objects(schema)
    return {
        "newest": _NEWEST.format(**named, head_facts=HEAD, in_utc=IN_UTC),
        "lock to end": _LOCK.format(**named, strength="UPDATE"),
        "lock to extend": _LOCK.format(**named, strength="NO KEY UPDATE"),
        "try lock": _TRY_LOCK.format(**named),
        "guarded": _GUARDED.format(**named, head_facts=HEAD, in_utc=IN_UTC),
        "empty head": _EMPTY_HEAD.format(**named),
        "may count": _MAY_COUNT.format(**named),
        "count": "SELECT last_value FROM {sequence}".format(**named),
        "last position": _LAST_POSITION.format(**named),
        "stored": _STORED.format(**named),
    }
