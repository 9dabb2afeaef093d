"""Async ledgers driven from tests that do not await: one suite for both colours."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from lockledger import AsyncLockLedger, LockLedger

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own, which any thread may give work to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine gives, once it is through."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def settle(self) -> None:
        """Waits for tasks that are still ending: a connection that one gives back to a closed pool is closed by nobody."""
        self.run(_others_ended())

    def close(self) -> None:
        self.settle()
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _others_ended() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=10)


@contextmanager
def running_loop() -> Iterator[Loop]:
    """An event loop that is closed at the end."""
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close()


class _Blocking:
    """Looks like the sync twin of an async ledger: each call is run on the loop, and waited for."""

    def __init__(self, loop: Loop, ledger: object) -> None:
        self._loop = loop
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if not callable(found):
            return found

        @wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            if inspect.iscoroutine(answer):
                return self._loop.run(answer)
            if inspect.isasyncgen(answer):
                return iter(self._loop.run(_all(answer)))
            return answer

        return call

    def __enter__(self) -> _Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _all(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


def blocking(loop: Loop, ledger: object) -> LockLedger:
    """An async ledger, bound or not, with the calls of the sync one."""
    return cast(LockLedger, _Blocking(loop, ledger))


def asynchronous(loop: Loop, *args: Any, **options: Any) -> LockLedger:
    """A new async ledger with the calls of the sync one."""
    return blocking(loop, AsyncLockLedger(*args, **options))
