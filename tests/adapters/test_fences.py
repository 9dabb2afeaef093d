"""The fence of a transaction on PostgreSQL: one lock, however many appends, that goes exactly when what it covers goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection

from lockledger import HoldChanged, LockedByOther, LockLedger
from lockledger.adapters.postgres import PostgresEventStore
from lockledger.adapters.store import Newest
from lockledger.domain.lock import Call, Lock, Take
from support.databases import POSTGRES_KINDS, Database, Servers
from support.hosts import Host, host_on
from support.ledgers import Ledgers, postgres_ledgers
from support.processes import rounds

__all__ = ["postgres_ledgers"]

SETTING = "SELECT current_setting(name, true) FROM (VALUES (%(name)s::text)) AS asked (name)"
FENCES = """
SELECT (classid::bigint << 32 | objid::bigint) & ((1::bigint << 48) - 1) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY 1
"""
NOW = datetime(2026, 11, 30, 9, 3, 22, tzinfo=UTC)
ALL_LOCKS = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()"


@pytest.fixture
def host(postgres_ledgers: Ledgers) -> Iterator[Host]:
    """A host on each PostgreSQL server in turn."""
    with host_on(postgres_ledgers) as host:
        yield host


def fences(connection: Connection) -> list[int]:
    """The positions above which transactions of this database may still bring events."""
    return [row[0] for row in connection.exec_driver_sql(FENCES)]


def remembered(connection: Connection, ledger: LockLedger) -> bool:
    """Whether this transaction knows that it has its fence."""
    store = PostgresEventStore(ledger.name, ledger.schema)
    found = connection.exec_driver_sql(SETTING, {"name": store._fence}).scalar()
    return bool(found)


def test_a_transaction_has_one_fence_however_often_it_appends(host: Host) -> None:
    host.ledger.take("before", "ann")
    with host.engine.connect() as connection:
        bound = host.ledger.using(connection)
        assert fences(connection) == []
        for number in range(20):
            bound.take(f"k{number}", "ann")
        assert fences(connection) == [1]
        connection.commit()
        assert fences(connection) == []


def test_a_fence_that_a_savepoint_took_back_is_taken_again(host: Host) -> None:
    with host.engine.connect() as connection:
        bound = host.ledger.using(connection)
        bound.is_locked("k")
        for turn in range(3):
            savepoint = connection.begin_nested()
            bound.take(f"k{turn}", "ann")
            assert fences(connection) == [turn]
            assert remembered(connection, host.ledger)
            savepoint.rollback()
            assert fences(connection) == []
            assert not remembered(connection, host.ledger)
        bound.take("kept", "ann")
        assert fences(connection) == [3]
        connection.commit()
    assert [recorded.position for recorded in host.ledger.events()] == [4]


def test_a_fence_from_before_a_savepoint_outlives_its_rollback(host: Host) -> None:
    with host.engine.connect() as connection:
        bound = host.ledger.using(connection)
        bound.take("before", "ann")
        savepoint = connection.begin_nested()
        bound.take("inside", "ann")
        savepoint.rollback()
        assert fences(connection) == [0]
        assert remembered(connection, host.ledger)
        bound.take("after", "ann")
        assert fences(connection) == [0]
        connection.rollback()
        assert fences(connection) == []


def test_a_fence_of_a_released_savepoint_covers_the_rest_of_the_transaction(host: Host) -> None:
    with host.engine.connect() as connection:
        bound = host.ledger.using(connection)
        bound.is_locked("k")
        with connection.begin_nested():
            bound.take("inside", "ann")
        bound.take("after", "ann")
        assert fences(connection) == [0]
        connection.rollback()


def test_the_next_transaction_of_a_session_takes_a_fence_of_its_own(host: Host) -> None:
    with host.engine.connect() as connection:
        for turn in range(3):
            host.ledger.using(connection).take(f"k{turn}", "ann")
            assert fences(connection) == [turn]
            connection.commit()
            assert not remembered(connection, host.ledger)


def test_two_ledgers_in_one_transaction_have_a_fence_each(host: Host) -> None:
    other = host.ledgers.open(name="other")
    with host.engine.connect() as connection:
        host.ledger.using(connection).take("k", "ann")
        other.using(connection).take("k", "ann")
        host.ledger.using(connection).take("k2", "ann")
        assert fences(connection) == [0, 1]
        connection.rollback()


def test_a_refused_call_has_no_fence_and_locks_no_row(host: Host) -> None:
    host.ledger.take("k", "ann")
    with host.engine.connect() as connection:
        with pytest.raises(LockedByOther):
            host.ledger.using(connection).take("k", "ben")
        assert fences(connection) == []
        assert host.impatient().release("k", "ann"), "the refused call keeps the row locked"
        connection.commit()


def test_a_call_that_loses_its_race_inside_the_append_keeps_neither(host: Host) -> None:
    seen = host.ledger.take("k", "ann").token
    with host.engine.connect() as connection, host.engine.connect() as first:
        host.ledger.using(first).take("k", "cid", takeover_reason="first")
        bound = host.ledger.using(connection)
        running = host.blocked(
            lambda: bound.take("k", "ben", takeover_reason="second", expected_token=seen)
        )
        assert fences(first) == [1], "a call that waits for a row holds readers back"
        first.commit()
        with pytest.raises(HoldChanged):
            running.result(timeout=20)
        assert fences(first) == []
        assert host.impatient().release("k", "cid"), "the refused call keeps the row locked"
        connection.commit()


def test_a_host_that_resets_its_session_takes_a_second_fence_and_loses_nothing(host: Host) -> None:
    with host.engine.connect() as connection:
        bound = host.ledger.using(connection)
        bound.take("a", "ann")
        connection.exec_driver_sql("RESET ALL")
        bound.take("b", "ann")
        assert fences(connection) == [0, 1]
        assert list(host.ledger.events()) == []
        connection.commit()
    assert [recorded.position for recorded in host.ledger.events()] == [1, 2]


@pytest.fixture
def one_database(servers: Servers, tmp_path: Path) -> Iterator[Database]:
    """A database on one server, where several would tell the same at length."""
    with servers.database(POSTGRES_KINDS[0], tmp_path) as database:
        yield database


@pytest.mark.timeout(400)
def test_fifty_thousand_appends_in_one_transaction_do_not_fill_the_servers_lock_table(
    one_database: Database,
) -> None:
    """One lock for each append would be far more than the server has room for."""
    appends = 50_000
    store = PostgresEventStore("default", None)
    engine = one_database.engine()
    with engine.connect() as connection:
        room = connection.exec_driver_sql(
            "SELECT current_setting('max_locks_per_transaction')::int"
            " * (current_setting('max_connections')::int"
            " + current_setting('max_prepared_transactions')::int)"
        ).scalar_one()
        assert appends > 2 * room
        began = time.monotonic()
        for number in range(appends):
            append_one(store, connection, f"key:{number}")
            if number in (1, appends - 1):
                locks = connection.exec_driver_sql(ALL_LOCKS).scalar_one()
                assert locks < 100
                assert fences(connection) == [0]
        assert time.monotonic() - began < 240
        connection.commit()
        assert fences(connection) == []
    with LockLedger(one_database.url) as ledger:
        assert ledger.take("key:17", "ben", takeover_reason="urgent").token == 2
        assert ledger.take("another", "ben").created
        assert sum(1 for _ in ledger.events(appends - 10)) == 12


def append_one(store: PostgresEventStore, connection: Connection, key: str) -> None:
    """What a take appends, without the look before it."""
    lock = Lock(store.lock_id(key), key)
    decision = lock.take(Take("ann", Call("ann", {})), NOW)
    appended = store.append(
        connection, store.recording(Newest(lock, bytes(32), NOW), decision.events)
    )
    assert appended is not None


def test_savepoints_by_the_thousand_in_one_transaction(host: Host) -> None:
    """With the look, the savepoint and all else that a call in a caller's transaction does."""
    calls = rounds(500)
    with host.engine.connect() as connection:
        bound = host.ledger.using(connection)
        for number in range(calls):
            bound.take(f"key:{number % 50}", "ann")
            bound.release(f"key:{number % 50}", "ann")
        assert fences(connection) == [0]
        assert connection.exec_driver_sql(ALL_LOCKS).scalar_one() < 100
        connection.commit()
    assert host.ledger.take("key:1", "ben").created
