"""A database in memory is gone with its one connection: calls take turns on it, and it outlives each that is broken off."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from lockledger import (
    AsyncLockLedger,
    ConcurrencyConflict,
    Grant,
    LockLedger,
    Policy,
    RecordedEvent,
    configure_sqlite,
)
from lockledger.adapters import statements
from support.cancelling import cancelled_at

Call = Callable[[AsyncLockLedger], Awaitable[object]]

BEFORE = datetime(2020, 1, 1, tzinfo=UTC)
CALLS: dict[str, Call] = {
    "a take": lambda ledger: ledger.take("new", "run:2"),
    "a takeover": lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
    "a take of several": lambda ledger: ledger.take_all(["new", "newer"], "run:2"),
    "a forced release of all": lambda ledger: ledger.release_all(
        under="k", actor="user:9", reason="why"
    ),
    "a sweep": lambda ledger: ledger.expire_due(),
    "current holders": lambda ledger: ledger.current_holders(),
    "a history": lambda ledger: ledger.history("k"),
    "a hold of the past": lambda ledger: ledger.holder_at("k", BEFORE),
    "verify": lambda ledger: ledger.verify(),
    "rebuild": lambda ledger: ledger.rebuild(),
    "a checkpoint": lambda ledger: ledger.checkpoint(),
    "a migration": lambda ledger: ledger.migrate(),
}


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_may_be_cancelled_anywhere(call: str, where: str, tmp_path: Path) -> None:
    async def story() -> list[object]:
        outcomes: list[object] = []
        for point in range(1, 200):
            url = "sqlite://" if where == "memory" else f"sqlite:///{tmp_path}/{point}.db"
            async with AsyncLockLedger(url) as ledger:
                await ledger.migrate()
                await ledger.take("k", "run:1")
                outcomes.append(await cancelled_at(point, as_coroutine(CALLS[call](ledger))))

                assert (await ledger.take("other", "run:1")).created, point
                assert len(await ledger.history("k")) >= 1, point
                assert (await ledger.verify()).ok, point
            if not isinstance(outcomes[-1], asyncio.CancelledError):
                return outcomes
        raise AssertionError("it was cancelled at every point and never came to its end")

    assert len(asyncio.run(story())) > 2


async def as_coroutine(call: Awaitable[object]) -> object:
    return await call


def test_a_call_may_be_cancelled_while_its_driver_goes_on() -> None:
    """At any moment, so also when a statement is done and the task has not heard of it."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)

    async def story() -> None:
        async with AsyncLockLedger("sqlite://") as ledger:
            await ledger.migrate()
            grants = await asyncio.gather(
                *(ledger.try_take("k", f"run:{number}") for number in range(20))
            )
            assert len([grant for grant in grants if grant]) == 1
            for number in range(200):
                call = chance.choice(list(CALLS.values()))(ledger)
                calling = asyncio.ensure_future(as_coroutine(call))
                await asyncio.sleep(chance.uniform(0, 0.004))
                calling.cancel()
                (outcome,) = await asyncio.gather(calling, return_exceptions=True)
                if isinstance(outcome, Exception):
                    raise outcome
                assert (await ledger.take(f"k:{number}", "run:1")).created, seed
            assert (await ledger.verify()).ok, seed

    asyncio.run(story())


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:locks?mode=memory&uri=true",
        "sqlite:///file:locks?mode=memory&cache=shared&uri=true",
        "sqlite:///file:?uri=true",
    ],
)
def test_it_is_one_database_for_all_threads_however_it_is_named(url: str) -> None:
    with LockLedger(url) as ledger:
        ledger.migrate()
        with ThreadPoolExecutor(4) as pool:
            taken = pool.map(lambda number: ledger.try_take("k", f"run:{number}"), range(16))
            assert len([grant for grant in taken if grant]) == 1
        assert len(ledger.history("k")) == 1


def test_a_shared_cache_is_one_database_for_two_ledgers() -> None:
    url = "sqlite:///file:shared?mode=memory&cache=shared&uri=true"
    with LockLedger(url) as one, LockLedger(url) as other:
        one.migrate()
        one.take("k", "run:1")
        assert other.is_locked("k")
        assert other.release("k", "run:1")
        assert not one.is_locked("k")

        def work(number: int) -> int:
            ledger = (one, other)[number % 2]
            for each in range(15):
                assert ledger.take(f"{number}:{each}", "run:1").created
            return len({recorded.event.key for recorded in ledger.events()})

        with ThreadPoolExecutor(4) as pool:
            assert max(pool.map(work, range(4))) == 61
        assert one.verify().ok


class _Interrupted:
    """A cursor whose statement is done when the interruption comes, as one of a signal does."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, *args: Any) -> None:
        self._cursor.execute(*args)
        raise KeyboardInterrupt


def test_a_call_may_be_interrupted_after_any_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    left = 0
    make = statements._cursor

    def cursor(connection: Connection) -> tuple[Any, bool]:
        nonlocal left
        left -= 1
        made, lasts = make(connection)
        return (made if left else _Interrupted(made)), lasts

    monkeypatch.setattr(statements, "_cursor", cursor)
    found, errors = [], []
    for point in range(1, 20):
        with LockLedger("sqlite://") as ledger:
            ledger.migrate()
            ledger.take("k", "run:1")
            left = point
            try:
                ledger.take("k", "run:2", takeover_reason="urgent")
            except KeyboardInterrupt as error:
                left = 0
                errors.append(error)  # and with it, a cursor in which a statement may be under way
                found.append([entry.action for entry in ledger.history("k")])
                assert ledger.take("other", "run:1").created
                assert ledger.verify().ok
            else:
                break
    assert ["LockTaken"] in found
    # The one after COMMIT.
    assert found[-1] == ["LockTaken", "LockTakenOver"]


# A host's engine in memory has one connection for all of its thread, or for all.


ENGINES: dict[str, Callable[[], Engine]] = {
    "of the thread": lambda: create_engine("sqlite://"),
    "of all": lambda: create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    ),
}


@pytest.mark.parametrize("kind", ENGINES)
def test_a_verb_alone_leaves_the_hosts_transaction_on_the_same_connection(kind: str) -> None:
    engine = ENGINES[kind]()
    refusals: list[ConcurrencyConflict] = []
    with LockLedger(engine, busy_timeout=0.1) as ledger, engine.connect() as host:
        ledger.migrate()
        host.exec_driver_sql("CREATE TABLE document (body TEXT)")
        host.commit()
        for end in (host.rollback, host.commit):
            ledger.using(host).take("k", "run:1")
            host.exec_driver_sql("INSERT INTO document VALUES ('x')")
            for call in (lambda: ledger.take("other", "run:2"), lambda: ledger.holder_of("k")):
                with pytest.raises(ConcurrencyConflict, match=r"call through using\(") as conflict:
                    call()
                refusals.append(conflict.value)  # with all that its traceback holds
            end()
            held = end == host.commit
            assert ledger.is_locked("k") is held
            assert host.exec_driver_sql("SELECT count(*) FROM document").scalar() == held
            host.rollback()
        assert ledger.take("other", "run:2").created
        assert ledger.verify().ok
    engine.dispose()


@pytest.mark.parametrize("configured", [False, True])
def test_threads_and_tasks_take_turns_on_a_hosts_one_connection(configured: bool) -> None:
    def keys(number: int) -> list[str]:
        return [f"{number}:{each}" for each in range(15)]

    engine = ENGINES["of all"]()
    if configured:
        configure_sqlite(engine)
    with LockLedger(engine) as one, LockLedger(engine) as other, ThreadPoolExecutor(4) as pool:
        one.migrate()

        def work(number: int) -> list[Grant]:
            ledger = (one, other)[number % 2]
            return [ledger.take(key, "run:1") for key in keys(number)]

        assert sum(len(grants) for grants in pool.map(work, range(4))) == 60
        assert (one.verify().ok, len(one.current_holders(limit=100))) == (True, 60)
    engine.dispose()

    async def story() -> None:
        engine = create_async_engine("sqlite+aiosqlite://")
        if configured:
            configure_sqlite(engine)
        async with AsyncLockLedger(engine) as ledger:
            await ledger.migrate()

            async def work(number: int) -> list[Grant]:
                return [await ledger.take(key, "run:1") for key in keys(number)]

            await asyncio.gather(*(work(number) for number in range(4)))
            assert (await ledger.verify()).ok
            assert len(await ledger.current_holders(limit=100)) == 60
        await engine.dispose()

    asyncio.run(story())


# The end.


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_ledger_that_is_closed_under_a_call_lets_it_end_and_closes_then(
    where: str, tmp_path: Path
) -> None:
    url = "sqlite://" if where == "memory" else f"sqlite:///{tmp_path}/ledger.db"
    entered, closed = threading.Event(), threading.Event()

    class Slow(Policy[Connection]):
        def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
            drivers.append(connection.connection.driver_connection)
            entered.set()
            assert closed.wait(20)

    drivers: list[Any] = []
    ledger = LockLedger(url, policy=Slow())
    ledger.migrate()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(ledger.take, "k", "run:1")
        assert entered.wait(20)
        waiting = pool.submit(ledger.is_locked, "k") if where == "memory" else None
        time.sleep(0.1)
        ledger.close()
        closed.set()
        assert running.result(20).created
        if waiting is not None:
            with pytest.raises(RuntimeError, match="closed"):
                waiting.result(20)
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        drivers[0].execute("SELECT 1")
    with pytest.raises(RuntimeError, match="closed"):
        ledger.is_locked("k")


def test_nothing_is_left_of_a_ledger_that_is_closed_after_a_call_that_was_cancelled() -> None:
    async def story() -> None:
        for point in range(1, 12):
            before = set(threading.enumerate())
            async with AsyncLockLedger("sqlite://") as ledger:
                await ledger.migrate()
                await cancelled_at(point, as_coroutine(ledger.take("k", "run:1")))
            left = [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]
            for thread in left:
                thread.join(60)
                assert not thread.is_alive(), point

    asyncio.run(story())


FORGETFUL = """
import asyncio, sys
from lockledger import AsyncLockLedger

async def main():
    global ledger
    ledger = AsyncLockLedger(sys.argv[1])
    await ledger.migrate()
    print((await ledger.take("k", "run:1")).token)

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_program_ends_also_when_it_leaves_its_ledger_open(where: str, tmp_path: Path) -> None:
    url = "sqlite://" if where == "memory" else f"sqlite:///{tmp_path}/ledger.db"
    ended = subprocess.run(
        [sys.executable, "-c", FORGETFUL, url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr
