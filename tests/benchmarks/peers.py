"""The contenders: lockledger's public API, and what people use instead. One `operation` is one take or one release.

Each maker returns a function that does a take and a release of one of the worker's own keys, and counts as two
operations; the bare INSERT counts as one. What a peer does not give stands beside it, and in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from typing import Any
from uuid import uuid4

import psycopg
from sqlalchemy import create_engine, make_url, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from lockledger import LockLedger

KEYS_PER_WORKER = 50
Operation = Callable[[], int]


@dataclass(frozen=True)
class Peer:
    """A contender: how its tables are made, how a worker runs it, and what it leaves out."""

    name: str
    prepare: Callable[[str], None]
    worker: Callable[[str, int], Any]
    lacks: str


def _keys(worker: int) -> Iterator[str]:
    return cycle([f"worker:{worker}:item:{number}" for number in range(KEYS_PER_WORKER)])


# lockledger


def _prepare_ledger(url: str) -> None:
    with LockLedger(url) as ledger:
        ledger.migrate()


@contextmanager
def _ledger_worker(url: str, worker: int) -> Iterator[Operation]:
    keys = _keys(worker)
    holder = f"run:{worker}"
    with LockLedger(url) as ledger:

        def take_and_release() -> int:
            key = next(keys)
            token = ledger.take(key, holder, ttl=60).token
            ledger.release(key, holder, token=token)
            return 2

        yield take_and_release


# The usual way: an ORM lock row and an audit row, FOR UPDATE and a SAVEPOINT around the insert


class Base(DeclarativeBase):
    pass


class LockRow(Base):
    __tablename__ = "bench_lock"
    key: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    taken_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]


class AuditRow(Base):
    __tablename__ = "bench_audit"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(index=True)
    action: Mapped[str]
    actor: Mapped[str]
    at: Mapped[datetime]


def _prepare_orm(url: str) -> None:
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    engine.dispose()


@contextmanager
def _orm_worker(url: str, worker: int) -> Iterator[Operation]:
    keys, holder, engine = _keys(worker), f"run:{worker}", create_engine(url)

    def found(session: Session, key: str) -> LockRow | None:
        return session.scalars(select(LockRow).where(LockRow.key == key).with_for_update()).first()

    def take_and_release() -> int:
        key, now = next(keys), datetime.now(UTC).replace(tzinfo=None)
        with Session(engine) as session, session.begin():
            if found(session, key) is None:
                with session.begin_nested():
                    session.add(LockRow(key=key, holder=holder, taken_at=now, expires_at=None))
                session.add(AuditRow(key=key, action="taken", actor=holder, at=now))
        with Session(engine) as session, session.begin():
            row = found(session, key)
            if row is not None and row.holder == holder:
                session.delete(row)
                session.add(AuditRow(key=key, action="released", actor=holder, at=now))
        return 2

    yield take_and_release
    engine.dispose()


# eventsourcing's stock recorder and aggregate


def _environment(url: str) -> dict[str, str]:
    parsed = make_url(url)

    def part(given: object, name: str, otherwise: str) -> str:
        return str(given or parsed.query.get(name) or otherwise)

    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": str(parsed.database),
        "POSTGRES_HOST": part(parsed.host, "host", "127.0.0.1"),
        "POSTGRES_PORT": part(parsed.port, "port", "5432"),
        "POSTGRES_USER": part(parsed.username, "user", "postgres"),
        "POSTGRES_PASSWORD": parsed.password or "none",
    }


def _prepare_stock(url: str) -> None:
    from eventsourcing.application import Application

    with Application[Any](_environment(url)):
        pass  # makes the tables


@contextmanager
def _stock_worker(url: str, worker: int) -> Iterator[Operation]:
    from benchmarks.stock import StockLock
    from eventsourcing.application import Application

    application: Application[Any] = Application(_environment(url) | {"CREATE_TABLE": "no"})
    holder = f"run:{worker}"
    current, rounds = uuid4(), 10

    def take_and_release() -> int:
        nonlocal current, rounds
        # A stock aggregate is rebuilt from all of its events: a new one every ten rounds keeps that short.
        if rounds == 10:
            fresh = StockLock(f"worker:{worker}")
            application.save(fresh)
            current, rounds = fresh.id, 0
        lock: Any = application.repository.get(current)
        lock.take(holder)
        application.save(lock)
        lock = application.repository.get(current)
        lock.release()
        application.save(lock)
        rounds += 1
        return 2

    yield take_and_release
    application.close()


# A bare INSERT with commit


def _prepare_insert(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE IF NOT EXISTS bench_row (id bigserial PRIMARY KEY, key text, holder text, at timestamptz)"
            )
        )
    engine.dispose()


@contextmanager
def _insert_worker(url: str, worker: int) -> Iterator[Operation]:
    keys = _keys(worker)
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(dsn, autocommit=True) as connection:

        def insert() -> int:
            connection.execute(
                "INSERT INTO bench_row (key, holder, at) VALUES (%s, %s, clock_timestamp())",
                (next(keys), f"run:{worker}"),
            )
            return 1

        yield insert


LEDGER = Peer("lockledger", _prepare_ledger, _ledger_worker, "")
PEERS = (
    Peer(
        "ORM lock row and audit row",
        _prepare_orm,
        _orm_worker,
        "tokens, expiry by the database's clock, replay, tamper evidence, subscriptions",
    ),
    Peer(
        "eventsourcing's stock recorder",
        _prepare_stock,
        _stock_worker,
        "any projection: no current-holder table, no audit trail to query",
    ),
    Peer("bare INSERT", _prepare_insert, _insert_worker, "locks: it is one row and one commit"),
)
