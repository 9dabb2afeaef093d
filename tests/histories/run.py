"""Random calls from many processes under faults, and the verdict on what they were told.

    make histories                                        a thousand faults on a PostgreSQL of its own, then on SQLite
    make histories ARGS="--faults 200 --seed 7 --on sqlite"

A seed gives the same calls and the same faults again; when they meet is up to the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from histories.calls import Call, calls_in, recorded_in
from histories.checker import check
from histories.faults import Crew, Faults
from lockledger import LockLedger
from support.checkout import commit
from support.company import until
from support.databases import Database, migrate, new_database, sqlite_file
from support.postgres import embedded_postgres
from support.proof import prove
from support.proxies import proxy_of
from support.readers import Subscriber

WORKERS = 8


@dataclass
class Verdict:
    """What a run came to. `wrong` is empty when everything held."""

    seed: int
    database: str
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    events: int = 0
    told: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    subscriber_losses: int = 0
    wrong: list[str] = field(default_factory=list)


def judge(
    database: Database, folder: Path, *, seed: int, faults: int, workers: int = WORKERS
) -> Verdict:
    """Lets workers call while so many faults happen, and decides whether all that they were told was so."""
    verdict = Verdict(seed, database.dialect)
    began = time.monotonic()
    with _proxy(database) as proxy, LockLedger(database.url) as ledger:
        with Subscriber(ledger) as subscriber:
            crew = Crew(database, proxy, folder, seed, workers)
            making = Faults(database, crew, proxy, random.Random(seed))
            try:
                until(lambda: _told(folder) >= {"granted"}, "the workers are at work")
                making.make(faults)
                until(lambda: _told(folder) >= {"granted", "failed"}, "a call fails")
            finally:
                verdict.wrong += crew.end()
                making.close()
            verdict.faults = dict(sorted(making.made.items()))
            verdict.seconds = round(time.monotonic() - began, 1)
            _judge(verdict, database, ledger, calls_in(folder))
            everything = [
                (each.position, each.event.key, each.event.originator_version)
                for each in ledger.events()
            ]
            seen = subscriber.wait_for(everything[-1][0])
            verdict.subscriber_losses = subscriber.losses
        if seen != everything:
            verdict.wrong.append(
                f"the subscriber saw {len(seen)} of {len(everything)} events, or in another order"
            )
    return verdict


def _told(folder: Path) -> set[str]:
    """What callers have been told up to now."""
    return {call.answer(key).told for call in calls_in(folder) for key in call.keys}


def _judge(verdict: Verdict, database: Database, ledger: LockLedger, calls: list[Call]) -> None:
    events = recorded_in(ledger)
    verdict.calls, verdict.events = len(calls), len(events)
    answers = [call.answer(key) for call in calls for key in call.keys]
    verdict.told = dict(sorted(Counter(answer.told for answer in answers).items()))
    verdict.errors = dict(sorted(Counter(a.error for a in answers if a.error).items()))
    verdict.wrong += check(calls, events)
    try:
        prove(database.engine())
    except AssertionError as fault:
        verdict.wrong.append(f"the tables differ from the events: {fault}")


@contextmanager
def _proxy(database: Database) -> Iterator[Any]:
    if database.server is None:
        yield None
        return
    with proxy_of(database) as proxy:
        yield proxy


@contextmanager
def _database(on: str, folder: Path) -> Iterator[Database]:
    if on == "sqlite":
        with sqlite_file(folder / "lockledger.db") as database:
            migrate(database)
            yield database
        return
    with embedded_postgres(durable=True) as server:
        database = new_database(server)
        migrate(database)
        yield database
        database.close()


def main() -> int:
    """Runs what the command line asks for, and prints the verdicts as JSON."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--faults", type=int, default=1000)
    given.add_argument("--seed", type=int, default=int(time.time()))
    given.add_argument("--on", choices=("postgresql", "sqlite"), action="append")
    given.add_argument("--workers", type=int, default=WORKERS)
    asked = given.parse_args()
    verdicts = []
    for on in asked.on or ["postgresql", "sqlite"]:
        with tempfile.TemporaryDirectory(prefix="lockledger-histories-") as name:
            folder = Path(name)
            (folder / "diaries").mkdir()
            with _database(on, folder) as database:
                verdicts.append(
                    judge(
                        database,
                        folder / "diaries",
                        seed=asked.seed,
                        faults=asked.faults,
                        workers=asked.workers,
                    )
                )
    print(json.dumps([{"commit": commit(), **asdict(verdict)} for verdict in verdicts], indent=2))
    return 1 if any(verdict.wrong for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
