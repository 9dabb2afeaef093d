"""The append on PostgreSQL, which is one statement: its text for each shape that an append has, and its values.

The order inside the statement is what the guarantees rest on. Head before fence: a writer that waits for a row holds
no reader back. Head before `nextval`: positions of a lock follow its versions. Fence before `nextval`: a reader knows
of every position that may still come. The statement's parts wait for each other by reading from each other.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from lockledger.adapters.postgres_bulk import IN_UTC, objects
from lockledger.adapters.store import Append, Newest, Row
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


def append_statement(
    schema: str | None, append: Append, *, begins_head: bool, by_itself: bool
) -> str:
    """The statement; `begins_head`: it is the lock's first row; `by_itself`: it is all of its transaction."""
    return _shaped(
        schema,
        len(append.events),
        bool(append.audit),
        len(append.holds),
        append.moves_token,
        begins_head,
        by_itself,
        append.remembered is not None,
    )


def append_values(append: Append) -> Row:
    """The values of the statement, but for `until`, `fence` and `namespace`."""
    values: Row = dict(append.head)
    values["expected"] = append.expected
    for number, event in enumerate(append.events):
        for name in _EVENT:
            values[f"e{number}_{name}"] = getattr(event, name)
    _number(values, "e", append.audit, _AUDITED)
    _number(values, "h", append.holds, _ENDED)
    if append.remembered is not None:
        values |= _known(append.remembered)
    return values


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
def _shaped(
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
    named = objects(schema)
    known = (_REMEMBERED if remembered else _READ).format(**named)
    moves = _MOVE_HEAD.format(known=known, head_changes=_head_changes(moves_token))
    new = (*_EVENT, *_AUDITED) if audited else _EVENT
    audit = _AUDIT.format(audit=named["audit"], columns=_listed(_AUDITED)) if audited else ""
    held = _HOLDS.format(
        holds=named["holds"], columns=_listed(_ENDED), values=_rows("h", _ENDED, ended)
    )
    return _APPEND.format(
        in_utc=IN_UTC,
        heads=named["heads"],
        events=named["events"],
        sequence=named["sequence"],
        head_columns=_listed(current_holders.COLUMNS),
        head_values=_proposed_head(begins_head),
        head_moves=_BEGIN_HEAD if begins_head else moves,
        in_time=_IN_TIME if begins_head and by_itself else "",
        new_columns=_listed(new),
        new_values=_rows("e", new, events),
        audit=audit,
        holds=held if ended else "",
    )
