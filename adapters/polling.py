"""A subscription of the `eventsourcing` library that looks again and again, on a connection of its own each time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from eventsourcing.persistence import ApplicationRecorder, Notification, Subscription

PAGE = 500


@dataclass(frozen=True, slots=True)
class Page:
    """Settled events in position order, and the position up to which none is left to read."""

    notifications: Sequence[Notification]
    reached: int


class ReadPage(Protocol):
    """Reads the next page after a position."""

    def __call__(self, after: int, limit: int, *, topics: Sequence[str]) -> Page: ...


class PollingSubscription(Subscription[ApplicationRecorder]):
    """Yields events as they settle. `stop` may be called from any thread, and ends the iteration at once.

    A database error comes through to the consumer, who may go on iterating: nothing is skipped.
    """

    def __init__(
        self,
        recorder: ApplicationRecorder,
        read_page: ReadPage,
        gt: int | None,
        topics: Sequence[str],
        *,
        poll_seconds: float,
    ) -> None:
        super().__init__(recorder, gt, topics)
        self._read_page = read_page
        self._reached = gt or 0
        self._poll_seconds = poll_seconds
        self._ready: deque[Notification] = deque()
        self._stopped = Event()

    def stop(self) -> None:
        """Ends the iteration, also one that waits in another thread."""
        super().stop()
        self._stopped.set()

    def __next__(self) -> Notification:
        while not self._stopped.is_set():
            if self._ready:
                return self._ready.popleft()
            page = self._read_page(self._reached, PAGE, topics=self._topics)
            self._ready.extend(page.notifications)
            self._reached = page.reached
            if not self._ready:
                self._stopped.wait(self._poll_seconds)
        raise StopIteration
