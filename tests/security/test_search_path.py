"""Nobody's operators, functions or tables but PostgreSQL's and the ledger's own are ever used.

A role that may create objects in a schema on the search path, as everybody may in `public` before PostgreSQL 15, could
make an operator or a function that fits our values better than PostgreSQL's own. It would run with the rights of
whoever reads the ledger (CVE-2018-1058).
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

from sqlalchemy import Connection

from lockledger import LockLedger, NotHolding
from lockledger.cli.program import run
from support.databases import Database
from support.old_system import LIVE, OldSystem
from support.roles import role_of
from support.tampering import tamper
from support.verbs import BOUND

TYPES = (
    *('"char"', "text", "varchar", "name", "bytea", "json", "uuid", "bool"),
    *("int2", "int4", "int8", "numeric", "float8", "oid", "regclass", "xid"),
    *("timestamptz", "timestamp", "interval", "text[]", "varchar[]", "uuid[]", "int8[]"),
)
OPERATORS = [
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "~",
    "~~",
    "+",
    "-",
    "*",
    "/",
    "%",
    "||",
    "<<",
    ">>",
    "&",
    "|",
    "->",
    "->>",
    "#>>",
]
FUNCTIONS = (
    *("unnest", "count", "min", "max", "to_json", "nextval", "age", "array_agg", "bool_and"),
    *("pg_sequence_last_value", "pg_advisory_xact_lock", "pg_try_advisory_xact_lock"),
    *("has_table_privilege", "has_sequence_privilege", "pg_has_role", "pg_notify", "set_config"),
)
# What PostgreSQL has of the same types comes first; only what fits better than it is ever found in `public`.
HOSTILE = f"""
DO $do$
DECLARE
    types text[] := ARRAY[{", ".join(f"$t${each}$t$" for each in TYPES)}];
    one text; other text; name text; number int := 0;
    body text := ' RETURNS bool LANGUAGE plpgsql AS ''BEGIN RAISE EXCEPTION ''''not ours''''; END''';
BEGIN
    FOREACH one IN ARRAY types LOOP
        FOREACH name IN ARRAY ARRAY[{", ".join(f"'{each}'" for each in FUNCTIONS)}] LOOP
            EXECUTE format('CREATE FUNCTION public.%I(%s)', name, one) || body;
        END LOOP;
        FOREACH other IN ARRAY types LOOP
            number := number + 1;
            EXECUTE format('CREATE FUNCTION public.of_two_%s(%s, %s)', number, one, other) || body;
            FOREACH name IN ARRAY ARRAY[{", ".join(f"'{each}'" for each in OPERATORS)}] LOOP
                EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.of_two_%s, LEFTARG = %s, RIGHTARG = %s)',
                    name, number, one, other);
            END LOOP;
        END LOOP;
    END LOOP;
    FOREACH one IN ARRAY ARRAY['int2', 'varchar', 'name'] LOOP
        FOREACH name IN ARRAY ARRAY[{", ".join(f"'{each}'" for each in FUNCTIONS)}] LOOP
            EXECUTE format('CREATE FUNCTION public.%I(%s, %s)', name, one, one) || body;
        END LOOP;
    END LOOP;
END $do$
"""


def _make_hostile(connection: Connection, role: str) -> None:
    connection.exec_driver_sql(f"GRANT CREATE ON SCHEMA public TO {role}")
    connection.exec_driver_sql(f"SET LOCAL ROLE {role}")
    connection.connection.cursor().execute(HOSTILE)


def test_what_another_role_made_in_a_schema_on_the_search_path_is_never_called(
    postgres_database: Database, tmp_path: Path
) -> None:
    old = OldSystem(postgres_database)
    old.lock("old", "run:1", 0)
    with role_of(postgres_database) as role:
        with postgres_database.engine().begin() as connection:
            _make_hostile(connection, role)
        with LockLedger(postgres_database.url) as ledger:
            ledger.migrate()
            _use_everything(ledger, postgres_database)
            # By its name, SQLAlchemy looks it up with operators that it does not qualify.
            ledger.import_locks(replace(old.live, table=LIVE))
            _repair(ledger, postgres_database)
        with LockLedger(postgres_database.url, name="scopes", scopes=True) as scoped:
            scoped.take("r:5", "run:1")
            assert scoped.try_take("r:5:6", "run:2") is None
            assert scoped.try_take("r", "run:2") is None
            scoped.take_all(["r:5:7", "r:5:8"], "run:1")
        for command in ("doctor", "sweep", "verify"):
            assert run(["--database", postgres_database.url, command]) == 0


def _use_everything(ledger: LockLedger, database: Database) -> None:
    ago, now = datetime.now(UTC) - timedelta(days=1), datetime.now(UTC)
    ledger.take("k", "run:1", ttl=60)
    ledger.take("k", "run:2", takeover_reason="why", ttl=0.001)
    _call_every_verb(ledger, *set(BOUND) - {"guard"})
    ledger.take_all(["k", "l:m"], "run:1")
    with database.engine().begin() as connection:
        _call_every_verb(ledger.using(connection), *BOUND)
        ledger.using(connection).take("k", "run:1")
    _wait_for_a_transaction(ledger, database)
    chosen: Any = {"key_prefix": "l", "under": "l", "holder": "run:1"}
    ledger.current_holders(**chosen, after="a")
    ledger.holds(key="k", holder="run:1")
    page = ledger.holds(limit=1)
    ledger.holds(**chosen, since=ago, until=now, after=page.next_after)
    ledger.holders_at(now, **chosen)
    ledger.audit_trail(
        **chosen,
        actor="run:1",
        action="LockTaken",
        since=ago,
        until=now,
        extensions=True,
        after=1,
    )
    assert list(ledger.events())
    ledger.export_audit_trail(io.BytesIO(), format="jsonl")
    ledger.export_holds(io.BytesIO(), format="csv")
    assert ledger.verify(checkpoint=ledger.checkpoint()).ok


def _call_every_verb(ledger: Any, *names: str) -> None:
    for name in names:
        with suppress(NotHolding):
            BOUND[name](ledger)


def _wait_for_a_transaction(ledger: LockLedger, database: Database) -> None:
    """A call that waits asks for a bound of its waiting."""
    with database.engine().connect() as connection:
        ledger.using(connection).release("k", "run:1")
        taking = Thread(target=ledger.take, args=("k", "run:3"), kwargs={"wait": 60})
        taking.start()
        taking.join(0.3)
        connection.commit()
        taking.join()
    assert ledger.release("k", "run:3")


def _repair(ledger: LockLedger, database: Database) -> None:
    tamper(
        database,
        "UPDATE lockledger_audit_trail SET reason = 'x'",
        "UPDATE lockledger_current_holders SET metadata = '{}', changed_at = now()",
        "DELETE FROM lockledger_holds",
    )
    ledger.rebuild()
    assert ledger.verify().ok


def test_temporary_tables_of_the_same_names_are_never_looked_at(
    postgres_database: Database,
) -> None:
    """They come before every schema for a name without one, also before PostgreSQL's own."""
    with LockLedger(postgres_database.url) as ledger:
        ledger.take("k", "run:1")
        with postgres_database.engine().begin() as connection:
            ours = connection.exec_driver_sql(
                "SELECT relname FROM pg_class WHERE relname LIKE 'lockledger%%' AND relkind IN ('r', 'v', 'S')"
            ).scalars()
            catalog = [
                "pg_locks",
                "pg_class",
                "pg_namespace",
                "pg_database",
                "pg_stat_activity",
                "pg_sequences",
            ]
            for name in (*ours.all(), *catalog):
                connection.exec_driver_sql(f"CREATE TEMPORARY TABLE {name} (x int)")
            bound = ledger.using(connection)
            assert bound.holder_of("k") is not None
            _call_every_verb(bound, *BOUND)
        assert ledger.verify().ok
