"""Events as they settle, for asyncio."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from lockledger.awaiting import spawned
from lockledger.domain.holds import RecordedEvent
from lockledger.ledger import LockLedger
from lockledger.subscription import Feed


class AsyncSubscription(AsyncIterator[RecordedEvent]):
    """`Subscription` for asyncio: yields events as they settle, and waits for more. One consumer at a time.

    Cancelling a wait loses nothing. `close` ends the iteration, also one that waits in another task.
    """

    def __init__(
        self, ledger: LockLedger, after: int | Literal["now"], key_prefix: str | None, poll: float
    ) -> None:
        self._ledger = ledger
        self._after = after
        self._key_prefix = key_prefix
        self._feed: Feed | None = None
        self._poll = poll
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordedEvent:
        feed = await self._begun()
        while not self._closed.is_set():
            if recorded := feed.pop():
                return recorded
            events, reached = await spawned(self._ledger.next_page, feed.reached)
            idle = not events and reached == feed.reached
            feed.put(events, reached)
            if idle:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), self._poll)
        raise StopAsyncIteration

    @property
    def position(self) -> int:
        """Pass it as `after` to go on from here."""
        if self._feed is None:
            return 0 if self._after == "now" else self._after
        return self._feed.position

    async def close(self) -> None:
        """Ends the iteration."""
        self._closed.set()

    async def _begun(self) -> Feed:
        """Where the subscription stands; `"now"` is when it is entered, or first asked."""
        if self._feed is None:
            after = self._after
            self._feed = Feed(
                await spawned(self._ledger.settled_position) if after == "now" else after,
                self._key_prefix,
            )
        return self._feed
