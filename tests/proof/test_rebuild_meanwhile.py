"""A rebuild beside takes, guards and other rebuilds, and killed in the middle: nobody waits, and nothing breaks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from lockledger import Advance, LockLedger, Rebuilt
from lockledger.adapters import postgres_mending
from support.crowd import life, record
from support.databases import Database
from support.processes import SOAK
from support.proof import prove
from support.rebuilds import rebuild_and_be_killed
from support.tampering import tamper

TRAIL, HOLDS, HEADS = "lockledger_audit_trail", "lockledger_holds", "lockledger_current_holders"
# A statement that would wait for longer fails: so whoever does not fail has not waited.
# A tenth of a second is what a rebuild may cost anybody, and is held to on a machine that has nothing else to do, with
# LOCKLEDGER_SOAK set. Elsewhere the longest wait says more of the machine, and only that nobody waits for good is held.
LONGEST_WAIT = "-c lock_timeout=100ms" if SOAK > 1 else "-c lock_timeout=60s"
WRITERS = 8


def with_a_past(database: Database, events: int) -> None:
    chance = random.Random(2)
    record(
        database.engine(),
        (life(f"old:{number}", 50, chance, lambda _: "run:1") for number in range(events // 50)),
    )


@contextmanager
def writers(database: Database) -> Iterator[list[int]]:
    """Eight that take and release, each with a guard open now and then; gives what each has done."""
    over, done = threading.Event(), [0] * WRITERS

    def work(number: int) -> None:
        chance = random.Random(number)
        engine = create_engine(database.url, connect_args={"options": LONGEST_WAIT})
        ledger = LockLedger(engine)
        try:
            while not over.is_set():
                key = f"new:{number}:{chance.randrange(10)}"
                ledger.take(key, "run:1", ttl=60)
                with engine.begin() as connection:
                    ledger.using(connection).guard(key, "run:1")
                    ledger.extend(key, "run:1", 120)
                    time.sleep(chance.random() * 0.01)
                assert ledger.release(key, "run:1")
                done[number] += 1
        finally:
            engine.dispose()

    with ThreadPoolExecutor(WRITERS) as threads:
        running = [threads.submit(work, number) for number in range(WRITERS)]
        try:
            yield done
        finally:
            over.set()
        for each in running:
            each.result()


def test_nobody_waits_long_for_a_rebuild(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_mending, "PATIENCE_SECONDS", 100.0)
    with_a_past(postgres_database, 6000)
    with LockLedger(postgres_database.url) as ledger, writers(postgres_database) as done:
        while min(done) < 2:
            time.sleep(0.01)
        results = [ledger.rebuild()]
        for change in (
            f"DELETE FROM {TRAIL} WHERE key LIKE 'old:%'",
            f"DELETE FROM {HOLDS} WHERE key LIKE 'old:%'",
            f"DELETE FROM {HEADS} WHERE key LIKE 'old:%'",
            f"UPDATE {HEADS} SET holder = 'x', token = 0 WHERE key LIKE 'old:%1'",
            f"UPDATE {TRAIL} SET holder = 'x' WHERE key LIKE 'old:%1' AND version < 10",
        ):
            _changed(postgres_database, change)
            before = list(done)
            results.append(ledger.rebuild(progress=partial(others_go_on, done, before)))
            assert [one for one, other in zip(before, done, strict=True) if other > one]
    assert [each.left for each in results] == [()] * 6
    assert results[0].inserted == results[0].corrected == 0
    assert all(each.inserted or each.corrected for each in results[1:])
    prove(postgres_database.engine())


def others_go_on(done: list[int], before: list[int], advance: Advance) -> None:
    """In the midst of a rebuild they do, though a busy machine may not let them in a short one, unless it waits for it."""
    ends = time.monotonic() + 60
    while advance.done < advance.total and done == before:
        assert time.monotonic() < ends, "all wait for the rebuild"
        time.sleep(0.01)


def _changed(database: Database, statement: str) -> None:
    """What a superuser changes while all goes on: sooner or later he gets hold of the tables, and lets others wait little."""
    while True:
        try:
            tamper(database, "SET LOCAL lock_timeout = '30ms'", statement)
        except OperationalError:
            time.sleep(0.05)
        else:
            return


def test_a_guarded_head_is_corrected_once_the_guard_is_over(postgres_database: Database) -> None:
    with LockLedger(postgres_database.url) as ledger, ThreadPoolExecutor(1) as thread:
        ledger.take("k", "run:1", ttl=600)
        tamper(postgres_database, f"UPDATE {HEADS} SET taken_over_from = 'x'")
        with postgres_database.engine().begin() as connection:
            ledger.using(connection).guard("k", "run:1")
            rebuilding = thread.submit(ledger.rebuild)
            time.sleep(0.5)
            assert not rebuilding.done()
            assert ledger.extend("k", "run:1", 1200).token == 1
            with postgres_database.engine().begin() as another:
                ledger.using(another).guard("k", "run:1")
        done: Rebuilt = rebuilding.result(timeout=30)
        # The extension wrote the whole head, with what follows from the events.
        assert done.ok
    prove(postgres_database.engine())
    assert postgres_database.logged_errors() == []


def test_two_at_once(database: Database) -> None:
    with_a_past(database, 3000)
    tamper(database, f"DELETE FROM {TRAIL}", f"DELETE FROM {HOLDS}", f"DELETE FROM {HEADS}")
    with ThreadPoolExecutor(2) as threads, LockLedger(database.url) as ledger:
        for each in [threads.submit(ledger.rebuild) for _ in range(2)]:
            assert each.result().ok
    prove(database.engine())


def test_killed_at_random_moments(database: Database) -> None:
    """Each time everything keeps serving, and what is there of a table is right; the last one finishes it."""
    with_a_past(database, 3000)
    chance, killed = random.Random(7), 0
    with LockLedger(database.url) as ledger:
        tamper(
            database,
            f"DELETE FROM {TRAIL}",
            f"UPDATE {HOLDS} SET holder = 'x'",
            f"UPDATE {HEADS} SET taken_over_from = 'x'",
        )
        number = 0
        while number < 6 or not killed:
            # A busy machine may let all of the first end before they are killed.
            killed += rebuild_and_be_killed(database.url, chance, 1.0 if number < 6 else 0.0)
            number += 1
            assert ledger.take(f"new:{number}", "run:1").created
            kinds = set(ledger.verify().by_kind)
            assert kinds <= {"audit_missing", "hold_different", "head_different"}
        assert ledger.rebuild().ok
        assert ledger.verify().ok
    prove(database.engine())
