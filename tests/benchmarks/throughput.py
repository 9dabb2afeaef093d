"""Take and release through the public API beside what people use instead, on the same server in the same run.

    make benchmark                      on a PostgreSQL 18 of its own, with fsync
    make benchmark ARGS="--url URL"     on a server that is there already (a database it may fill)

Contenders take turns within each round, so that a slow moment of the machine hits all of them; what is printed is the
median over the rounds of each rate, and of each round's ratio.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers import LEDGER, PEERS, Peer

from support.postgres import embedded_postgres

CONTEXT = multiprocessing.get_context("fork")


def measure(peer: Peer, url: str, clients: int, seconds: float) -> float:
    """Operations a second of so many client processes."""
    ready, results = CONTEXT.Barrier(clients + 1), CONTEXT.SimpleQueue()
    workers = [
        CONTEXT.Process(target=_client, args=(peer, url, number, seconds, ready, results))
        for number in range(clients)
    ]
    for worker in workers:
        worker.start()
    with suppress(BrokenBarrierError):  # a worker failed, and says why in its result
        ready.wait(60)
    rates = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    failed = sorted((rate for rate in rates if isinstance(rate, str)), key=len, reverse=True)
    if failed:
        raise RuntimeError(f"{peer.name}: {failed[0]}")
    return float(sum(rates))


def _client(peer: Peer, url: str, number: int, seconds: float, ready: Any, results: Any) -> None:
    try:
        with peer.worker(url, number) as operation:
            for _ in range(60):  # every key once, statements prepared
                operation()
            ready.wait(60)
            done, began = 0, time.perf_counter()
            while (took := time.perf_counter() - began) < seconds:
                done += operation()
            results.put(done / took)
    except Exception as error:  # noqa: BLE001 - told to the parent, who raises it
        ready.abort()
        results.put(f"{type(error).__name__}: {error}")


def compare(url: str, rounds: int, seconds: float, clients: list[int]) -> dict[str, Any]:
    """The figures: rates and ratios by number of clients and contender."""
    contenders = (LEDGER, *PEERS)
    for peer in contenders:
        preparing = CONTEXT.Process(target=peer.prepare, args=(url,))
        preparing.start()
        preparing.join()
    figures: dict[str, Any] = {}
    for count in clients:
        rates: dict[str, list[float]] = {peer.name: [] for peer in contenders}
        for round_ in range(rounds):
            for peer in contenders:
                rates[peer.name].append(measure(peer, url, count, seconds))
            print(f"{count} clients, round {round_ + 1} of {rounds}", file=sys.stderr)
        figures[str(count)] = {
            peer.name: {
                "rate": statistics.median(rates[peer.name]),
                "rates": rates[peer.name],
                "ratio": statistics.median(
                    ours / theirs
                    for ours, theirs in zip(rates[LEDGER.name], rates[peer.name], strict=True)
                ),
                "lacks": peer.lacks,
            }
            for peer in contenders
        }
    return figures


def table(figures: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| clients | contender | operations a second | lockledger is |",
        "| --- | --- | ---: | ---: |",
    ]
    for count, contenders in figures.items():
        for name, each in contenders.items():
            times = "" if name == LEDGER.name else f"{each['ratio']:.2f} times as fast"
            lines.append(f"| {count} | {name} | {each['rate']:,.0f} | {times} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="lockledger beside its peers")
    parser.add_argument("--url", help="a database on a running PostgreSQL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--json", type=Path, help="where to write the raw figures")
    chosen = parser.parse_args()
    if chosen.url:
        figures = compare(chosen.url, chosen.rounds, chosen.seconds, chosen.clients)
    else:
        with embedded_postgres(durable=True) as server:
            url = server.url(server.create_database("template1"))
            figures = compare(url, chosen.rounds, chosen.seconds, chosen.clients)
    print(table(figures))
    if chosen.json:
        report = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "figures": figures,
        }
        chosen.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
