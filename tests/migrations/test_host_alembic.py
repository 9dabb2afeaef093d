"""A host's own Alembic: it can run the ledger's migrations, or leave their tables alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Integer, MetaData, Table, inspect

from lockledger import include_object
from lockledger.adapters.migration import migrate
from lockledger.adapters.schema import SCHEMA_VERSION, check_schema
from support.databases import Database
from support.rows import insert_event

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference" / "schema.md"

ENV = """
from alembic import context
connection = context.config.attributes["connection"]
context.configure(connection=connection)
with context.begin_transaction():
    context.run_migrations()
"""
OF_THE_HOST = """
from alembic import op
import sqlalchemy as sa
revision = "0001"
down_revision = None
branch_labels = None
depends_on = "lockledger_0001"

def upgrade():
    op.create_table("host_row", sa.Column("id", sa.Integer))

def downgrade():
    op.drop_table("host_row")
"""


@pytest.fixture
def host(tmp_path: Path) -> Config:
    """A host's Alembic as the reference shows it, with one migration of the host's."""
    (block,) = re.findall(r"^```ini\n(.*?)^```$", REFERENCE.read_text(), re.DOTALL | re.MULTILINE)
    versions = tmp_path / "migrations" / "versions"
    versions.mkdir(parents=True)
    (versions / "0001_host.py").write_text(OF_THE_HOST)
    (tmp_path / "migrations" / "env.py").write_text(ENV)
    ini = tmp_path / "alembic.ini"
    ini.write_text(block.replace(" migrations\n", f" {tmp_path}/migrations\n"))
    ini.write_text(ini.read_text().replace("    migrations/versions", f"    {versions}"))
    return Config(ini)


def run(database: Database, host: Config, verb: Any, to: str, **arguments: Any) -> None:
    host.cmd_opts = Namespace(x=[f"{name}={value}" for name, value in arguments.items()])
    with database.engine().begin() as connection:
        host.attributes["connection"] = connection
        verb(host, to)


def objects(database: Database, schema: str | None = None) -> set[str]:
    return set(inspect(database.engine()).get_table_names(schema))


def test_a_host_can_run_the_migrations_as_a_branch_of_its_own(
    empty_database: Database, host: Config
) -> None:
    run(empty_database, host, command.upgrade, "heads")
    with empty_database.engine().begin() as connection:
        check_schema(connection)
        insert_event(connection)
        versions = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars()
        # What the host's migration depends on is implied by it.
        assert set(versions) == {"0001"}
    assert "host_row" in objects(empty_database)
    migrate(empty_database.engine())
    run(empty_database, host, command.upgrade, "heads")


def test_a_host_that_runs_only_the_ledgers_branch(empty_database: Database, host: Config) -> None:
    run(empty_database, host, command.upgrade, "lockledger@head")
    with empty_database.engine().connect() as connection:
        check_schema(connection)
        version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    assert version == SCHEMA_VERSION
    assert "host_row" not in objects(empty_database)


@pytest.mark.parametrize("given", ["attribute", "argument", "option"])
def test_the_host_says_which_schema(
    empty_postgres_database: Database, host: Config, given: str
) -> None:
    with empty_postgres_database.engine().begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Tenant-7"')
    arguments = {}
    if given == "attribute":
        host.attributes["lockledger_schema"] = "Tenant-7"
    elif given == "argument":
        arguments["lockledger_schema"] = "Tenant-7"
    else:
        host.set_main_option("lockledger_schema", "Tenant-7")
    run(empty_postgres_database, host, command.upgrade, "heads", **arguments)
    with empty_postgres_database.engine().connect() as connection:
        check_schema(connection, "Tenant-7")
    assert not any(name.startswith("lockledger") for name in objects(empty_postgres_database))


def test_an_empty_ledger_is_removed_by_a_downgrade(empty_database: Database, host: Config) -> None:
    run(empty_database, host, command.upgrade, "heads")
    run(empty_database, host, command.downgrade, "base")
    assert objects(empty_database) - {"sqlite_sequence"} == {"alembic_version"}
    run(empty_database, host, command.upgrade, "heads")


def test_a_ledger_with_events_is_not(empty_database: Database, host: Config) -> None:
    run(empty_database, host, command.upgrade, "heads")
    with empty_database.engine().begin() as connection:
        insert_event(connection)
    with pytest.raises(RuntimeError, match="holds events, and a migration never drops them"):
        run(empty_database, host, command.downgrade, "base")
    with empty_database.engine().connect() as connection:
        check_schema(connection)


def test_migrating_inside_a_run_of_the_hosts_alembic_is_refused(
    empty_database: Database, host: Config, tmp_path: Path
) -> None:
    env = tmp_path / "migrations" / "env.py"
    env.write_text(
        "from lockledger.adapters.migration import migrate\n"
        + ENV
        + "    migrate(connection.engine)\n"
    )
    with pytest.raises(RuntimeError, match="call it before or after, or list"):
        run(empty_database, host, command.upgrade, "0001")


def test_autogenerate_of_a_host_leaves_the_ledgers_tables_alone(database: Database) -> None:
    with database.engine().connect() as connection:

        def proposed(**options: Any) -> list[Any]:
            context = MigrationContext.configure(connection, opts=options)
            own = MetaData()
            Table("host_row", own, Column("id", Integer, index=True))
            return [operation[0] for operation in compare_metadata(context, own)]

        assert "remove_table" in proposed()
        assert proposed(include_object=include_object) == ["add_table", "add_index"]


def test_the_migrations_are_found_in_an_installed_package(tmp_path: Path) -> None:
    """Laid out as a wheel installs it, where the package's folder holds them all."""
    package = tmp_path / "lockledger"
    package.mkdir()
    for name in ("adapters", "domain", "migrations", "projections"):
        (package / name).symlink_to(ROOT / name)
    (package / "__init__.py").write_text("")
    look = (
        "from alembic.config import Config; from alembic.script import ScriptDirectory; import sys;"
        "c = Config(); c.set_main_option('path_separator', 'newline');"
        "c.set_main_option('script_location', 'lockledger:migrations');"
        "c.set_main_option('version_locations', sys.argv[1]);"
        "print(*ScriptDirectory.from_config(c).get_heads())"
    )
    for location in ("lockledger:migrations/versions", "lockledger.migrations:versions"):
        found = subprocess.run(
            [sys.executable, "-c", look, location],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        assert (found.stdout.strip(), found.stderr) == (SCHEMA_VERSION, "")
