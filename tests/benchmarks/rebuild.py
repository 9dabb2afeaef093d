"""Verify and rebuild on PostgreSQL beside a bare COPY out of the events table, in the same run.

    python tests/benchmarks/rebuild.py                     a million events, on a server of its own
    python tests/benchmarks/rebuild.py --events 100000     fewer
    python tests/benchmarks/rebuild.py --url URL           on a server that is there already, in an empty database

Each figure is events a second by the wall clock, the seconds of CPU that this process took for an event, and the most
memory that its process had in use, which must not grow with the number of events.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sqlalchemy import create_engine

from lockledger import LockLedger
from support.crowd import life, record
from support.databases import Database, new_database
from support.postgres import embedded_postgres
from support.tampering import tamper

CONTEXT = multiprocessing.get_context("fork")


def copy(url: str) -> int:
    """A bare COPY of what a proof needs, thrown away."""
    engine = create_engine(url)
    rows = 0
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        wanted = "COPY (SELECT lock_id, version, position, topic, state, hash FROM lockledger_events) TO STDOUT"
        with driver.cursor().copy(wanted) as copy:
            for data in copy:
                rows += bytes(data).count(b"\n")
    engine.dispose()
    return rows


def verify(url: str) -> int:
    with LockLedger(url) as ledger:
        verification = ledger.verify()
        if not verification.ok:
            raise RuntimeError(f"not sound: {verification.by_kind}")
        return verification.events


def rebuild(url: str) -> int:
    with LockLedger(url) as ledger:
        done = ledger.rebuild()
        if not done.ok:
            raise RuntimeError(f"not whole: {done.by_kind}")
        return done.events


def emptied(url: str) -> None:
    """Leaves the ledger without its audit trail and its ended holds."""
    database = Database(url, "postgresql", "given")
    tamper(
        database,
        "DELETE FROM lockledger_audit_trail",
        "DELETE FROM lockledger_holds",
    )
    with database.engine(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql("VACUUM lockledger_audit_trail")
        connection.exec_driver_sql("VACUUM lockledger_holds")
    database.close()


def measured(name: str, work: Callable[[str], int], url: str) -> dict[str, Any]:
    """Runs it in a process of its own, so that its memory is its own."""
    answers = CONTEXT.SimpleQueue()
    process = CONTEXT.Process(target=_measure, args=(work, url, answers))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{name} failed")
    events, wall, cpu, memory = answers.get()
    print(
        f"{name:<36} {events / wall:>10,.0f}/s {cpu / events * 1e6:>8.1f} µs CPU {memory:>8.1f} MiB",
        file=sys.stderr,
        flush=True,
    )
    return {
        "what": name,
        "events": events,
        "rate": round(events / wall, 1),
        "client_us": round(cpu / events * 1e6, 1),
        "memory_mib": round(memory, 1),
    }


def _measure(work: Callable[[str], int], url: str, answers: Any) -> None:
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    events = work(url)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answers.put((events, wall, cpu, after.ru_maxrss / 1024))


@contextmanager
def _database(url: str | None) -> Iterator[Database]:
    if url is not None:
        yield Database(url, "postgresql", "given")
        return
    with embedded_postgres(durable=True) as server:
        yield new_database(server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--url")
    given = parser.parse_args()
    with _database(given.url) as database:
        with LockLedger(database.url) as ledger:
            ledger.migrate()
        chance = random.Random(1)
        locks = given.events // 20
        events = record(
            database.engine(),
            (
                life(f"lock:{number}", 20, chance, lambda rng: f"run:{rng.randint(1, 50)}")
                for number in range(locks)
            ),
        )
        database.close()
        load = os.getloadavg()[0]
        print(f"{events:,} events of {locks:,} locks; {os.cpu_count()} CPUs, load {load:.1f}")
        measured("COPY out of the events table", copy, database.url)
        measured("verify", verify, database.url)
        measured("rebuild, everything is right", rebuild, database.url)
        emptied(database.url)
        measured("rebuild, audit trail and holds empty", rebuild, database.url)
        measured("verify", verify, database.url)
        database.close()


if __name__ == "__main__":
    main()
