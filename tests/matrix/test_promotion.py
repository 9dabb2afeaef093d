"""A primary that is lost under load, and its standby promoted: nothing acknowledged is lost, and readers go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
from sqlalchemy import URL

from lockledger import LockLedger
from support.databases import Database, migrate, new_database
from support.postgres import EmbeddedPostgres, embedded_postgres
from support.processes import all_at_once
from support.proof import prove
from support.readers import Subscriber
from support.writers import take_over_until_lost

pytestmark = pytest.mark.alone
WRITERS = 6
KEYS = [f"key:{number}" for number in range(5)]


@pytest.fixture
def standby(durable_server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """Follows `durable_server`, whose commits wait until it has them."""
    with embedded_postgres(durable=True, primary=durable_server) as standby:
        with durable_server.connect() as admin:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            admin.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + 20
            while not admin.execute(
                "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            ).fetchone():
                assert time.monotonic() < deadline, "the standby does not follow"
                time.sleep(0.01)
        yield standby


def on_either(database: Database, *servers: EmbeddedPostgres) -> str:
    """A URL that leads to whichever of the servers takes writes."""
    query = {
        "host": ",".join(server.parameters["host"] for server in servers),
        "port": ",".join(server.parameters["port"] for server in servers),
        "user": "postgres",
        "target_session_attrs": "read-write",
    }
    url = URL.create("postgresql+psycopg", database=database.name, query=query)
    return url.render_as_string(hide_password=False)


def cut_off(standby: EmbeddedPostgres) -> None:
    """From here on the standby hears nothing of its primary."""
    with standby.connect() as admin:
        admin.execute("ALTER SYSTEM SET primary_conninfo = ''")
        admin.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 20
        while admin.execute("SELECT pid FROM pg_stat_wal_receiver").fetchone():
            assert time.monotonic() < deadline, "the standby still follows"
            time.sleep(0.01)


def test_what_was_acknowledged_is_on_the_promoted_standby_and_subscribers_go_on(
    durable_server: EmbeddedPostgres, standby: EmbeddedPostgres
) -> None:
    database = new_database(durable_server)
    migrate(database)
    url = on_either(database, durable_server, standby)
    promoted = Database(standby.url(database.name), "postgresql", database.name, standby)
    with (
        LockLedger(url) as ledger,
        Subscriber(ledger) as subscriber,
        ThreadPoolExecutor(1) as threads,
    ):
        writing = threads.submit(
            all_at_once,
            take_over_until_lost,
            [(database.url, number, KEYS) for number in range(WRITERS)],
        )
        subscriber.wait_for(300)
        checkpoint = ledger.checkpoint()
        cut_off(standby)
        # A primary that did not wait for its standby would acknowledge hundreds of changes now.
        time.sleep(0.5)
        durable_server.crash()
        told = writing.result(timeout=60)
        standby.promote()
        seen_before = list(subscriber.seen)
        locks = prove(promoted.engine())
        acknowledged = set(chain.from_iterable(each.grants for each in told))
        holds = {(lock.key, hold["token"]) for lock in locks for hold in lock.ended}
        holds |= {(lock.key, lock.hold["token"]) for lock in locks if lock.hold}
        assert len(acknowledged) >= 100
        assert acknowledged <= holds
        assert subscriber.losses > 0
        ledger.take("after", "ann")  # through the same ledger, by its URL
        kept = [recorded.position for recorded in ledger.events()]
        assert [place[0] for place in subscriber.wait_for(kept[-1])] == kept
        assert {place[0] for place in seen_before} <= set(kept)
        assert ledger.verify(checkpoint=checkpoint).ok
    prove(promoted.engine())
    promoted.close()
    database.close()


def test_a_standby_answers_who_holds_what_and_refuses_to_follow_events(
    durable_server: EmbeddedPostgres, standby: EmbeddedPostgres
) -> None:
    database = new_database(durable_server)
    migrate(database)
    with (
        durable_server.connect() as admin
    ):  # otherwise it has a commit on its disk before it shows it
        admin.execute(f"ALTER DATABASE {database.name} SET synchronous_commit = 'remote_apply'")
    with LockLedger(database.url) as ledger:
        ledger.take("k", "ann")
    with LockLedger(standby.url(database.name)) as reader:
        assert [hold.holder for hold in reader.current_holders()] == ["ann"]
        assert [hold.token for hold in reader.holds()] == [1]
        assert reader.history("k")[0].holder == "ann"
        assert reader.verify().ok
        with pytest.raises(ValueError, match="read them on the primary"):
            list(reader.events())
    database.close()
