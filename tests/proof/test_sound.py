"""A ledger that nobody has changed is sound, whatever happened in it and whatever happens meanwhile."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockledger import Advance, LockLedger
from lockledger.domain.keys import lock_id
from lockledger.eventsourcing import OwnTransactions, SQLAlchemyProcessRecorder
from support.colours import Loop, asynchronous, running_loop
from support.crowd import life, record
from support.databases import Database
from support.ledgers import Ledgers, SettableClock
from support.recorders import events as foreign_events
from support.recorders import new_stream
from support.tampering import tamper
from support.turmoil import tell

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "verify.md"


@pytest.fixture
def loop() -> Iterator[Loop]:
    with running_loop() as loop:
        yield loop


def test_every_kind_of_event(ledger: LockLedger) -> None:
    verification = ledger.verify()
    assert verification.ok
    assert verification.faults == ()
    counts = verification.model_dump(include={"events", "locks", "audit_entries", "ended_holds"})
    assert counts == {"events": 12, "locks": 3, "audit_entries": 12, "ended_holds": 5}
    assert (verification.ledger, verification.position) == ("default", 12)
    assert (verification.checkpoint, verification.foreign_streams) == (None, 0)


def test_nothing_at_all(ledgers: Ledgers) -> None:
    verification = ledgers.open().verify()
    assert (verification.ok, verification.events, verification.position) == (True, 0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_turmoil(ledgers: Ledgers, seed: int) -> None:
    clock = SettableClock()
    tell(ledgers.open(clock=clock), clock, random.Random(seed), steps=150)
    verification = ledgers.open().verify()
    assert verification.faults == ()
    assert verification.events > 50


def test_awaited(database: Database, ledger: LockLedger, loop: Loop) -> None:
    other = asynchronous(loop, database.url)
    assert other.verify(checkpoint=other.checkpoint()) == ledger.verify(
        checkpoint=ledger.checkpoint()
    )
    other.close()


def test_on_a_hosts_engine_and_in_a_schema_of_its_own(postgres_ledgers: Ledgers) -> None:
    engine = postgres_ledgers.database.engine(pool_size=1, max_overflow=0)
    ledger = postgres_ledgers.open(url_or_engine=engine, schema="tenant-1")
    ledger.migrate()
    ledger.take("k", "run:1", ttl=60)
    assert ledger.verify(checkpoint=ledger.checkpoint()).ok
    assert ledger.release("k", "run:1")


def test_each_ledger_by_itself(ledgers: Ledgers) -> None:
    one, other = ledgers.open(), ledgers.open(name="other")
    one.take("k", "run:1")
    other.take("k", "run:1")
    other.release("k", "run:1")
    assert (one.verify().events, other.verify().events) == (1, 2)
    assert one.verify().ok
    assert other.verify().ok


def test_a_head_that_was_only_locked(ledgers: Ledgers) -> None:
    """The row at version 0 that a call makes to lock a lock which has no events."""
    ledger = ledgers.open()
    stream = lock_id("default", "k")
    value = stream if ledgers.database.dialect == "postgresql" else stream.hex
    with ledgers.database.engine().begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO lockledger_current_holders (lock_id, ledger, version)"
            f" VALUES ('{value}', 'default', 0)"
        )
    assert ledger.verify().ok
    ledger.take("k", "run:1")
    assert ledger.verify().ok


def test_streams_that_are_no_locks_are_named_and_proven(database: Database) -> None:
    streams = [new_stream(), new_stream()]
    with LockLedger(database.url) as ledger:
        ledger.take("k", "run:1")
        transactions = OwnTransactions(database.url)
        recorder = SQLAlchemyProcessRecorder(transactions)
        recorder.insert_events(foreign_events(streams[0], 0, 1, 2))
        recorder.insert_events(foreign_events(streams[1], 1, 2, 3))
        transactions.close()
        verification = ledger.verify(checkpoint=ledger.checkpoint())
        assert verification.ok
        assert (verification.locks, verification.foreign_streams) == (1, 2)
        assert set(verification.foreign) == set(streams)
        tamper(
            database,
            "UPDATE lockledger_events SET state = '[]' WHERE version = 2 AND topic LIKE 'orders%'",
        )
        assert {(each.kind, each.version) for each in ledger.verify().faults} == {("event_hash", 2)}


def test_the_advance_is_told(ledgers: Ledgers) -> None:
    told: list[Advance] = []
    rng = random.Random(1)
    events = record(
        ledgers.database.engine(),
        (life(f"k:{number}", 30, rng, lambda _: "run:1") for number in range(80)),
    )
    verification = ledgers.open().verify(progress=told.append)
    assert verification.events == events
    assert [each.done for each in told] == [1000, 2000, events]
    assert all(each.total == events and each.rate > 0 for each in told)
    assert told[-1].seconds_left == 0
    assert Advance(0, 10, 1.0).seconds_left is None


def test_while_others_take_and_release(database: Database) -> None:
    over = threading.Event()

    def work(number: int) -> None:
        chance = random.Random(number)
        with LockLedger(database.url) as ledger:
            while not over.is_set():
                key = f"k:{chance.randrange(20)}"
                ledger.try_take(key, f"run:{number}", takeover_reason="my turn")
                ledger.try_release(key, f"run:{number}")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    try:
        with LockLedger(database.url) as ledger:
            seen = [0]
            ends = time.monotonic() + 60
            while (len(seen) < 8 or seen[-1] < 100) and time.monotonic() < ends:
                made = ledger.checkpoint()
                verification = ledger.verify(checkpoint=made)
                assert verification.faults == ()
                seen.append(verification.events)
    finally:
        over.set()
        for worker in workers:
            worker.join()
    assert seen == sorted(seen)
    assert seen[-1] >= 100


def test_the_chain_by_hand(postgres_database: Database, clock: SettableClock) -> None:
    """The query that the reference gives to administrators."""
    (query,) = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    query = query.replace("round:5", "ü:😀")
    with LockLedger(postgres_database.url, clock=clock) as ledger:
        for number in range(3):
            ledger.take("ü:😀", "user:ü", metadata={"é": number}, if_mine="replace")
        ledger.release("ü:😀", "user:ü", reason="'quoted' \\ \n and\tso on")

    def asked() -> list[bool]:
        with postgres_database.engine().connect() as connection:
            return [unchanged for _, _, unchanged in connection.exec_driver_sql(query.strip())]

    assert asked() == [True] * 4
    tamper(
        postgres_database,
        "UPDATE lockledger_events SET state = replace(state, '\"token\":2', '\"token\":3') WHERE version = 2",
    )
    assert asked() == [True, False, True, True]
