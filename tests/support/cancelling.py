"""Cancelling a call where it hurts: at each of the points where it waits, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _CancelledAt(Generic[T]):
    """Awaits a call, and cancels the task that does so when it waits for the n-th time."""

    def __init__(self, call: Coroutine[Any, Any, T], point: int) -> None:
        self._call = call
        self._point = point
        self.reached = 0

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._call.__await__()
        try:
            waited_for = next(steps)
            while True:
                self.reached += 1
                if self.reached == self._point:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                try:
                    answer = yield waited_for
                except BaseException as error:  # noqa: BLE001 - a cancellation goes where it would go
                    waited_for = steps.throw(error)
                else:
                    waited_for = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result


async def cancelled_at(point: int, call: Coroutine[Any, Any, T]) -> T | asyncio.CancelledError:
    """What came of the call: `CancelledError` when it waited often enough to be cancelled, else its answer."""

    async def body() -> T:
        return await _CancelledAt(call, point)

    task = asyncio.ensure_future(body())
    try:
        return await task
    except asyncio.CancelledError as cancellation:
        return cancellation
