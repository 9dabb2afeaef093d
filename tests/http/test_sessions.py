"""The host's unit of work: left before the answer, committed or rolled back, and never mistaken for something else."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of functions inside the tests.

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import pytest
from fastapi import Depends, Header
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, sessionmaker

from lockledger import Hold, LockedByOther
from lockledger.http import Verb, Verdict
from support.ledgers import Ledgers, unchanged
from support.sites import COLOURS, ROUTES, Colour, Site, site_on

COMMANDS = ("take", "release", "extend", "force_release")
DOCUMENT = text("INSERT INTO host_document (id, body) VALUES (1, 'x')")


def documents(site: Site) -> int:
    with site.ledgers.database.engine().connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM host_document")).scalar_one())


def watched(
    site: Site, *, leaving: Callable[[], None] = lambda: None
) -> tuple[Callable[[], Any], list[str]]:
    """The site's unit of work, which notes how it was left; `leaving` is called before it commits."""
    seen: list[str] = []

    @contextmanager
    def watching() -> Iterator[None]:
        try:
            yield
            leaving()
        except BaseException as error:
            seen.append(f"rolled back after {type(error).__name__}")
            raise
        seen.append("committed")

    def unit() -> Any:
        return _sync_unit() if site.colour == "sync" else _async_unit()

    @contextmanager
    def _sync_unit() -> Iterator[Session]:
        with site.session() as session, watching():
            yield session

    @asynccontextmanager
    async def _async_unit() -> AsyncIterator[AsyncSession]:
        async with site.session() as session:
            with watching():
                yield session

    return unit, seen


class Answers:
    """Notes, the moment an answer begins to be sent, what another program sees."""

    def __init__(self, app: Any, look: Callable[[], object]) -> None:
        self.app, self.look = app, look
        self.saw: list[object] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.saw.append(self.look())
            await send(message)

        await self.app(scope, receive, noting)


def test_the_answer_is_sent_after_the_commit(bare_site: Site) -> None:
    site = bare_site
    site.mount()
    answers: list[Answers] = []

    def noting(app: Any) -> Answers:
        answers.append(Answers(app, lambda: site.ledger.holder_of("k") is not None))
        return answers[-1]

    site.app.add_middleware(noting)
    with site.running():
        site.call("take")
        site.call("release")
        site.call("take")
        site.call("force_release")

    assert answers[0].saw == [True, False, True, False]


def test_every_answer_leaves_the_unit_of_work_first(bare_site: Site) -> None:
    unit, seen = watched(bare_site)
    bare_site.mount(session=unit)
    with bare_site.running() as site:
        for verb in ("take", "holder_of", "current_holders", "extend", "release"):
            assert site.call(verb).status_code in (200, 201, 204)

    assert seen == ["committed"] * 5


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_failing_commit_is_no_success(bare_site: Site, verb: str) -> None:
    """What was answered must be so: the error passes to the host, and nothing has happened."""

    def leaving() -> None:
        raise ArithmeticError("the disk is full")

    unit, seen = watched(bare_site, leaving=leaving)
    bare_site.mount(session=unit)
    if verb != "take":
        bare_site.ledger.take("k", "user:7", ttl=60)
    with bare_site.running(raises=False) as site, unchanged(site.ledgers):
        assert site.call(verb).status_code == 500
    with bare_site.running() as site, pytest.raises(ArithmeticError, match="the disk is full"):
        site.call(verb)

    assert seen == ["rolled back after ArithmeticError"] * 2


def test_a_commit_that_the_database_refuses_is_the_hosts_error(postgres_site: Site) -> None:
    """A deferred constraint of the host's is judged at the commit."""
    with postgres_site.ledgers.database.engine().begin() as connection:
        connection.execute(
            text("CREATE TABLE host_twin (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        )
    postgres_site.ledgers.may_log_errors = True
    postgres_site.policy.on_recorded = lambda connection, _: connection.execute(
        text("INSERT INTO host_twin VALUES (1), (1)")
    )
    with pytest.raises(IntegrityError):
        postgres_site.call("take")

    assert not postgres_site.ledger.is_locked("k")


def committing(site: Site, error: BaseException) -> Callable[[], Any]:
    """A unit of work whose commit fails with an error of the driver's."""

    def leaving() -> None:
        raise error

    return watched(site, leaving=leaving)[0]


class Serialization(Exception):
    sqlstate = "40001"


@pytest.mark.parametrize(
    ("lost", "code"), [(False, "CONCURRENCY_CONFLICT"), (True, "OUTCOME_UNKNOWN")]
)
def test_a_commit_that_is_lost_is_503(bare_site: Site, lost: bool, code: str) -> None:
    driver = Exception("server closed the connection") if lost else Serialization()
    error = OperationalError("COMMIT", {}, driver, connection_invalidated=lost)
    bare_site.mount(session=committing(bare_site, error))
    with bare_site.running() as site:
        answer = site.call("take")

    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["code"], answer.json()["key"]) == (code, "k")
    assert "current" not in answer.json()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_ends_the_connection_at_the_commit_leaves_the_outcome_open(
    postgres_ledgers: Ledgers, colour: Colour
) -> None:
    postgres_ledgers.may_log_errors = True
    pids: list[int] = []
    end = text("SELECT pg_terminate_backend(:pid, 5000)")
    with site_on(postgres_ledgers, colour) as site:
        site.policy.on_recorded = lambda connection, _: pids.append(
            connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        )

        def leaving() -> None:
            with site.ledgers.database.engine().begin() as connection:
                assert connection.execute(end, {"pid": pids.pop()}).scalar_one()

        unit, seen = watched(site, leaving=leaving)
        site.mount(session=unit)
        with site.running():
            answer = site.call("take")

    assert (answer.status_code, answer.json()["code"]) == (503, "OUTCOME_UNKNOWN")
    assert seen == ["committed"], "the host's own part of it, before the driver was asked"


def test_a_commit_that_cannot_be_serialized_is_503(postgres_site: Site) -> None:
    with postgres_site.ledgers.database.engine().begin() as connection:
        for statement in (
            """CREATE FUNCTION host_conflict() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$""",
            """CREATE CONSTRAINT TRIGGER host_conflict AFTER INSERT ON host_document
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION host_conflict()""",
        ):
            connection.execute(text(statement))
    postgres_site.ledgers.may_log_errors = True
    postgres_site.policy.on_recorded = lambda connection, _: connection.execute(DOCUMENT)
    answer = postgres_site.call("take")

    assert (answer.status_code, answer.json()["code"]) == (503, "CONCURRENCY_CONFLICT")
    assert not postgres_site.ledger.is_locked("k")


def test_a_connection_lost_before_the_commit_leaves_no_doubt(bare_site: Site) -> None:
    error = OperationalError("INSERT", {}, Exception("gone"), connection_invalidated=True)

    def lost(connection: Connection, events: object) -> None:
        raise error

    bare_site.policy.on_recorded = lost
    bare_site.mount()
    with bare_site.running() as site, pytest.raises(OperationalError):
        site.call("take")


def test_a_conflict_during_the_work_is_503(bare_site: Site) -> None:
    def lost(connection: Connection, events: object) -> None:
        raise OperationalError("INSERT", {}, Serialization())

    unit, seen = watched(bare_site)
    bare_site.policy.on_recorded = lost
    bare_site.mount(session=unit)
    with bare_site.running() as site:
        answer = site.call("take")

    assert (answer.status_code, answer.json()["code"]) == (503, "CONCURRENCY_CONFLICT")
    assert [each.partition(" after ")[0] for each in seen] == ["rolled back"]


def test_a_wait_that_takes_too_long_is_503(postgres_site: Site) -> None:
    site = postgres_site
    site.policy.on_subject = lambda connection, key: connection.execute(
        text("SET LOCAL lock_timeout = '50ms'")
    )
    site.ledgers.may_log_errors = True
    site.ledger.take("k", "user:8")
    with site.ledgers.database.engine().begin() as connection:
        site.ledger.using(connection).guard("k", "user:8")
        answer = site.request("PUT", "/locks/hold?key=k", {"takeover_reason": "why"})

    assert (answer.status_code, answer.json()["code"]) == (503, "CONCURRENCY_CONFLICT")


# Refusals.


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_refusal_rolls_the_hosts_transaction_back(bare_site: Site, verb: str) -> None:
    unit, seen = watched(bare_site)
    bare_site.policy.on_subject = lambda connection, key: connection.execute(DOCUMENT)
    bare_site.mount(session=unit)
    bare_site.ledger.take("k", "user:8", ttl=60)
    method, address, body = ROUTES[verb]
    if verb == "force_release":
        body = {"reason": "why", "expected_token": 99}
    with bare_site.running() as site, unchanged(site.ledgers):
        assert site.request(method, address, body).status_code in (409, 412)

    assert documents(bare_site) == 0
    assert [each.partition(" after ")[0] for each in seen] == ["rolled back"]


def test_what_the_policy_wrote_commits_with_the_hold(site: Site) -> None:
    site.policy.on_recorded = lambda connection, events: connection.execute(DOCUMENT)

    assert site.call("take").status_code == 201
    assert documents(site) == 1


def test_the_hosts_exception_in_the_policy_passes_and_rolls_back(bare_site: Site) -> None:
    def refuse(connection: Connection, key: str) -> None:
        connection.execute(DOCUMENT)
        raise LookupError("no such version")

    unit, seen = watched(bare_site)
    bare_site.policy.on_subject = refuse
    bare_site.mount(session=unit)
    with bare_site.running() as site, pytest.raises(LookupError, match="no such version"):
        site.call("take")

    assert documents(bare_site) == 0
    assert seen == ["rolled back after LookupError"]


def test_names_are_asked_for_in_the_same_transaction(site: Site) -> None:
    """So that they are as this very transaction leaves them."""
    site.policy.on_recorded = lambda connection, events: site.people.update({"user:7": "Ann Now"})

    assert site.call("take").json()["holder_name"] == "Ann Now"


def test_a_refusal_is_answered_even_if_the_unit_of_work_swallows_errors(bare_site: Site) -> None:
    """It must not, and then nothing is told: an answer that was not made must not look like one."""

    @contextmanager
    def swallowing() -> Iterator[Session]:
        try:
            with bare_site.session() as session:
                yield session
        except Exception:  # noqa: BLE001  # what this test is about
            return

    @asynccontextmanager
    async def async_swallowing() -> AsyncIterator[AsyncSession]:
        try:
            async with bare_site.session() as session:
                yield session
        except Exception:  # noqa: BLE001  # what this test is about
            return

    bare_site.mount(session=swallowing if bare_site.colour == "sync" else async_swallowing)
    bare_site.ledger.take("k", "user:8")
    with bare_site.running() as site, pytest.raises(RuntimeError, match="swallowed the error"):
        site.call("take")


# What a unit of work may be.


def units(site: Site) -> dict[str, Callable[..., Any]]:
    """Ways for a host to write its unit of work."""
    if isinstance(site.engine, AsyncEngine):
        engine, sessions = site.engine, async_sessionmaker(site.engine)

        @asynccontextmanager
        async def decorated() -> AsyncIterator[AsyncSession]:
            async with sessions() as session, session.begin():
                yield session

        @asynccontextmanager
        async def scoped() -> AsyncIterator[Any]:
            session = async_scoped_session(sessions, scopefunc=lambda: None)
            try:
                yield session
                await session.commit()
            finally:
                await session.remove()

        async def awaited() -> Any:
            return sessions.begin()

        return {
            "begin": sessions.begin,
            "connection": engine.begin,
            "decorated": decorated,
            "awaited": awaited,
            "scoped": scoped,
            "lambda": lambda: sessions.begin(),  # noqa: PLW0108  # a function of the host's
        }
    plain, makers = site.engine, sessionmaker(site.engine)

    @contextmanager
    def decorated_plainly() -> Iterator[Session]:
        with makers() as session, session.begin():
            yield session

    return {
        "begin": makers.begin,
        "connection": plain.begin,
        "decorated": decorated_plainly,
        "lambda": lambda: makers.begin(),  # noqa: PLW0108  # a function of the host's
    }


def test_a_unit_of_work_may_be_written_in_many_ways(bare_site: Site) -> None:
    for key, unit in units(bare_site).items():
        bare_site.app.router.routes.clear()
        bare_site.mount(session=unit)
        with bare_site.running() as site:
            address = f"/locks/hold?key={key}"
            assert site.request("PUT", address).status_code == 201
            assert site.ledger.is_locked(key)
            assert site.request("PUT", address, user="user:8").status_code == 409


def test_a_unit_of_work_may_have_dependencies(bare_site: Site) -> None:
    seen: list[str] = []

    def tenant(x_tenant: Annotated[str, Header()]) -> str:
        return x_tenant

    @contextmanager
    def decorated(tenant: Annotated[str, Depends(tenant)]) -> Iterator[Session]:
        seen.append(tenant)
        with bare_site.session() as session:
            yield session

    @asynccontextmanager
    async def async_decorated(
        tenant: Annotated[str, Depends(tenant)],
    ) -> AsyncIterator[AsyncSession]:
        seen.append(tenant)
        async with bare_site.session() as session:
            yield session

    bare_site.mount(session=decorated if bare_site.colour == "sync" else async_decorated)
    with bare_site.running() as site:
        assert (
            site.request("PUT", "/locks/hold?key=k", headers={"x-tenant": "t1"}).status_code == 201
        )
        assert site.request("PUT", "/locks/hold?key=k").status_code == 422

    assert seen == ["t1"]


def test_a_principal_may_carry_the_session_of_the_unit_of_work(postgres_ledgers: Ledgers) -> None:
    """So that `authorize` asks the database on the connection that the request has already."""
    with site_on(postgres_ledgers, "async") as site:
        assert isinstance(site.engine, AsyncEngine)
        sessions = async_sessionmaker(site.engine)

        async def request_session() -> AsyncIterator[AsyncSession]:
            async with sessions() as session:
                yield session

        RequestSession = Annotated[AsyncSession, Depends(request_session)]  # noqa: N806

        @asynccontextmanager
        async def unit(session: RequestSession) -> AsyncIterator[AsyncSession]:
            yield session
            await session.commit()

        async def principal(session: RequestSession) -> AsyncSession:
            await session.execute(text("SELECT 1"))
            return session

        async def authorize(
            session: AsyncSession, verb: Verb, key: str | None, current: Hold | None
        ) -> Verdict:
            found = await session.execute(text("SELECT count(*) FROM host_document"))
            return "allow" if found.scalar_one() else "forbid"

        site.mount(
            session=unit, principal=principal, authorize=authorize, holder=lambda _: "user:7"
        )
        with site.running():
            assert site.call("take").status_code == 403
            with site.ledgers.database.engine().begin() as connection:
                connection.execute(DOCUMENT)
            assert site.call("take").status_code == 201
            assert site.ledger.is_locked("k")


def test_a_dependency_with_yield_is_refused_at_once(bare_site: Site) -> None:
    """FastAPI leaves it after the answer, and many do not commit."""

    def session() -> Iterator[Any]:
        yield

    async def async_session() -> AsyncIterator[Any]:
        yield

    for each in (session, async_session):
        with pytest.raises(TypeError, match="leaves after the answer.*sessions.begin"):
            bare_site.mount(session=each)


def test_a_session_by_itself_is_refused(bare_site: Site) -> None:
    """Left, it closes without a commit: a 201 would be a lie."""
    sessions: Any = (
        sessionmaker(bare_site.engine)
        if isinstance(bare_site.engine, Engine)
        else async_sessionmaker(bare_site.engine)
    )
    with pytest.raises(TypeError, match=r"give its begin"):
        bare_site.mount(session=sessions)
    bare_site.mount(session=lambda: sessions())  # noqa: PLW0108  # a function of the host's
    with (
        bare_site.running() as site,
        unchanged(site.ledgers),
        pytest.raises(TypeError, match=r"Session, which does not commit.*sessions.begin\(\)"),
    ):
        site.call("take")


def test_a_unit_of_work_of_the_other_colour_is_refused(bare_site: Site) -> None:
    @contextmanager
    def plain() -> Iterator[None]:
        yield

    @asynccontextmanager
    async def awaiting() -> AsyncIterator[None]:
        yield

    kind = "ContextManager" if bare_site.colour == "sync" else "AsyncContextManager"
    other: Any = awaiting if bare_site.colour == "sync" else plain
    bare_site.mount(session=other)
    with bare_site.running() as site, pytest.raises(TypeError, match=f"is no {re.escape(kind)};"):
        site.call("take")


@pytest.mark.parametrize("given", [None, 7, "session"])
def test_a_session_that_is_no_callable_is_refused(bare_site: Site, given: Any) -> None:
    with pytest.raises(TypeError, match="session must be a callable"):
        bare_site.mount(session=given)


# Overrides.


def test_the_unit_of_work_can_be_overridden(bare_site: Site) -> None:
    """In whichever way either of them is written."""
    for original in ("begin", "decorated", "lambda"):
        for override in ("begin", "decorated", "lambda"):
            site_units, used = units(bare_site), list[str]()
            unit = site_units[original]
            bare_site.app.router.routes.clear()
            bare_site.mount(session=unit)
            replacement = _counting(site_units[override], used, bare_site.colour)
            bare_site.app.dependency_overrides = {unit: replacement}
            with bare_site.running() as site:
                assert (
                    site.request("PUT", f"/locks/hold?key={original}:{override}").status_code == 201
                )
            assert used == ["used"]


def _counting(unit: Callable[..., Any], used: list[str], colour: str) -> Callable[..., Any]:
    if getattr(unit, "__wrapped__", None) is None:

        def plainly() -> Any:
            used.append("used")
            return unit()

        return plainly

    @contextmanager
    def decorated() -> Iterator[Any]:
        used.append("used")
        with unit() as session:
            yield session

    @asynccontextmanager
    async def async_decorated() -> AsyncIterator[Any]:
        used.append("used")
        async with unit() as session:
            yield session

    return decorated if colour == "sync" else async_decorated


def test_an_override_with_yield_is_refused_too(bare_site: Site) -> None:
    unit = units(bare_site)["begin"]

    async def overriding() -> AsyncIterator[Any]:
        made: Any = (
            sessionmaker(bare_site.engine)()
            if isinstance(bare_site.engine, Engine)
            else async_sessionmaker(bare_site.engine)()
        )
        yield made

    bare_site.mount(session=unit)
    bare_site.app.dependency_overrides = {unit: overriding}
    with bare_site.running() as site, pytest.raises(TypeError, match="does not commit"):
        site.call("take")


def test_a_host_test_may_keep_everything_in_its_own_transaction(bare_site: Site) -> None:
    """One outer transaction, joined with savepoints, and rolled back at the end of the test."""
    unit = units(bare_site)["decorated"]
    bare_site.mount(session=unit)
    if not isinstance(bare_site.engine, Engine):
        return  # an async host does the same, with its connection's run_sync
    with bare_site.engine.connect() as connection:
        outer = connection.begin()

        @contextmanager
        def overriding() -> Iterator[Session]:
            with (
                Session(connection, join_transaction_mode="create_savepoint") as session,
                session.begin(),
            ):
                yield session

        bare_site.app.dependency_overrides = {unit: overriding}
        with bare_site.running() as site:
            assert site.call("take").status_code == 201
            assert site.call("take", user="user:8").status_code == 409
            assert site.call("holder_of").status_code == 200
        outer.rollback()
    assert not bare_site.ledger.is_locked("k")


def test_the_refusal_of_a_verb_is_no_error_of_the_ledger_to_the_host(bare_site: Site) -> None:
    """The unit of work is left with an exception, whose cause is what the ledger said."""
    causes: list[BaseException | None] = []

    @contextmanager
    def watching() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            causes.append(error.__cause__)
            raise

    @contextmanager
    def plain() -> Iterator[Session]:
        with bare_site.session() as session, watching():
            yield session

    @asynccontextmanager
    async def awaiting() -> AsyncIterator[AsyncSession]:
        async with bare_site.session() as session:
            with watching():
                yield session

    bare_site.mount(session=plain if bare_site.colour == "sync" else awaiting)
    bare_site.ledger.take("k", "user:8")
    with bare_site.running() as site:
        assert site.call("take").status_code == 409

    assert [type(cause) for cause in causes] == [LockedByOther]
