"""The event store on PostgreSQL: an append is one statement, locks only its own lock's row, and never the table.

The order inside the statement is what the guarantees rest on. Head before fence: a writer that waits for a row holds
no reader back. Head before `nextval`: positions of a lock follow its versions. Fence before `nextval`: a reader knows
of every position that may still come. The statement's parts wait for each other by reading from each other.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from lockledger.adapters import schema as names
from lockledger.adapters.encoding import StoredEvent
from lockledger.adapters.failures import UNREADABLE_TEXT, sqlstate
from lockledger.adapters.identifiers import qualified
from lockledger.adapters.postgres_bulk import HEAD, IN_UTC, PostgresBulk, tail_of
from lockledger.adapters.postgres_confirmation import Confirmed, confirm, looks_at_a_snapshot
from lockledger.adapters.postgres_scopes import around, lock_moving, lock_scopes
from lockledger.adapters.sessions import driver_of
from lockledger.adapters.statements import run
from lockledger.adapters.store import Append, Appended, Around, Newest, Row, Tail
from lockledger.domain.errors import TamperedLedger
from lockledger.projections import audit_trail, current_holders, holds

_TYPES = {
    "lock_id": "uuid",
    "version": "bigint",
    "token": "bigint",
    "taken_at": "timestamptz",
    "expires_at": "timestamptz",
    "changed_at": "timestamptz",
    "occurred_at": "timestamptz",
    "recorded_at": "timestamptz",
    "ended_at": "timestamptz",
    "metadata": "json",
    "before": "json",
    "after": "json",
    "hash": "bytea",
    "event_hash": "bytea",
}
_EVENT = ("version", "topic", "state", "hash")


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
        sql = _append(
            self.schema,
            len(append.events),
            bool(append.audit),
            len(append.holds),
            append.moves_token,
            begins_head,
            by_itself,
            append.remembered is not None,
        )
        values: Row = dict(append.head)
        values |= {
            "expected": append.expected,
            "until": until or "infinity",
            "fence": self._fence,
            "namespace": self.namespace,
        }
        for number, event in enumerate(append.events):
            for name in _EVENT:
                values[f"e{number}_{name}"] = getattr(event, name)
        _number(values, "e", append.audit, _AUDITED)
        _number(values, "h", append.holds, _ENDED)
        if append.remembered is not None:
            values |= _known(append.remembered)
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
            (row[0], StoredEvent(row[1], row[2], row[3], row[4], bytes(row[5]))) for row in rows
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


def _known(newest: Newest) -> Row:
    hold, event = newest.lock.hold, newest.remembered
    return {
        "since": newest.clock,
        "was_topic": event and event.topic,
        "was_state": event and event.state,
        "was_hash": event and event.hash,
        "was_holder": hold and hold.holder,
        "was_token": hold and hold.token,
        "was_expires_at": hold and hold.expires_at,
    }


def _number(values: Row, prefix: str, rows: Iterable[Row], columns: Iterable[str]) -> None:
    for number, row in enumerate(rows):
        for name in columns:
            values[f"{prefix}{number}_{name}"] = row[name]


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


def _in_one_line(sql: str) -> str:
    return " ".join(sql.split())


# The fence is taken once per transaction or savepoint: its setting reverts with either, exactly as the lock does. A
# sequence without a last value must not pass for position 0, so that `position` is null then and refused.
_APPEND = _in_one_line("""
WITH head AS (
    INSERT INTO {heads} AS h ({head_columns})
    SELECT {head_values} {head_moves}
    RETURNING clock_timestamp() AS moved_at
), fence AS MATERIALIZED (
    SELECT moved_at, pg_sequence_last_value('{sequence}'::regclass) IS NOT NULL AS counted,
        CASE WHEN coalesce(current_setting(%(fence)s, true), '') = '' THEN set_config(
            %(fence)s,
            pg_advisory_xact_lock_shared(
                (%(namespace)s::bigint << 48) | pg_sequence_last_value('{sequence}'::regclass))::text || 'held',
            true) END{in_time}
    FROM head
), new ({new_columns}) AS (VALUES {new_values}
), events AS (
    INSERT INTO {events} (lock_id, version, position, ledger, topic, state, hash)
    SELECT %(lock_id)s::uuid, version, CASE WHEN counted THEN nextval('{sequence}'::regclass) END,
        %(ledger)s, topic, state, hash
    FROM fence CROSS JOIN new
    RETURNING version, position
){audit}{holds}
SELECT position, moved_at {in_utc} FROM events CROSS JOIN fence ORDER BY version
""")

# The clock is read after the wait for the row, as PostgreSQL evaluates the last WHERE then; a plain UPDATE would evaluate
# it before. The first WHERE keeps a missing head from beginning at version 6. The row proposed for insertion has no
# token: while the head is being moved by another, PostgreSQL may overlook it, try to insert, and would find the very
# token that the other has just set in the other unique index, (lock_id, token), before it sees the head after all.
_MOVE_HEAD = _in_one_line("""
    WHERE {known}
    ON CONFLICT (lock_id) DO UPDATE SET {head_changes}
    WHERE h.version = %(expected)s::bigint AND h.ledger = excluded.ledger
      AND clock_timestamp() < %(until)s::timestamptz""")

_READ = _in_one_line("""
    %(expected)s::bigint < 1 OR EXISTS (SELECT FROM {heads} AS known WHERE known.lock_id = %(lock_id)s::uuid)""")

# What a read would have found, where there was none: the head row as the newest event says, and that event itself. It
# is looked for before the row is waited for and locked, so that a refusal does neither. A clock that was set back, or
# another server's, has not come yet to where the decision believes it to be.
_REMEMBERED = _in_one_line("""
    clock_timestamp() >= %(since)s::timestamptz AND EXISTS (
        SELECT FROM {heads} AS known CROSS JOIN LATERAL (
            SELECT version, topic, state, hash FROM {events} AS e
            WHERE e.lock_id = known.lock_id ORDER BY e.version DESC LIMIT 1) AS newest
        WHERE known.lock_id = %(lock_id)s::uuid AND known.version = %(expected)s::bigint AND known.key = %(key)s::text
          AND (known.holder, known.token, known.expires_at) IS NOT DISTINCT FROM
              (%(was_holder)s::text, %(was_token)s::bigint, %(was_expires_at)s::timestamptz)
          AND (newest.version, newest.topic, newest.state, newest.hash) = (
              known.version, %(was_topic)s::text, %(was_state)s::text, %(was_hash)s::bytea))""")

# Without a target every unique index decides. With one, two first inserts that met at the same instant could end in a
# unique violation of the other index, (lock_id, token), which is there for the guard.
_BEGIN_HEAD = _in_one_line("""
    ON CONFLICT DO NOTHING""")

# The insert may have waited for another first one, which was then taken back, without a look at the clock. An error takes
# this one back too, where the statement is all of its transaction; PostgreSQL has none of its own making but this.
_IN_TIME = _in_one_line(""",
        CASE WHEN moved_at >= %(until)s::timestamptz
            THEN ('decided anew, as its turn came too late: ' || moved_at::text)::bigint END""")

_AUDIT = _in_one_line(""", audit AS (
    INSERT INTO {audit} (lock_id, ledger, key, version, event_hash, {columns}, position)
    SELECT %(lock_id)s::uuid, %(ledger)s, %(key)s, version, hash, {columns}, position
    FROM events JOIN new USING (version)
)""")

_HOLDS = _in_one_line(""", holds AS (
    INSERT INTO {holds} (lock_id, ledger, key, {columns})
    SELECT %(lock_id)s::uuid, %(ledger)s, %(key)s, ended.* FROM fence CROSS JOIN (VALUES {values}) AS ended
)""")

_SHARED = ("lock_id", "ledger", "key")
_AUDITED = tuple(
    name for name in audit_trail.COLUMNS if name not in (*_SHARED, "version", "event_hash")
)
_ENDED = tuple(name for name in holds.COLUMNS if name not in _SHARED)


def _objects(schema: str | None) -> dict[str, str]:
    return {
        "events": qualified(names.EVENTS, "postgresql", schema),
        "heads": qualified(names.CURRENT_HOLDERS, "postgresql", schema),
        "audit": qualified(names.AUDIT_TRAIL, "postgresql", schema),
        "holds": qualified(names.HOLDS, "postgresql", schema),
        "sequence": qualified(names.POSITION_SEQUENCE, "postgresql", schema),
    }


@lru_cache(maxsize=256)
def _statements(schema: str | None) -> dict[str, str]:
    objects = _objects(schema)
    return {
        "newest": _NEWEST.format(**objects, head_facts=HEAD, in_utc=IN_UTC),
        "lock to end": _LOCK.format(**objects, strength="UPDATE"),
        "lock to extend": _LOCK.format(**objects, strength="NO KEY UPDATE"),
        "try lock": _TRY_LOCK.format(**objects),
        "guarded": _GUARDED.format(**objects, head_facts=HEAD, in_utc=IN_UTC),
        "empty head": _EMPTY_HEAD.format(**objects),
        "may count": _MAY_COUNT.format(**objects),
        "count": "SELECT last_value FROM {sequence}".format(**objects),
        "last position": _LAST_POSITION.format(**objects),
        "stored": _STORED.format(**objects),
    }


def _typed(name: str, parameter: str) -> str:
    return f"%({parameter})s::{_TYPES.get(name, 'text')}"


def _rows(prefix: str, columns: Sequence[str], count: int) -> str:
    return ", ".join(
        f"({', '.join(_typed(name, f'{prefix}{number}_{name}') for name in columns)})"
        for number in range(count)
    )


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(columns)


def _head_changes(moves_token: bool) -> str:
    kept = ("lock_id", "ledger", "token")
    changes = {name: f"excluded.{name}" for name in current_holders.COLUMNS if name not in kept}
    if moves_token:
        changes["token"] = _typed("token", "token")
    return ", ".join(f"{name} = {value}" for name, value in changes.items())


def _proposed_head(begins_head: bool) -> str:
    values = {name: _typed(name, name) for name in current_holders.COLUMNS}
    if not begins_head:
        values["token"] = "NULL::bigint"
    return ", ".join(values.values())


@lru_cache(maxsize=256)
def _append(
    schema: str | None,
    events: int,
    audited: bool,
    ended: int,
    moves_token: bool,
    begins_head: bool,
    by_itself: bool,
    remembered: bool,
) -> str:
    """The append of so many events. A statement that does not set the token passes a guard of the hold.

    Each value is given once, and nothing else that could be left out, so that psycopg caches the statements of takes
    and releases (50 values, 4,096 characters).
    """
    objects = _objects(schema)
    known = (_REMEMBERED if remembered else _READ).format(**objects)
    moves = _MOVE_HEAD.format(known=known, head_changes=_head_changes(moves_token))
    new = (*_EVENT, *_AUDITED) if audited else _EVENT
    audit = _AUDIT.format(audit=objects["audit"], columns=_listed(_AUDITED)) if audited else ""
    held = _HOLDS.format(
        holds=objects["holds"], columns=_listed(_ENDED), values=_rows("h", _ENDED, ended)
    )
    return _APPEND.format(
        in_utc=IN_UTC,
        heads=objects["heads"],
        events=objects["events"],
        sequence=objects["sequence"],
        head_columns=_listed(current_holders.COLUMNS),
        head_values=_proposed_head(begins_head),
        head_moves=_BEGIN_HEAD if begins_head else moves,
        in_time=_IN_TIME if begins_head and by_itself else "",
        new_columns=_listed(new),
        new_values=_rows("e", new, events),
        audit=audit,
        holds=held if ended else "",
    )
