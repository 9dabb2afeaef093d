"""The past in a caller's transaction and beside one, and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from lockledger import AsyncLockLedger
from lockledger.verbs import Verbs
from support.databases import Database
from support.hosts import Host, host_on
from support.ledgers import Ledgers, SettableClock
from support.stories import at


@pytest.fixture
def host(ledgers: Ledgers) -> Iterator[Host]:
    """A host on each kind of database in turn."""
    with host_on(ledgers) as host:
        yield host


def told(ledger: Verbs) -> list[tuple[str, str | None]]:
    return [(hold.holder, hold.ended_by) for hold in ledger.holds(key="k")]


def test_a_transaction_sees_its_own_past_and_nobody_else_does_before_it_commits(host: Host) -> None:
    host.ledger.take("k", "run:1")
    with host.session() as session:
        bound = host.ledger.using(session)
        host.write(session, 1)
        began = bound.take("k", "run:2", takeover_reason="urgent").taken_at
        assert told(bound) == [("run:1", "takeover"), ("run:2", None)]
        assert bound.holder_at("k", began) == bound.holder_of("k")
        assert [hold.holder for hold in bound.holders_at(began)] == ["run:2"]

        assert told(host.ledger) == [("run:1", None)]
        before = host.ledger.holder_at("k", began)
        assert before is not None
        assert before.holder == "run:1"
        session.commit()
    assert told(host.ledger) == [("run:1", "takeover"), ("run:2", None)]
    assert host.ledger.holder_at("k", began) == host.ledger.holder_of("k")


def test_what_is_rolled_back_also_to_a_savepoint_was_never_held(host: Host) -> None:
    with host.session() as session:
        bound = host.ledger.using(session)
        began = bound.take("k", "run:1").taken_at
        with session.begin_nested() as savepoint:
            bound.release("k", "run:1")
            assert told(bound) == [("run:1", "release")]
            savepoint.rollback()
        assert told(bound) == [("run:1", None)]
        assert [hold.holder for hold in bound.holders_at(began)] == ["run:1"]
        session.rollback()
    assert told(host.ledger) == []
    assert host.ledger.holder_at("k", began) is None


def test_a_question_that_is_refused_leaves_the_transaction_healthy(host: Host) -> None:
    with host.session() as session:
        bound = host.ledger.using(session)
        host.write(session, 1)
        began = bound.take("k", "run:1").taken_at
        with pytest.raises(ValueError, match="is later than now"):
            bound.holder_at("k", began.replace(year=began.year + 1))
        with pytest.raises(ValueError, match="after="):
            bound.holds(after="k")
        session.commit()
    assert host.documents() == {1: "draft"}
    assert host.ledger.is_locked("k")


def test_looking_back_takes_no_lock(host: Host) -> None:
    began = host.ledger.take("k", "run:1").taken_at
    with Session(host.engine) as session:
        if host.postgres:
            bound = host.ledger.using(session)
            bound.holds()
            bound.holder_at("k", began)
            bound.holders_at(began)
            assert host.impatient().release("k", "run:1")
            session.rollback()
        else:
            # A reader beside a writer: the write transaction is open, and nobody waits for it.
            host.ledger.using(session).take("other", "run:1")
            reader = host.impatient()
            assert (len(reader.holds()), len(reader.holders_at(began))) == (1, 1)
            assert reader.holder_at("k", began) is not None
            session.rollback()


def test_awaited_the_answers_are_the_same(ledgers: Ledgers, database: Database) -> None:
    clock = SettableClock()
    ledger = ledgers.open(clock=clock)
    ledger.take("k", "run:1", ttl=10)
    clock.set(9)
    ledger.extend("k", "run:1", 10)
    clock.set(30)
    ledger.take("k", "run:2")

    async def asked() -> list[object]:
        async with AsyncLockLedger(database.url, clock=clock) as awaited:
            return [
                await awaited.holds(key="k", until=at(30), limit=1),
                await awaited.holder_at("k", at(5)),
                await awaited.holders_at(at(30), key_prefix="k"),
            ]

    assert asyncio.run(asked()) == [
        ledger.holds(key="k", until=at(30), limit=1),
        ledger.holder_at("k", at(5)),
        ledger.holders_at(at(30), key_prefix="k"),
    ]
