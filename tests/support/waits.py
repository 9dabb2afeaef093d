"""Calls that wait: in a thread of their own, for how long, how often they ask, and by a time that the test sets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from lockledger import LockLedger
from lockledger.adapters.engines import Source

T = TypeVar("T")
HANG = 20.0
"""Seconds by which a busy machine delays nothing: what ends later would not end while its way is barred."""


class Meanwhile:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._answer: Any = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as failure:  # noqa: BLE001 - raised where the answer is wanted
            self._failure = failure

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def answer(self) -> Any:
        self._thread.join(30)
        assert not self.runs, "it goes on and on"
        if self._failure is not None:
            raise self._failure
        return self._answer


@contextmanager
def pausing() -> Iterator[list[float]]:
    """The seconds that ledgers mean to sleep between two tries, however late a busy machine wakes them."""
    meant: list[float] = []
    sleep = Source.sleep

    def noted(source: Source, seconds: float) -> None:
        meant.append(seconds)
        sleep(source, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Source, "sleep", noted)
        yield meant


@contextmanager
def takes(shortest: float, longest: float) -> Iterator[None]:
    """The block takes so many seconds at least, and no more are meant to be slept; a busy machine may add to them."""
    began = time.monotonic()
    with pausing() as meant:
        yield
    assert shortest <= time.monotonic() - began < longest + HANG
    assert sum(meant) <= longest + 0.001  # an event loop's timer is not exact


class Tries:
    """How often those who wait on a ledger have begun to ask."""

    def __init__(self, ledger: LockLedger) -> None:
        self.begun = 0
        commands = getattr(ledger, "sync_ledger", ledger).workings.commands
        attempt = commands.attempt

        def counted(*args: Any, **options: Any) -> Any:
            self.begun += 1
            return attempt(*args, **options)

        commands.attempt = counted  # type: ignore[method-assign]


@contextmanager
def decisions_of(ledger: LockLedger) -> Iterator[list[None]]:
    """One for each decision of the ledger's that is about to wait for its turn to be recorded."""
    made: list[None] = []
    workings = ledger.workings
    # What is decided from memory, on PostgreSQL, goes straight into the append; SQLite waits before it.
    remembers = workings.store.proves_memories
    whose, name = (workings.store, "append") if remembers else (workings.commands, "decide")
    call = getattr(whose, name)

    def noted(*args: Any, **options: Any) -> Any:
        made.append(None)
        return call(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whose, name, noted)
        yield made


class Missed(Exception):
    """The situation of a test did not come about: the machine was too busy just then."""


def anew(play: Callable[[str], T]) -> T:
    """What comes of a play on a lock of its own, which is set up again with another when it was `Missed`."""
    for number in range(20):
        with suppress(Missed):
            return play(f"k{number}")
    raise AssertionError("the situation never comes about")


class Imagined:
    """Time that passes only by sleeping: for the patience of who waits, and for a ledger on its `clock`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, current: object = None) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def clock(self) -> datetime:
        return datetime(2026, 3, 2, tzinfo=UTC) + timedelta(seconds=self.now)

    def replace(self, patch: pytest.MonkeyPatch, *, sleeps: bool = True) -> None:
        """Ledgers wait by it. Unless it `sleeps` for them, they sleep by the machine's clock, and the test sets `now`."""
        for module in ("waiting", "blocks", "holding"):
            patch.setattr(f"lockledger.{module}.monotonic", self.monotonic)
        if sleeps:
            patch.setattr(Source, "sleep", lambda _source, seconds: self.sleep(seconds))
