"""`listen=True`: who waits is woken when the hold in the way is released, and everything works without."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from lockledger import AsyncLockLedger, Grant, LockLedger
from lockledger.adapters.listener import Listener
from lockledger.domain.keys import lock_id
from support.company import Company, until
from support.hosts import Host
from support.ledgers import Ledgers

WAIT = 60
"""Seconds; none of these waits would end before, were nobody woken."""


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between two tries are longer than any wait here."""
    monkeypatch.setattr("lockledger.waiting.pauses", lambda: iter([WAIT] * 100))


def plain(ledger: Any) -> LockLedger:
    """The sync ledger under one of either colour."""
    return ledger if isinstance(ledger, LockLedger) else ledger._ledger.sync_ledger


def listener(ledger: Any) -> Listener:
    found = plain(ledger)._rest.listener
    assert found is not None
    return found


def asleep(ledger: LockLedger, key: str = "k", number: int = 1) -> None:
    """That many sleep until this lock is released."""
    lock = lock_id("default", key)
    until(lambda: listener(ledger).sleepers(lock) == number, "they wait")


@contextlib.contextmanager
def waiting(ledger: LockLedger, *holders: str, key: str = "k") -> Iterator[list[Future[Grant]]]:
    """They wait for the lock, and have asked."""
    with ThreadPoolExecutor(len(holders)) as pool:
        tasks = [pool.submit(ledger.take, key, holder, wait=WAIT) for holder in holders]
        asleep(ledger, key, len(holders))
        until(listener(ledger).hears.is_set, "it listens")
        yield tasks


def test_who_waits_is_woken_by_a_release(postgres_company: Company, without_polling: None) -> None:
    ledger, other = postgres_company.open(listen=True), postgres_company.open(listen=True)
    other.take("k", "run:1")
    with waiting(ledger, "run:2") as (woken,):
        other.release("k", "run:1")
        assert woken.result(WAIT / 2).created
    with waiting(ledger, "run:3") as (woken,):
        other.force_release("k", actor="user:9", reason="why")
        assert woken.result(WAIT / 2).created
    with waiting(ledger, "run:4") as (woken,):
        other.release_all(under="k", actor="user:9", reason="why")
        assert woken.result(WAIT / 2).created
    with (
        waiting(ledger, "run:5") as (woken,),
        postgres_company.hold(other, "k", "run:4", if_mine="replace"),
    ):
        pass
    assert woken.result().created


def test_a_release_wakes_one_of_those_who_wait_and_it_is_the_first(
    postgres_company: Company, without_polling: None
) -> None:
    ledger = postgres_company.open(listen=True)
    ledger.take("k", "run:0")
    asked = 0
    commands = plain(ledger).workings.commands
    attempt = commands.attempt

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return attempt(*args, **options)

    commands.attempt = counted  # type: ignore[method-assign]
    holders = [f"run:{number}" for number in range(1, 6)]
    with ThreadPoolExecutor(5) as pool:
        tasks = []
        for number, holder in enumerate(holders, 1):
            tasks.append(pool.submit(ledger.take, "k", holder, wait=WAIT))
            asleep(ledger, "k", number)
        until(listener(ledger).hears.is_set, "it listens")
        for holder, task in zip(["run:0", *holders], [*tasks, None], strict=True):
            ledger.release("k", holder)
            if task is not None:
                assert task.result(WAIT / 2).created
    assert asked == 2 * 5


def test_in_scopes_the_hold_in_the_way_counts(
    postgres_company: Company, without_polling: None
) -> None:
    ledger = postgres_company.open(listen=True, scopes=True)
    ledger.take("round:5", "run:1")
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(ledger.take, "round:5:band:2", "run:2", wait=WAIT)
        asleep(ledger, "round:5")
        until(listener(ledger).hears.is_set, "it listens")
        ledger.release("round:5", "run:1")
        assert task.result(WAIT / 2).created


def test_all_who_wait_in_a_process_share_one_connection_outside_the_pool(
    postgres_ledgers: Ledgers, without_polling: None
) -> None:
    engine = postgres_ledgers.database.engine(pool_size=1, max_overflow=0)
    ledger = postgres_ledgers.open(url_or_engine=engine, listen=True)
    for key in "abc":
        ledger.take(key, "run:0")
    with waiting(ledger, "run:1", "run:2", key="a"), waiting(ledger, "run:3", key="b"):
        assert listening(postgres_ledgers) == 1
        for holder, key in (("run:0", "a"), ("run:0", "b")):
            ledger.release(key, holder)
        until(lambda: ledger.holder_of("a") is not None, "one is woken")
        ledger.release_all(under="a", actor="user:9", reason="why")
    ledger.close()
    until(lambda: listening(postgres_ledgers) == 0, "the connection is closed")
    assert not any("listener" in each.name for each in threading.enumerate())


def listening(ledgers: Ledgers) -> int:
    """How many sessions listen, or have told something, last."""
    assert ledgers.database.server is not None
    with ledgers.database.server.connect() as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
            " AND (query LIKE 'LISTEN%%' OR query LIKE '%%pg_notify%%') AND pid <> pg_backend_pid()",
            (ledgers.database.name,),
        ).fetchone()
    assert found is not None
    return int(found[0])


def test_many_ends_are_told_at_once(postgres_ledgers: Ledgers, monkeypatch: Any) -> None:
    """What ends while one statement is under way goes into the next."""
    ledger = postgres_ledgers.open(listen=True)
    keys = [f"k:{number}" for number in range(100)]
    ledger.take_all(keys, "run:1")
    told: list[int] = []
    under_way, go_on = threading.Event(), threading.Event()
    tell_all = Listener._tell_all

    def slowly(self: Listener, connection: Any) -> None:
        if self._ended:
            told.append(len(self._ended))
            under_way.set()
            assert go_on.wait(30)
        tell_all(self, connection)

    monkeypatch.setattr(Listener, "_tell_all", slowly)
    ledger.release(keys[0], "run:1")
    assert under_way.wait(30)
    for key in keys[1:]:
        ledger.release(key, "run:1")
    go_on.set()
    until(lambda: not listener(ledger)._ended, "all is told")
    assert len(told) <= 2


def test_it_works_without(postgres_company: Company) -> None:
    """Another that does not listen releases; then the listener's connection is lost, and comes back."""
    postgres_company.ledgers.may_log_errors = True  # the server says that it ended a session
    ledger, other = postgres_company.open(listen=True), postgres_company.open()
    other.take("k", "run:1")
    with waiting(ledger, "run:2") as (task,):
        other.release("k", "run:1")
        assert task.result(WAIT / 2).created
    with waiting(ledger, "run:3") as (task,):
        server = postgres_company.database.server
        assert server is not None
        may_return, connected = threading.Event(), listener(ledger)._connected

        def later() -> Any:
            assert may_return.wait(WAIT)
            return connected()

        listener(ledger)._connected = later  # type: ignore[method-assign]
        with server.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                " AND query LIKE 'LISTEN%%' AND pid <> pg_backend_pid()",
                (postgres_company.database.name,),
            )
        until(lambda: not listener(ledger).hears.is_set(), "it is lost")
        ledger.release("k", "run:2")
        assert task.result(WAIT / 2).created
    may_return.set()
    until(listener(ledger).hears.is_set, "it listens again")


def test_a_release_in_a_callers_transaction_is_found_by_asking(postgres_host: Host) -> None:
    ledger = postgres_host.ledgers.open(url_or_engine=postgres_host.engine, listen=True)
    ledger.take("k", "run:1")
    with waiting(ledger, "run:2") as (task,):
        with postgres_host.engine.begin() as connection:
            ledger.using(connection).release("k", "run:1")
        assert task.result(WAIT / 2).created


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_listens_by_itself(postgres_ledgers: Ledgers, without_polling: None) -> None:
    ledger = postgres_ledgers.open(listen=True)
    ledger.take("k", "run:1")
    with waiting(ledger, "run:2") as (task,):
        child = os.fork()
        if child == 0:
            try:
                ledger.release("k", "run:1")
                asleep_in_child = ledger.take("j", "run:3", wait=WAIT).created
                listener(ledger).hears.wait(30)
                ledger.close()
                os._exit(0 if asleep_in_child else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert task.result(WAIT / 2).created
        assert listener(ledger).hears.is_set()


def test_it_needs_postgresql(sqlite_ledgers: Ledgers) -> None:
    for kind in (LockLedger, AsyncLockLedger):
        with pytest.raises(ValueError, match="listen=True needs PostgreSQL, not sqlite"):
            kind("sqlite://", listen=True)
