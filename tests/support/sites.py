"""Sites: a host's web application with the lock router in it, in either colour, as its clients see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from lockledger import (
    AsyncLockLedger,
    Hold,
    LockLedger,
    NotLockable,
    Policy,
    RecordedEvent,
    TakeRequest,
    configure_sqlite,
)
from lockledger.http import Verb, Verdict, lock_router
from support.hosts import Base
from support.ledgers import Ledgers

Colour = Literal["sync", "async"]
COLOURS: tuple[Colour, ...] = ("sync", "async")
Asked = tuple[Any, str, str | None, Hold | None]

ROUTES: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "take": ("PUT", "/locks/hold?key=k", {}),
    "release": ("DELETE", "/locks/hold?key=k", None),
    "extend": ("POST", "/locks/hold/extension?key=k", {"ttl": 60}),
    "force_release": ("POST", "/locks/hold/forced-release?key=k", {"reason": "why"}),
    "holder_of": ("GET", "/locks/hold?key=k", None),
    "current_holders": ("GET", "/locks/holders", None),
    "holds": ("GET", "/locks/holds", None),
    "audit_trail": ("GET", "/locks/audit", None),
}
"""Each route once: method, address, body. The audit of one lock is a second question of the same verb."""


class SitePolicy(Policy[Connection]):
    """What the site's host does in the ledger's transaction; a test sets what it needs."""

    def __init__(self) -> None:
        self.closed: dict[str, str] = {}
        self.on_subject: Callable[[Connection, str], object] = lambda connection, key: None
        self.on_recorded: Callable[[Connection, Sequence[RecordedEvent]], object] = (
            lambda connection, events: None
        )

    def lock_subject(self, connection: Connection, key: str) -> None:
        self.on_subject(connection, key)

    def check_take(self, connection: Connection, request: TakeRequest) -> None:
        if request.key in self.closed:
            raise NotLockable(f"{request.key} is closed", code=self.closed[request.key])

    def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        self.on_recorded(connection, events)


def identified(x_user: Annotated[str | None, Header()] = None) -> str | None:
    """Who asks: whoever the request says it is."""
    return x_user


@dataclass
class Site:
    """A running site. `ledger` is another program's, which sees what is committed.

    `people` are the host's names, `named` the ids that it was asked for, `asked` what it had to judge.
    """

    colour: Colour
    ledgers: Ledgers
    engine: Engine | AsyncEngine
    router_ledger: LockLedger | AsyncLockLedger
    ledger: LockLedger
    policy: SitePolicy
    people: dict[str, str]
    named: list[str]
    app: FastAPI = field(default_factory=FastAPI)
    asked: list[Asked] = field(default_factory=list)
    judge: Callable[[Any, Verb, str | None, Hold | None], Verdict] = lambda *_: "allow"

    @property
    def postgres(self) -> bool:
        return self.ledgers.database.dialect == "postgresql"

    @property
    def session(self) -> Callable[..., Any]:
        """What the host gives the router as `session`."""
        return (
            sessionmaker(self.engine).begin
            if isinstance(self.engine, Engine)
            else async_sessionmaker(self.engine).begin
        )

    def authorize(
        self, principal: str, verb: Verb, key: str | None, current: Hold | None
    ) -> Verdict:
        """Remembers what was asked, and lets the test judge."""
        self.asked.append((principal, verb, key, current))
        return self.judge(principal, verb, key, current)

    def mount(self, prefix: str = "/locks", **options: Any) -> None:
        """Puts a router with these options into the application."""
        given = {"session": self.session, "principal": identified, "authorize": self.authorize}
        self.app.include_router(lock_router(self.router_ledger, **(given | options)), prefix=prefix)

    def request(
        self,
        method: str,
        address: str,
        body: Any = None,
        *,
        user: str | None = "user:7",
        **options: Any,
    ) -> Response:
        """What a client gets."""
        headers = {} if user is None else {"x-user": user}
        if body is not None:
            options["json"] = body
        headers |= options.pop("headers", {})
        return self.client.request(method, address, headers=headers, **options)

    def call(self, verb: str, *, user: str | None = "user:7") -> Response:
        """One of `ROUTES`."""
        method, address, body = ROUTES[verb]
        return self.request(method, address, body, user=user)

    @property
    def client(self) -> TestClient:
        assert self._client is not None
        return self._client

    _client: TestClient | None = None

    @contextmanager
    def running(self, *, raises: bool = True) -> Iterator[Site]:
        """The site, answering. `raises`: what the application does not answer comes out in the test."""
        with TestClient(self.app, raise_server_exceptions=raises) as client:
            self._client = client
            yield self


@contextmanager
def site_on(ledgers: Ledgers, colour: Colour) -> Iterator[Site]:
    """A site that runs in a colour, without routes yet."""
    policy = SitePolicy()
    people = {"user:7": "Ann", "user:8": "Bo"}
    named: list[str] = []

    def names(_: Connection, ids: Collection[str]) -> Mapping[str, str]:
        named.extend(ids)
        return {each: people[each] for each in ids if each in people}

    Base.metadata.create_all(ledgers.database.engine())
    with _engine(ledgers, colour) as engine:
        router_ledger = (
            LockLedger(engine, policy=policy, names=names)
            if isinstance(engine, Engine)
            else AsyncLockLedger(engine, policy=policy, names=names)
        )
        site = Site(colour, ledgers, engine, router_ledger, ledgers.open(), policy, people, named)
        if isinstance(engine, AsyncEngine):

            @asynccontextmanager
            async def lifespan(_: FastAPI) -> AsyncIterator[None]:
                yield
                await engine.dispose()

            site.app = FastAPI(lifespan=lifespan)
        yield site


@contextmanager
def _engine(ledgers: Ledgers, colour: Colour) -> Iterator[Engine | AsyncEngine]:
    sqlite = ledgers.database.dialect == "sqlite"
    if colour == "sync":
        engine = ledgers.database.engine()
        yield configure_sqlite(engine) if sqlite else engine
        return
    url = make_url(ledgers.database.url)
    awaiting = create_async_engine(url.set(drivername="sqlite+aiosqlite") if sqlite else url)
    if sqlite:
        configure_sqlite(awaiting.sync_engine)
    yield awaiting
