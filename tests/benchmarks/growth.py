"""What calls cost as a ledger grows: with more events, with a longer history of one lock, with more locks held.

Everything is filled first, by the rules of the domain, so that the ledgers are sound. Then the sizes take turns at each
question within each round; one figure is the mean of a few calls, and the curve is the median over the rounds.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from typing import Any

from benchmarks.filling import fill
from benchmarks.measuring import CONTEXT
from benchmarks.past import MIDDLE, lives
from sqlalchemy import create_engine

from lockledger import LockLedger
from lockledger.domain.events import LockEvent
from lockledger.domain.keys import lock_id
from lockledger.domain.lock import Call, Lock, Take, nothing_in_the_way
from support.crowd import BEGIN, life
from support.postgres import PostgresServer

Ask = Callable[[LockLedger, int], Any]
CALLS = 20
PROVEN = 20_000
"""Ledgers of up to so many events are verified before they are used; larger ones are made in the same way."""
_fresh = count()


def _take_and_release(ledger: LockLedger, key: str) -> None:
    token = ledger.take(key, "run:now", ttl=60).token
    ledger.release(key, "run:now", token=token)


def _aside(ledger: LockLedger, _size: int) -> None:
    _take_and_release(ledger, "aside")


def _new(ledger: LockLedger, _size: int) -> None:
    _take_and_release(ledger, f"new:{next(_fresh)}")


EVENTS: dict[str, Ask] = {
    "take and release": _aside,
    "take and release, a new lock": _new,
    "who holds a lock": lambda ledger, _: ledger.holder_of("watched"),
    "history of one lock, 100 entries": lambda ledger, _: ledger.history("watched"),
    "who held it then": lambda ledger, _: ledger.holder_at("watched", MIDDLE),
    "holds of one lock": lambda ledger, _: ledger.holds(key="watched"),
}
HISTORY: dict[str, Ask] = {
    "who holds a lock": lambda ledger, size: ledger.holder_of(_long(size)),
    "history of one lock, first 100 entries": lambda ledger, size: ledger.history(_long(size)),
    "who held it then": lambda ledger, size: ledger.holder_at(_long(size), MIDDLE),
    "holds of one lock, first 100": lambda ledger, size: ledger.holds(key=_long(size)),
    # Last, since it makes the history longer.
    "take and release": lambda ledger, size: _take_and_release(ledger, _long(size)),
}
HELD: dict[str, Ask] = {
    "take and release": _aside,
    "refused take": lambda ledger, _: ledger.try_take("item:7", "run:now"),
    "who holds a lock": lambda ledger, _: ledger.holder_of("item:7"),
    "all current holders, first 100": lambda ledger, _: ledger.current_holders(),
    "one holder's locks, 10": lambda ledger, _: ledger.current_holders(holder="run:1"),
    "locks under a key, 11": lambda ledger, _: ledger.current_holders(under="item:7"),
    "expire_due, nothing is due": lambda ledger, _: ledger.expire_due(),
}


def _long(size: int) -> str:
    return f"long:{size}"


def _of_one_lock(sizes: Sequence[int]) -> Iterator[Iterator[LockEvent]]:
    for size in sizes:
        yield life(_long(size), size, random.Random(size), lambda rng: f"run:{rng.randrange(100)}")


def _held(locks: int) -> Iterator[list[LockEvent]]:
    """So many locks that are held without end, ten of them under `item:7`, ten by each holder."""
    for number in range(locks):
        key, holder = f"item:{number}", f"run:{number // 10}"
        if number % 100 == 1 and number < 1000:
            key = f"item:7:part:{number}"
        now = BEGIN + timedelta(seconds=number)
        wish = Take(holder, Call(holder, {}), None)
        decision = Lock(lock_id("default", key), key).take(wish, now, nothing_in_the_way)
        yield list(decision.events)


def _fill(url: str, what: str, sizes: Sequence[int]) -> str:
    with LockLedger(url) as ledger:
        ledger.migrate()
    engine, began = create_engine(url), time.perf_counter()
    fillings: dict[str, Callable[[], Iterable[Iterable[LockEvent]]]] = {
        "events": lambda: lives(*sizes),
        "history": lambda: _of_one_lock(sizes),
        "held": lambda: _held(*sizes),
    }
    told = fill(engine, fillings[what]())
    engine.dispose()
    if told <= PROVEN:
        with LockLedger(url) as ledger:
            if not (found := ledger.verify()).ok:
                raise RuntimeError(f"{what} {[*sizes]} is not sound: {found.by_kind}")
    if what == "history":
        with LockLedger(url) as ledger:
            for size in sizes:
                ledger.force_release(_long(size), actor="run:now", reason="the past is over")
    seconds = time.perf_counter() - began
    print(f"{what} {[*sizes]}: {told:,} events in {seconds:.0f} s", file=sys.stderr, flush=True)
    return url


def grown(server: PostgresServer, largest: int, held: int, rounds: int) -> list[dict[str, Any]]:
    """The curves, up to so many events and so many locks held."""
    events, locks = _decades(1000, largest), _decades(1000, held)
    lengths = _decades(1, min(largest, 1_000_000))
    jobs = [("events", [size]) for size in events] + [("held", [size]) for size in locks]
    jobs.append(("history", lengths))
    jobs.sort(key=lambda job: -sum(job[1]))
    urls = {(what, *sizes): server.url(server.create_database("template1")) for what, sizes in jobs}
    with ProcessPoolExecutor(2, mp_context=CONTEXT) as pool:
        filling = [pool.submit(_fill, urls[(what, *sizes)], what, sizes) for what, sizes in jobs]
        for each in filling:
            each.result()
    with server.connect() as connection:
        connection.execute("CHECKPOINT")
    rows = []
    with ExitStack() as stack:

        def opened(url: str) -> LockLedger:
            return stack.enter_context(LockLedger(url))

        long = opened(urls[("history", *lengths)])
        for what, questions, ledgers in (
            ("events", EVENTS, [(size, opened(urls["events", size])) for size in events]),
            ("history", HISTORY, [(size, long) for size in lengths]),
            ("held", HELD, [(size, opened(urls["held", size])) for size in locks]),
        ):
            for name, ask in questions.items():
                rows += _curve(what, name, ask, ledgers, rounds)
    return rows


def _curve(
    what: str, name: str, ask: Ask, ledgers: Sequence[tuple[int, LockLedger]], rounds: int
) -> list[dict[str, Any]]:
    times: dict[int, list[float]] = {size: [] for size, _ in ledgers}
    for number in range(rounds + 1):
        for size, ledger in ledgers:
            began = time.perf_counter()
            for _ in range(CALLS):
                ask(ledger, size)
            if number:  # the first round warms up
                times[size].append((time.perf_counter() - began) * 1000 / CALLS)
    rows = [
        {"what": what, "question": name, "size": size, "ms": [round(each, 4) for each in found]}
        for size, found in times.items()
    ]
    medians = [statistics.median(found) for found in times.values()]
    print(f"{what}, {name}: {[round(each, 2) for each in medians]}", file=sys.stderr, flush=True)
    return rows


def _decades(first: int, last: int) -> list[int]:
    sizes = [first]
    while sizes[-1] * 10 <= last:
        sizes.append(sizes[-1] * 10)
    return sizes
