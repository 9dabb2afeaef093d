"""Through PgBouncer in transaction mode, where each transaction may be on another connection of the server."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import ProgrammingError

from lockledger import AsyncLockLedger, LockedByOther, LockLedger, NotHolding, WaitTimeout
from support.databases import Database, new_database
from support.pgbouncer import pgbouncer, tracks_statements
from support.postgres import EmbeddedPostgres, embedded_postgres
from support.proof import prove
from support.readers import Subscriber

pytestmark = pytest.mark.alone
UNPREPARED = "&prepare_threshold=none"
CLIENTS = 8


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with embedded_postgres(durable=False) as server:
        yield server


@pytest.fixture
def pooled(server: EmbeddedPostgres) -> Iterator[Database]:
    """A migrated database behind the pooler, proven at the end."""
    with pgbouncer(server) as pooler:
        database = new_database(server)
        behind = Database(pooler.url(database.name), "postgresql", database.name, server)
        with LockLedger(behind.url + UNPREPARED) as ledger:
            ledger.migrate()
        yield behind
        prove(database.engine())
        assert behind.logged_errors() == []
        behind.close()
        database.close()


def test_prepared_statements_work_where_the_pooler_keeps_track_of_them_and_else_fail_loudly(
    server: EmbeddedPostgres,
) -> None:
    """Nobody is told a wrong answer either way."""
    with pgbouncer(server, tracks=True) as pooler:
        database = new_database(server)
        with LockLedger(database.url) as direct:
            direct.migrate()
        url = pooler.url(database.name)
        with LockLedger(url) as one, LockLedger(url) as other:
            refused: AbstractContextManager[Any] = pytest.raises(ProgrammingError)
            with nullcontext() if tracks_statements() else refused as met:
                _take_turns(one, other)
        assert met is None or "prepared statement" in str(met.value)
        prove(database.engine())
        database.close()


def _take_turns(one: LockLedger, other: LockLedger) -> None:
    for number in range(20):
        one.take(f"key:{number}", "ann")
        other.release(f"key:{number}", "ann")


def test_every_verb(pooled: Database) -> None:
    with LockLedger(pooled.url + UNPREPARED, scopes=True) as ledger:
        for number in range(10):  # more often than psycopg lets pass before it prepares
            grant = ledger.take(f"k:{number}", "ann", ttl=60)
            ledger.extend(f"k:{number}", "ann", 120, token=grant.token)
            with pytest.raises(LockedByOther):
                ledger.take(f"k:{number}", "ben")
            assert ledger.take(f"k:{number}", "ben", takeover_reason="urgent").created
        ledger.take_all(["m:1", "m:2"], "ann", ttl=0.01)
        with pytest.raises(WaitTimeout):
            ledger.take("k:1", "cid", wait=0.2)
        with ledger.hold("n", ttl=60, heartbeat=20) as held:
            assert held.grant.created
        assert ledger.expire_due() == 2
        assert ledger.release_all(under="k", actor="root", reason="over") == 10
        ledger.take("g", "ann")
        engine = create_engine(pooled.url, connect_args={"prepare_threshold": None})
        with engine.begin() as connection:
            bound = ledger.using(connection)
            bound.guard("g", "ann")
            bound.take("h", "ann")
            assert bound.release("g", "ann")
        engine.dispose()
        assert len(ledger.holds(key_prefix="k")) == 20
        assert ledger.verify(checkpoint=ledger.checkpoint()).ok
        assert ledger.rebuild().ok
        file = io.BytesIO()
        ledger.export_audit_trail(file, format="jsonl", extensions=True)
        assert file.getvalue().count(b"\n") == len(list(ledger.events()))


def test_under_contention_and_followed(pooled: Database) -> None:
    """More clients than connections of the server; fences and row locks belong to transactions, and so do connections."""

    def turns(number: int) -> int:
        granted = 0
        with LockLedger(pooled.url + UNPREPARED) as ledger:
            for turn in range(40):
                key, holder = f"key:{turn % 5}", f"run:{number}"
                try:
                    granted += ledger.take(key, holder).created
                    ledger.release(key, holder)
                except (LockedByOther, NotHolding):
                    ledger.take(key, holder, takeover_reason="my turn", if_mine="replace")
        return granted

    with (
        LockLedger(pooled.url + UNPREPARED) as reader,
        Subscriber(reader) as subscriber,
        ThreadPoolExecutor(CLIENTS) as threads,
    ):
        assert sum(threads.map(turns, range(CLIENTS))) > 0
        kept = [recorded.position for recorded in reader.events()]
        assert [position for position, _, _ in subscriber.wait_for(kept[-1])] == kept


def test_asyncio(pooled: Database) -> None:
    async def story() -> None:
        async with AsyncLockLedger(pooled.url + UNPREPARED) as ledger:

            async def turn(number: int) -> None:
                for _ in range(10):
                    await ledger.take("k", f"run:{number}", takeover_reason="my turn")

            await asyncio.gather(*map(turn, range(4)))
            assert (await ledger.verify()).ok

    asyncio.run(story())


def test_a_waiter_that_cannot_be_woken_asks_by_itself(pooled: Database) -> None:
    with (
        LockLedger(pooled.url + UNPREPARED, listen=True) as one,
        LockLedger(pooled.url + UNPREPARED, listen=True) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        for _ in range(3):
            one.take("k", "ann")
            waiting = threads.submit(other.take, "k", "ben", wait=30)
            one.release("k", "ann")
            assert waiting.result(timeout=20).created
            other.release("k", "ben")
