"""Following a ledger from asyncio: in order, nothing skipped, cancelled and closed at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from lockledger import AsyncLockLedger, AsyncSubscription, RecordedEvent
from support.cancelling import cancelled_at
from support.hosts import Host
from support.ways import async_engine

SOON = 60.0
"""Seconds after which what must come is taken not to come."""

Story = Callable[[AsyncLockLedger], Awaitable[Any]]


def told(host: Host, story: Story) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(100), AsyncLockLedger(host.database.url) as ledger:
            return await story(ledger)

    return asyncio.run(run())


async def take(ledger: AsyncLockLedger, *keys: str) -> None:
    for key in keys:
        await ledger.take(key, "run:1")


async def next_keys(subscription: AsyncSubscription, count: int) -> list[str]:
    async with asyncio.timeout(SOON):
        return [(await anext(subscription)).event.key for _ in range(count)]


def test_events_are_iterated_up_to_what_is_settled(host: Host) -> None:
    async def story(ledger: AsyncLockLedger) -> None:
        assert [each async for each in ledger.events()] == []
        await take(ledger, *(f"k:{number}" for number in range(7)))
        events = [each async for each in ledger.events()]
        assert [each.event.key for each in events] == [f"k:{number}" for number in range(7)]
        assert [each.position for each in events] == sorted({each.position for each in events})
        later = [each async for each in ledger.events(after=events[3].position)]
        assert later == events[4:]

    told(host, story)


def test_a_subscription_yields_what_was_and_then_waits_for_more(host: Host) -> None:
    async def story(ledger: AsyncLockLedger) -> None:
        await take(ledger, "a", "b")
        async with ledger.subscribe(poll=0.01) as subscription:
            assert await next_keys(subscription, 2) == ["a", "b"]
            waiting = asyncio.ensure_future(anext(subscription))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await take(ledger, "c")
            recorded = await asyncio.wait_for(waiting, SOON)
            assert recorded.event.key == "c"
            assert subscription.position == recorded.position

    told(host, story)


def test_it_is_an_async_iterator(host: Host) -> None:
    async def story(ledger: AsyncLockLedger) -> list[str]:
        await take(ledger, "a", "b", "c")
        seen = []
        async with ledger.subscribe(poll=0.01) as subscription:
            async for recorded in subscription:
                seen.append(recorded.event.key)
                if recorded.event.key == "c":
                    break
        return seen

    assert told(host, story) == ["a", "b", "c"]


def test_now_is_when_it_is_entered(host: Host) -> None:
    async def story(ledger: AsyncLockLedger) -> None:
        await take(ledger, "before")
        subscription = ledger.subscribe(after="now", poll=0.01)
        await take(ledger, "before too")
        async with subscription:
            began = subscription.position
            await take(ledger, "after")
            assert await next_keys(subscription, 1) == ["after"]
            assert subscription.position > began
        events = [each async for each in ledger.events(after=began)]
        assert [each.event.key for each in events] == ["after"]

    told(host, story)


def test_now_on_an_empty_ledger(host: Host) -> None:
    async def story(ledger: AsyncLockLedger) -> None:
        async with ledger.subscribe(after="now", poll=0.01) as subscription:
            await take(ledger, "first")
            assert await next_keys(subscription, 1) == ["first"]

    told(host, story)


def test_only_keys_with_the_prefix_and_position_passes_the_others(host: Host) -> None:
    async def story(ledger: AsyncLockLedger) -> None:
        await take(ledger, "round:1", "job:1", "round:2", "job:2")
        async with ledger.subscribe(key_prefix="round:", poll=0.01) as subscription:
            assert await next_keys(subscription, 2) == ["round:1", "round:2"]
            waiting = asyncio.ensure_future(anext(subscription, None))
            events = [each async for each in ledger.events()]
            async with asyncio.timeout(SOON):
                while subscription.position < events[-1].position:
                    assert not waiting.done()
                    await asyncio.sleep(0.005)
            assert subscription.position == events[-1].position
        assert await waiting is None

    told(host, story)


def test_a_cancelled_wait_loses_nothing(host: Host) -> None:
    async def story(ledger: AsyncLockLedger) -> None:
        await take(ledger, "a")
        async with ledger.subscribe(poll=0.02) as subscription:
            assert await next_keys(subscription, 1) == ["a"]
            for key in ("b", "c", "d"):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.03):
                        await anext(subscription)
                await take(ledger, key)
                assert await next_keys(subscription, 1) == [key]

    told(host, story)
    host.ledgers.may_log_errors = True  # one may have been cancelled while it asked


def test_a_wait_that_is_cancelled_anywhere_loses_nothing(host: Host) -> None:
    async def story(ledger: AsyncLockLedger) -> list[str]:
        keys = [f"k:{number:02}" for number in range(15)]
        await take(ledger, *keys)
        seen: list[str] = []
        async with ledger.subscribe(poll=0.01) as subscription:
            for point in range(1, 200):
                outcome = await cancelled_at(point, subscription.__anext__())
                if isinstance(outcome, RecordedEvent):
                    seen.append(outcome.event.key)
                if len(seen) == len(keys):
                    return seen
        return seen

    assert told(host, story) == [f"k:{number:02}" for number in range(15)]
    host.ledgers.may_log_errors = True


@pytest.mark.parametrize("waiting", [False, True])
def test_close_ends_the_iteration_also_one_that_waits(host: Host, waiting: bool) -> None:
    async def story(ledger: AsyncLockLedger) -> None:
        subscription = ledger.subscribe(poll=60)
        if waiting:
            following = asyncio.ensure_future(anext(subscription, None))
            await asyncio.sleep(0.1)
            await subscription.close()
            assert await asyncio.wait_for(following, SOON) is None
        await subscription.close()
        assert [each async for each in subscription] == []
        await subscription.close()

    told(host, story)


def test_leaving_its_block_closes_it(host: Host) -> None:
    async def story(ledger: AsyncLockLedger) -> None:
        await take(ledger, "a", "b")
        async with ledger.subscribe(poll=0.01) as subscription:
            assert await next_keys(subscription, 1) == ["a"]
        assert [each async for each in subscription] == []
        # It stands where it was left, and another one goes on from there.
        async with ledger.subscribe(after=subscription.position, poll=0.01) as again:
            assert await next_keys(again, 1) == ["b"]

    told(host, story)


def test_a_closed_ledger_ends_with_its_error(host: Host) -> None:
    async def story(_: AsyncLockLedger) -> None:
        ledger = AsyncLockLedger(host.database.url)
        subscription = ledger.subscribe(poll=0.01)
        await ledger.close()
        with pytest.raises(RuntimeError, match="is closed"):
            await anext(subscription)

    told(host, story)


def test_several_follow_at_once_and_hold_no_connection_while_they_wait(host: Host) -> None:
    async def story(_: AsyncLockLedger) -> None:
        engine: AsyncEngine = async_engine(host.database, pool_size=2, max_overflow=0)
        ledger = AsyncLockLedger(engine)
        following = [ledger.subscribe(poll=0.02) for _ in range(10)]
        first = [asyncio.ensure_future(next_keys(each, 3)) for each in following]
        await asyncio.sleep(0.1)
        await take(ledger, "a", "b", "c")
        assert await asyncio.gather(*first) == [["a", "b", "c"]] * 10
        await engine.dispose()

    told(host, story)


def test_slow_transactions_that_commit_and_roll_back_around_it_make_it_skip_nothing(
    postgres_host: Host,
) -> None:
    async def story(ledger: AsyncLockLedger) -> None:
        engine = async_engine(postgres_host.database)
        got: list[RecordedEvent] = []

        async def follow() -> None:
            async with ledger.subscribe(poll=0.005) as subscription:
                async for recorded in subscription:
                    got.append(recorded)
                    if recorded.event.key == "the end":
                        return

        async def slow(number: int) -> str | None:
            async with AsyncSession(engine) as session:
                await ledger.using(session).take(f"slow:{number}", "run:1")
                await asyncio.sleep(0.02 * (number % 7))
                await ledger.using(session).take(f"slow:{number}:more", "run:1")
                if number % 3 == 0:
                    await session.rollback()
                    return None
                await session.commit()
                return f"slow:{number}"

        following = asyncio.ensure_future(follow())
        committed = {key for key in await asyncio.gather(*map(slow, range(30))) if key}
        await take(ledger, "the end")
        await asyncio.wait_for(following, SOON)
        await engine.dispose()

        positions = [each.position for each in got]
        assert positions == sorted(set(positions))
        expected = committed | {f"{key}:more" for key in committed} | {"the end"}
        assert {each.event.key for each in got} == expected
        assert len(got) == len(expected)

    told(postgres_host, story)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"after": -1}, ValueError),
        ({"after": True}, TypeError),
        ({"after": "later"}, TypeError),
        ({"poll": 0}, ValueError),
        ({"poll": "1"}, TypeError),
        ({"key_prefix": 7}, TypeError),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_at_once(
    host: Host, given: dict[str, Any], error: type[Exception]
) -> None:
    async def story(ledger: AsyncLockLedger) -> None:
        with pytest.raises(error):
            ledger.subscribe(**given)

    told(host, story)
