"""Reading by position on PostgreSQL: what holds a reader back, what does not, and that nothing makes it skip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import LockedByOther, LockLedger
from lockledger.adapters.migration import migrate
from lockledger.adapters.postgres import PostgresEventStore
from support.databases import new_database
from support.hosts import Host, host_on
from support.ledgers import Ledgers, postgres_ledgers

__all__ = ["postgres_ledgers"]


@pytest.fixture
def host(postgres_ledgers: Ledgers) -> Iterator[Host]:
    """A host on each PostgreSQL server in turn."""
    with host_on(postgres_ledgers) as host:
        yield host


def keys(ledger: LockLedger, after: int = 0) -> list[str]:
    """The keys of the events that a reader sees, in the order in which it sees them."""
    return [recorded.event.key for recorded in ledger.events(after)]


# What holds a reader back.


def test_events_behind_an_open_transaction_wait_for_it(host: Host) -> None:
    host.ledger.take("settled", "ann")
    with host.engine.connect() as slow:
        host.ledger.using(slow).take("slow", "ann")
        host.ledger.take("fast", "ann")
        assert keys(host.ledger) == ["settled"]
        slow.commit()
    assert keys(host.ledger) == ["settled", "slow", "fast"]


def test_events_behind_a_transaction_that_comes_to_nothing_come_without_it(host: Host) -> None:
    with host.engine.connect() as slow:
        host.ledger.using(slow).take("slow", "ann")
        host.ledger.take("fast", "ann")
        assert keys(host.ledger) == []
        slow.rollback()
    assert keys(host.ledger) == ["fast"]


def test_interleaved_positions_of_two_transactions_come_in_order_once_both_have_ended(
    host: Host,
) -> None:
    with host.engine.connect() as one, host.engine.connect() as other:
        first, second = host.ledger.using(one), host.ledger.using(other)
        first.take("a1", "ann")
        second.take("b2", "ann")
        first.take("a3", "ann")
        second.take("b4", "ann")
        other.commit()
        assert keys(host.ledger) == []
        host.ledger.take("c5", "ann")
        one.commit()
    assert keys(host.ledger) == ["a1", "b2", "a3", "b4", "c5"]


def test_only_what_a_savepoint_kept_holds_a_reader_back(host: Host) -> None:
    with host.engine.connect() as slow:
        bound = host.ledger.using(slow)
        bound.is_locked("k")
        savepoint = slow.begin_nested()
        bound.take("taken back", "ann")
        savepoint.rollback()
        host.ledger.take("fast", "ann")
        assert keys(host.ledger) == ["fast"]
        bound.take("kept", "ann")
        host.ledger.take("behind", "ann")
        assert keys(host.ledger) == ["fast"]
        slow.commit()
    assert keys(host.ledger) == ["fast", "kept", "behind"]


# A server that is there already need not allow prepared transactions.
@pytest.mark.parametrize("postgres_database", ["postgres"], indirect=True)
def test_a_prepared_transaction_that_was_left_behind_holds_readers_back_until_it_is_finished(
    host: Host,
) -> None:
    name = f"left behind {host.database.name}"
    slow = host.engine.connect()
    host.ledger.using(slow).take("prepared", "ann")
    slow.exec_driver_sql(f"PREPARE TRANSACTION '{name}'")
    slow.detach()
    slow.close()
    host.ledger.take("fast", "ann")
    assert keys(host.ledger) == []
    with host.database.server.connect(host.database.name) as admin:  # type: ignore[union-attr]
        admin.execute(f"COMMIT PREPARED '{name}'")
    assert keys(host.ledger) == ["prepared", "fast"]


def test_one_lock_keeps_its_order_of_versions_inside_a_long_transaction(host: Host) -> None:
    """The long transaction has had a position long before; its next event of the lock comes later all the same."""
    with host.engine.connect() as slow:
        bound = host.ledger.using(slow)
        bound.take("early", "ann")
        host.ledger.take("k", "ben")
        bound.take("k", "ann", takeover_reason="urgent")
        slow.commit()
    host.ledger.take("k", "ben", takeover_reason="back again")
    events = [recorded.event for recorded in host.ledger.events() if recorded.event.key == "k"]
    assert [event.originator_version for event in events] == [1, 2, 3]


# What does not.


@contextmanager
def another_ledger(host: Host) -> Iterator[None]:
    other = host.ledgers.open(name="other")
    with host.engine.connect() as connection:
        other.using(connection).take("k", "ann")
        yield


@contextmanager
def another_schema(host: Host) -> Iterator[None]:
    migrate(host.engine, schema="apart")
    other = host.ledgers.open(schema="apart")
    with host.engine.connect() as connection:
        other.using(connection).take("k", "ann")
        yield


@contextmanager
def another_database(host: Host) -> Iterator[None]:
    assert host.database.server is not None
    elsewhere = new_database(host.database.server)
    migrate(elsewhere.engine())
    with LockLedger(elsewhere.url) as other, elsewhere.engine().connect() as connection:
        other.using(connection).take("k", "ann")
        yield
    elsewhere.close()
    host.database.server.drop_database(elsewhere.name)


@contextmanager
def an_idle_session_that_has_read(host: Host) -> Iterator[None]:
    with host.engine.connect() as connection:
        host.ledger.using(connection).history("settled")
        yield


@contextmanager
def an_old_snapshot(host: Host) -> Iterator[None]:
    with host.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lockledger_events")
        yield


@contextmanager
def a_write_of_the_hosts_own(host: Host) -> Iterator[None]:
    with host.session() as session:
        host.write(session, 1)
        yield


@contextmanager
def a_refused_take(host: Host) -> Iterator[None]:
    with host.engine.connect() as connection:
        with pytest.raises(LockedByOther):
            host.ledger.using(connection).take("settled", "ben")
        yield


@contextmanager
def a_guard(host: Host) -> Iterator[None]:
    with host.engine.connect() as connection:
        host.ledger.using(connection).guard("settled", "ann")
        yield


@contextmanager
def advisory_locks_of_the_hosts_own(host: Host) -> Iterator[None]:
    with host.engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT pg_advisory_xact_lock_shared(1), pg_advisory_xact_lock(7),"
            " pg_advisory_xact_lock_shared(1, 0), pg_advisory_lock_shared(0)"
        )
        ours = PostgresEventStore("default", None).namespace
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ours}::bigint << 48)")
        yield


@contextmanager
def a_call_that_waits(host: Host) -> Iterator[None]:
    """Its fence is not there before it has its row."""
    with host.engine.connect() as connection:
        connection.exec_driver_sql("SELECT FROM lockledger_current_holders FOR UPDATE")
        running = host.blocked(lambda: host.ledger.release("settled", "ann"))
        yield
        connection.rollback()
    assert running.result(timeout=20)


HARMLESS: dict[str, Callable[[Host], AbstractContextManager[None]]] = {
    function.__name__.replace("_", " "): function
    for function in (
        another_ledger,
        another_schema,
        another_database,
        an_idle_session_that_has_read,
        an_old_snapshot,
        a_write_of_the_hosts_own,
        a_refused_take,
        a_guard,
        advisory_locks_of_the_hosts_own,
        a_call_that_waits,
    )
}


@pytest.mark.parametrize("beside", HARMLESS.values(), ids=HARMLESS)
def test_a_transaction_that_brings_no_event_of_this_ledger_holds_nobody_back(
    host: Host, beside: Callable[[Host], AbstractContextManager[None]]
) -> None:
    host.ledger.take("settled", "ann")
    with beside(host):
        host.ledger.take("fast", "ann")
        assert keys(host.ledger) == ["settled", "fast"]


# Snapshots.


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_reader_has_a_snapshot_of_its_own_for_every_page_whatever_the_hosts_engine_prefers(
    host: Host, level: Any
) -> None:
    engine = host.database.engine(isolation_level=level)
    ledger = host.ledgers.open(url_or_engine=engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lockledger_events")
        with ledger.subscribe(poll=0.01) as subscription:
            for number in range(3):
                host.ledger.take(f"k{number}", "ann")
                assert next(subscription).event.key == f"k{number}"
        assert keys(ledger) == ["k0", "k1", "k2"]


def test_in_an_old_snapshot_a_reader_would_skip_so_a_transaction_offers_no_reading_by_position(
    host: Host,
) -> None:
    store = PostgresEventStore("default", None)
    with host.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.exec_driver_sql("SELECT 1")
        host.ledger.take("unseen", "ann")
        assert store.settled(connection) == 1, "the sequence is outside of snapshots"
        assert store.settled_page(connection, 0, 10)[0] == [], "and the events are not"
        bound = host.ledger.using(connection)
        assert not hasattr(bound, "events")
        assert not hasattr(bound, "subscribe")
    assert keys(host.ledger) == ["unseen"]


def test_the_position_comes_before_the_fences_and_the_fences_before_the_events(host: Host) -> None:
    """The other way round a reader loses events: a transaction may come and go in between."""
    asked: list[str] = []
    with host.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        host.ledger.take("k", "ann")
        recorded = Spy(connection, asked)
        PostgresEventStore("default", None).settled_page(recorded, 0, 10)  # type: ignore[arg-type]
    wanted = ("pg_sequence_last_value", "pg_locks", "lockledger_events")
    assert [next(name for name in wanted if name in text) for text in asked] == list(wanted)


class Spy:
    """A connection whose statements are noted."""

    def __init__(self, connection: Connection, asked: list[str]) -> None:
        self._connection = connection
        self._asked = asked

    def exec_driver_sql(self, statement: str, *arguments: Any) -> Any:
        self._asked.append(statement)
        return self._connection.exec_driver_sql(statement, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
