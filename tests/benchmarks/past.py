"""Looking back in a ledger of a million events beside one of ten thousand, in the same run.

    python tests/benchmarks/past.py                     on a PostgreSQL 18 of its own
    python tests/benchmarks/past.py --sqlite            on SQLite files
    python tests/benchmarks/past.py --urls URL URL …    on ledgers that an earlier run has filled, the smallest first

The ledgers take turns at each question, so that a slow moment of the machine hits all of them; what is printed is the
median over the rounds. One key and one holder have the same past in each ledger; another key and holder are busy, and
have a tenth of all events.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.filling import fill
from sqlalchemy import create_engine, event

from lockledger import LockLedger
from lockledger.domain.events import LockEvent
from support.crowd import BEGIN, END, life, record
from support.postgres import embedded_postgres

MIDDLE = BEGIN + (END - BEGIN) / 2
DAY = timedelta(days=1)
Ask = Callable[[LockLedger], Any]


def every_page(ledger: LockLedger) -> int:
    """All that was held in the middle."""
    found, after = 0, None
    while True:
        page = ledger.holders_at(MIDDLE, after=after, limit=1000)
        found += len(page)
        after = page.next_after
        if after is None:
            return found


QUESTIONS: dict[str, Ask] = {
    "holder_at, one key": lambda ledger: ledger.holder_at("watched", MIDDLE),
    "holder_at, busy key": lambda ledger: ledger.holder_at("busy", MIDDLE),
    "holder_at, busy key, early": lambda ledger: ledger.holder_at("busy", BEGIN + 30 * DAY),
    "holds, one key": lambda ledger: ledger.holds(key="watched"),
    "holds, one key, a month": lambda ledger: ledger.holds(
        key="watched", since=MIDDLE, until=MIDDLE + 31 * DAY
    ),
    "holds, busy key": lambda ledger: ledger.holds(key="busy"),
    "holds, one holder": lambda ledger: ledger.holds(holder="run:watched"),
    "holds, one holder, a month": lambda ledger: ledger.holds(
        holder="run:watched", since=MIDDLE, until=MIDDLE + 31 * DAY
    ),
    "holds, busy holder": lambda ledger: ledger.holds(holder="run:busy"),
    "holders_at, one holder": lambda ledger: ledger.holders_at(MIDDLE, holder="run:watched"),
}
CURVE: dict[str, Ask] = {
    "holders_at, all, first page, nothing held": lambda ledger: ledger.holders_at(BEGIN - DAY),
    "holders_at, all, first page, early": lambda ledger: ledger.holders_at(BEGIN + 10 * DAY),
    "holders_at, all, first page, middle": lambda ledger: ledger.holders_at(MIDDLE),
    "holders_at, all, first page, late": lambda ledger: ledger.holders_at(END - 10 * DAY),
    "holders_at, all, every page, middle": every_page,
    "holds, all, first page, a day": lambda ledger: ledger.holds(since=MIDDLE, until=MIDDLE + DAY),
}


def lives(events: int) -> Iterator[Iterator[LockEvent]]:
    """Locks of twenty events each, around one that is the same in every ledger and one that has a tenth of all."""
    rng, holders = random.Random(7), max(10, events // 100)

    def anybody(rng: random.Random) -> str:
        return "run:busy" if rng.random() < 0.1 else f"run:{rng.randrange(holders)}"

    yield life("watched", 100, random.Random(1), lambda _: "run:watched")
    yield life("busy", events // 10, rng, anybody)
    for number in range((events - events // 10 - 100) // 20):
        yield life(f"round:{number}:band:{number % 7}", 20, rng, anybody)


def filled(url: str, events: int) -> str:
    """A database with a ledger of that size."""
    with LockLedger(url) as ledger:
        ledger.migrate()
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def hurry(connection: Any, _record: object) -> None:
            connection.isolation_level = None
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA cache_size = -400000")

    begun = time.perf_counter()
    count = (record if engine.dialect.name == "sqlite" else fill)(engine, lives(events))
    engine.dispose()
    rate = count / (time.perf_counter() - begun)
    print(f"{count} events at {rate:,.0f} a second in {url}", file=sys.stderr)
    return url


def measure(ledgers: list[LockLedger], ask: Ask, rounds: int) -> list[float]:
    """Milliseconds a call in each ledger, the median of the rounds."""
    times: list[list[float]] = [[] for _ in ledgers]
    for _ in range(rounds + 3):
        for ledger, taken in zip(ledgers, times, strict=True):
            begun = time.perf_counter()
            ask(ledger)
            taken.append((time.perf_counter() - begun) * 1000)
    return [statistics.median(taken[3:]) for taken in times]


def report(urls: list[str], sizes: list[str], rounds: int) -> None:
    """The figures as a Markdown table; the ratio is that of the largest ledger to the smallest."""
    with ExitStack() as stack:
        ledgers = [stack.enter_context(LockLedger(url)) for url in urls]
        print(f"| question, milliseconds | {' | '.join(sizes)} | ratio |")
        print(f"| --- | {'---: | ' * len(sizes)}---: |")
        for name, ask in (QUESTIONS | CURVE).items():
            found = measure(ledgers, ask, rounds)
            figures = " | ".join(f"{each:.2f}" for each in found)
            print(f"| {name} | {figures} | {found[-1] / found[0]:.2f} |", flush=True)


def main() -> None:
    """Fills the ledgers, asks, and prints."""
    parser = argparse.ArgumentParser(description="looking back in ledgers of different sizes")
    parser.add_argument("--events", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--urls", nargs="+", help="databases that are filled already")
    chosen = parser.parse_args()
    sizes = [f"{events:,} events" for events in chosen.events]
    if chosen.urls:
        report(chosen.urls, chosen.urls, chosen.rounds)
    elif chosen.sqlite:
        with tempfile.TemporaryDirectory() as folder:
            urls = [f"sqlite:///{folder}/{events}.db" for events in chosen.events]
            report([*map(filled, urls, chosen.events)], sizes, chosen.rounds)
    else:
        with embedded_postgres(durable=False) as server:
            urls = [server.url(server.create_database("template1")) for _ in chosen.events]
            report([*map(filled, urls, chosen.events)], sizes, chosen.rounds)


if __name__ == "__main__":
    main()
