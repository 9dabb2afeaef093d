"""Hosts on SQLite, in every way their engine may begin: what rule 10 says, or a refusal with the remedy.

Where PostgreSQL lets others pass, SQLite makes them wait: these tests assert the wait.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, StaticPool

from lockledger import (
    ConcurrencyConflict,
    LockedByOther,
    LockLedger,
    LockLedgerError,
    configure_sqlite,
)
from support.databases import Database
from support.hosts import Base, Host
from support.ledgers import Ledgers, unchanged

REMEDY = r"configure the engine with lockledger\.configure_sqlite\(engine\)"
BEGIN_IMMEDIATE = r"begin it with BEGIN IMMEDIATE, as lockledger\.configure_sqlite"


def begins_with(engine: Engine, statement: str) -> Engine:
    """SQLAlchemy's own advice, with one kind of BEGIN or another."""

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(statement)

    return engine


ENGINES: dict[str, Callable[[Database], Engine]] = {
    "as SQLAlchemy makes it": lambda database: database.engine(),
    "configured": lambda database: configure_sqlite(database.engine()),
    "that begins deferred": lambda database: begins_with(database.engine(), "BEGIN"),
    "that begins immediate": lambda database: begins_with(database.engine(), "BEGIN IMMEDIATE"),
    "that begins exclusive": lambda database: begins_with(database.engine(), "BEGIN EXCLUSIVE"),
    "without a pool": lambda database: configure_sqlite(database.engine(poolclass=NullPool)),
    "serializable": lambda database: database.engine(isolation_level="SERIALIZABLE"),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, sqlite_ledgers: Ledgers) -> Engine:
    """A host's engine, set up in each way in which transactions are what they seem."""
    engine = ENGINES[request.param](sqlite_ledgers.database)
    Base.metadata.create_all(engine)
    return engine


@pytest.fixture
def host(engine: Engine, sqlite_ledgers: Ledgers) -> Iterator[Host]:
    host = Host(sqlite_ledgers, engine, sqlite_ledgers.open(busy_timeout=0.1))
    yield host
    host.close()


# Whatever the engine: rule 10


def test_a_rollback_takes_everything_back(host: Host) -> None:
    with unchanged(host.ledgers), host.session() as session:
        host.write(session, 1)
        bound = host.ledger.using(session)
        bound.take("k", "run:1", ttl=60)
        bound.extend("k", "run:1", 120)
        bound.take("k", "run:2", takeover_reason="urgent")
        bound.release("k", "run:2")
        session.rollback()

    assert host.documents() == {}


def test_also_when_nothing_of_the_hosts_was_written_before_or_after(host: Host) -> None:
    with unchanged(host.ledgers), host.engine.connect() as connection:
        host.ledger.using(connection).take("k", "run:1")
        connection.rollback()


def test_a_commit_keeps_everything_and_others_saw_nothing_before(host: Host) -> None:
    with host.session() as session, session.begin():
        host.write(session, 1)
        host.ledger.using(session).take("k", "run:1")
        with reading(host) as ledger:
            assert ledger.holder_of("k") is None

    assert host.ledger.is_locked("k")
    assert host.documents() == {1: "draft"}


def reading(host: Host) -> LockLedger:
    return LockLedger(host.database.url)


def test_a_savepoint_after_the_first_verb_is_what_it_seems(host: Host) -> None:
    with host.session() as session, session.begin():
        bound = host.ledger.using(session)
        bound.take("before", "run:1")
        nested = session.begin_nested()
        bound.take("lost", "run:1")
        host.write(session, 1)
        nested.rollback()
        with session.begin_nested():
            bound.take("kept", "run:1")

    assert [hold.key for hold in host.ledger.current_holders()] == ["before", "kept"]
    assert host.documents() == {}


def test_what_was_taken_in_a_savepoint_never_survives_the_outer_rollback(
    host: Host,
) -> None:
    """Where the driver would begin nothing around a savepoint, the savepoint's end would be a commit."""
    with unchanged(host.ledgers), host.session() as session:
        with suppress(ValueError), session.begin_nested():
            host.ledger.using(session).take("k", "run:1")
        session.rollback()

    assert host.documents() == {}


def test_a_guard_holds_the_write_lock(host: Host) -> None:
    """A guard that only read would guard nothing."""
    host.ledger.take("k", "run:1", ttl=600)
    with host.session() as session, session.begin():
        host.ledger.using(session).guard("k", "run:1")
        for change in (
            lambda: host.ledger.take("k", "run:2", takeover_reason="urgent"),
            lambda: host.ledger.release("k", "run:1"),
            lambda: host.ledger.extend("k", "run:1", 1200),
            lambda: host.ledger.take("other", "run:2"),
        ):
            with pytest.raises(ConcurrencyConflict, match="busy timeout"):
                change()
        host.write(session, 1)

    assert host.ledger.take("k", "run:2", takeover_reason="urgent").taken_over_from == "run:1"
    assert host.documents() == {1: "draft"}


def test_a_guard_after_a_read_of_the_hosts_holds_it_too(host: Host) -> None:
    host.ledger.take("k", "run:1")
    with host.session() as session, session.begin():
        session.connection().exec_driver_sql("SELECT * FROM host_document").all()
        host.ledger.using(session).guard("k", "run:1")
        with pytest.raises(ConcurrencyConflict):
            host.ledger.take("k", "run:2", takeover_reason="urgent")


def test_reads_and_refusals_of_others_pass_an_open_transaction(host: Host) -> None:
    host.ledger.take("k", "run:1")
    with host.session() as session, session.begin():
        host.ledger.using(session).take("other", "run:1")
        with pytest.raises(LockedByOther):
            host.ledger.take("k", "run:2")
        assert host.ledger.take("k", "run:1").created is False
        assert host.ledger.release("free", "run:1") is False
        assert host.ledger.is_locked("k")


def test_a_takeover_waits_for_a_guarding_transaction_and_sees_its_edit(host: Host) -> None:
    host.ledger.take("k", "run:1")
    patient = host.ledgers.open(busy_timeout=20)
    began = time.monotonic()
    with host.session() as session, session.begin():
        host.ledger.using(session).guard("k", "run:1")
        host.write(session, 1, "edited")
        taking = host.meanwhile(
            lambda: (patient.take("k", "run:2", takeover_reason="urgent"), host.documents())
        )
        time.sleep(0.3)
        assert not taking.done()
    grant, seen = taking.result(60)

    assert grant.taken_over_from == "run:1"
    assert seen == {1: "edited"}
    assert time.monotonic() - began >= 0.3


def test_two_transactions_one_after_the_other_never_both_win(host: Host) -> None:
    with host.session() as one, host.session() as other:
        host.ledger.using(one).take("k", "run:1")
        losing = host.meanwhile(lambda: host.ledger.using(other).try_take("k", "run:2"))
        time.sleep(0.1)
        one.commit()
        assert losing.result(60) is None
        other.rollback()


def test_the_ledger_alone_works_on_the_same_engine_and_leaves_it_as_it_was(host: Host) -> None:
    ledger = host.ledgers.open(url_or_engine=host.engine)
    with host.engine.connect() as connection:
        before = driver_of(connection).isolation_level

    ledger.take("k", "run:1", ttl=60)
    ledger.take("k", "run:2", takeover_reason="urgent")
    assert ledger.release("k", "run:2")
    with host.engine.connect() as connection:
        assert driver_of(connection).isolation_level == before
        ledger.using(connection).take("k", "run:3")
        connection.rollback()

    assert ledger.holder_of("k") is None


def driver_of(connection: Connection) -> Any:
    return connection.connection.driver_connection


# Refusals


@pytest.fixture
def wrong(sqlite_ledgers: Ledgers) -> Iterator[Host]:
    """A host whose engine is as SQLAlchemy makes it: a savepoint before everything else begins no transaction."""
    engine = sqlite_ledgers.database.engine()
    Base.metadata.create_all(engine)
    host = Host(sqlite_ledgers, engine, sqlite_ledgers.open(busy_timeout=0.1))
    yield host
    host.close()


@pytest.mark.parametrize("how", ["session", "connection", "joined session"])
def test_a_savepoint_on_an_engine_that_began_nothing_around_it_is_refused(
    wrong: Host, how: str
) -> None:
    with unchanged(wrong.ledgers), wrong.engine.connect() as connection:
        connection.begin()
        where: Any = connection
        if how == "session":
            where = Session(bind=connection)
            where.begin_nested()
        elif how == "joined session":
            where = Session(bind=connection, join_transaction_mode="create_savepoint")
        else:
            connection.begin_nested()
        for change in (
            lambda: wrong.ledger.using(where).take("k", "run:1"),
            lambda: wrong.ledger.using(where).guard("k", "run:1"),
            lambda: wrong.ledger.using(where).release_all(under="k", actor="a", reason="r"),
        ):
            with pytest.raises(ValueError, match=f"a savepoint is open.*{REMEDY}"):
                change()
        assert wrong.ledger.using(where).holder_of("k") is None
        connection.rollback()
        if isinstance(where, Session):
            where.close()


def test_the_remedy_helps(wrong: Host) -> None:
    engine = configure_sqlite(wrong.database.engine())
    with unchanged(wrong.ledgers), engine.connect() as connection:
        transaction = connection.begin()
        with Session(bind=connection, join_transaction_mode="create_savepoint") as session:
            wrong.ledger.using(session).take("k", "run:1")
            session.commit()
        transaction.rollback()


def test_a_driver_without_transactions_is_refused(sqlite_ledgers: Ledgers) -> None:
    """`isolation_level=None` without anybody who sends BEGIN: each statement would commit by itself."""
    engine = sqlite_ledgers.database.engine(connect_args={"isolation_level": None})
    with (
        unchanged(sqlite_ledgers),
        engine.connect() as connection,
        connection.begin(),
        pytest.raises(ValueError, match=f"in AUTOCOMMIT.*{REMEDY}"),
    ):
        sqlite_ledgers.open().using(connection).take("k", "run:1")


def test_a_begin_that_the_host_sends_itself_is_enough(sqlite_ledgers: Ledgers) -> None:
    engine = sqlite_ledgers.database.engine(connect_args={"isolation_level": None})
    ledger = sqlite_ledgers.open()
    with unchanged(sqlite_ledgers), engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        ledger.using(connection).take("k", "run:1")
        connection.rollback()
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        ledger.using(connection).take("k", "run:1")
        connection.commit()
    assert ledger.is_locked("k")


class OfPython312(sqlite3.Connection):
    """A connection that says, as one of Python 3.12 may, that it commits each statement."""

    autocommit: Any = True


def test_the_drivers_autocommit_of_python_3_12_is_refused(sqlite_ledgers: Ledgers) -> None:
    engine = sqlite_ledgers.database.engine(connect_args={"factory": OfPython312})
    with (
        unchanged(sqlite_ledgers),
        engine.connect() as connection,
        connection.begin(),
        pytest.raises(ValueError, match="in AUTOCOMMIT"),
    ):
        sqlite_ledgers.open().using(connection).take("k", "run:1")


def test_configuring_an_engine_puts_the_drivers_autocommit_of_python_3_12_aside(
    sqlite_ledgers: Ledgers,
) -> None:
    engine = configure_sqlite(sqlite_ledgers.database.engine(connect_args={"factory": OfPython312}))
    with unchanged(sqlite_ledgers), engine.connect() as connection:
        assert driver_of(connection).autocommit == -1
        sqlite_ledgers.open().using(connection).take("k", "run:1")
        connection.rollback()


@pytest.mark.skipif(not hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"), reason="Python 3.12 has it")
def test_the_drivers_transactions_of_python_3_12_are_joined(sqlite_ledgers: Ledgers) -> None:
    engine = sqlite_ledgers.database.engine(connect_args={"autocommit": False})
    ledger = sqlite_ledgers.open(busy_timeout=0.1)
    ledger.take("k", "run:1")
    with unchanged(sqlite_ledgers), engine.connect() as connection:
        with connection.begin_nested():
            ledger.using(connection).take("other", "run:1")
        ledger.using(connection).guard("k", "run:1")
        with pytest.raises(ConcurrencyConflict):
            ledger.release("k", "run:1")
        connection.rollback()


# A transaction that has read already


@pytest.fixture
def deferred(sqlite_ledgers: Ledgers) -> Iterator[Host]:
    """A host whose transactions begin without the write lock."""
    engine = begins_with(sqlite_ledgers.database.engine(connect_args={"timeout": 60}), "BEGIN")
    Base.metadata.create_all(engine)
    host = Host(sqlite_ledgers, engine, sqlite_ledgers.open())
    yield host
    host.close()


@pytest.mark.parametrize("verb", ["take", "guard", "release"])
def test_one_that_read_before_another_wrote_is_a_conflict(deferred: Host, verb: str) -> None:
    """SQLite lets it neither write nor wait, whatever the busy timeout."""
    deferred.ledger.take("k", "run:1")
    with deferred.engine.connect() as connection:
        connection.exec_driver_sql("SELECT * FROM host_document").all()
        deferred.ledger.take("k", "run:2", takeover_reason="urgent")
        with pytest.raises(ConcurrencyConflict, match=BEGIN_IMMEDIATE) as conflict:
            getattr(deferred.ledger.using(connection), verb)("k", "run:1")
        assert isinstance(conflict.value.__cause__, OperationalError)
        connection.rollback()
        with pytest.raises(LockLedgerError) as again:
            getattr(deferred.ledger.using(connection), verb)("k", "run:1")
        assert not isinstance(again.value, ConcurrencyConflict)


def test_one_that_read_while_another_writes_is_a_conflict_at_once(deferred: Host) -> None:
    with deferred.engine.connect() as writer, deferred.engine.connect() as connection:
        connection.exec_driver_sql("SELECT * FROM host_document").all()
        deferred.ledger.using(writer).take("k", "run:1")
        began = time.monotonic()
        with pytest.raises(ConcurrencyConflict, match=BEGIN_IMMEDIATE):
            deferred.ledger.using(connection).take("other", "run:2")
        assert time.monotonic() - began < 30
        writer.commit()


def test_one_that_has_read_nothing_waits_for_the_other_writer(deferred: Host) -> None:
    with deferred.engine.connect() as writer, deferred.engine.connect() as connection:
        deferred.ledger.using(writer).take("k", "run:1")
        losing = deferred.meanwhile(
            lambda: deferred.ledger.using(connection).try_take("k", "run:2")
        )
        time.sleep(0.2)
        assert not losing.done()
        writer.commit()
        assert losing.result(60) is None
        connection.rollback()


def test_reading_verbs_need_no_write_lock(deferred: Host) -> None:
    deferred.ledger.take("k", "run:1")
    with deferred.engine.connect() as connection:
        assert deferred.ledger.using(connection).is_locked("k")
        deferred.ledger.release("k", "run:1")
        assert deferred.ledger.using(connection).is_locked("k"), "it reads its own snapshot"
        connection.rollback()
        assert not deferred.ledger.using(connection).is_locked("k")


# configure_sqlite


def test_a_configured_engine_waits_as_long_as_it_was_told(sqlite_ledgers: Ledgers) -> None:
    patient = sqlite_ledgers.database.engine(connect_args={"timeout": 60})
    engine = configure_sqlite(patient, busy_timeout=0.2)
    with engine.connect() as writer, engine.connect() as other:
        writer.begin()
        began = time.monotonic()
        with pytest.raises(ConcurrencyConflict, match="busy timeout"):
            sqlite_ledgers.open().using(other).take("k", "run:1")
        assert 0.15 < time.monotonic() - began < 20
        # The host's own begin meets the driver's own error, which is the host's to know.
        with pytest.raises(OperationalError, match="database is locked"):
            other.begin()
        writer.rollback()
        other.begin()


def test_a_configured_engine_changes_nothing_else(sqlite_ledgers: Ledgers) -> None:
    names = ("foreign_keys", "synchronous", "journal_mode", "recursive_triggers", "cache_size")

    def settings(engine: Engine) -> list[object]:
        with engine.connect() as connection:
            return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

    plain, configured = sqlite_ledgers.database.engine(), sqlite_ledgers.database.engine()
    assert settings(configure_sqlite(configured)) == settings(plain)


@pytest.mark.parametrize(
    ("busy_timeout", "error"), [(-1, ValueError), (True, TypeError), ("1", TypeError)]
)
def test_a_busy_timeout_outside_its_limits_is_refused(
    busy_timeout: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="busy_timeout"):
        configure_sqlite(create_engine("sqlite://"), busy_timeout=busy_timeout)


def test_only_sqlite_engines_are_configured(postgres_database: Database) -> None:
    with pytest.raises(ValueError, match="configure_sqlite is for SQLite engines, not for postgr"):
        configure_sqlite(postgres_database.engine())
    engine: Any = "sqlite://"
    with pytest.raises(TypeError, match="wants a SQLAlchemy engine, not 'sqlite://'"):
        configure_sqlite(engine)


def test_a_database_in_memory_that_all_threads_share() -> None:
    engine = configure_sqlite(
        create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    )
    with LockLedger(engine) as ledger:
        ledger.migrate()
        with Session(engine) as session:
            ledger.using(session).take("k", "run:1")
            session.commit()
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(ledger.is_locked("k")))
        thread.start()
        thread.join()
    assert seen == [True]
    engine.dispose()
