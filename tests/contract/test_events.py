"""Following a ledger: `events` and `subscribe`."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
from sqlalchemy import event as listening

from lockledger import LockLedger, RecordedEvent, Subscription
from support.ledgers import Ledgers, SettableClock

SOON = 60.0
"""Seconds after which a test gives a thread up."""


def lives(ledger: LockLedger, *keys: str) -> None:
    """Two events for each key."""
    for key in keys:
        ledger.take(key, "run:1")
        ledger.release(key, "run:1")


def described(events: Iterator[RecordedEvent] | list[RecordedEvent]) -> list[tuple[str, str]]:
    return [(each.event.key, each.event.action) for each in events]


def both(*keys: str) -> list[tuple[str, str]]:
    return [(key, action) for key in keys for action in ("LockTaken", "LockReleased")]


@contextmanager
def followed(subscription: Subscription) -> Iterator[queue.SimpleQueue[RecordedEvent]]:
    """Another thread iterates, and puts what it gets; it must end once the subscription is closed."""
    got: queue.SimpleQueue[RecordedEvent] = queue.SimpleQueue()

    def follow() -> None:
        for each in subscription:
            got.put(each)

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        yield got
    finally:
        subscription.close()
        follower.join(SOON)
    assert not follower.is_alive()


def gotten(got: queue.SimpleQueue[RecordedEvent], count: int) -> list[tuple[str, str]]:
    return described([got.get(timeout=SOON) for _ in range(count)])


# events


def test_events_come_once_in_position_order_with_all_they_carry(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("a", "run:1", ttl=10, metadata={"request": "r1"})
    ledger.extend("a", "run:1", 20)
    clock.set(60)
    ledger.take("a", "run:2")
    lives(ledger, "b")

    events = list(ledger.events())

    assert described(events) == [
        ("a", "LockTaken"),
        ("a", "LockExtended"),
        ("a", "LockExpired"),
        ("a", "LockTaken"),
        *both("b"),
    ]
    positions = [each.position for each in events]
    assert positions == sorted(set(positions))
    entries = ledger.audit_trail(extensions=True)
    assert [entry.position for entry in entries] == positions
    assert [(entry.version, entry.metadata) for entry in entries] == [
        (each.event.originator_version, each.event.metadata) for each in events
    ]


def test_events_begin_after_any_position(ledger: LockLedger) -> None:
    lives(ledger, "a", "b", "c")
    every = list(ledger.events())

    for number, each in enumerate(every):
        assert list(ledger.events(after=each.position)) == every[number + 1 :]
    assert list(ledger.events(after=every[-1].position + 1000)) == []
    assert list(ledger.events(0)) == every


def test_nothing_is_found_in_an_empty_ledger(ledger: LockLedger) -> None:
    assert list(ledger.events()) == []
    assert list(ledger.audit_trail()) == []
    assert list(ledger.current_holders()) == []


def test_more_events_than_a_page_holds_come_all(ledger: LockLedger) -> None:
    for _ in range(520):
        lives(ledger, "k")

    events = list(ledger.events())

    assert [each.event.originator_version for each in events] == list(range(1, 1041))


def test_events_hold_no_connection_between_pages(ledgers: Ledgers) -> None:
    engine = ledgers.database.engine(pool_size=1, max_overflow=0, pool_timeout=2)
    ledger = ledgers.open(url_or_engine=engine)
    lives(ledger, "a")

    for each in ledger.events():
        assert ledger.is_locked(each.event.key) is False
    with ledger.subscribe(poll=0.01) as subscription:
        for each in subscription:
            lives(ledger, "b")
            if each.event.key == "b":
                break


# subscribe


def test_a_subscription_gives_what_is_there_and_then_what_comes(ledger: LockLedger) -> None:
    lives(ledger, "a")
    with followed(ledger.subscribe(poll=0.01)) as got:
        assert gotten(got, 2) == both("a")
        lives(ledger, "b", "c")
        assert gotten(got, 4) == both("b", "c")
    assert got.empty()


def test_a_subscription_to_now_gives_only_what_comes(ledger: LockLedger) -> None:
    lives(ledger, "a")
    subscription = ledger.subscribe(after="now", poll=0.01)
    lives(ledger, "b")
    with followed(subscription) as got:
        assert gotten(got, 2) == both("b")
        lives(ledger, "c")
        assert gotten(got, 2) == both("c")


def test_a_subscription_to_an_empty_ledgers_now_gives_the_first_event(ledger: LockLedger) -> None:
    subscription = ledger.subscribe(after="now", poll=0.01)
    lives(ledger, "a")
    with followed(subscription) as got:
        assert gotten(got, 2) == both("a")


def test_a_subscription_goes_on_where_another_stood(ledger: LockLedger) -> None:
    lives(ledger, "a", "b")
    with ledger.subscribe() as first:
        seen = [next(first) for _ in range(3)]
    assert first.position == seen[-1].position

    with ledger.subscribe(after=first.position) as second:
        assert described([next(second)]) == [("b", "LockReleased")]


def test_a_subscription_to_a_prefix_gives_nothing_else(ledger: LockLedger) -> None:
    with followed(ledger.subscribe(key_prefix="round:5", poll=0.01)) as got:
        lives(ledger, "round:5", "round:4", "round:50", "Round:5", "round:5:band:2", "roun")
        assert gotten(got, 6) == both("round:5", "round:50", "round:5:band:2")
        lives(ledger, "round", "round:5")
        assert gotten(got, 2) == both("round:5")


def test_a_prefix_lets_the_position_pass_what_it_leaves_out(ledger: LockLedger) -> None:
    lives(ledger, "a", "b")
    last = list(ledger.events())[-1].position
    subscription = ledger.subscribe(key_prefix="a", poll=0.01)
    with followed(subscription) as got:
        assert gotten(got, 2) == both("a")
        until = time.monotonic() + SOON
        while subscription.position < last and time.monotonic() < until:
            time.sleep(0.005)
    assert subscription.position == last


def test_a_subscription_waits_for_the_poll_and_can_be_closed_meanwhile(ledger: LockLedger) -> None:
    subscription = ledger.subscribe(poll=timedelta(hours=1))
    began = time.monotonic()
    with followed(subscription):
        time.sleep(0.05)  # it waits by now, most likely
    assert time.monotonic() - began < SOON
    with pytest.raises(StopIteration):
        next(subscription)


def test_a_closed_subscription_ends_even_with_events_read_ahead(ledger: LockLedger) -> None:
    lives(ledger, "a", "b")
    with ledger.subscribe() as subscription:
        first = next(subscription)
    assert list(subscription) == []
    assert subscription.position == first.position


def test_a_subscriber_asks_no_more_often_than_the_poll(ledgers: Ledgers) -> None:
    engine = ledgers.database.engine()
    ledger = ledgers.open(url_or_engine=engine)
    lives(ledger, "a")
    asked: list[float] = []
    # On a SQLite engine of the host's, its own listeners do not hear the ledger: listen where the connections are.
    listening.listen(engine.pool, "checkout", lambda *_: asked.append(time.monotonic()))
    with followed(ledger.subscribe(poll=0.1)) as got:
        gotten(got, 2)
        asked.clear()
        until = time.monotonic() + SOON
        while len(asked) < 5 and time.monotonic() < until:
            time.sleep(0.01)
    # Once it has asked in vain it waits; a timer may be a little early.
    waits = [later - earlier for earlier, later in pairwise(asked)][1:]
    assert len(waits) >= 3
    assert min(waits) >= 0.099


def test_an_error_comes_through_to_the_subscriber_who_may_go_on(ledger: LockLedger) -> None:
    lives(ledger, "a")
    subscription = ledger.subscribe(poll=0.01)
    assert described([next(subscription)]) == [("a", "LockTaken")]
    read = subscription._next_page

    def broken(after: int) -> tuple[list[RecordedEvent], int]:
        raise ConnectionError("the network is down")

    next(subscription)
    subscription._next_page = broken
    with pytest.raises(ConnectionError):
        next(subscription)
    subscription._next_page = read
    lives(ledger, "b")
    assert described([next(subscription), next(subscription)]) == both("b")
