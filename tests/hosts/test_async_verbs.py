"""The async face has the same verbs: the same names, arguments, words and refusals."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.ext.asyncio.exc import AsyncContextNotStarted

from lockledger import (
    AsyncBoundLedger,
    AsyncLockLedger,
    BoundLedger,
    HoldLost,
    InvalidHolder,
    InvalidMetadata,
    LockedByOther,
    LockLedger,
    SchemaMismatch,
    configure_sqlite,
)
from support.databases import Database
from support.hosts import Host
from support.verbs import BOUND, GUARD
from support.ways import async_engine

OF_THE_PACKAGE = {
    *("perform", "over", "workings", "begin_hold", "end_hold", "next_page", "settled_position"),
}
"""What the sync classes show to the rest of the package only."""
ALONE = [verb for verb in BOUND if verb not in GUARD]
NOT_AWAITED = {"name", "schema", "sync_ledger", "using", "hold", "events", "subscribe"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


PAIRS: tuple[tuple[type, type], ...] = (
    (LockLedger, AsyncLockLedger),
    (BoundLedger, AsyncBoundLedger),
)
VERBS = [
    (sync, twin, name)
    for sync, twin in PAIRS
    for name in sorted(public(sync) - OF_THE_PACKAGE)
    if callable(getattr(sync, name))
]


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_both_colours_have_the_same_names(sync: type, twin: type) -> None:
    assert public(twin) - {"sync_ledger"} == public(sync) - OF_THE_PACKAGE


@pytest.mark.parametrize(
    ("sync", "twin", "name"), VERBS, ids=[f"{sync.__name__}.{name}" for sync, _, name in VERBS]
)
def test_a_verb_takes_the_same_arguments_in_both_colours(sync: type, twin: type, name: str) -> None:
    ours, theirs = inspect.signature(getattr(sync, name)), inspect.signature(getattr(twin, name))

    assert [(each.name, each.kind, each.default) for each in ours.parameters.values()] == [
        (each.name, each.kind, each.default) for each in theirs.parameters.values()
    ]
    if name not in NOT_AWAITED:
        assert ours == theirs
        assert inspect.iscoroutinefunction(getattr(twin, name))
    else:
        assert not inspect.iscoroutinefunction(getattr(twin, name))
    assert getattr(twin, name).__doc__


def test_both_ledgers_are_made_with_the_same_options() -> None:
    ours, theirs = (inspect.signature(kind) for kind in PAIRS[0])

    assert [(each.name, each.kind, each.default) for each in ours.parameters.values()] == [
        (each.name, each.kind, each.default) for each in theirs.parameters.values()
    ]


# Joining


Story = Callable[[AsyncLockLedger, AsyncEngine], Awaitable[Any]]


def told(host: Host, story: Story, **options: Any) -> Any:
    """Runs a story of an async ledger and the host's own async engine on a new loop."""

    async def run() -> Any:
        engine = async_engine(host.database)
        try:
            async with AsyncLockLedger(host.database.url, **options) as ledger:
                return await story(ledger, engine)
        finally:
            await engine.dispose()

    return asyncio.run(run())


def test_a_session_commits_both_or_neither(host: Host) -> None:
    async def story(ledger: AsyncLockLedger, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(text("INSERT INTO host_document VALUES (1, 'x')"))
            grant = await ledger.using(session).take("k", "run:1", ttl=60)
            assert await ledger.holder_of("k") is None
            held = await ledger.using(session).holder_of("k")
            assert held is not None
            assert held.grant(created=True) == grant
        async with AsyncSession(engine) as session:
            await session.execute(text("INSERT INTO host_document VALUES (2, 'x')"))
            assert await ledger.using(session).release("k", "run:1")
            await session.rollback()
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(LockedByOther):
                await ledger.using(session).take("k", "run:2")
            await session.execute(text("INSERT INTO host_document VALUES (3, 'x')"))

    told(host, story)
    assert set(host.documents()) == {1, 3}
    assert host.ledger.is_locked("k")


def test_a_connection_and_its_savepoints(host: Host) -> None:
    async def story(ledger: AsyncLockLedger, engine: AsyncEngine) -> None:
        async with engine.connect() as connection, connection.begin():
            bound = ledger.using(connection, actor="user:1")
            async with connection.begin_nested():
                await bound.take("kept", "run:1")
            nested = await connection.begin_nested()
            await bound.take("lost", "run:1")
            await nested.rollback()

    told(host, story)
    assert [hold.key for hold in host.ledger.current_holders()] == ["kept"]
    assert host.ledger.history("kept")[0].actor == "user:1"


def test_a_scoped_session(host: Host) -> None:
    async def story(_: AsyncLockLedger, engine: AsyncEngine) -> None:
        sessions = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        async with AsyncLockLedger(host.database.url) as ledger:
            await ledger.using(sessions).take("k", "run:1")
            await sessions.commit()
        await sessions.remove()

    told(host, story)
    assert host.ledger.is_locked("k")


def same(verb: str, answer: object, expected: object) -> None:
    """The answers of one verb in two colours, but for what differs between two lives of a lock."""
    assert type(answer) is type(expected), verb
    if isinstance(expected, bool | int | dict | None):
        assert answer == expected, verb


def test_every_verb_is_awaited_in_a_transaction(host: Host) -> None:
    async def story(ledger: AsyncLockLedger, engine: AsyncEngine) -> list[object]:
        async with AsyncSession(engine) as session:
            answers = []
            for call in BOUND.values():
                await ledger.using(session).take("k", "run:1", ttl=60)
                answers.append(await call(ledger.using(session)))
                await session.rollback()
            return answers

    answers = told(host, story)

    with host.session() as session:
        for (verb, call), answer in zip(BOUND.items(), answers, strict=True):
            host.ledger.using(session).take("k", "run:1", ttl=60)
            same(verb, answer, call(host.ledger.using(session)))
            session.rollback()


def test_every_verb_is_awaited_alone(host: Host) -> None:
    async def story(ledger: AsyncLockLedger, _: AsyncEngine) -> list[object]:
        answers = []
        for verb in ALONE:
            await ledger.take("k", "run:1", ttl=60)
            answers.append(await BOUND[verb](ledger))
        return answers

    answers = told(host, story, name="one")

    sync = host.ledgers.open(name="two")
    for verb, answer in zip(ALONE, answers, strict=True):
        sync.take("k", "run:1", ttl=60)
        same(verb, answer, BOUND[verb](sync))


def test_a_guard_waits_and_is_waited_for_without_blocking_the_loop(postgres_host: Host) -> None:
    async def story(ledger: AsyncLockLedger, engine: AsyncEngine) -> None:
        grant = await ledger.take("k", "run:1", ttl=600)
        async with AsyncSession(engine) as editor:
            await ledger.using(editor).guard("k", "run:1", token=grant.token)
            taking = asyncio.ensure_future(ledger.take("k", "run:2", takeover_reason="urgent"))
            extended = await ledger.extend("k", "run:1", 1200)
            assert extended.token == grant.token
            await asyncio.sleep(0.1)
            assert not taking.done()
            await editor.execute(text("INSERT INTO host_document VALUES (1, 'edited')"))
            await editor.commit()
            assert (await taking).taken_over_from == "run:1"
            with pytest.raises(HoldLost) as loss:
                await ledger.using(editor).guard("k", "run:1", token=grant.token)
        assert (loss.value.ended_by, loss.value.ended_by_actor) == ("takeover", "run:2")
        assert loss.value.reason == "urgent"

    told(postgres_host, story)


# Refusals


def test_only_an_async_session_or_connection_is_joined(host: Host) -> None:
    async def story(ledger: AsyncLockLedger, engine: AsyncEngine) -> None:
        session: Any
        with host.session() as session:
            for other in (None, engine, session, session.connection(), AsyncSession):
                with pytest.raises(TypeError, match="wants an AsyncSession or AsyncConnection"):
                    ledger.using(other)  # type: ignore[arg-type]

    told(host, story)


def test_a_sync_ledger_joins_no_async_session(host: Host) -> None:
    async def story(_: AsyncLockLedger, engine: AsyncEngine) -> None:
        session: Any
        async with AsyncSession(engine) as session:
            with pytest.raises(TypeError, match="wants a SQLAlchemy Session or Connection"):
                host.ledger.using(session).take("k", "run:1")

    told(host, story)


@pytest.mark.parametrize(
    ("given", "error"),
    [({"actor": ""}, InvalidHolder), ({"metadata": {"n": float("inf")}}, InvalidMetadata)],
    ids=str,
)
def test_what_using_is_given_is_checked_at_once_and_may_be_changed_afterwards(
    host: Host, given: dict[str, Any], error: type[Exception]
) -> None:
    async def story(ledger: AsyncLockLedger, engine: AsyncEngine) -> None:
        metadata = {"request": {"id": "r1"}}
        async with AsyncSession(engine) as session:
            with pytest.raises(error):
                ledger.using(session, **given)
            bound = ledger.using(session, metadata=metadata)
            metadata["request"]["id"] = "r2"
            grant = await bound.take("k", "run:1")
            assert grant.metadata == {"request": {"id": "r1"}}

    told(host, story)


def test_a_connection_that_was_not_started_says_so(host: Host) -> None:
    async def story(ledger: AsyncLockLedger, engine: AsyncEngine) -> None:
        with pytest.raises(AsyncContextNotStarted):
            await ledger.using(engine.connect()).take("k", "run:1")

    told(host, story)


def test_autocommit_is_refused(host: Host) -> None:
    async def story(ledger: AsyncLockLedger, engine: AsyncEngine) -> None:
        alone = engine.execution_options(isolation_level="AUTOCOMMIT")
        connection: AsyncConnection
        async with alone.connect() as connection, AsyncSession(alone) as session:
            for where in (connection, session):
                for verb in ("take", "guard", "holder_of"):
                    with pytest.raises(ValueError, match="in AUTOCOMMIT"):
                        await BOUND[verb](ledger.using(where))

    told(host, story)


def test_a_missing_schema_does_not_poison_the_transaction(empty_database: Database) -> None:
    async def story() -> None:
        engine = async_engine(empty_database)
        async with engine.begin() as connection:
            await connection.exec_driver_sql("CREATE TABLE host_document (id INTEGER)")
            ledger = AsyncLockLedger(engine)
            for call in BOUND.values():
                with pytest.raises(SchemaMismatch, match="run `lockledger migrate`"):
                    await call(ledger.using(connection))
            await connection.exec_driver_sql("INSERT INTO host_document VALUES (1)")
        await engine.dispose()

    asyncio.run(story())
    with empty_database.engine().connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM host_document").scalar() == 1
    assert empty_database.logged_errors() == []


def test_a_closed_ledger_says_so(host: Host) -> None:
    async def story(_: AsyncLockLedger, engine: AsyncEngine) -> None:
        ledger = AsyncLockLedger(host.database.url, name="billing")
        await ledger.close()
        await ledger.close()
        for verb in ALONE:
            with pytest.raises(RuntimeError, match="'billing' is closed"):
                await BOUND[verb](ledger)
        async with AsyncSession(engine) as session:
            with pytest.raises(RuntimeError, match="'billing' is closed"):
                ledger.using(session)

    told(host, story)


def test_engines_of_the_other_colour_are_refused_with_the_remedy(host: Host) -> None:
    async def story(_: AsyncLockLedger, engine: AsyncEngine) -> None:
        other: Any = engine
        with pytest.raises(TypeError, match="this is a AsyncEngine: give it to a AsyncLockLedger"):
            LockLedger(other)
        other = host.engine
        with pytest.raises(TypeError, match="give it to a LockLedger"):
            AsyncLockLedger(other)

    told(host, story)


@pytest.mark.parametrize(
    "url",
    ["mysql+aiomysql://h/d", "postgresql+asyncpg://h/d", "sqlite+pysqlite:///x", "oracle://h"],
)
def test_drivers_that_the_async_face_does_not_speak_to(url: str) -> None:
    with pytest.raises(ValueError, match="lockledger speaks to PostgreSQL through psycopg"):
        AsyncLockLedger(url)


def test_a_host_engine_is_used_and_never_closed(host: Host) -> None:
    async def story(_: AsyncLockLedger, engine: AsyncEngine) -> None:
        async with AsyncLockLedger(engine) as ledger:
            await ledger.take("k", "run:1")
        async with engine.connect() as connection:
            found = await connection.exec_driver_sql("SELECT count(*) FROM lockledger_events")
            assert found.scalar() == 1

    told(host, story)


def test_a_hosts_sync_code_under_run_sync_uses_the_sync_ledger(host: Host) -> None:
    """A part of the host that SQLAlchemy runs in its greenlet need not be written twice."""

    async def story(ledger: AsyncLockLedger, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            await session.run_sync(lambda sync: ledger.sync_ledger.using(sync).take("k", "run:1"))

    told(host, story)
    assert host.ledger.is_locked("k")


def test_configure_sqlite_takes_and_gives_either_kind_of_engine(tmp_path: Any) -> None:
    sync = create_engine(f"sqlite:///{tmp_path}/x.db")
    assert configure_sqlite(sync) is sync

    async def story() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/x.db")
        assert configure_sqlite(engine, busy_timeout=3) is engine
        async with engine.begin() as connection:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            assert raw.isolation_level is None
            assert raw.in_transaction
            found = await connection.exec_driver_sql("PRAGMA busy_timeout")
            assert found.scalar() == 3000
        await engine.dispose()

    asyncio.run(story())
    sync.dispose()
