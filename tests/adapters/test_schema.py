"""The declared schema, names in SQL, and the check that a database has this release's schema."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_mock_engine, select
from sqlalchemy.exc import DBAPIError

from lockledger import LockLedger
from lockledger.adapters.identifiers import VERSION_TABLE, effective_schema, qualified
from lockledger.adapters.migration import migrate
from lockledger.adapters.schema import EVENTS, SCHEMA_VERSION, TABLES, check_schema, declared
from lockledger.domain.errors import SchemaMismatch, shown
from support.databases import Database
from support.roles import role_of


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    """A connection to a migrated database, in a transaction."""
    with database.engine().connect() as connection:
        yield connection


def set_version(connection: Connection, version: str | None) -> None:
    table = declared(connection.dialect.name).schema_version
    connection.execute(table.delete())
    if version is not None:
        connection.execute(table.insert().values(version_num=version))


def test_a_migrated_database_passes(connection: Connection) -> None:
    check_schema(connection)


def test_a_missing_schema_is_named_and_leaves_the_callers_transaction_usable(
    empty_database: Database,
) -> None:
    with empty_database.engine().begin() as connection:
        connection.exec_driver_sql("CREATE TABLE host_row (id INTEGER)")
        connection.exec_driver_sql("INSERT INTO host_row VALUES (1)")
        with pytest.raises(SchemaMismatch, match="lockledger's tables are missing") as mismatch:
            check_schema(connection)
        connection.exec_driver_sql("INSERT INTO host_row VALUES (2)")
    assert mismatch.value.found is None
    assert mismatch.value.expected == SCHEMA_VERSION
    assert "lockledger migrate" in str(mismatch.value)
    with empty_database.engine().connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM host_row").scalar() == 2
    assert empty_database.logged_errors() == []


def test_an_older_schema_is_to_be_migrated(connection: Connection) -> None:
    set_version(connection, "lockledger_0000")
    with pytest.raises(
        SchemaMismatch, match=r"older than lockledger_0001.*run `lockledger migrate`"
    ):
        check_schema(connection)


def test_a_schema_from_the_future_is_not(connection: Connection) -> None:
    set_version(connection, "lockledger_0002")
    with pytest.raises(
        SchemaMismatch, match=r"lockledger_0002.*does not know.*install"
    ) as mismatch:
        check_schema(connection)
    assert mismatch.value.found == "lockledger_0002"


def test_a_version_table_without_a_version_is_a_missing_schema(connection: Connection) -> None:
    set_version(connection, None)
    with pytest.raises(SchemaMismatch) as mismatch:
        check_schema(connection)
    assert mismatch.value.found is None


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_was_taken_out_is_named_and_never_made_anew(
    database: Database, table: str
) -> None:
    """Empty, it would look as if nothing had ever been recorded."""
    engine = database.engine()
    with engine.begin() as connection:
        if database.dialect == "sqlite":
            connection.exec_driver_sql("PRAGMA legacy_alter_table = ON")
        connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO taken_out")
    missing = f"lockledger_0001, but {table} is missing; restore it from a backup"
    with engine.connect() as connection, pytest.raises(SchemaMismatch, match=missing) as mismatch:
        check_schema(connection)
    assert mismatch.value.missing == (table,)
    copied = copy.copy(mismatch.value)  # as it is pickled
    assert (copied.missing, str(copied)) == ((table,), str(mismatch.value))
    with LockLedger(engine) as ledger:
        for call in (ledger.migrate, ledger.current_holders):
            with pytest.raises(SchemaMismatch, match=missing):
                call()


def test_only_the_schema_that_was_asked_for_counts(postgres_database: Database) -> None:
    engine = postgres_database.engine(connect_args={"options": "-c search_path=public"})
    with engine.connect() as connection:
        with pytest.raises(SchemaMismatch, match="missing in schema 'tenant'") as mismatch:
            check_schema(connection, "tenant")
        assert mismatch.value.schema == "tenant"
    migrate(engine, schema="tenant")
    with engine.begin() as connection:
        connection.execute(declared("postgresql").schema_version.delete())
        check_schema(connection, "tenant")
        with pytest.raises(SchemaMismatch):
            check_schema(connection)


@pytest.mark.parametrize(
    "missing", ["USAGE ON SCHEMA tenant", "SELECT ON tenant.lockledger_schema_version"]
)
def test_a_missing_privilege_comes_through_as_itself(
    postgres_database: Database, missing: str
) -> None:
    migrate(postgres_database.engine(), schema="tenant")
    with role_of(postgres_database) as role:
        granted = [
            f"GRANT USAGE ON SCHEMA tenant TO {role}",
            f"GRANT SELECT ON tenant.lockledger_schema_version TO {role}",
            f"REVOKE {missing} FROM {role}",
        ]
        with postgres_database.engine().begin() as connection:
            for statement in granted:
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql(f"SET LOCAL ROLE {role}")
            with pytest.raises(DBAPIError) as refused:
                check_schema(connection, "tenant")
            connection.rollback()
    assert getattr(refused.value.orig, "sqlstate", None) == "42501"


def test_the_check_reads_in_a_read_only_transaction(database: Database) -> None:
    engine = database.engine(execution_options={"postgresql_readonly": True})
    with engine.connect() as connection:
        check_schema(connection)


def test_the_check_needs_no_transaction_for_a_host_that_streams(database: Database) -> None:
    options = {"isolation_level": "AUTOCOMMIT", "yield_per": 1}
    with database.engine(execution_options=options).connect() as connection:
        check_schema(connection)


def test_the_expected_version_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", "lockledger.migrations:")
    config.set_main_option("path_separator", "newline")
    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA_VERSION]


def test_the_same_schema_is_declared_once() -> None:
    assert declared("postgresql") is declared("postgresql", "public")
    assert declared("postgresql", "tenant") is not declared("postgresql", "public")
    assert declared("sqlite") is declared("sqlite", None)


@pytest.mark.parametrize("schema", ["public", "tenant"])
def test_every_declared_object_is_qualified_on_postgresql(schema: str) -> None:
    statements: list[str] = []

    def keep(statement: Any, *_values: Any) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine: Any = create_mock_engine("postgresql+psycopg://", keep)
    tables = declared("postgresql", schema)
    tables.metadata.create_all(engine, checkfirst=False)
    keep(select(tables.live_holders))
    keep(select(tables.all_holds))
    assert len(statements) > len(tables.metadata.tables)
    for statement in statements:
        assert f"{schema}.lockledger_" in statement
        assert not re.search(r"(TABLE|SEQUENCE|ON|FROM)\s+\"?lockledger_", statement)


def test_names_are_quoted_and_qualified() -> None:
    assert qualified(EVENTS, "postgresql", None) == '"public"."lockledger_events"'
    assert qualified(EVENTS, "postgresql", "Tenant-7") == '"Tenant-7"."lockledger_events"'
    assert qualified(EVENTS, "sqlite", None) == '"lockledger_events"'


@pytest.mark.parametrize(
    "schema",
    [
        "",
        " tenant",
        "a.b",
        'a"b',
        "a%b",
        "a:b",
        "7th",
        "a$b",
        "x" * 64,
        "ü" * 32,
        "pg_temp",
        "information_schema",
    ],
)
def test_a_schema_name_that_sql_might_misread_is_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="give") as refused:
        qualified(EVENTS, "postgresql", schema)
    assert shown(schema) in str(refused.value)


def test_a_schema_name_is_text() -> None:
    with pytest.raises(TypeError, match="give its name as str"):
        effective_schema("postgresql", 7)  # type: ignore[arg-type]


def test_sqlite_has_no_schemas() -> None:
    with pytest.raises(ValueError, match="leave schema out"):
        declared("sqlite", "public")


def test_another_make_of_database_is_refused() -> None:
    with pytest.raises(ValueError, match="PostgreSQL and SQLite, not on mysql"):
        declared("mysql")


def test_the_version_table_is_declared_like_the_others(database: Database) -> None:
    engine: Engine = database.engine()
    with engine.connect() as connection:
        table = declared(database.dialect).schema_version
        assert table.name == VERSION_TABLE
        assert connection.execute(select(table.c.version_num)).scalars().all() == [SCHEMA_VERSION]
