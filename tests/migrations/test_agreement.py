"""The migrations make exactly the schema that the library declares."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, MetaData, text

from lockledger.adapters.migration import migrate
from lockledger.adapters.schema import declared
from support.databases import Database, sqlite_file

DESCRIBED_ON_POSTGRESQL = (
    """
SELECT format('%s.%s %s %s %s', relname, attname, format_type(atttypid, atttypmod), collname, attnotnull)
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
LEFT JOIN pg_collation ON pg_collation.oid = attcollation
WHERE relnamespace = CAST(:schema AS regnamespace) AND relkind = 'r' AND attnum > 0""",
    """
SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON oid = indrelid
WHERE relnamespace = CAST(:schema AS regnamespace)""",
    """
SELECT format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
WHERE connamespace = CAST(:schema AS regnamespace)""",
    """
SELECT format('%s %s %s %s %s %s', sequencename, data_type, start_value, min_value, cycle, cache_size)
FROM pg_sequences WHERE schemaname = :schema""",
)


def described_on_postgresql(connection: Connection, schema: str) -> set[str]:
    """Tables, columns, collations, indexes, constraints and sequences of a schema as the catalog tells them."""
    lines: set[str] = set()
    for statement in DESCRIBED_ON_POSTGRESQL:
        lines.update(connection.execute(text(statement), {"schema": schema}).scalars())
    return {line.replace(f"{schema}.", "") for line in lines}


def described_on_sqlite(connection: Connection) -> set[str]:
    """Tables, columns, indexes and checks of a file as it tells them, without the layout of their statements."""
    tables = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")
    lines: set[str] = set()
    for table in tables.scalars().all():
        columns = connection.exec_driver_sql(f"PRAGMA table_xinfo({table})").all()
        lines.update(f"{table} {tuple(column)}" for column in columns)
        for index in connection.exec_driver_sql(f"PRAGMA index_list({table})").all():
            parts = connection.exec_driver_sql(f"PRAGMA index_xinfo({index.name})").all()
            lines.add(f"{table} {tuple(index)[1:]} {[tuple(part) for part in parts]}")
    statements = connection.exec_driver_sql(
        "SELECT sql FROM sqlite_master WHERE sql LIKE '%CHECK%' OR sql LIKE '%AUTOINCREMENT%'"
        " OR (type = 'index' AND sql LIKE '%WHERE%')"
    )
    for statement in statements.scalars():
        of = re.split(r"\s+", statement)[2]
        notable = r"CONSTRAINT \w+ (?:CHECK|UNIQUE) \(.*\)|AUTOINCREMENT|WHERE .*"
        lines.update(f"{of} {part}" for part in re.findall(notable, statement))
    return lines


def differences(engine: Engine, metadata: MetaData, schema: str | None) -> list[Any]:
    """What Alembic's autogenerate would change to come from the database to the declaration."""
    options = {
        "include_schemas": schema is not None,
        "include_name": lambda name, kind, _parents: kind != "schema" or name == schema,
        "compare_type": True,
        "compare_server_default": True,
    }
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, metadata))


@pytest.mark.parametrize("schema", ["public", "Tenant-7"])
def test_on_postgresql_autogenerate_finds_nothing_to_change(
    empty_postgres_database: Database, schema: str
) -> None:
    # Alembic takes a schema for unnamed when it is the connection's default.
    engine = empty_postgres_database.engine(connect_args={"options": "-c search_path=pg_catalog"})
    migrate(engine, schema=schema)
    assert differences(engine, declared("postgresql", schema).metadata, schema) == []
    assert differences(engine, MetaData(), schema) != []


def test_on_sqlite_autogenerate_finds_nothing_to_change(sqlite_database: Database) -> None:
    engine = sqlite_database.engine()
    assert differences(engine, declared("sqlite").metadata, None) == []
    assert differences(engine, MetaData(), None) != []


def test_on_postgresql_the_catalog_tells_the_same_of_both(
    empty_postgres_database: Database,
) -> None:
    engine = empty_postgres_database.engine()
    migrate(engine, schema="migrated")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA declared")
        declared("postgresql", "declared").metadata.create_all(connection)
        migrated = described_on_postgresql(connection, "migrated")
        assert migrated == described_on_postgresql(connection, "declared")
    assert any("lockledger_audit_trail.key text C" in line for line in migrated)
    assert any("WHERE" in line for line in migrated)


def test_on_sqlite_the_file_tells_the_same_of_both(
    sqlite_database: Database, tmp_path: Path
) -> None:
    with sqlite_file(tmp_path / "declared.db") as other:
        declared("sqlite").metadata.create_all(other.engine())
        with sqlite_database.engine().connect() as migrated, other.engine().connect() as created:
            # SQLite's own table of AUTOINCREMENT keys is there in both.
            assert described_on_sqlite(migrated) == described_on_sqlite(created)
            assert any("WHERE holder IS NOT NULL" in line for line in described_on_sqlite(migrated))


INDEX = "lockledger_current_holders_by_key"


@pytest.mark.parametrize(
    "instead",
    [
        None,
        "CREATE INDEX {index} ON {s}lockledger_current_holders (ledger, key)",
        "CREATE INDEX {index} ON {s}lockledger_current_holders (ledger, key) WHERE key IS NOT NULL",
        'CREATE INDEX {index} ON {s}lockledger_current_holders (ledger, key COLLATE "{other}") WHERE holder IS NOT NULL',
    ],
)
def test_a_changed_index_would_be_seen(database: Database, instead: str | None) -> None:
    with database.engine().connect() as connection:

        def described() -> set[str]:
            if database.dialect == "sqlite":
                return described_on_sqlite(connection)
            return described_on_postgresql(connection, "public")

        before = described()
        s, other = ("", "NOCASE") if database.dialect == "sqlite" else ("public.", "POSIX")
        connection.exec_driver_sql(f"DROP INDEX {s}{INDEX}")
        if instead is not None:
            connection.exec_driver_sql(instead.format(index=INDEX, s=s, other=other))
        assert described() != before
