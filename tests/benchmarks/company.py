"""What company costs: scopes, many locks at once, many who wait for one lock, and waking them by NOTIFY.

    make benchmark-company                              on a PostgreSQL 18 of its own, with fsync
    make benchmark-company ARGS="--only waiters"        one of scopes, groups, waiters, wakeups
    make benchmark-company ARGS="--releases 1000"       so many releases for the two hundred who wait

Contenders take turns within each round, so that a slow moment of the machine hits all of them; what is printed is the
median over the rounds of each rate, and of each round's ratio to the first contender.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, cycle, pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measuring import CONTEXT, KEYS_PER_WORKER, Client, Contender, each, measure
from benchmarks.operations import TAKE
from sqlalchemy import create_engine

from lockledger import AsyncLockLedger, LockLedger
from support.postgres import EmbeddedPostgres, embedded_postgres

WAITERS, PROCESSES = 200, 4
MANY = 100
WOKEN = 20
"""How often the one who waits alone is woken."""
INSERT = "INSERT INTO bare (number) VALUES (1)"
INSERT_AND_NOTIFY = (
    f"WITH one AS ({INSERT} RETURNING number) SELECT pg_notify('lockledger', '') FROM one"
)


def migrated(server: EmbeddedPostgres) -> str:
    """A new database with a ledger."""
    url = server.url(server.create_database("template1"))
    with LockLedger(url) as ledger:
        ledger.migrate()
    return url


def bare(name: str, sql: str) -> Contender:
    """One statement with its commit."""

    def prepare(url: str) -> None:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS bare (number int)")
        engine.dispose()

    @contextmanager
    def worker(url: str, _number: int) -> Iterator[Client]:
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:

            def operation() -> int:
                connection.exec_driver_sql(sql).close()
                return 1

            yield {TAKE: operation}
        engine.dispose()

    return Contender(name, prepare, each(worker))


def taking(name: str, key: str, *, notify: bool = False, **options: bool) -> Contender:
    """Takes and releases, each worker its own keys; a cycle counts as two operations."""

    @contextmanager
    def worker(url: str, number: int) -> Iterator[Client]:
        keys = cycle([key.format(worker=number, item=item) for item in range(KEYS_PER_WORKER)])
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with LockLedger(url, **options) as ledger, engine.connect() as connection:  # type: ignore[arg-type]

            def take_and_release() -> int:
                one, holder = next(keys), f"run:{number}"
                token = ledger.take(one, holder, ttl=60).token
                ledger.release(one, holder, token=token)
                if notify:
                    connection.exec_driver_sql("SELECT pg_notify('lockledger', '')").close()
                return 2

            yield {TAKE: take_and_release}
        engine.dispose()

    return Contender(name, lambda _url: None, each(worker))


def compare(
    contenders: Sequence[tuple[Contender, str]], clients: Sequence[int], chosen: argparse.Namespace
) -> None:
    """Prints a rate for each, and its ratio to the first one's."""
    print("| clients | what | operations a second | ratio |\n| ---: | --- | ---: | ---: |")
    for number in clients:
        rates: list[list[float]] = [[] for _ in contenders]
        for _ in range(chosen.rounds):
            for (peer, url), found in zip(contenders, rates, strict=True):
                found.append(measure(peer, url, TAKE, number, chosen.seconds).rate)
        for (peer, _), found in zip(contenders, rates, strict=True):
            ratio = statistics.median(a / b for a, b in zip(found, rates[0], strict=True))
            rate = statistics.median(found)
            print(f"| {number} | {peer.name} | {rate:,.0f} | {ratio:.2f} |", flush=True)


def scopes(server: EmbeddedPostgres, chosen: argparse.Namespace) -> None:
    """A take that looks above and under its key, beside one that does not."""
    flat, deep = "item-{worker}-{item}", "round:{worker}:band:{item}"
    urls = [migrated(server) for _ in range(4)]
    peers = [
        taking("plain, depth 1", flat),
        taking("scoped, depth 1", flat, scopes=True),
        taking("plain, depth 4", deep),
        taking("scoped, depth 4", deep, scopes=True),
    ]
    compare([*zip(peers, urls, strict=True)], chosen.clients, chosen)


def wakeups(server: EmbeddedPostgres, chosen: argparse.Namespace) -> None:
    """What takes and releases pay so that waiters could be woken."""
    url = migrated(server)
    inserts = [bare("bare INSERT", INSERT), bare("bare INSERT with NOTIFY", INSERT_AND_NOTIFY)]
    inserts[0].prepare(url)
    compare([(insert, url) for insert in inserts], chosen.clients, chosen)
    key = "item-{worker}-{item}"
    contenders = [
        (taking("nobody is woken", key), migrated(server)),
        (taking("NOTIFY by itself, after each release", key, notify=True), migrated(server)),
        (taking("by a listener, beside the releases", key, listen=True), migrated(server)),
    ]
    compare(contenders, chosen.clients, chosen)
    url = migrated(server)
    for listen in (False, True):
        free = _free_for(url, f"listen-{listen}", WOKEN, listen=listen)
        print(
            f"one waiter, listen={listen}: the lock lay free for {statistics.median(free):.1f} ms (median)"
        )


def _free_for(url: str, key: str, rounds: int, *, listen: bool) -> list[float]:
    """Milliseconds from a release to the grant of the one who waits."""
    with LockLedger(url, listen=listen) as ledger, LockLedger(url, listen=listen) as other:
        for _ in range(rounds):
            ledger.take(key, "run:1")
            waiting = threading.Thread(target=lambda: other.take(key, "run:2", wait=60))
            waiting.start()
            time.sleep(1 + random.random())
            ledger.release(key, "run:1")
            waiting.join()
            other.release(key, "run:2")
        return _gaps(ledger.history(key, limit=1000))


def _gaps(history: Sequence[Any]) -> list[float]:
    """Milliseconds between each release and the take after it, when the next one had waited for it."""
    return [
        (taken.occurred_at - released.occurred_at).total_seconds() * 1000
        for released, taken in pairwise(history)
        if taken.action == "LockTaken" and taken.holder != "run:1"
    ]


def groups(server: EmbeddedPostgres, chosen: argparse.Namespace) -> None:
    """A hundred locks in one call, beside a hundred calls."""
    url, numbers = migrated(server), count()
    with LockLedger(url) as ledger, LockLedger(url, scopes=True) as scoped:

        def one_by_one(ledger: LockLedger, keys: list[str]) -> None:
            for key in keys:
                ledger.take(key, "run:1", ttl=600)

        ways: dict[str, Callable[[list[str]], object]] = {
            f"{MANY} takes": lambda keys: one_by_one(ledger, keys),
            f"take_all of {MANY}": lambda keys: ledger.take_all(keys, "run:1", ttl=600),
            f"{MANY} takes, scoped": lambda keys: one_by_one(scoped, keys),
            f"take_all of {MANY}, scoped": lambda keys: scoped.take_all(keys, "run:1", ttl=600),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(3 + 5 * chosen.rounds):
            for name, way in ways.items():
                start = next(numbers)
                keys = [f"round:{start}:item:{item}" for item in range(MANY)]
                began = time.perf_counter()
                way(keys)
                times[name].append((time.perf_counter() - began) * 1000)
    print("| what | milliseconds | ratio |\n| --- | ---: | ---: |")
    first = statistics.median(times[f"{MANY} takes"][3:])
    for name, taken in times.items():
        median = statistics.median(taken[3:])
        print(f"| {name} | {median:.1f} | {median / first:.3f} |", flush=True)


def waiters(server: EmbeddedPostgres, chosen: argparse.Namespace) -> None:
    """Two hundred who wait for one lock: what they ask, and whether each release has one winner."""
    url = migrated(server)
    asyncio.run(_asked(server, url))
    for listen in (False, True):
        _released(migrated(server), chosen.releases, listen=listen)


async def _asked(server: EmbeddedPostgres, url: str) -> None:
    def statements() -> int:
        with server.connect(url.partition("///")[2].partition("?")[0]) as connection:
            connection.execute("SELECT pg_stat_clear_snapshot(), pg_stat_force_next_flush()")
            found = connection.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
        assert found is not None
        return int(found[0])

    async with AsyncLockLedger(url) as ledger:
        await ledger.take("held", "boss")
        waiting = [
            asyncio.create_task(ledger.try_take("held", f"run:{number}", wait=15))
            for number in range(WAITERS)
        ]
        await asyncio.sleep(3)
        began, before = time.monotonic(), await asyncio.to_thread(statements)
        processor = time.process_time()
        await asyncio.sleep(10)
        after, lasted = await asyncio.to_thread(statements), time.monotonic() - began
        busy = (time.process_time() - processor) / lasted
        await asyncio.gather(*waiting)
    rate = (after - before) / lasted
    print(f"{WAITERS} waiters: {rate:.0f} statements a second, {busy:.0%} of one processor here")


def _released(url: str, releases: int, *, listen: bool) -> None:
    """Whoever wins releases and comes back as another, until the last one is served."""
    turns, waited = CONTEXT.Value("i", 0), CONTEXT.SimpleQueue()
    with LockLedger(url) as ledger:
        ledger.take("k", "boss")
    workers = [
        CONTEXT.Process(target=_wait_in_threads, args=(url, turns, releases, waited, listen))
        for _ in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    time.sleep(3)
    with LockLedger(url, listen=listen) as ledger:
        ledger.release("k", "boss")
        longest = [seconds for _ in workers for seconds in waited.get()]
        for worker in workers:
            worker.join()
        history: list[Any] = []
        after = None
        while True:
            page = ledger.history("k", after=after, limit=1000)
            history += page
            if (after := page.next_after) is None:
                break
    winners = Counter(entry.holder for entry in history if entry.action == "LockTaken")
    assert winners == Counter(["boss", *(f"run:{number}" for number in range(releases))])
    assert [entry.action for entry in history] == ["LockTaken", "LockReleased"] * (releases + 1)
    free = _gaps(history)
    cuts = statistics.quantiles(free, n=100)
    print(
        f"listen={listen}: {releases + 1} releases, one winner each, all served; the lock lay free for {statistics.median(free):.1f} ms"
        f" (median), {cuts[94]:.0f} ms (95 of 100), {max(free):.0f} ms at most; all in"
        f" {(history[-1].occurred_at - history[1].occurred_at).total_seconds():.1f} s, the longest wait {max(longest):.1f} s"
    )


def _wait_in_threads(url: str, turns: Any, releases: int, waited: Any, listen: bool) -> None:
    found: list[float] = []

    def come_again() -> None:
        while True:
            with turns.get_lock():
                number, turns.value = turns.value, turns.value + 1
            if number >= releases:
                return
            began = time.monotonic()
            grant = ledger.take("k", f"run:{number}", wait=3600)
            found.append(time.monotonic() - began)
            ledger.release("k", grant.holder, token=grant.token)

    with LockLedger(url, listen=listen) as ledger:
        threads = [threading.Thread(target=come_again) for _ in range(WAITERS // PROCESSES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    waited.put(found)


PARTS = {"scopes": scopes, "groups": groups, "waiters": waiters, "wakeups": wakeups}


def main() -> None:
    """Measures what was chosen, and prints the load that there was."""
    parser = argparse.ArgumentParser(description="what company costs")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=[*PARTS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--releases", type=int, default=1000)
    chosen = parser.parse_args()
    with embedded_postgres(durable=True) as server:
        for name in chosen.only:
            load = os.getloadavg()[0]
            print(f"\n{name}, at load {load:.1f} on {os.cpu_count()} processors", flush=True)
            PARTS[name](server, chosen)


if __name__ == "__main__":
    main()
