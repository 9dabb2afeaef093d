"""Ledgers in either colour for tests of what takes time, blocks that hold, and other processes that hold or wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from lockledger import Held, LockLedger
from support.colours import Loop, asynchronous
from support.databases import Database
from support.ledgers import Ledgers

T = TypeVar("T")
Colour = Literal["sync", "async"]
COLOURS: tuple[Colour, ...] = ("sync", "async")
SOAK = max(1, int(os.environ.get("LOCKLEDGER_SOAK", "1")))
"""How many times more rounds than in a common run."""
PATIENCE = 30.0
"""Seconds after which something that must happen is taken not to happen."""


def until(met: Callable[[], T], what: str) -> T:
    """What the question gives once it is true."""
    ends = time.monotonic() + PATIENCE
    while not (answer := met()):
        assert time.monotonic() < ends, f"it never came to this: {what}"
        time.sleep(0.005)
    return answer


@dataclass
class Company:
    """Ledgers of one colour on one database, with the calls of sync ones."""

    ledgers: Ledgers
    loop: Loop
    colour: Colour
    _opened: list[LockLedger] = field(default_factory=list)

    @property
    def database(self) -> Database:
        return self.ledgers.database

    @property
    def postgres(self) -> bool:
        return self.database.dialect == "postgresql"

    def open(self, **options: Any) -> LockLedger:
        """A ledger on the database's URL."""
        if self.colour == "sync":
            return self.ledgers.open(**options)
        ledger = asynchronous(self.loop, self.database.url, **options)
        self._opened.append(ledger)
        return ledger

    @contextmanager
    def hold(self, ledger: LockLedger, key: str, *args: Any, **options: Any) -> Iterator[Held]:
        """`ledger.hold(…)` for a block, whatever the ledger's colour."""
        holding: Any = ledger.hold(key, *args, **options)
        if self.colour == "sync":
            with holding as held:
                yield held
            return
        held = self.loop.run(holding.__aenter__())
        try:
            yield held
        except BaseException as error:
            if not self.loop.run(holding.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.loop.run(holding.__aexit__(None, None, None))

    def close(self) -> None:
        self.loop.settle()
        for ledger in self._opened:
            ledger.close()


PRELUDE = """
import asyncio, json, os, sys, time
from lockledger import *
url = sys.argv[1]

def say(what):
    print(json.dumps(what), flush=True)

def heard():
    return json.loads(sys.stdin.readline())
"""


class Process:
    """Another process, which tells and hears JSON, a line at a time: its script has `url`, `say` and `heard`."""

    def __init__(self, script: str, url: str, *arguments: str) -> None:
        self._running = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script, url, *arguments],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> Any:
        """The next thing it says."""
        assert self._running.stdout is not None
        line = self._running.stdout.readline()
        assert line, self._errors()
        return json.loads(line)

    def say(self, what: Any) -> None:
        assert self._running.stdin is not None
        self._running.stdin.write(json.dumps(what) + "\n")
        self._running.stdin.flush()

    def stop(self) -> None:
        """It stands still, as in a long garbage collection, until `go_on`."""
        self._running.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        self._running.send_signal(how)

    def ended(self, within: float = PATIENCE) -> int:
        """Its exit code, once it has ended; with what it wrote to its errors if that takes too long."""
        try:
            return self._running.wait(within)
        except subprocess.TimeoutExpired:
            self._running.kill()
            raise AssertionError(f"it goes on and on: {self._errors()}") from None

    def errors(self) -> str:
        """What it wrote to its errors, once it has ended."""
        self.ended()
        return self._errors()

    def _errors(self) -> str:
        assert self._running.stderr is not None
        return self._running.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._running.poll() is None:
            self._running.send_signal(signal.SIGCONT)
            self._running.kill()
        self._running.communicate()


def together(works: Sequence[Callable[[], object]]) -> list[object]:
    """Runs all of these at once, a thread each; raises the first error."""
    answers: list[object] = [None] * len(works)
    failures: list[BaseException] = []
    begin = threading.Barrier(len(works))

    def run(number: int) -> None:
        try:
            begin.wait()
            answers[number] = works[number]()
        except BaseException as failure:  # noqa: BLE001 - told below
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return answers
