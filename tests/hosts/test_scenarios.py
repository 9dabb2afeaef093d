"""Scenarios where they concern a caller's transaction, async code or a policy, on every database, named by their ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncSession

from lockledger import (
    AsyncLockLedger,
    ConcurrencyConflict,
    Grant,
    HoldLost,
    LockedByOther,
    NotHolding,
    NotLockable,
    NotLockHolder,
    Policy,
    RecordedEvent,
    TakeRequest,
)
from support.hosts import Host
from support.ledgers import unchanged
from support.ways import Way, async_engine


def actions(host: Host, key: str = "k") -> list[str]:
    return [entry.action for entry in host.ledger.history(key)]


def test_s03_a_token_lives_in_the_grant_and_not_in_the_task(host: Host) -> None:
    async def story() -> tuple[list[Grant], HoldLost]:
        async with AsyncLockLedger(host.database.url) as ledger:
            taken = asyncio.Event()
            grants: list[Grant] = []

            async def first() -> HoldLost:
                grants.append(await ledger.take("k", "A", ttl=0.2))
                taken.set()
                await asyncio.sleep(0.3)
                with pytest.raises(HoldLost) as loss:
                    await ledger.release("k", "A", token=grants[0].token)
                return loss.value

            async def second() -> None:
                await taken.wait()
                grants.append(await ledger.take("k", "A", if_mine="refuse", wait=60))

            loss, _ = await asyncio.gather(first(), second())
            return grants, loss

    (old, new), loss = asyncio.run(story())
    assert (loss.ended_by, loss.token) == ("expiry", old.token)
    held = host.ledger.holder_of("k")
    assert held is not None
    assert held.token == new.token > old.token


def test_s08_a_hook_after_a_rollback_releases_only_what_was_granted(host: Host) -> None:
    host.ledger.take("k", "job:1")
    with host.session() as session:
        host.write(session, 1)
        grant = host.ledger.using(session).try_take("k", "job:2")
        session.rollback()
    if grant is None:
        with pytest.raises(NotLockHolder):
            host.ledger.release("k", "job:2")

    assert host.ledger.try_take("k", "job:3") is None
    assert actions(host) == ["LockTaken"]


def test_s09_who_lost_the_hold_learns_it_in_time_to_roll_its_work_back(host: Host) -> None:
    grant = host.ledger.take("k", "A", ttl=0.2)
    time.sleep(0.25)
    host.ledger.take("k", "B")
    with host.session() as session:
        host.write(session, 1)
        with pytest.raises(HoldLost) as loss:
            host.ledger.using(session).release("k", "A", token=grant.token)
        session.rollback()

    assert loss.value.ended_by == "expiry"
    assert loss.value.ended_at == grant.expires_at
    assert loss.value.current is not None
    assert loss.value.current.holder == "B"
    assert host.documents() == {}


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_s42_a_transaction_that_began_long_ago_grants_with_the_time_of_the_take(
    postgres_host: Host, level: str
) -> None:
    host = postgres_host
    engine = host.engine.execution_options(isolation_level=level)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT now()")
        time.sleep(1)
        before = host.ledger.take("clock", "run:1", if_mine="replace").taken_at
        grant = host.ledger.using(connection).take("k", "A", ttl=60)
        connection.commit()

    assert grant.taken_at >= before
    assert grant.expires_at == grant.taken_at + timedelta(seconds=60)
    assert host.ledger.try_take("k", "B") is None


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_s42_a_snapshot_from_before_anothers_take_never_wins(
    postgres_host: Host, level: str
) -> None:
    host = postgres_host
    host.ledgers.may_log_errors = True
    engine = host.engine.execution_options(isolation_level=level)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        host.ledger.using(connection).holder_of("k")
        host.ledger.take("k", "B", ttl=600)
        with pytest.raises(ConcurrencyConflict):
            host.ledger.using(connection).take("k", "A")
        connection.rollback()

    assert actions(host) == ["LockTaken"]


def test_s47_contention_inside_a_transaction_spoils_nothing(host: Host, way: Way) -> None:
    host.ledger.take("k", "A")
    with way.ledger() as opened, opened.transaction() as verbs:
        with pytest.raises(LockedByOther) as refusal:
            verbs.take("k", "B")
        assert verbs.take("business", "B").created

    assert refusal.value.current == host.ledger.holder_of("k")
    assert host.ledger.is_locked("business")
    assert host.database.logged_errors() == []


def test_s49_a_rollback_leaves_no_lock_no_event_and_no_message(host: Host) -> None:
    published: list[int] = []

    class Outbox(Policy[Connection]):
        def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
            for each in events:
                connection.execute(
                    text("INSERT INTO host_document VALUES (:id, 'message')"), {"id": each.position}
                )
                published.append(each.position)

    ledger = host.ledgers.open(policy=Outbox())
    with unchanged(host.ledgers), host.session() as session:
        ledger.using(session).take("k", "A")
        session.rollback()
        savepoint = session.begin_nested()
        ledger.using(session).take("k", "A")
        savepoint.rollback()
        session.commit()

    assert len(published) == 2
    assert host.documents() == {}
    assert list(host.ledger.events()) == []
    assert host.ledger.take("k", "B").token == 1


def test_s49_a_rollback_leaves_no_lock_in_async_code_either(host: Host) -> None:
    async def story() -> None:
        engine = async_engine(host.database)
        async with AsyncLockLedger(engine) as ledger, AsyncSession(engine) as session:
            await ledger.using(session).take("k", "A")
            await session.rollback()
            nested = await session.begin_nested()
            await ledger.using(session).take("k", "A")
            await nested.rollback()
            await session.commit()
            assert (await ledger.take("k", "B")).token == 1
        await engine.dispose()

    asyncio.run(story())


def test_s50_a_release_and_what_it_protected_appear_together(host: Host) -> None:
    with host.session() as session, session.begin():
        host.write(session, 1, "0")
    host.ledger.take("k", "A")
    patient = host.ledgers.open(busy_timeout=20)
    with host.session() as session:
        session.execute(text("UPDATE host_document SET body = '1'"))
        host.ledger.using(session).release("k", "A")
        assert host.ledger.try_take("k", "B") is None
        taking = host.meanwhile(
            lambda: (patient.take("k", "B", takeover_reason="urgent"), host.documents())
        )
        time.sleep(0.1)
        session.commit()
        grant, seen = taking.result(20)

    assert (grant.taken_over_from, seen) == (None, {1: "1"})


def test_s53_a_call_that_is_run_again_after_a_conflict_acts_once(postgres_host: Host) -> None:
    host = postgres_host
    host.ledgers.may_log_errors = True
    calls = 0
    engine = host.engine.execution_options(isolation_level="SERIALIZABLE")
    for _ in range(3):
        with suppress(ConcurrencyConflict), engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1 FROM host_document")
            calls += 1
            if calls == 1:
                host.ledger.take("k", "B")
                host.ledger.release("k", "B")
            host.ledger.using(connection).take("k", "A")
            connection.commit()
            break

    assert calls == 2
    assert actions(host) == ["LockTaken", "LockReleased", "LockTaken"]


def test_s67_a_save_by_the_old_token_is_rejected_with_by_whom_and_why(host: Host, way: Way) -> None:
    with way.ledger() as opened:
        with opened.transaction() as verbs:
            token = verbs.take("document:1", "A").token
        with opened.transaction() as verbs:
            verbs.take("document:1", "B", takeover_reason="deadline")
        with host.session() as session, pytest.raises(HoldLost) as loss:
            host.ledger.using(session).guard("document:1", "A", token=token)

    assert (loss.value.ended_by, loss.value.ended_by_actor) == ("takeover", "B")
    assert loss.value.reason == "deadline"


def test_s67_subscribers_see_the_takeover_with_its_commit(host: Host) -> None:
    host.ledger.take("k", "A")
    with host.session() as session:
        host.ledger.using(session).take("k", "B", takeover_reason="deadline")
        assert [each.event.action for each in host.ledger.events()] == ["LockTaken"]
        session.commit()

    assert [each.event.action for each in host.ledger.events()] == ["LockTaken", "LockTakenOver"]


def test_s68_the_host_says_who_may_take_over_from_whom(host: Host, way: Way) -> None:
    class ByRank(Policy[Connection]):
        def check_take(self, connection: Connection, request: TakeRequest) -> None:
            current = request.current
            if current and current.holder < request.holder:
                raise NotLockable("only upwards", code="RANK", key=request.key)

    with way.ledger(policy=ByRank()) as opened:
        with opened.transaction() as verbs:
            verbs.take("k", "rank:2")
        with opened.transaction() as verbs:
            with pytest.raises(NotLockable, match="only upwards") as refusal:
                verbs.take("k", "rank:3", takeover_reason="mine")
            assert refusal.value.code == "RANK"
            assert verbs.take("k", "rank:1", takeover_reason="mine").taken_over_from == "rank:2"


def test_s74_a_late_worker_takes_nothing_under_what_was_closed(host: Host, way: Way) -> None:
    class OnlyOpen(Policy[Connection]):
        def lock_subject(self, connection: Connection, key: str) -> None:
            lock = " FOR UPDATE" if connection.dialect.name == "postgresql" else ""
            connection.exec_driver_sql(f"SELECT 1 FROM host_document WHERE id = 1{lock}")

        def check_take(self, connection: Connection, request: TakeRequest) -> None:
            body: Any = connection.exec_driver_sql(
                "SELECT body FROM host_document WHERE id = 1"
            ).scalar()
            if body == "closed":
                raise NotLockable("closed", code="CLOSED", key=request.key)

    with host.session() as session, session.begin():
        host.write(session, 1, "open")
    with way.ledger(policy=OnlyOpen()) as opened:
        with opened.transaction() as verbs:
            verbs.take_all(["document:1", "document:1:page:2"], "worker:1")
        with host.session() as session, session.begin():
            session.execute(text("UPDATE host_document SET body = 'closed'"))
            ended = host.ledger.using(session, actor="user:9").release_all(
                under="document:1", reason="closed"
            )
        with opened.transaction() as verbs:
            with pytest.raises(NotLockable):
                verbs.take("document:1:page:3", "worker:1")
            with pytest.raises(NotHolding):
                verbs.extend("document:1", "worker:1", 60)

    assert ended == 2
    assert list(host.ledger.current_holders()) == []


def test_s75_a_cancelled_run_gives_its_slot_back_in_the_same_transaction(host: Host) -> None:
    with host.session() as session, session.begin():
        host.write(session, 1, "running")
    host.ledger.take("pool", "run:1")
    with host.session() as session, session.begin():
        session.execute(text("DELETE FROM host_document WHERE id = 1"))
        ended = host.ledger.using(session, actor="user:9").force_release("pool", reason="cancelled")

    assert ended is not None
    assert (ended.ended_by, ended.ended_by_actor, ended.end_reason) == (
        "forced",
        "user:9",
        "cancelled",
    )
    assert host.documents() == {}
    assert host.ledger.take("pool", "run:2").created
