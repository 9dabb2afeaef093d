"""Following a ledger: every committed event once, in position order, for as long as one listens."""

from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Event
from types import TracebackType
from typing import Self

from lockledger.domain.errors import shown
from lockledger.domain.holds import RecordedEvent

PAGE = 500
NextPage = Callable[[int], tuple[list[RecordedEvent], int]]
"""Given a position, the next events and the position up to which nothing is left to read."""


def read_settled(next_page: NextPage, after: int) -> Iterator[RecordedEvent]:
    """The events after a position, up to what was settled when the last page was read; holds no connection between."""
    while True:
        events, reached = next_page(after)
        yield from events
        if reached == after:
            return
        after = reached


class Feed:
    """Where a subscription stands: what it has yielded, what it has read ahead, and up to where nothing is left."""

    def __init__(self, after: int, key_prefix: str | None) -> None:
        self.position = after
        self.reached = after
        self._key_prefix = key_prefix or ""
        self._ready: deque[RecordedEvent] = deque()

    def pop(self) -> RecordedEvent | None:
        """The next event that has been read already."""
        if not self._ready:
            self.position = self.reached
            return None
        recorded = self._ready.popleft()
        self.position = recorded.position
        return recorded

    def put(self, events: list[RecordedEvent], reached: int) -> None:
        """A page that was read after `reached`."""
        self._ready.extend(each for each in events if each.event.key.startswith(self._key_prefix))
        self.reached = reached


class Subscription(Iterator[RecordedEvent]):
    """Yields events as they settle, and waits for more. Use it as a context manager; one consumer at a time.

    `position` is that of the last event yielded, or where the subscription stands before it: pass it as `after` to go
    on later. `close` may be called from any thread and ends the iteration. A database error comes through to the
    consumer, who may go on iterating: nothing is skipped.
    """

    def __init__(
        self, next_page: NextPage, *, after: int, key_prefix: str | None, poll: float
    ) -> None:
        self._next_page = next_page
        self._feed = Feed(after, key_prefix)
        self._poll = poll
        self._closed = Event()

    @property
    def position(self) -> int:
        """Pass it as `after` to go on from here."""
        return self._feed.position

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordedEvent:
        while not self._closed.is_set():
            if recorded := self._feed.pop():
                return recorded
            events, reached = self._next_page(self._feed.reached)
            idle = not events and reached == self._feed.reached
            self._feed.put(events, reached)
            if idle:
                self._closed.wait(self._poll)
        raise StopIteration

    def close(self) -> None:
        """Ends the iteration, also one that waits in another thread."""
        self._closed.set()


def poll_seconds(poll: float | timedelta) -> float:
    """Seconds between two looks, more than 0 and at most a day."""
    seconds = poll.total_seconds() if isinstance(poll, timedelta) else poll
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"poll is seconds or a timedelta, not {shown(poll)}")
    if not 0 < seconds <= 86_400:
        raise ValueError(f"poll={shown(poll)}: give more than 0 and at most 86,400 seconds")
    return float(seconds)
