"""What a hold for the length of an `async with` block does with its tasks, so that no cancellation leaves a lock behind."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any

from lockledger.awaiting import spawned
from lockledger.domain.holds import Grant
from lockledger.holding import LONGEST_FAREWELL, Heartbeat, Held, beat, first_pause


async def begun(begin: Callable[[], Held], end: Callable[[Held], None]) -> Held:
    """Takes in a task of its own, which hears of a cancellation once, so that it can take back what it had begun."""
    task = asyncio.ensure_future(spawned(begin))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await _over(task)
        if task.done() and not task.cancelled() and task.exception() is None:
            await ended(task.result(), partial(end, task.result()))  # it came too late to stop it
        raise
    return task.result()


async def ended(hold: Held, end: Callable[[], None]) -> None:
    """Carries out the end of a hold in a task of its own: a cancellation must not leave the lock behind.

    A forked child has no part in its parent's loop and hold, and awaits nothing.
    """
    if not hold.here:
        return
    task = asyncio.ensure_future(spawned(end))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError as cancellation:
        await _over(task)
        if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
            cancellation.add_note(f"and at the end of the hold: {failure}")
        raise
    task.result()


async def _over(task: asyncio.Task[Any]) -> None:
    """Waits for a task however often it is cancelled itself meanwhile; at last, when nothing answers, gives it up."""
    ends = monotonic() + LONGEST_FAREWELL
    while not task.done() and (left := ends - monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=left)
    if not task.done():
        task.cancel()
        _GIVEN_UP.add(task)
        task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _GIVEN_UP.discard(task)
    if not task.cancelled():
        task.exception()  # nobody is left to hear of it


@asynccontextmanager
async def beating(
    held: Held, extend: Callable[[], Grant], heartbeat: Heartbeat | None
) -> AsyncIterator[None]:
    """Extends in a task of its own for the length of a block."""
    if heartbeat is None:
        yield
        return
    over = asyncio.Event()

    async def beat_until_over(pause: float | None) -> None:
        while pause is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), pause)
            if over.is_set():
                return
            pause = await spawned(partial(beat, held, extend, heartbeat))

    task = asyncio.create_task(beat_until_over(first_pause(held, heartbeat)))
    try:
        yield
    finally:
        if held.here:
            over.set()
            await asyncio.wait([task], timeout=LONGEST_FAREWELL)
            task.cancel()


_GIVEN_UP: set[asyncio.Task[Any]] = set()
"""Tasks that nothing answered; the event loop alone would let them be collected."""
