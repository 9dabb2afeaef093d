"""The ledger: events, current holders, audit trail, holds, consumer positions.

Frozen once released: DDL written out here, for both databases, and nothing imported from the read models.
"""

from alembic import op

from lockledger.migrations.target import host_keeps_version, target_schema

revision = "lockledger_0001"
down_revision = None
branch_labels = ("lockledger",)
depends_on = None

APPEND_ONLY = ("lockledger_events", "lockledger_audit_trail", "lockledger_holds")

HOLD = "ledger, key, holder, token, taken_at, expires_at, taken_over_from, takeover_reason, metadata, lock_id"
END = "ended_at, ended_by, end_reason, ended_by_actor"

VERSION_TABLE = """
CREATE TABLE {s}lockledger_schema_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT lockledger_schema_version_pkc PRIMARY KEY (version_num)
)"""

# Filled in: {s} the schema, {text} {instant} {json} {id} {bytes} the types, {rowid} SQLite's check on it.
TABLES = (
    """
CREATE TABLE {s}lockledger_current_holders (
    lock_id {id} NOT NULL,
    ledger {text} NOT NULL,
    version BIGINT NOT NULL,
    key {text},
    holder {text},
    token BIGINT,
    taken_at {instant},
    expires_at {instant},
    taken_over_from {text},
    takeover_reason {text},
    metadata {json},
    changed_at {instant},
    CONSTRAINT lockledger_current_holders_pkey PRIMARY KEY (lock_id)
)""",
    """
CREATE TABLE {s}lockledger_audit_trail (
    lock_id {id} NOT NULL,
    version BIGINT NOT NULL,
    ledger {text} NOT NULL,
    position BIGINT NOT NULL,
    key {text} NOT NULL,
    action {text} NOT NULL,
    actor {text},
    holder {text} NOT NULL,
    previous_holder {text},
    token BIGINT NOT NULL,
    occurred_at {instant} NOT NULL,
    recorded_at {instant} NOT NULL,
    reason {text},
    before {json},
    after {json},
    metadata {json} NOT NULL,
    event_hash {bytes} NOT NULL,
    CONSTRAINT lockledger_audit_trail_pkey PRIMARY KEY (lock_id, version){rowid}
)""",
    """
CREATE TABLE {s}lockledger_holds (
    lock_id {id} NOT NULL,
    token BIGINT NOT NULL,
    ledger {text} NOT NULL,
    key {text} NOT NULL,
    holder {text} NOT NULL,
    taken_at {instant} NOT NULL,
    expires_at {instant},
    taken_over_from {text},
    takeover_reason {text},
    metadata {json} NOT NULL,
    ended_at {instant} NOT NULL,
    ended_by {text} NOT NULL,
    end_reason {text},
    ended_by_actor {text},
    CONSTRAINT lockledger_holds_pkey PRIMARY KEY (lock_id, token){rowid}
)""",
    """
CREATE TABLE {s}lockledger_consumer_positions (
    ledger {text} NOT NULL,
    consumer {text} NOT NULL,
    position BIGINT NOT NULL,
    CONSTRAINT lockledger_consumer_positions_pkey PRIMARY KEY (ledger, consumer)
)""",
)

POSTGRESQL_EVENTS = """
CREATE TABLE {s}lockledger_events (
    lock_id {id} NOT NULL,
    version BIGINT NOT NULL,
    position BIGINT NOT NULL,
    ledger {text} NOT NULL,
    topic {text} NOT NULL,
    state {text} NOT NULL,
    hash {bytes} NOT NULL,
    CONSTRAINT lockledger_events_pkey PRIMARY KEY (lock_id, version)
)"""

SQLITE_EVENTS = """
CREATE TABLE lockledger_events (
    position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    lock_id {id} NOT NULL,
    version BIGINT NOT NULL,
    ledger {text} NOT NULL,
    topic {text} NOT NULL,
    state {text} NOT NULL,
    hash {bytes} NOT NULL,
    CONSTRAINT lockledger_events_version UNIQUE (lock_id, version),
    CONSTRAINT lockledger_events_position CHECK (position > 0)
)"""

INDEXES = (
    ("events_by_position", "events (ledger, position)"),
    ("current_holders_by_holder", "current_holders (ledger, holder, key) WHERE holder IS NOT NULL"),
    ("current_holders_by_key", "current_holders (ledger, key) WHERE holder IS NOT NULL"),
    (
        "current_holders_by_expiry",
        "current_holders (ledger, expires_at) WHERE holder IS NOT NULL AND expires_at IS NOT NULL",
    ),
    ("audit_trail_by_position", "audit_trail (ledger, position)"),
    ("audit_trail_by_key", "audit_trail (ledger, key, position)"),
    ("audit_trail_by_holder", "audit_trail (ledger, holder, position)"),
    (
        "audit_trail_by_previous_holder",
        "audit_trail (ledger, previous_holder, position) WHERE previous_holder IS NOT NULL",
    ),
    ("audit_trail_by_time", "audit_trail (ledger, occurred_at)"),
    ("audit_trail_by_actor", "audit_trail (ledger, actor, position)"),
    (
        "audit_trail_extensions",
        "audit_trail (lock_id, token, occurred_at, version) WHERE action = 'LockExtended'",
    ),
    ("holds_by_key", "holds (ledger, key, taken_at, token, ended_at)"),
    ("holds_by_holder", "holds (ledger, holder, key, taken_at, token, ended_at)"),
    ("holds_by_end", "holds (ledger, ended_at)"),
)

# {now} is a lock's now: the later of the database's clock and the newest event's time.
LIVE_HOLDERS = """
CREATE VIEW {s}lockledger_live_holders AS
SELECT {hold} FROM {s}lockledger_current_holders
WHERE holder IS NOT NULL AND (expires_at IS NULL OR {now} < expires_at)"""

# The clock is read once for each hold: read twice, it could pass the expiry between two columns of one row.
ALL_HOLDS = """
CREATE VIEW {s}lockledger_all_holds AS
SELECT {hold}, {end} FROM {s}lockledger_holds
UNION ALL
SELECT {hold}, ran_out_at, CASE WHEN ran_out_at IS NOT NULL THEN {expiry} END, {nothing}, {nothing}
FROM (
    SELECT {hold}, CASE WHEN {now} >= expires_at THEN expires_at END AS ran_out_at
    FROM {s}lockledger_current_holders
    WHERE holder IS NOT NULL
) AS unended"""

# ALWAYS: an ordinary trigger sleeps under session_replication_role = replica.
POSTGRESQL_APPEND_ONLY = (
    """
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {s}{table}
FOR EACH ROW EXECUTE FUNCTION {s}lockledger_refuse_change()""",
    """
CREATE TRIGGER {table}_append_only_truncate BEFORE TRUNCATE ON {s}{table}
FOR EACH STATEMENT EXECUTE FUNCTION {s}lockledger_refuse_change()""",
    "ALTER TABLE {s}{table} ENABLE ALWAYS TRIGGER {table}_append_only",
    "ALTER TABLE {s}{table} ENABLE ALWAYS TRIGGER {table}_append_only_truncate",
)

REFUSE_CHANGE = """
CREATE FUNCTION {s}lockledger_refuse_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $lockledger$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'restrict_violation',
        MESSAGE = pg_catalog.concat(TG_TABLE_NAME, ' is append-only and refuses ', TG_OP),
        SCHEMA = TG_TABLE_SCHEMA,
        TABLE = TG_TABLE_NAME;
END
$lockledger$"""

# INSERT OR REPLACE removes the row in its way without asking the DELETE trigger.
SQLITE_APPEND_ONLY = (
    """
CREATE TRIGGER {table}_refuse_update BEFORE UPDATE ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only and refuses UPDATE'); END""",
    """
CREATE TRIGGER {table}_refuse_delete BEFORE DELETE ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only and refuses DELETE'); END""",
    """
CREATE TRIGGER {table}_refuse_replace BEFORE INSERT ON {table}
WHEN EXISTS (SELECT 1 FROM {table} WHERE rowid = NEW.rowid OR (lock_id = NEW.lock_id AND {number} = NEW.{number}))
BEGIN SELECT RAISE(ABORT, '{table} is append-only and refuses a second row with the same key'); END""",
)


def upgrade() -> None:
    """Everything, from nothing."""
    if op.get_context().dialect.name == "postgresql":
        _create_on_postgresql()
    else:
        _create_on_sqlite()
    if host_keeps_version(op.get_context()):
        s = _prefix()
        op.execute(VERSION_TABLE.format(s=s))
        op.execute(f"INSERT INTO {s}lockledger_schema_version (version_num) VALUES ('{revision}')")


def _prefix() -> str:
    schema = target_schema(op.get_context())
    return "" if schema is None else f'"{schema}".'


def _create_on_postgresql() -> None:
    s = _prefix()
    exact = 'TEXT COLLATE "C"'
    types = {
        "id": "UUID",
        "text": exact,
        "instant": "TIMESTAMP WITH TIME ZONE",
        "json": "JSON",
        "bytes": "BYTEA",
    }
    # The first position is 1, and the sequence's last value is never null on a migrated schema.
    op.execute(f"CREATE SEQUENCE {s}lockledger_position AS BIGINT MINVALUE 0 START WITH 0 CACHE 1")
    op.execute(f"SELECT pg_catalog.nextval('{s}lockledger_position')")
    for ddl in (POSTGRESQL_EVENTS, *TABLES):
        op.execute(ddl.format(s=s, rowid="", **types))
    _create_indexes(s)

    now = "greatest(pg_catalog.clock_timestamp(), changed_at)"
    op.execute(LIVE_HOLDERS.format(s=s, hold=HOLD, now=now))
    op.execute(
        ALL_HOLDS.format(
            s=s,
            hold=HOLD,
            end=END,
            now=now,
            expiry="'expiry'::text COLLATE \"C\"",
            nothing='NULL::text COLLATE "C"',
        )
    )
    op.execute(REFUSE_CHANGE.format(s=s))
    for table in APPEND_ONLY:
        for ddl in POSTGRESQL_APPEND_ONLY:
            op.execute(ddl.format(s=s, table=table))


def _create_on_sqlite() -> None:
    types = {"id": "CHAR(32)", "text": "TEXT", "instant": "TEXT", "json": "TEXT", "bytes": "BLOB"}
    op.execute(SQLITE_EVENTS.format(**types))
    for ddl in TABLES:
        table = ddl.split()[2].format(s="")
        # The trigger against INSERT OR REPLACE sees -1 where no rowid was given: no row may have it.
        checked = f",\n    CONSTRAINT {table}_rowid CHECK (rowid > 0)"
        op.execute(ddl.format(s="", rowid=checked, **types))
    _create_indexes("")

    clock = "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')"
    now = f"max({clock}, coalesce(changed_at, ''))"
    op.execute(LIVE_HOLDERS.format(s="", hold=HOLD, now=now))
    op.execute(
        ALL_HOLDS.format(s="", hold=HOLD, end=END, now=now, expiry="'expiry'", nothing="NULL")
    )
    for table in APPEND_ONLY:
        number = "token" if table == "lockledger_holds" else "version"
        for ddl in SQLITE_APPEND_ONLY:
            op.execute(ddl.format(table=table, number=number))


def _create_indexes(s: str) -> None:
    op.execute(
        f"CREATE UNIQUE INDEX lockledger_current_holders_token ON {s}lockledger_current_holders (lock_id, token)"
    )
    for name, on in INDEXES:
        op.execute(f"CREATE INDEX lockledger_{name} ON {s}lockledger_{on}")


def downgrade() -> None:
    """Drop everything, unless the ledger holds an event: what happened is never dropped by a migration."""
    s = _prefix()
    context = op.get_context()
    if context.as_sql:
        raise RuntimeError(
            "a script cannot look whether the ledger is empty: run the downgrade itself"
        )
    if (
        op.get_bind().exec_driver_sql(f"SELECT 1 FROM {s}lockledger_events LIMIT 1").first()
        is not None
    ):
        raise RuntimeError(
            f"{s}lockledger_events holds events, and a migration never drops them:"
            " drop the lockledger_ objects by hand if their history may be lost"
        )
    for view in ("all_holds", "live_holders"):
        op.execute(f"DROP VIEW {s}lockledger_{view}")
    for table in ("consumer_positions", "holds", "audit_trail", "current_holders", "events"):
        op.execute(f"DROP TABLE {s}lockledger_{table}")
    if context.dialect.name == "postgresql":
        op.execute(f"DROP FUNCTION {s}lockledger_refuse_change()")
        op.execute(f"DROP SEQUENCE {s}lockledger_position")
    if host_keeps_version(context):
        op.execute(f"DROP TABLE {s}lockledger_schema_version")
