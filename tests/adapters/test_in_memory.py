"""A database in memory is gone with its one connection, which outlives every call that is cancelled or interrupted."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import AsyncLockLedger, LockLedger
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


@pytest.mark.parametrize("call", CALLS)
def test_a_call_may_be_cancelled_anywhere(call: str) -> None:
    async def story() -> list[object]:
        outcomes: list[object] = []
        for point in range(1, 200):
            async with AsyncLockLedger("sqlite://") as ledger:
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
    found = []
    for point in range(1, 20):
        with LockLedger("sqlite://") as ledger:
            ledger.migrate()
            ledger.take("k", "run:1")
            left = point
            try:
                ledger.take("k", "run:2", takeover_reason="urgent")
            except KeyboardInterrupt:
                left = 0
                found.append([entry.action for entry in ledger.history("k")])
                assert ledger.take("other", "run:1").created
                assert ledger.verify().ok
            else:
                break
    assert ["LockTaken"] in found
    # The one after COMMIT.
    assert found[-1] == ["LockTaken", "LockTakenOver"]


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
