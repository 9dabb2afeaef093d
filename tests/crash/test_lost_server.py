"""PostgreSQL stopped at once, under load and at each step of an append, and started again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from lockledger import Grant, LockLedger, OutcomeUnknown
from support.company import until
from support.databases import Database
from support.postgres import EmbeddedPostgres
from support.processes import all_at_once, rounds
from support.proof import prove
from support.readers import Subscriber
from support.writers import take_over_until_lost

WRITERS = 6
KEYS = [f"key:{number}" for number in range(5)]
TABLES = ("current_holders", "events", "audit_trail", "holds")
GATE = (4711, 1)
"""A lock of the tests' own, in which the server stops where a trigger asks for it."""

STOPPING = f"""
CREATE FUNCTION public.stop_here() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared{GATE}; RETURN NULL; END $$
"""


def test_what_was_acknowledged_under_load_is_there_after_a_crash(
    durable_server: EmbeddedPostgres, durable_database: Database
) -> None:
    ledger = LockLedger(durable_database.url)
    with Subscriber(ledger) as subscriber, ThreadPoolExecutor(1) as threads:
        for _ in range(rounds(1)):
            enough = subscriber.position + 300
            writing = threads.submit(
                all_at_once,
                take_over_until_lost,
                [(durable_database.url, number, KEYS) for number in range(WRITERS)],
            )
            subscriber.wait_for(enough)
            durable_server.crash()
            told = writing.result(timeout=30)
            durable_server.start()
            locks = prove(durable_database.engine())
            acknowledged = list(chain.from_iterable(each.grants for each in told))
            holds = {(lock.key, hold["token"]) for lock in locks for hold in lock.ended}
            holds |= {(lock.key, lock.hold["token"]) for lock in locks if lock.hold}
            assert set(acknowledged) <= holds
            assert {each.lost_by for each in told} <= {"OutcomeUnknown", "OperationalError"}
            until(lambda: subscriber.losses > 0, "the subscriber loses the server")
        ledger.take("after", "ann")
        positions = [recorded.position for recorded in ledger.events()]
        seen = [position for position, _, _ in subscriber.wait_for(positions[-1])]
        assert seen == positions
    ledger.close()


def test_a_position_that_a_crash_took_back_is_passed_by_no_reader(
    durable_server: EmbeddedPostgres, durable_database: Database
) -> None:
    """The sequence's own record reaches the disk with the next commit, and a rolled back append needs none."""
    with durable_server.connect() as admin:
        admin.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    durable_server.restart()  # so that the log's writer has it before anything is written, and not when it gets to it
    with LockLedger(durable_database.url) as ledger:
        ledger.take("a", "ann")
        with Subscriber(ledger) as subscriber:
            subscriber.wait_for(1)
            with durable_server.connect() as admin:
                admin.execute("CHECKPOINT")
            engine = durable_database.engine()
            with engine.connect() as connection:
                ledger.using(connection).take("b", "ann")
                connection.rollback()
            time.sleep(0.1)
            now = ledger.subscribe(after="now", poll=0.005)
            assert now.position == 1
            durable_server.crash()
            durable_server.start()
            engine.dispose()
            with LockLedger(durable_database.url) as again:
                again.take("c", "ann")
                (position,) = [recorded.position for recorded in again.events(after=1)]
            assert position == 2, "the sequence did not go back, so the test shows nothing"
            assert [place[1] for place in subscriber.wait_for(position)] == ["a", "c"]
        with LockLedger(durable_database.url) as later, now:
            resumed = later.subscribe(after=now.position)
            assert next(resumed).event.key == "c"


@contextmanager
def stopped_at(
    database: Database, table: str, when: str, call: Callable[[], Grant]
) -> Iterator[tuple[Future[Grant], int]]:
    """The call, standing still inside the server once it has written to a table, and the server's process for it."""
    assert database.server is not None
    trigger = {
        "in the statement": "CREATE TRIGGER stop AFTER INSERT OR UPDATE",
        "at the commit": "CREATE CONSTRAINT TRIGGER stop AFTER INSERT OR UPDATE",
    }[when]
    deferred = "DEFERRABLE INITIALLY DEFERRED" if when == "at the commit" else ""
    with (
        database.server.connect(database.name) as gate,
        database.server.connect(database.name) as admin,
        ThreadPoolExecutor(1) as threads,
    ):
        admin.execute(STOPPING.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
        admin.execute(
            f"{trigger} ON public.lockledger_{table} {deferred} FOR EACH ROW"
            " EXECUTE FUNCTION public.stop_here()"
        )
        gate.execute(f"SELECT pg_advisory_lock{GATE}")
        running = threads.submit(call)
        yield running, wait_for_stop(admin, running)


def wait_for_stop(admin: psycopg.Connection, running: Future[Grant]) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not running.done():
        found = admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock' AND wait_event = 'advisory'"
        ).fetchone()
        if found is not None:
            return int(found[0])
        time.sleep(0.005)
    raise AssertionError("the call did not stop")


def unstop(database: Database, table: str) -> None:
    assert database.server is not None
    with database.server.connect(database.name) as admin:
        admin.execute(f"DROP TRIGGER stop ON public.lockledger_{table}")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("when", ["in the statement", "at the commit"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a transaction"])
def test_a_session_that_is_ended_inside_an_append_leaves_nothing(
    postgres_database: Database, table: str, when: str, alone: bool
) -> None:
    engine = postgres_database.engine()
    ledger = LockLedger(postgres_database.url)

    def call() -> Grant:
        if alone:
            return ledger.take("k", "ben", takeover_reason="urgent")
        with engine.begin() as connection:
            return ledger.using(connection).take("k", "ben", takeover_reason="urgent")

    ledger.take("k", "ann")
    with stopped_at(postgres_database, table, when, call) as (running, session):
        with postgres_database.server.connect() as admin:  # type: ignore[union-attr]
            admin.execute("SELECT pg_terminate_backend(%s)", (session,))
        with pytest.raises(OutcomeUnknown if alone else DBAPIError) as lost:
            running.result(timeout=20)
    assert lost.type.__name__ == ("OutcomeUnknown" if alone else "OperationalError")
    unstop(postgres_database, table)
    assert ledger.holder_of("k").holder == "ann"  # type: ignore[union-attr]
    assert ledger.take("k", "ben", takeover_reason="urgent").token == 2
    prove(engine)
    ledger.close()


def crash_inside(server: EmbeddedPostgres, database: Database, table: str, when: str) -> None:
    """A takeover in flight when the server crashes. The tests' own connections are lost with it."""
    with (
        LockLedger(database.url) as ledger,
        suppress(psycopg.OperationalError),
        stopped_at(
            database, table, when, partial(ledger.take, "k", "eve", takeover_reason="urgent")
        ) as (running, _),
    ):
        server.crash()
        with pytest.raises(OutcomeUnknown):
            running.result(timeout=20)
    server.start()
    unstop(database, table)


@pytest.mark.parametrize(
    ("table", "when"),
    [
        ("current_holders", "in the statement"),
        ("holds", "in the statement"),
        ("events", "at the commit"),
    ],
)
def test_a_server_that_crashes_inside_an_append_leaves_nothing(
    durable_server: EmbeddedPostgres, durable_database: Database, table: str, when: str
) -> None:
    with LockLedger(durable_database.url) as ledger:
        grant = ledger.take("k", "ann")
    crash_inside(durable_server, durable_database, table, when)
    prove(durable_database.engine())
    with LockLedger(durable_database.url) as ledger:
        holder = ledger.holder_of("k")
        assert holder is not None
        assert (holder.holder, holder.token) == ("ann", grant.token)
        assert ledger.take("k", "ben", takeover_reason="again").token == 2
