"""Who is measured at what, and at how many clients; contenders take turns within each round."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import psycopg
from benchmarks.measuring import (
    CONTEXT,
    PROCESSES,
    TASKS,
    THREADS,
    Contender,
    Round,
    in_a_process,
    libpq,
    measure,
)
from benchmarks.operations import (
    GUARD,
    HISTORY,
    HOLDER,
    HOLDER_AT,
    IN_TURN,
    NEW,
    REFUSED,
    TAKE,
    TAKEOVER,
)
from benchmarks.orm import HOST_ALONE, ORM
from benchmarks.ours import LEDGER, follow
from benchmarks.peers import ADVISORY, BARE_STOCK, INSERT, STOCK

CLIENTS = (1, 8, 32)


@dataclass(frozen=True)
class Settings:
    """How long, how often, and at which numbers of clients."""

    rounds: int
    seconds: float
    clients: Sequence[int]
    redis: Contender | None
    keep: Callable[[list[dict[str, Any]]], None]
    """Given all rows of a part so far, so that a run which is broken off loses only what it was at."""


@dataclass(frozen=True)
class Comparison:
    """One operation, done by each of these in turn."""

    operation: str
    contenders: Sequence[Contender]
    kind: str = PROCESSES
    at_least: int = 1
    """The fewest clients of this kind that differ from another kind."""


def takes(url: str, settings: Settings) -> list[dict[str, Any]]:
    """Take and release beside every peer: what the goals are about."""
    contenders = [LEDGER, ORM, STOCK, BARE_STOCK, INSERT, ADVISORY, *_given(settings)]
    return compared(url, [Comparison(TAKE, contenders)], settings)


def operations(url: str, settings: Settings) -> list[dict[str, Any]]:
    """The other verbs and questions."""
    return compared(
        url,
        [
            Comparison(NEW, [LEDGER, ORM]),
            Comparison(IN_TURN, [LEDGER, ORM]),
            Comparison(REFUSED, [LEDGER, ORM, ADVISORY, *_given(settings)]),
            Comparison(TAKEOVER, [LEDGER, ORM]),
            Comparison(GUARD, [LEDGER, ORM, HOST_ALONE]),
            Comparison(HOLDER, [LEDGER, ORM, *_given(settings)]),
            Comparison(HISTORY, [LEDGER, ORM]),
            Comparison(HOLDER_AT, [LEDGER, ORM]),
        ],
        settings,
    )


def kinds(url: str, settings: Settings) -> list[dict[str, Any]]:
    """Threads of one process, and tasks of one loop."""
    contenders = [LEDGER, ORM, INSERT]
    return compared(
        url,
        [
            Comparison(TAKE, contenders, THREADS, at_least=2),
            Comparison(TAKE, contenders, TASKS),
        ],
        settings,
    )


def subscriber(url: str, settings: Settings) -> list[dict[str, Any]]:
    """The same takes and releases, and the same with somebody who follows them."""
    followed = "with a subscriber"
    rows = {
        (clients, name): _row(TAKE, PROCESSES, clients, name)
        for clients in settings.clients
        for name in (LEDGER.name, followed)
    }
    in_a_process(LEDGER.prepare, url)
    for clients in settings.clients:
        for _ in range(settings.rounds):
            for name in (LEDGER.name, followed):
                lags: list[float] = []
                with _following(url, lags) if name == followed else nullcontext():
                    found = measure(LEDGER, url, TAKE, clients, settings.seconds)
                row = rows[clients, name]
                _add(row, found)
                if lags:
                    row.setdefault("lags_ms", []).append(_spread(lags))
    return [*rows.values()]


@contextmanager
def _following(url: str, lags: list[float]) -> Iterator[None]:
    started, stop, told = CONTEXT.Event(), CONTEXT.Event(), CONTEXT.SimpleQueue()
    process = CONTEXT.Process(target=follow, args=(url, started, stop, told))
    process.start()
    started.wait(60)
    try:
        yield
    finally:
        stop.set()
        lags += told.get()
        process.join()


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "events": len(ordered),
        "median": ordered[len(ordered) // 2],
        "95 of 100": ordered[len(ordered) * 95 // 100],
        "most": ordered[-1],
    }


def compared(
    url: str, comparisons: Sequence[Comparison], settings: Settings
) -> list[dict[str, Any]]:
    """A row for each operation, kind, number of clients and contender, with the figures of each round."""
    for contender in {each.name: each for one in comparisons for each in one.contenders}.values():
        in_a_process(contender.prepare, url)
    with psycopg.connect(libpq(url), autocommit=True) as connection:
        connection.execute("CHECKPOINT")
    rows: list[dict[str, Any]] = []
    for one in comparisons:
        for clients in settings.clients:
            if clients < one.at_least:
                continue
            found = {
                each.name: _row(one.operation, one.kind, clients, each.name)
                for each in one.contenders
            }
            for _ in range(settings.rounds):
                for contender in one.contenders:
                    _add(
                        found[contender.name],
                        measure(
                            contender, url, one.operation, clients, settings.seconds, kind=one.kind
                        ),
                    )
            print(f"{one.operation}, {clients} {one.kind}", file=sys.stderr, flush=True)
            rows += found.values()
            settings.keep(rows)
    return rows


def _row(operation: str, kind: str, clients: int, contender: str) -> dict[str, Any]:
    return {
        "operation": operation,
        "kind": kind,
        "clients": clients,
        "contender": contender,
        "rates": [],
        "client_us": [],
        "server_us": [],
        "disk_us": [],
        "others_cores": [],
    }


def _add(row: dict[str, Any], found: Round) -> None:
    for name, value in (
        ("rates", found.rate),
        ("client_us", found.client_us),
        ("server_us", found.server_us),
        ("disk_us", found.disk_us),
        ("others_cores", found.others_cores),
    ):
        row[name].append(None if value is None else round(value, 2))


def _given(settings: Settings) -> list[Contender]:
    return [settings.redis] if settings.redis else []


PARTS: dict[str, Callable[[str, Settings], list[dict[str, Any]]]] = {
    "takes": takes,
    "operations": operations,
    "kinds": kinds,
    "subscriber": subscriber,
}
