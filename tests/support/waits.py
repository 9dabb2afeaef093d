"""Calls that wait: in a thread of their own, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LATE = 1.0
"""Seconds by which a wait may end late on a busy machine."""


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
def takes(shortest: float, longest: float) -> Iterator[None]:
    """The block takes so many seconds, give or take a busy machine."""
    began = time.monotonic()
    yield
    assert shortest <= time.monotonic() - began < longest + LATE
