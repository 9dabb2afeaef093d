"""Processes of their own for the tests: started quickly, each a fresh interpreter's child without threads."""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from typing import Any

SOAK = float(os.environ.get("LOCKLEDGER_SOAK", "1"))
"""How many times longer than in CI the rounds of contention, following and crashing go on."""

PATIENCE = 60 * max(1.0, SOAK)

IMPORTED_ONCE = [
    "lockledger.adapters.migration",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "support.contention",
    "support.crashing",
    "support.writers",
]


def rounds(number: int) -> int:
    """So many rounds, times `LOCKLEDGER_SOAK`."""
    return max(1, round(number * SOAK))


def processes() -> ForkServerContext:
    """Makes processes; what they run must be importable by its name, so it stands in a module of `support`."""
    context = multiprocessing.get_context("forkserver")
    # The server imports once what its children would import each; it finds the tests by this path only.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    context.set_forkserver_preload(IMPORTED_ONCE)
    return context


def all_at_once(
    work: Callable[..., object], arguments: Sequence[tuple[Any, ...]], *shared: Any
) -> list[Any]:
    """Runs `work` in one process for each tuple of arguments, and gives what they return.

    Each is also given a barrier, at which all begin, and what is `shared`. An exception of one is raised here.
    """
    context = processes()
    barrier = context.Barrier(len(arguments))
    answers = context.Queue()
    running = [
        context.Process(target=_work, args=(number, answers, work, (*given, barrier, *shared)))
        for number, given in enumerate(arguments)
    ]
    for process in running:
        process.start()
    results: dict[int, Any] = {}
    try:
        while len(results) < len(running):
            number, result, error = answers.get(timeout=PATIENCE)
            if error is not None:
                raise error
            results[number] = result
    except queue.Empty:
        raise AssertionError(f"only {sorted(results)} of {len(running)} ended in time") from None
    finally:
        for process in running:
            if len(results) < len(running):
                process.kill()
            process.join()
    return [results[number] for number in range(len(running))]


def _work(number: int, answers: Any, work: Callable[..., object], arguments: Any) -> None:
    try:
        result, error = work(*arguments), None
    except BaseException as raised:  # noqa: BLE001 it is raised again by the process that waits for it
        result, error = None, raised
        raised.add_note(f"in process {number}")
    answers.put((number, result, error))
