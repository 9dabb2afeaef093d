"""A long past, made quickly: locks live by the rules of the domain, and the store takes their events in bulk."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Engine

from lockledger.adapters.encoding import FIRST
from lockledger.adapters.postgres import PostgresEventStore
from lockledger.adapters.sqlite import SQLiteEventStore
from lockledger.adapters.store import Append, EventStore, Newest
from lockledger.domain.events import LockEvent
from lockledger.domain.keys import lock_id
from lockledger.domain.lock import Call, Decision, Lock, Take, evolve, nothing_in_the_way

BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
END = datetime(2025, 1, 1, tzinfo=UTC)
_AT_ONCE = 1000
_STORES: dict[str, type[EventStore]] = {
    "postgresql": PostgresEventStore,
    "sqlite": SQLiteEventStore,
}


def life(
    key: str,
    count: int,
    rng: random.Random,
    holder: Callable[[random.Random], str],
    *,
    ledger: str = "default",
) -> Iterator[LockEvent]:
    """So many events of one lock between BEGIN and END: takes, takeovers, extensions, releases and expiries."""
    lock = Lock(lock_id(ledger, key), key)
    for moment in sorted(rng.random() for _ in range(count)):
        if lock.version >= count:
            return
        now = BEGIN + timedelta(
            microseconds=round((END - BEGIN) / timedelta(microseconds=1) * moment)
        )
        for event in _next(lock, now, rng, holder).events:
            yield event
            lock = evolve(event)


def _next(
    lock: Lock, now: datetime, rng: random.Random, holder: Callable[[random.Random], str]
) -> Decision[Any]:
    live = lock.live_hold(now)
    ttl = rng.choice((None, timedelta(hours=1), timedelta(days=20)))
    if live is None:
        who = holder(rng)
        return lock.take(Take(who, Call(who, {}), ttl), now, nothing_in_the_way)
    call, chance = Call(live.holder, {}), rng.random()
    if chance < 0.2:
        who = holder(rng)
        wish = Take(who, Call(who, {}), ttl, "urgent", "replace")
        return lock.take(wish, now, nothing_in_the_way)
    if chance < 0.4 and live.expires_at is not None:
        until = live.expires_at - now + timedelta(days=1)
        return lock.extend(live.holder, until, None, call, now, lambda _: None)
    return lock.release(live.holder, None, None, call, now, lambda _: None)


def record(engine: Engine, lives: Iterable[Iterable[LockEvent]], *, ledger: str = "default") -> int:
    """Records these lives, and has the database look at how many rows there are; gives the number of events."""
    store = _STORES[engine.dialect.name](ledger, None)
    told = 0
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        batch: list[Append] = []
        for each in lives:
            newest = None
            for append in _appends(store, each):
                if newest is append.stream:
                    told += _write(store, connection, batch)
                newest = append.stream
                batch.append(append)
                if sum(len(waiting.events) for waiting in batch) >= _AT_ONCE:
                    told += _write(store, connection, batch)
        told += _write(store, connection, batch)
        connection.exec_driver_sql(
            "VACUUM ANALYZE" if engine.dialect.name == "postgresql" else "ANALYZE"
        )
    return told


def _appends(store: EventStore, events: Iterable[LockEvent]) -> Iterator[Append]:
    """One lock's events in appends of bearable size, each for the lock as the one before leaves it."""
    remaining, newest = iter(events), None
    while some := list(islice(remaining, _AT_ONCE)):
        if newest is None:
            newest = Newest(Lock(some[0].originator_id, some[0].key), FIRST, BEGIN)
        append = store.recording(newest, some)
        newest = Newest(evolve(some[-1]), append.events[-1].hash, BEGIN)
        yield append


def _write(store: EventStore, connection: Connection, batch: list[Append]) -> int:
    if not batch:
        return 0
    events = [event for append in batch for event in append.events]
    with store.transaction(connection):
        assert store.append_all(connection, batch, events) is not None
    batch.clear()
    return len(events)
