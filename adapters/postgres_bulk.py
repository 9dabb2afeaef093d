"""Many streams in few statements on PostgreSQL: their ends read at once, and their appends written at once.

The order is that of a single append, over all streams: every head moves before the fence is taken, and the fence is
taken before the first position is drawn. So a call that waits for a row holds no reader back, and the positions of each
lock follow its versions.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import registry

from lockledger.adapters import schema as names
from lockledger.adapters.encoding import StoredEvent
from lockledger.adapters.failures import readable
from lockledger.adapters.identifiers import qualified
from lockledger.adapters.statements import run
from lockledger.adapters.store import HEAD_FACTS, Append, EventStore, Row, Tail
from lockledger.projections import audit_trail, current_holders, holds

T = TypeVar("T")
CHUNK = 500
"""Streams or events in one statement."""

_EVENT = ("lock_id", "version", "topic", "state", "hash")


class PostgresBulk(EventStore):
    """The part of the event store on PostgreSQL that works on many streams at once."""

    dialect = "postgresql"
    _fence: str

    def tails(self, connection: Connection, streams: Sequence[UUID]) -> dict[UUID, Tail]:
        if len(streams) == 1:  # with a plan that is kept: the server makes one for each new array
            return {streams[0]: self._newest(connection, streams[0])}
        sql, tails = _statements(self.schema)["tails"], dict[UUID, Tail]()
        for some in _chunks(streams):
            with readable():
                for row in run(connection, sql, {"streams": list(some)}):
                    tails[id_of(row[0])] = tail_of(row[1:])
        return tails

    def lock_heads(self, connection: Connection, keys: Sequence[str], *, waiting: bool) -> set[str]:
        streams = {self.lock_id(key): key for key in keys}
        sql = _statements(self.schema)["lock" if waiting else "try lock"]
        locked = set[str]()
        for some in _chunks(list(streams)):
            values = {"streams": some, "ledger": self.ledger}
            locked |= {streams[id_of(row[0])] for row in run(connection, sql, values)}
        return set(keys) if waiting else locked

    def append_all(
        self,
        connection: Connection,
        appends: Sequence[Append],
        events: Sequence[StoredEvent],
        *,
        locked: bool = False,
    ) -> list[int] | None:
        ordered = sorted(appends, key=lambda append: append.stream)
        begun = [] if locked else [append for append in ordered if _begins_head(append)]
        moved = [append for append in ordered if locked or not _begins_head(append)]
        if not self._heads_moved(connection, "begin", begun):
            return None
        ends_holds = any(append.moves_token for append in moved)
        if not self._heads_moved(connection, "move" if ends_holds else "extend", moved):
            return None
        return self._insert(connection, appends, events)

    def _heads_moved(self, connection: Connection, how: str, appends: Sequence[Append]) -> bool:
        sql = _statements(self.schema)[how]
        for some in _chunks(appends):
            values = _arrays("", [append.head for append in some], current_holders.COLUMNS)
            values["expected"] = [append.expected for append in some]
            if len(run(connection, sql, values).all()) != len(some):
                return False
        return True

    def _insert(
        self, connection: Connection, appends: Sequence[Append], events: Sequence[StoredEvent]
    ) -> list[int]:
        sql = _statements(self.schema)["insert"]
        entries = {
            (row["lock_id"], row["version"]): row for append in appends for row in append.audit
        }
        ended = [row for append in appends for row in append.holds]
        positions: list[int] = []
        for some in _chunks(events):
            audited = [
                entries[event.lock_id, event.version]
                for event in some
                if (event.lock_id, event.version) in entries
            ]
            values: Row = {
                "ledger": self.ledger,
                "fence": self._fence,
                "namespace": self.namespace,
                **{f"e_{name}": [getattr(event, name) for event in some] for name in _EVENT},
                **_arrays("a_", audited, audit_trail.COLUMNS),
                **_arrays("h_", ended, holds.COLUMNS),
            }
            ended = []
            positions += run(connection, sql, values).scalars()
        return positions


def id_of(read: Any) -> UUID:
    """The id as it is, also where the host lets its driver read such ids as text."""
    return read if isinstance(read, UUID) else UUID(read)


def tail_of(row: Sequence[Any]) -> Tail:
    """The end of a stream in a row of clock, event and head. Its instants have no zone: they are in UTC."""
    clock, event, head = row[0].replace(tzinfo=UTC), tuple(row[1:5]), row[5:]
    facts = None if head[0] is None else dict(zip(HEAD_FACTS, head, strict=True))
    if facts is not None and facts["expires_at"] is not None:
        facts["expires_at"] = facts["expires_at"].replace(tzinfo=UTC)
    return clock, None if event[0] is None else event, facts


def _begins_head(append: Append) -> bool:
    """Whether there can be no head row yet. A foreign stream may have begun at version 0, and go on with version 1."""
    return append.expected < 0 or (append.expected == 0 and append.head["key"] is not None)


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def _arrays(prefix: str, rows: Sequence[Row], columns: Sequence[str]) -> Row:
    return {f"{prefix}{name}": [row[name] for row in rows] for name in columns}


# The driver reads instants with a zone in the ISO date style only, and the style is the session's own.
IN_UTC = "AT TIME ZONE 'UTC'"
HEAD = ", ".join(
    f"h.{name} {IN_UTC}" if name == "expires_at" else f"h.{name}" for name in HEAD_FACTS
)

_TAILS = """
SELECT wanted.lock_id, clock_timestamp() {in_utc}, e.version, e.topic, e.state, e.hash, {head_facts}
FROM pg_catalog.unnest(%(streams)s::uuid[]) AS wanted (lock_id)
LEFT JOIN LATERAL (
    SELECT version, topic, state, hash FROM {events} AS newest
    WHERE newest.lock_id = wanted.lock_id ORDER BY newest.version DESC LIMIT 1) AS e ON true
LEFT JOIN {heads} AS h ON h.lock_id = wanted.lock_id
"""

# One row after the other, in the order given, whether it is there or not: DO UPDATE locks the row that it finds even
# when its WHERE is false, against a guard too, as it would set the token.
_LOCK_HEADS = """
INSERT INTO {heads} AS h (lock_id, ledger, version)
SELECT lock_id, %(ledger)s, 0 FROM pg_catalog.unnest(%(streams)s::uuid[]) WITH ORDINALITY AS wanted (lock_id, place) ORDER BY place
ON CONFLICT (lock_id) DO UPDATE SET token = h.token WHERE false
RETURNING lock_id
"""

_TRY_LOCK_HEADS = """
SELECT lock_id FROM {heads} WHERE lock_id = ANY (%(streams)s::uuid[]) AND ledger = %(ledger)s FOR UPDATE SKIP LOCKED
"""

# No target: every unique index decides. With one, two first inserts that meet at the same instant could end in a unique
# violation of the other index, (lock_id, token).
_BEGIN_HEADS = """
INSERT INTO {heads} ({head_columns})
SELECT {head_columns} FROM unnest({head_arrays}) AS new ({head_columns})
ORDER BY lock_id
ON CONFLICT DO NOTHING
RETURNING lock_id
"""

# The last IN is evaluated on the row as it is after the wait for it. Nothing missing may begin at version 6. The rows
# are locked first: PostgreSQL may overlook a head that another is just moving, try to insert, and would find the token
# that the other has set in the other unique index, (lock_id, token), before it sees the head after all.
_MOVE_HEADS = """
WITH new AS MATERIALIZED (
    SELECT * FROM unnest({head_arrays}, %(expected)s::bigint[]) AS new ({head_columns}, expected)
), known AS MATERIALIZED (
    SELECT lock_id FROM {heads} WHERE lock_id IN (SELECT lock_id FROM new) ORDER BY lock_id FOR {strength}
)
INSERT INTO {heads} AS h ({head_columns})
SELECT {head_columns} FROM new
WHERE expected < 1 OR lock_id IN (SELECT lock_id FROM known)
ORDER BY lock_id
ON CONFLICT (lock_id) DO UPDATE SET {head_changes}
WHERE h.ledger = excluded.ledger AND (h.lock_id, h.version) IN (SELECT lock_id, expected FROM new)
RETURNING lock_id
"""

# Positions are drawn after the sort, which has read the fence.
_INSERT = """
WITH fence AS MATERIALIZED (
    SELECT pg_sequence_last_value('{sequence}'::regclass) IS NOT NULL AS counted,
        CASE WHEN coalesce(current_setting(%(fence)s, true), '') = '' THEN set_config(
            %(fence)s,
            pg_advisory_xact_lock_shared(
                (%(namespace)s::bigint << 48) | pg_sequence_last_value('{sequence}'::regclass))::text || 'held',
            true) END
), new AS MATERIALIZED (
    SELECT * FROM fence CROSS JOIN unnest({event_arrays}) WITH ORDINALITY AS new ({event_columns}, place)
    ORDER BY place
), events AS (
    INSERT INTO {events} ({event_columns}, position, ledger)
    SELECT {event_columns}, CASE WHEN counted THEN nextval('{sequence}'::regclass) END, %(ledger)s FROM new
    RETURNING lock_id, version, position
), audit AS (
    INSERT INTO {audit} ({audit_columns}, position)
    SELECT {audit_columns}, position FROM events JOIN unnest({audit_arrays}) AS entry ({audit_columns})
    USING (lock_id, version)
), holds AS (
    INSERT INTO {holds} ({hold_columns}) SELECT * FROM unnest({hold_arrays}) AS ended
)
SELECT position FROM events JOIN new USING (lock_id, version) ORDER BY place
"""


def objects(schema: str | None) -> dict[str, str]:
    """The names of the tables and the sequence, as SQL has them."""
    return {
        "events": qualified(names.EVENTS, "postgresql", schema),
        "heads": qualified(names.CURRENT_HOLDERS, "postgresql", schema),
        "audit": qualified(names.AUDIT_TRAIL, "postgresql", schema),
        "holds": qualified(names.HOLDS, "postgresql", schema),
        "sequence": qualified(names.POSITION_SEQUENCE, "postgresql", schema),
    }


@lru_cache(maxsize=256)
def _statements(schema: str | None) -> dict[str, str]:
    tables = names.declared("postgresql", schema)
    heads, columns = tables.current_holders, current_holders.COLUMNS
    changed = [name for name in columns if name not in ("lock_id", "ledger")]
    pieces = {
        **objects(schema),
        "head_facts": HEAD,
        "in_utc": IN_UTC,
        "head_columns": _listed(columns),
        "head_arrays": _cast(heads, "", columns),
        "event_columns": _listed(_EVENT),
        "event_arrays": _cast(tables.events, "e_", _EVENT),
        "audit_columns": _listed(audit_trail.COLUMNS),
        "audit_arrays": _cast(tables.audit_trail, "a_", audit_trail.COLUMNS),
        "hold_columns": _listed(holds.COLUMNS),
        "hold_arrays": _cast(tables.holds, "h_", holds.COLUMNS),
    }
    extended = [name for name in changed if name != "token"]
    return {
        "tails": _TAILS.format(**pieces),
        "lock": _LOCK_HEADS.format(**pieces),
        "try lock": _TRY_LOCK_HEADS.format(**pieces),
        "begin": _BEGIN_HEADS.format(**pieces),
        "move": _MOVE_HEADS.format(**pieces, head_changes=_excluded(changed), strength="UPDATE"),
        "extend": _MOVE_HEADS.format(
            **pieces, head_changes=_excluded(extended), strength="NO KEY UPDATE"
        ),
        "insert": _INSERT.format(**pieces),
    }


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)


def _excluded(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}" = excluded."{name}"' for name in columns)


def _cast(table: Table, prefix: str, columns: Sequence[str]) -> str:
    """Parameters, one array for each column, of the column's type.

    Bytes go in binary: as text psycopg escapes them twice where `standard_conforming_strings` is off.
    """
    dialect: Any = registry.load("postgresql")()
    types = (table.c[name].type.compile(dialect=dialect).split(" COLLATE ")[0] for name in columns)
    return ", ".join(
        f"%({prefix}{name}){'b' if kind == 'BYTEA' else 's'}::{kind}[]"
        for name, kind in zip(columns, types, strict=True)
    )
