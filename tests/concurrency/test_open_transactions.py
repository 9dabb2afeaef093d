"""A call beside an open transaction that has changed the same lock: what it waits for, and what it then sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection

from lockledger import HoldChanged, LockedByOther, LockLedger, NotLockHolder
from lockledger.adapters.postgres import PostgresEventStore
from support.company import until
from support.hosts import Host
from support.in_the_way import clock_of, in_the_way
from support.ledgers import SettableClock
from support.stories import at
from support.waits import decisions_of

T = TypeVar("T")
STALE = 0.5
"""Seconds that make a decision stale: more than the 250 ms after which a call decides again."""
TTL = timedelta(seconds=0.4)
TOLERANCE = timedelta(milliseconds=250)


@pytest.fixture
def ledger(host: Host) -> LockLedger:
    return host.ledger


@contextmanager
def open_transaction(host: Host) -> Iterator[Connection]:
    """A transaction of a host, rolled back at the end unless it has been committed."""
    with host.engine.connect() as connection:
        yield connection


def waiting(host: Host, call: Callable[[], T]) -> Future[T]:
    """The call, which does not end while a transaction is open; for long enough to be stale."""
    running = host.blocked(call) if host.postgres else host.meanwhile(call)
    time.sleep(STALE)
    assert not running.done(), running.exception() or running.result()
    return running


def answer(running: Future[T]) -> T:
    return running.result(timeout=20)


def test_a_take_behind_another_first_take_that_commits_is_refused_with_the_holder(
    host: Host, ledger: LockLedger
) -> None:
    with open_transaction(host) as connection:
        grant = ledger.using(connection).take("k", "ann")
        running = waiting(host, lambda: ledger.take("k", "ben", ttl=TTL))
        connection.commit()
    with pytest.raises(LockedByOther) as refused:
        answer(running)
    assert refused.value.current is not None
    assert (refused.value.current.holder, refused.value.current.token) == ("ann", grant.token)
    assert len(ledger.history("k")) == 1


def test_a_take_behind_another_first_take_that_rolls_back_is_live_for_its_whole_ttl(
    host: Host, ledger: LockLedger
) -> None:
    with open_transaction(host) as connection:
        ledger.using(connection).take("k", "ann")
        running = waiting(host, lambda: (ledger.take("k", "ben", ttl=600), ledger.holder_of("k")))
        over = clock_of(host.database)
        connection.rollback()
    grant, holder = answer(running)
    assert (grant.token, grant.created) == (1, True)
    assert grant.taken_at >= over
    assert grant.expires_at == grant.taken_at + timedelta(seconds=600)
    assert holder is not None
    assert holder.grant(created=True) == grant


def test_what_a_savepoint_took_back_stands_in_nobodys_way(postgres_host: Host) -> None:
    """PostgreSQL only: on SQLite everything waits for the end of the transaction.

    Who waited already before the savepoint was taken back, PostgreSQL lets wait for the end of the transaction.
    """
    ledger = postgres_host.ledger
    with open_transaction(postgres_host) as connection:
        connection.exec_driver_sql("SELECT 1")
        savepoint = connection.begin_nested()
        ledger.using(connection).take("k", "ann")
        early = waiting(postgres_host, lambda: ledger.try_take("k", "cid"))
        savepoint.rollback()
        late = postgres_host.meanwhile(lambda: ledger.take("k", "ben"))
        assert answer(late).holder == "ben"
        with pytest.raises(LockedByOther):
            ledger.using(connection).take("k", "ann")
        connection.commit()
    assert answer(early) is None


def test_a_take_behind_a_first_take_and_release_takes_the_lock_at_the_next_token(
    host: Host, ledger: LockLedger
) -> None:
    with open_transaction(host) as connection:
        bound = ledger.using(connection)
        bound.take("k", "ann")
        bound.release("k", "ann")
        running = waiting(host, lambda: ledger.take("k", "ben"))
        connection.commit()
    assert answer(running).token == 3


def test_a_take_beside_an_open_takeover_is_refused_at_once_with_what_is_committed(
    host: Host, ledger: LockLedger
) -> None:
    ledger.take("k", "ann")
    with open_transaction(host) as connection:
        ledger.using(connection).take("k", "ben", takeover_reason="urgent")
        running = host.meanwhile(lambda: ledger.take("k", "cid"))
        with pytest.raises(LockedByOther) as refused:
            answer(running)
        assert refused.value.current is not None
        assert refused.value.current.holder == "ann"
        connection.commit()


def test_a_takeover_behind_an_open_takeover_takes_over_from_whoever_that_left(
    host: Host, ledger: LockLedger
) -> None:
    ledger.take("k", "ann")
    with open_transaction(host) as connection:
        ledger.using(connection).take("k", "ben", takeover_reason="urgent")
        running = waiting(host, lambda: ledger.take("k", "cid", takeover_reason="more so", ttl=TTL))
        over = clock_of(host.database)
        connection.commit()
    grant = answer(running)
    assert (grant.taken_over_from, grant.token) == ("ben", 3)
    assert grant.taken_at >= over
    assert [entry.holder for entry in ledger.history("k")] == ["ann", "ben", "cid"]


def test_a_takeover_behind_an_open_release_is_a_take_without_a_reason(
    host: Host, ledger: LockLedger
) -> None:
    ledger.take("k", "ann")
    with open_transaction(host) as connection:
        ledger.using(connection).release("k", "ann")
        running = waiting(host, lambda: ledger.take("k", "cid", takeover_reason="urgent"))
        connection.commit()
    grant = answer(running)
    assert (grant.taken_over_from, grant.takeover_reason) == (None, None)
    assert [entry.action for entry in ledger.history("k")][-1] == "LockTaken"


def test_a_takeover_behind_an_open_takeover_hits_only_the_hold_its_author_saw(
    host: Host, ledger: LockLedger
) -> None:
    seen = ledger.take("k", "ann").token
    with open_transaction(host) as connection:
        ledger.using(connection).take("k", "ben", takeover_reason="urgent")
        running = waiting(
            host,
            lambda: ledger.take("k", "cid", takeover_reason="more so", expected_token=seen),
        )
        connection.commit()
    with pytest.raises(HoldChanged) as changed:
        answer(running)
    assert changed.value.current is not None
    assert changed.value.current.holder == "ben"


def test_a_release_behind_an_open_takeover_finds_the_hold_lost(
    host: Host, ledger: LockLedger
) -> None:
    ledger.take("k", "ann")
    with open_transaction(host) as connection:
        ledger.using(connection).take("k", "ben", takeover_reason="urgent")
        running = waiting(host, lambda: ledger.release("k", "ann"))
        connection.commit()
    with pytest.raises(NotLockHolder):
        answer(running)


def test_a_release_behind_an_open_takeover_that_rolls_back_releases(
    host: Host, ledger: LockLedger
) -> None:
    ledger.take("k", "ann")
    with open_transaction(host) as connection:
        ledger.using(connection).take("k", "ben", takeover_reason="urgent")
        running = waiting(host, lambda: ledger.release("k", "ann"))
        connection.rollback()
    assert answer(running) is True


def test_other_locks_do_not_wait_for_an_open_transaction(postgres_host: Host) -> None:
    """PostgreSQL only: SQLite has one writer at a time."""
    ledger = postgres_host.ledger
    with open_transaction(postgres_host) as connection:
        ledger.using(connection).take("k", "ann")
        running = postgres_host.meanwhile(lambda: ledger.take("another", "ben"))
        assert answer(running).created
        connection.commit()


def test_any_write_waits_for_the_one_writer_of_sqlite_and_reads_do_not(sqlite_host: Host) -> None:
    ledger = sqlite_host.ledger
    with open_transaction(sqlite_host) as connection:
        ledger.using(connection).take("k", "ann")
        assert ledger.holder_of("k") is None
        running = waiting(sqlite_host, lambda: ledger.take("another", "ben"))
        connection.commit()
    assert answer(running).created


@pytest.mark.parametrize("seconds", [0.05, 0.4])
def test_what_is_recorded_is_never_decided_earlier_than_250_ms_before_it_got_its_turn(
    host: Host, ledger: LockLedger, seconds: float
) -> None:
    ledger.take("k", "ann")
    with in_the_way(host.database, "k"), decisions_of(ledger) as decisions:
        call = partial(ledger.take, "k", "ben", takeover_reason="urgent")
        running = host.blocked(call) if host.postgres else host.meanwhile(call)
        until(lambda: decisions, "it has decided")
        time.sleep(seconds)
        over = clock_of(host.database)
    taken_at = answer(running).taken_at
    assert taken_at > over - TOLERANCE
    assert taken_at >= over or seconds < TOLERANCE.total_seconds()


def test_a_call_that_is_overtaken_again_and_again_ends_with_an_answer(postgres_host: Host) -> None:
    """Every look is stale when its turn comes, until the call locks the row before it looks."""
    ledger, database = postgres_host.ledger, postgres_host.database
    ledger.take("k", "ann")
    begun, queued = Event(), Event()

    def overtake() -> None:
        with in_the_way(database, "k"):
            begun.set()
            assert queued.wait(20)
            time.sleep(0.3)

    queue = [postgres_host.meanwhile(overtake)]
    assert begun.wait(20)
    running = postgres_host.blocked(
        lambda: ledger.take("k", "ben", takeover_reason="urgent", ttl=TTL)
    )
    queue += [postgres_host.blocked(overtake) for _ in range(4)]
    queued.set()
    grant = answer(running)
    assert grant.expires_at == grant.taken_at + TTL
    for each in queue:
        answer(each)


def test_a_take_that_had_locked_for_an_extension_waits_for_a_guard_before_it_decides(
    postgres_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is locked so that guards may stay; then the hold turns out to have run out, and a guard is in the way."""
    clock, database = SettableClock(), postgres_host.database
    first, ledger = (postgres_host.ledgers.open(clock=clock) for _ in range(2))
    monkeypatch.setattr(PostgresEventStore, "optimistic_attempts", 0)
    first.take("k", "ben", ttl=10)  # which the other does not remember
    with open_transaction(postgres_host) as connection:
        ledger.using(connection).guard("k", "ben")
        with database.server.connect(database.name) as other:  # type: ignore[union-attr]
            other.execute("BEGIN")
            other.execute("SELECT FROM public.lockledger_current_holders FOR NO KEY UPDATE")
            running = postgres_host.blocked(
                lambda: ledger.take("k", "ben", ttl=20, if_mine="extend")
            )
            clock.set(10)
            other.execute("ROLLBACK")
        time.sleep(1.5)
        assert not running.done()
        clock.set(50)
        connection.commit()
    grant: Any = answer(running)
    assert grant.created
    assert grant.taken_at == at(50)
