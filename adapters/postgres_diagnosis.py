"""A diagnosis of a PostgreSQL server and of the ledger's schema on it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from lockledger.adapters import schema as names
from lockledger.adapters.characters import encoding_fault
from lockledger.adapters.findings import APPEND_ONLY, Finding, history_is_protected, value
from lockledger.adapters.identifiers import POSTGRESQL, qualified
from lockledger.adapters.postgres_bulk import IN_UTC
from lockledger.adapters.statements import run
from lockledger.adapters.store import EventStore
from lockledger.domain.errors import shown

_CLOCKS_AGREE = timedelta(seconds=1)
_LONG = timedelta(minutes=1)


def of_server(connection: Connection) -> Iterator[Finding]:
    """The server, its clock, and what its settings mean for transactions."""
    server_version, number, in_recovery, isolation, statement, lock, idle, *durable = run(
        connection, _SERVER
    ).one()
    version = Finding("database", "ok", f"PostgreSQL {server_version}")
    if number < 140_000:
        version = Finding(
            "database",
            "warning",
            f"PostgreSQL {server_version} is older than 14, with which lockledger is not tested",
        )
    yield version
    if in_recovery:
        yield Finding(
            "server",
            "warning",
            "a replica: its answers may be old, and nothing can be taken or released; connect to the primary",
        )
    yield _encodings(connection)
    yield _clocks(connection)
    if isolation == "read committed":
        yield Finding("isolation", "ok", "read committed by default")
    else:
        yield Finding(
            "isolation",
            "warning",
            f"{isolation} by default: a caller's transaction may end with ConcurrencyConflict and has to be run again",
        )
    yield Finding(
        "timeouts",
        "ok",
        f"statement_timeout {statement}, lock_timeout {lock}, idle in transaction {idle}",
    )
    settings = zip(("fsync", "synchronous_commit"), durable, strict=True)
    unsafe = [f"{name} is off" for name, set_to in settings if set_to == "off"]
    if unsafe:
        yield Finding(
            "durability",
            "warning",
            f"{', '.join(unsafe)}: a crash may take back what was answered and delivered already",
        )
    else:
        yield Finding("durability", "ok", "each change is on the disk when it is answered")


def _encodings(connection: Connection) -> Finding:
    fault = encoding_fault(connection)
    return Finding("encoding", "fault" if fault else "ok", fault or "every character can be kept")


def _clocks(connection: Connection) -> Finding:
    before = datetime.now(UTC)
    query = f"SELECT clock_timestamp() {IN_UTC}"
    there = run(connection, query).scalar_one().replace(tzinfo=UTC)
    after = datetime.now(UTC)
    difference = there - (before + (after - before) / 2)
    text = (
        f"the database's clock differs from this machine's by {difference.total_seconds():+.3f} s"
    )
    if abs(difference) > _CLOCKS_AGREE + (after - before):
        return Finding(
            "clocks",
            "warning",
            f"{text}; the database's counts, so give a ttl as seconds and not as an instant",
        )
    return Finding("clocks", "ok", text)


def of_schema(connection: Connection, store: EventStore) -> Iterator[Finding]:
    """The role and its privileges, what protects history, and the sequence of positions."""
    schema = store.tables.events.schema or ""
    yield _role(connection, schema)
    yield _grants(connection, schema)
    enabled = run(connection, _ALWAYS_TRIGGERS, (schema,)).scalars()
    wanted = {f"{table}_append_only{of}" for table in APPEND_ONLY for of in ("", "_truncate")}
    yield history_is_protected(wanted, set(enabled))
    yield _sequence(connection, schema, store.ledger)


def _role(connection: Connection, schema: str) -> Finding:
    name, is_superuser, is_owner = run(connection, _ROLE, (list(APPEND_ONLY), schema)).one()
    powers = [
        what
        for what, has in (("superuser", is_superuser), ("owner of the tables", is_owner))
        if has
    ]
    role = shown(name)
    if powers:
        return Finding(
            "role",
            "warning",
            f"{role} is {' and '.join(powers)} and could remove what protects history: let the application be neither",
        )
    return Finding("role", "ok", f"{role} cannot remove what protects history")


def _grants(connection: Connection, schema: str) -> Finding:
    asked = [
        (table, privilege) for table, privileges in _GRANTS for privilege in privileges.split(", ")
    ]
    missing = [
        f"{privilege} on {table}"
        for table, privilege in asked
        if not value(
            connection,
            "SELECT has_table_privilege(%s, %s)",
            (qualified(table, POSTGRESQL, schema), privilege),
        )
    ]
    sequence = qualified(names.POSITION_SEQUENCE, POSTGRESQL, schema)
    if not value(connection, "SELECT has_sequence_privilege(%s, 'USAGE')", (sequence,)):
        missing.append(f"USAGE on {names.POSITION_SEQUENCE}")
    if missing:
        return Finding("grants", "warning", f"the role lacks {', '.join(missing)}")
    return Finding("grants", "ok", "the role may read and record")


def _sequence(connection: Connection, schema: str, ledger: str) -> Finding:
    row = run(connection, _SEQUENCE, (schema, names.POSITION_SEQUENCE)).first()
    if row is None:
        return Finding("positions", "fault", f"the sequence {names.POSITION_SEQUENCE} is missing")
    cache_size, last_value = row
    if cache_size != 1:
        return Finding(
            "positions",
            "fault",
            f"the sequence has CACHE {cache_size}, so readers may skip events: ALTER SEQUENCE … CACHE 1",
        )
    if last_value is None:
        return Finding(
            "positions", "warning", "the sequence's last value is not to be seen: grant USAGE on it"
        )
    events = qualified(names.EVENTS, POSTGRESQL, schema)
    highest = (
        value(connection, f"SELECT max(position) FROM {events} WHERE ledger = %s", (ledger,)) or 0
    )
    if highest > last_value:
        return Finding(
            "positions",
            "fault",
            f"the sequence stands at {last_value} before the newest position {highest}: set it with setval, as after a restore",
        )
    return Finding("positions", "ok", f"the sequence stands at {last_value}, one by one")


def of_open_transactions(connection: Connection, store: EventStore) -> Iterator[Finding]:
    """Whose open transaction holds subscribers and pages back, the oldest first."""
    rows = run(connection, _FENCES, {"namespace": store.namespace}).all()
    if not rows:
        yield Finding("subscribers", "ok", "no open transaction holds them back")
    for pid, position, prepared, seconds in rows[:3]:
        # Null where this role may not see another's transaction.
        age = timedelta(seconds=seconds or 0)
        who = f"the prepared transaction {shown(prepared)}" if pid is None else f"process {pid}"
        text = (
            f"{who} holds them back at position {position}, for {age.total_seconds():.0f} s so far"
        )
        remedy = "commit or roll it back" if pid is None else "end its transaction"
        long = pid is None or age > _LONG
        yield Finding(
            "subscribers", "warning" if long else "ok", f"{text}: {remedy}" if long else text
        )


_GRANTS = (
    (names.EVENTS, "SELECT, INSERT"),
    (names.AUDIT_TRAIL, "SELECT, INSERT"),
    (names.HOLDS, "SELECT, INSERT"),
    (names.CURRENT_HOLDERS, "SELECT, INSERT, UPDATE"),
)

_SERVER = """
SELECT current_setting('server_version') AS server_version, current_setting('server_version_num')::int AS number,
    pg_catalog.pg_is_in_recovery() AS in_recovery,
    current_setting('default_transaction_isolation') AS isolation,
    current_setting('statement_timeout') AS statement, current_setting('lock_timeout') AS lock,
    current_setting('idle_in_transaction_session_timeout') AS idle,
    current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit
"""

_ROLE = """
SELECT current_user AS role,
    (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) AS super,
    coalesce(bool_or(pg_catalog.pg_has_role(current_user, c.relowner, 'USAGE')), false) AS owner
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = ANY(%s) AND n.nspname = %s
"""

_ALWAYS_TRIGGERS = """
SELECT t.tgname FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND t.tgenabled = 'A' AND NOT t.tgisinternal
"""

_SEQUENCE = "SELECT cache_size, last_value FROM pg_catalog.pg_sequences WHERE schemaname = %s AND sequencename = %s"

# A prepared transaction has no process; it is found by the lock on its transaction id, which it holds beside the fence.
_FENCES = """
WITH fences AS (
    SELECT pid, virtualtransaction, (classid::bigint << 32 | objid::bigint) & ((1::bigint << 48) - 1) AS position
    FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND mode = 'ShareLock'
      AND (classid::bigint >> 16) = %(namespace)s
      AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()))
SELECT f.pid, f.position, p.gid,
    extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8 AS age
FROM fences f LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = f.pid
LEFT JOIN pg_catalog.pg_locks own ON f.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid'
    AND own.virtualtransaction = f.virtualtransaction AND own.mode = 'ExclusiveLock'
LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = own.transactionid
ORDER BY f.position
"""
