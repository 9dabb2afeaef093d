"""What a ledger refuses to join, each with the remedy, and nothing of the transaction lost by it."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.orm import Session

from lockledger import LockLedger, SchemaMismatch, configure_sqlite
from lockledger.adapters.migration import migration_sql
from support.databases import Database, sqlite_file
from support.hosts import Base, Host
from support.ledgers import Ledgers, unchanged
from support.verbs import BOUND

AUTOCOMMIT = "in AUTOCOMMIT.*would not take a lock back.*use one with transactions"


@pytest.mark.parametrize("given", [None, "postgresql://", 7, object(), Session])
def test_only_a_session_or_a_connection_is_joined(host: Host, given: Any) -> None:
    with pytest.raises(TypeError, match="wants a SQLAlchemy Session or Connection"):
        host.ledger.using(given)


def test_an_engine_is_no_transaction(host: Host) -> None:
    engine: Any = host.engine
    with pytest.raises(TypeError, match="wants a SQLAlchemy Session or Connection, not Engine"):
        host.ledger.using(engine)


def test_a_connection_below_sqlalchemy_is_no_transaction(host: Host) -> None:
    with host.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        with pytest.raises(TypeError, match="wants a SQLAlchemy Session or Connection"):
            host.ledger.using(driver)


def test_a_transaction_on_another_kind_of_database_is_refused(
    postgres_ledgers: Ledgers, sqlite_database: Database
) -> None:
    with (
        sqlite_database.engine().connect() as connection,
        pytest.raises(ValueError, match="this ledger is on postgresql, the transaction on sqlite"),
    ):
        postgres_ledgers.open().using(connection).take("k", "run:1")


@pytest.mark.parametrize("verb", BOUND)
def test_every_verb_refuses_an_engine_in_autocommit(host: Host, verb: str) -> None:
    engine = host.database.engine(isolation_level="AUTOCOMMIT")
    with (
        unchanged(host.ledgers),
        engine.connect() as connection,
        pytest.raises(ValueError, match=AUTOCOMMIT),
    ):
        BOUND[verb](host.ledger.using(connection))


@pytest.mark.parametrize("begun", [False, True], ids=["before", "after begin"])
def test_a_connection_that_was_set_to_autocommit_is_refused(host: Host, begun: bool) -> None:
    engine = host.database.engine()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if begun:
            connection.begin()
        with pytest.raises(ValueError, match=AUTOCOMMIT):
            host.ledger.using(connection).take("k", "run:1")
        with pytest.raises(ValueError, match=AUTOCOMMIT):
            host.ledger.using(connection).holder_of("k")

    assert not host.ledger.is_locked("k")


def test_a_session_in_autocommit_is_refused(host: Host) -> None:
    engine = host.database.engine().execution_options(isolation_level="AUTOCOMMIT")
    with Session(engine) as session, pytest.raises(ValueError, match=AUTOCOMMIT):
        host.ledger.using(session).take("k", "run:1")


def test_a_driver_in_autocommit_is_refused_whatever_sqlalchemy_says(postgres_host: Host) -> None:
    engine = postgres_host.database.engine(connect_args={"autocommit": True})
    with engine.connect() as connection:
        assert connection.get_isolation_level() == "READ COMMITTED"
        with pytest.raises(ValueError, match=AUTOCOMMIT):
            postgres_host.ledger.using(connection).take("k", "run:1")


def test_a_refused_connection_can_be_begun_as_before(sqlite_host: Host) -> None:
    engine = sqlite_host.database.engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        with pytest.raises(ValueError, match=AUTOCOMMIT):
            sqlite_host.ledger.using(connection).take("k", "run:1")
        assert not connection.in_transaction()
        with connection.begin():
            connection.exec_driver_sql("INSERT INTO host_document VALUES (1, 'x')")

    assert set(sqlite_host.documents()) == {1}


def test_a_connection_in_autocommit_may_turn_back(host: Host) -> None:
    engine = host.database.engine()
    with engine.connect() as connection:
        with pytest.raises(ValueError, match=AUTOCOMMIT):
            host.ledger.using(connection.execution_options(isolation_level="AUTOCOMMIT")).take(
                "k", "run:1"
            )
        connection.rollback()
    with engine.begin() as connection:
        host.ledger.using(connection).take("k", "run:1")

    assert host.ledger.is_locked("k")


# Without the schema


@pytest.mark.parametrize("verb", BOUND)
def test_a_missing_schema_is_named_and_does_not_poison_the_transaction(
    empty_database: Database, verb: str
) -> None:
    engine = empty_database.engine()
    Base.metadata.create_all(engine)
    with LockLedger(engine) as ledger, Session(engine) as session, session.begin():
        session.connection().exec_driver_sql("INSERT INTO host_document VALUES (1, 'x')")
        with pytest.raises(SchemaMismatch, match="run `lockledger migrate`") as refusal:
            BOUND[verb](ledger.using(session))
        assert refusal.value.found is None
        session.connection().exec_driver_sql("INSERT INTO host_document VALUES (2, 'x')")

    assert count(engine) == 2
    assert empty_database.logged_errors() == []


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM host_document").scalar_one())


def test_another_schema_than_the_migrated_one_is_missing(postgres_host: Host) -> None:
    elsewhere = postgres_host.ledgers.open(schema="tenant_7")
    postgres_host.ledgers.schemas.discard("tenant_7")
    with postgres_host.session() as session, session.begin():
        postgres_host.write(session, 1)
        with pytest.raises(SchemaMismatch, match="missing in schema 'tenant_7'"):
            elsewhere.using(session).take("k", "run:1")
        postgres_host.write(session, 2)

    assert set(postgres_host.documents()) == {1, 2}


def test_a_transaction_may_lie_in_another_database_which_is_looked_at_by_itself(
    servers: Any, ledgers: Ledgers, tmp_path: Any
) -> None:
    ledger = ledgers.open()
    ledger.take("k", "run:1")
    kind = "sqlite" if ledgers.database.dialect == "sqlite" else "postgres"
    folder = tmp_path / "another"
    folder.mkdir()
    with (
        servers.database(kind, folder, migrated=False) as empty,
        empty.engine().connect() as connection,
        pytest.raises(SchemaMismatch),
    ):
        ledger.using(connection).take("k", "run:1")
    with (
        servers.database(kind, folder) as other,
        other.engine().begin() as connection,
    ):
        assert ledger.using(connection).take("k", "run:2").token == 1


def test_a_schema_made_in_the_same_transaction_is_there_until_it_is_rolled_back(
    empty_database: Database,
) -> None:
    """A host's test suite may build everything in a transaction that it rolls back."""
    engine = empty_database.engine()
    if empty_database.dialect == "sqlite":
        configure_sqlite(engine)
    with LockLedger(engine) as ledger:
        for _ in range(2):
            with engine.connect() as connection:
                build(connection)
                assert ledger.using(connection).take("k", "run:1").token == 1
                assert ledger.using(connection).release("k", "run:1")
                connection.rollback()
        with engine.connect() as connection, pytest.raises(SchemaMismatch):
            ledger.using(connection).take("k", "run:1")
        with engine.begin() as connection:
            build(connection)
        with engine.begin() as connection:
            assert ledger.using(connection).take("k", "run:1").token == 1
    assert empty_database.logged_errors() == []


def build(connection: Connection) -> None:
    """Runs the SQL script of the migrations in the open transaction."""
    script = migration_sql(connection.dialect.name)
    for end in ("BEGIN;", "COMMIT;"):
        script = re.sub(f"^{end}$", "", script, flags=re.MULTILINE)
    driver: Any = connection.connection.driver_connection
    if not connection.in_transaction():
        connection.begin()
    if connection.dialect.name == "postgresql":
        driver.execute(script)
        return
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            driver.execute(statement)
            statement = ""


def test_a_memory_database_of_the_hosts_is_joined() -> None:
    engine = create_engine("sqlite://")
    with LockLedger(engine) as ledger:
        ledger.migrate()
        with Session(engine) as session:
            ledger.using(session).take("k", "run:1")
            session.rollback()
            ledger.using(session).take("k", "run:2")
            session.commit()
        assert [entry.holder for entry in ledger.history("k")] == ["run:2"]
    engine.dispose()


def test_a_file_that_was_never_migrated(tmp_path: Any) -> None:
    with (
        sqlite_file(tmp_path / "empty.db") as database,
        LockLedger(database.engine()) as ledger,
        database.engine().connect() as connection,
        pytest.raises(SchemaMismatch),
    ):
        ledger.using(connection).holder_of("k")
