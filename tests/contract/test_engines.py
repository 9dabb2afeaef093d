"""Ledgers on engines of the host's, which are used as they are and left as they were."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from lockledger import (
    AsyncLockLedger,
    ConcurrencyConflict,
    LockedByOther,
    LockLedger,
    Policy,
)
from support.ledgers import Ledgers
from support.lives import LIFE, live_a_life


def test_a_hosts_engine_is_used_and_neither_changed_nor_closed(ledgers: Ledgers) -> None:
    engine = ledgers.database.engine(pool_size=1, max_overflow=0)
    before = settings_of(engine)

    ledger = ledgers.open(url_or_engine=engine, busy_timeout=7)
    assert live_a_life(ledger) == LIFE
    assert settings_of(engine) == before
    ledger.close()

    assert settings_of(engine) == before


def settings_of(engine: Engine) -> dict[str, Any]:
    """What the next user of the engine's only connection finds there."""
    names = (
        ("busy_timeout", "foreign_keys", "synchronous", "journal_mode", "query_only")
        if engine.dialect.name == "sqlite"
        else ("TimeZone", "DateStyle", "search_path", "application_name", "lock_timeout")
    )
    command = "PRAGMA" if engine.dialect.name == "sqlite" else "SHOW"
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        found = {name: connection.exec_driver_sql(f"{command} {name}").scalar() for name in names}
        found["isolation level"] = connection.get_isolation_level()
        found["default isolation level"] = connection.default_isolation_level
        found["driver's mode"] = getattr(driver, "autocommit", None)
        found["driver's isolation level"] = driver.isolation_level
        found["execution options"] = dict(connection.get_execution_options())
        return found


@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ", "AUTOCOMMIT"])
def test_the_isolation_level_of_a_hosts_engine_does_not_matter(
    postgres_ledgers: Ledgers, level: str
) -> None:
    engine = postgres_ledgers.database.engine(isolation_level=level, pool_size=1)
    before = settings_of(engine)

    assert live_a_life(postgres_ledgers.open(url_or_engine=engine)) == LIFE
    assert live_a_life(postgres_ledgers.open(url_or_engine=engine, policy=Doing()), "p") == LIFE

    assert settings_of(engine) == before


@pytest.mark.parametrize("level", ["SERIALIZABLE", "READ UNCOMMITTED", "AUTOCOMMIT"])
def test_the_isolation_level_of_a_hosts_sqlite_engine_does_not_matter(
    sqlite_ledgers: Ledgers, level: str
) -> None:
    engine = sqlite_ledgers.database.engine(isolation_level=level, pool_size=1)
    before = settings_of(engine)

    assert live_a_life(sqlite_ledgers.open(url_or_engine=engine)) == LIFE

    assert settings_of(engine) == before


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_hosts_engine_that_begins_by_itself_works(sqlite_ledgers: Ledgers, begin: str) -> None:
    engine = sqlite_ledgers.database.engine()
    begin_by_itself(engine, begin)
    before = settings_of(engine)

    assert live_a_life(sqlite_ledgers.open(url_or_engine=engine)) == LIFE
    assert live_a_life(sqlite_ledgers.open(url_or_engine=engine, policy=Doing()), "p") == LIFE

    assert settings_of(engine) == before


def begin_by_itself(engine: Engine, begin: str) -> None:
    """SQLAlchemy's own advice for transactions and savepoints that are what they seem."""

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


class Doing(Policy[Connection]):
    """A policy that reads and writes on the connection it is given."""

    def lock_subject(self, connection: Connection, key: str) -> None:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_a_hosts_engine_without_a_pool_works(ledgers: Ledgers) -> None:
    engine = ledgers.database.engine(poolclass=NullPool)

    assert live_a_life(ledgers.open(url_or_engine=engine)) == LIFE


def test_the_ledgers_busy_timeout_counts_on_a_hosts_engine(sqlite_ledgers: Ledgers) -> None:
    engine = sqlite_ledgers.database.engine()
    ledger = sqlite_ledgers.open(url_or_engine=engine, busy_timeout=0.05)
    ledger.take("k", "run:1")

    with sqlite_ledgers.database.engine().connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(ConcurrencyConflict, match="busy timeout"):
            ledger.take("other", "run:1")
        with pytest.raises(LockedByOther):
            ledger.take("k", "run:2")
        assert ledger.take("k", "run:1").created is False
        assert ledger.is_locked("k")
        other.exec_driver_sql("ROLLBACK")


def test_a_hosts_memory_database_is_used_where_it_is() -> None:
    engine = create_engine("sqlite://")
    with LockLedger(engine) as ledger:
        ledger.migrate()
        assert live_a_life(ledger) == LIFE
        with engine.connect() as connection:
            assert (
                connection.exec_driver_sql("SELECT count(*) FROM lockledger_events").scalar() == 4
            )
    engine.dispose()


@pytest.mark.parametrize(
    ("plug", "given", "message"),
    [
        ("clock", 5, "clock=5: give a function"),
        ("names", {"user:7": "Ann"}, "give a function of a connection and ids"),
        ("policy", 5, "has no lock_subject, check_take, recorded: subclass lockledger.Policy"),
        ("policy", Policy, "is a class"),
        ("scopes", "no", "scopes='no': give True or False"),
        ("listen", 1, "listen=1: give True or False"),
    ],
)
def test_what_a_ledger_is_given_is_checked_at_once(plug: str, given: Any, message: str) -> None:
    for kind, url in ((LockLedger, "sqlite://"), (AsyncLockLedger, "sqlite+aiosqlite://")):
        with pytest.raises(TypeError, match=message):
            kind(url, **{plug: given})
