"""A process that stands still past its ttl while another takes its lock, and then goes on as if nothing had happened.

It may believe that it holds the lock: nothing can tell a process that stands still. What it then does to the ledger, or
to the host's rows under a guard, is refused, and it learns by whom.
"""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from lockledger import LockLedger
from support.company import Process, until
from support.databases import Database
from support.hosts import Base
from support.ledgers import Ledgers

HOLDER = """
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy import create_engine

def refusal(error):
    current = error.current
    return {
        "code": error.code, "ended_by": error.ended_by,
        "ended_at": None if error.ended_at is None else error.ended_at.isoformat(),
        "current": None if current is None else [current.holder, current.token],
    }

def told(call):
    try:
        call()
    except HoldLost as error:
        return refusal(error)
    return "done"

ttl, heartbeat = json.loads(sys.argv[2])
"""
SYNC = (
    HOLDER
    + """
engine = create_engine(url)
if engine.dialect.name == "sqlite":
    configure_sqlite(engine)
ledger = LockLedger(url)

def write(token):
    with engine.begin() as connection:
        ledger.using(connection).guard("k", "run:1", token=token)
        connection.execute(text("INSERT INTO host_document VALUES (1, 'written late')"))

def work():
    with ledger.hold("k", "run:1", ttl=ttl, heartbeat=heartbeat) as held:
        say(held.grant.token)
        heard()
        token = held.grant.token
        answers = {
            "write": told(lambda: write(token)),
            "extend": told(lambda: ledger.extend("k", "run:1", 60, token=token)),
            "release": told(lambda: ledger.release("k", "run:1", token=token)),
        }
        while heartbeat and not knows(held):
            time.sleep(0.01)
        answers["check"] = told(held.check)
        say(answers)

def knows(held):
    try:
        held.check()
    except HoldLost as error:
        return not isinstance(error, HoldSuspect)
    return False

say(told(work))
"""
)
ASYNC = (
    HOLDER
    + """
async def atold(call):
    try:
        await call
    except HoldLost as error:
        return refusal(error)
    return "done"

async def main():
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    if engine.dialect.name == "sqlite":
        configure_sqlite(engine)
    async with AsyncLockLedger(url) as ledger:

        async def write(token):
            async with engine.begin() as connection:
                await ledger.using(connection).guard("k", "run:1", token=token)
                await connection.execute(text("INSERT INTO host_document VALUES (1, 'written late')"))

        async def work():
            async with ledger.hold("k", "run:1", ttl=ttl, heartbeat=heartbeat) as held:
                say(held.grant.token)
                await asyncio.to_thread(heard)
                token = held.grant.token
                answers = {
                    "write": await atold(write(token)),
                    "extend": await atold(ledger.extend("k", "run:1", 60, token=token)),
                    "release": await atold(ledger.release("k", "run:1", token=token)),
                }
                while heartbeat and not knows(held):
                    await asyncio.sleep(0.01)
                answers["check"] = told(held.check)
                say(answers)

        say(await atold(work()))
    await engine.dispose()

def knows(held):
    try:
        held.check()
    except HoldLost as error:
        return not isinstance(error, HoldSuspect)
    return False

asyncio.run(main())
"""
)


@pytest.fixture
def documents(ledgers: Ledgers) -> Database:
    """The host's table is there."""
    engine = ledgers.database.engine()
    Base.metadata.create_all(engine)
    return ledgers.database


def stop(process: Process, database: Database) -> None:
    """The process stands still; on SQLite not in the middle of a write, which would keep everybody out."""
    process.stop()
    while database.path is not None and is_being_written(database.path):
        process.go_on()
        time.sleep(0.01)
        process.stop()


def is_being_written(file: Path) -> bool:
    connection = sqlite3.connect(file, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    else:
        return False
    finally:
        connection.close()


def written(database: Database) -> list[Any]:
    with database.engine().connect() as connection:
        return list(connection.execute(text("SELECT body FROM host_document")).scalars())


@pytest.mark.parametrize("script", [SYNC, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("heartbeat", [None, 0.2], ids=["without heartbeat", "with heartbeat"])
def test_a_paused_holder_is_refused_and_learns_by_whom(
    ledgers: Ledgers, documents: Database, script: str, heartbeat: float | None
) -> None:
    ledger = ledgers.open()
    with Process(script, documents.url, json.dumps([1.5, heartbeat])) as paused:
        token = paused.hear()
        stop(paused, documents)
        until(lambda: not ledger.is_locked("k"), "the hold runs out")
        other = ledger.take("k", "run:2", ttl=600)
        before = list(ledger.history("k", extensions=True))
        paused.go_on()
        paused.say("go on")
        answers, at_exit = paused.hear(), paused.hear()
        assert paused.ended() == 0, paused.errors()
    expired = before[-2]
    lost = {
        "code": "HOLD_LOST",
        "ended_by": "expiry",
        "ended_at": expired.occurred_at.isoformat(),
        "current": ["run:2", other.token],
    }

    assert (expired.action, expired.token) == ("LockExpired", token)
    assert answers.pop("check") == (lost if heartbeat else {**SUSPECT, "current": None})
    assert answers == {"write": lost, "extend": lost, "release": lost}
    assert at_exit == lost
    assert written(documents) == []
    assert list(ledger.history("k", extensions=True)) == before
    assert untouched(ledger, other.token)


SUSPECT = {"code": "HOLD_SUSPECT", "ended_by": None, "ended_at": None}


def untouched(ledger: LockLedger, token: int) -> bool:
    live = ledger.holder_of("k")
    return live is not None and (live.holder, live.token) == ("run:2", token)


@pytest.mark.parametrize("script", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_paused_holder_that_was_taken_over_learns_by_whom(
    ledgers: Ledgers, documents: Database, script: str
) -> None:
    ledger = ledgers.open()
    with Process(script, documents.url, json.dumps([600, 0.2])) as paused:
        paused.hear()
        stop(paused, documents)
        other = ledger.take("k", "run:2", takeover_reason="it stands still")
        before = list(ledger.history("k", extensions=True))
        paused.go_on()
        paused.say("go on")
        answers, at_exit = paused.hear(), paused.hear()
        assert paused.ended() == 0, paused.errors()

    for answer in (*answers.values(), at_exit):
        assert (answer["code"], answer["ended_by"]) == ("HOLD_LOST", "takeover")
        assert answer["current"] == ["run:2", other.token]
    assert written(documents) == []
    assert list(ledger.history("k", extensions=True)) == before


@pytest.mark.parametrize("script", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_holder_that_was_paused_for_less_than_its_ttl_goes_on(
    ledgers: Ledgers, documents: Database, script: str
) -> None:
    ledger = ledgers.open()
    with Process(script, documents.url, json.dumps([600, None])) as paused:
        paused.hear()
        stop(paused, documents)
        assert ledger.try_take("k", "run:2") is None
        paused.go_on()
        paused.say("go on")
        answers, at_exit = paused.hear(), paused.hear()
        assert paused.ended() == 0, paused.errors()

    assert set(answers.values()) == {"done"}
    assert at_exit == "done"
    assert written(documents) == ["written late"]
