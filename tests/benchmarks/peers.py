"""What people use instead, beside the ORM rows: `eventsourcing`'s recorder, a bare INSERT, and locks without history."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any
from uuid import uuid4

import psycopg
from benchmarks.measuring import AsyncClient, Client, Contender, each, libpq
from benchmarks.operations import BOSS, HELD, HOLDER, REFUSED, TAKE
from benchmarks.ours import keys_of
from sqlalchemy import make_url

ROUNDS_OF_ONE_AGGREGATE = 10
"""A stock aggregate is rebuilt from all of its events: a new one every ten rounds keeps that short."""

# eventsourcing's stock recorder and aggregate


def _environment(url: str, *, projecting: bool) -> dict[str, str]:
    parsed = make_url(url)

    def part(given: object, name: str, otherwise: str) -> str:
        return str(given or parsed.query.get(name) or otherwise)

    environment = {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": str(parsed.database),
        "POSTGRES_HOST": part(parsed.host, "host", "127.0.0.1"),
        "POSTGRES_PORT": part(parsed.port, "port", "5432"),
        "POSTGRES_USER": part(parsed.username, "user", "postgres"),
        "POSTGRES_PASSWORD": parsed.password or "none",
    }
    if projecting:
        environment["APPLICATION_RECORDER_TOPIC"] = "benchmarks.stock:ProjectingRecorder"
    return environment


def _prepare_stock(url: str) -> None:
    from benchmarks.stock import TABLES, application

    with application(_environment(url, projecting=False)):
        pass  # makes the tables
    with psycopg.connect(libpq(url)) as connection:
        connection.execute(TABLES)


def _stock(*, projecting: bool) -> Callable[[str, int], Any]:
    @contextmanager
    def worker(url: str, number: int) -> Iterator[Client]:
        from benchmarks.stock import StockLock, application

        environment = _environment(url, projecting=projecting) | {"CREATE_TABLE": "no"}
        app, holder = application(environment), f"run:{number}"
        held = json.dumps({"holder": holder})
        current, rounds = uuid4(), ROUNDS_OF_ONE_AGGREGATE

        def save(lock: Any, before: str | None, after: str | None) -> None:
            now = None if after is None else holder
            app.save(lock, projected=(lock.key, holder, now, before, after))

        def take_and_release() -> int:
            nonlocal current, rounds
            made = rounds == ROUNDS_OF_ONE_AGGREGATE
            if made:
                fresh = StockLock(f"worker:{number}")
                save(fresh, None, None)
                current, rounds = fresh.id, 0
            lock: Any = app.repository.get(current)
            lock.take(holder)
            save(lock, None, held)
            lock = app.repository.get(current)
            lock.release()
            save(lock, held, None)
            rounds += 1
            return 3 if made else 2  # making it is an append as well

        yield {TAKE: take_and_release}
        app.close()

    return worker


# A bare INSERT with commit


def _prepare_insert(url: str) -> None:
    with psycopg.connect(libpq(url)) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS bench_row (id bigserial PRIMARY KEY, key text, holder text, at timestamptz)"
        )


_INSERT = "INSERT INTO bench_row (key, holder, at) VALUES (%s, %s, clock_timestamp())"


@contextmanager
def _insert(url: str, number: int) -> Iterator[Client]:
    keys, holder = keys_of(number), f"run:{number}"
    with psycopg.connect(libpq(url), autocommit=True) as connection:

        def insert() -> int:
            connection.execute(_INSERT, (next(keys), holder))
            return 1

        yield {TAKE: insert}


@asynccontextmanager
async def _insert_tasks(
    url: str, _width: int
) -> AsyncIterator[Callable[[int], Awaitable[AsyncClient]]]:
    async with AsyncExitStack() as stack:

        async def client(number: int) -> AsyncClient:
            keys, holder = keys_of(number), f"run:{number}"
            connection = await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(libpq(url), autocommit=True)
            )

            async def insert() -> int:
                await connection.execute(_INSERT, (next(keys), holder))
                return 1

            return {TAKE: insert}

        yield client


# PostgreSQL's advisory locks


@contextmanager
def _advisory(url: str, number: int) -> Iterator[Client]:
    keys, dsn = keys_of(number), libpq(url)
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(dsn, autocommit=True) as other,
    ):

        def taken(by: Any, key: str) -> bool:
            sql = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
            return bool(by.execute(sql, (key,)).fetchone()[0])

        held = f"{HELD}:{number}"
        if not taken(other, held):
            raise RuntimeError(f"{held} is held already")

        def take_and_release() -> int:
            key = next(keys)
            taken(connection, key)
            connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", (key,))
            return 2

        def refused() -> int:
            if taken(connection, held):
                raise RuntimeError(f"{held} was not held")
            return 1

        yield {TAKE: take_and_release, REFUSED: refused}


# Redis


def redis_server(host: str, port: int) -> dict[str, str] | None:
    """Its version and whether it writes to disk; `None` when the package or a server is missing."""
    try:
        redis = import_module("redis")
        with redis.Redis(host=host, port=port, socket_connect_timeout=1) as server:
            return {
                "version": server.info("server")["redis_version"],
                "appendonly": server.config_get("appendonly")["appendonly"],
                "client": redis.__version__,
            }
    except ImportError:
        return None
    except OSError:
        return None
    except Exception as error:
        if type(error).__module__.startswith("redis."):
            return None
        raise


def redis_lock(host: str, port: int) -> Contender:
    """redis-py's `Lock`."""

    def opened() -> Any:
        return import_module("redis").Redis(host=host, port=port)

    def prepare(_url: str) -> None:
        with opened() as server:
            server.set(f"bench:{HELD}", BOSS, px=3_600_000)

    @contextmanager
    def worker(_url: str, number: int) -> Iterator[Client]:
        keys = keys_of(number)
        with opened() as server:

            def take_and_release() -> int:
                lock = server.lock(f"bench:{next(keys)}", timeout=60, blocking=False)
                if lock.acquire():
                    lock.release()
                return 2

            def refused() -> int:
                server.lock(f"bench:{HELD}", timeout=60, blocking=False).acquire()
                return 1

            def holder() -> int:
                server.get(f"bench:{HELD}")
                return 1

            yield {TAKE: take_and_release, REFUSED: refused, HOLDER: holder}

    lacks = "history, durability, a part in the host's transaction, tokens that grow"
    return Contender("Redis Lock", prepare, each(worker), lacks)


STOCK = Contender(
    "eventsourcing's recorder with an equal projection",
    _prepare_stock,
    each(_stock(projecting=True)),
    "rules, expiry, a part in the host's transaction, tamper evidence",
)
BARE_STOCK = Contender(
    "eventsourcing's recorder, bare",
    _prepare_stock,
    each(_stock(projecting=False)),
    "any projection besides: no current-holder table, no audit trail to query",
)
INSERT = Contender(
    "bare INSERT",
    _prepare_insert,
    each(_insert),
    "locks: it is one row and one commit",
    tasks=_insert_tasks,
)
ADVISORY = Contender(
    "PostgreSQL advisory lock",
    lambda _url: None,
    each(_advisory),
    "history, holders by name, expiry, any trace after the session; it writes nothing",
)
