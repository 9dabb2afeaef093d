"""The usual way, as a contender: a lock row and an audit row through the ORM.

It does what the systems did that `docs/examples/pipeline` and `docs/examples/consolidation` stand for. A take reads the
lock row FOR UPDATE, deletes it when it has expired, inserts it inside a SAVEPOINT, so that a lost race leaves the
transaction usable, and adds an audit row with the state before and after as JSON and the comment. A reason takes a held
lock over in place. A release reads FOR UPDATE, deletes the row only for its holder, and adds an audit row. Each call is
one transaction of a Session of its own; times are the application's. Nothing is left out that such code has, and
nothing is added.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any, ClassVar

from benchmarks.measuring import AsyncClient, Client, Contender
from benchmarks.operations import (
    AT_ONCE,
    BOSS,
    GUARD,
    HELD,
    HISTORY,
    HOLDER,
    HOLDER_AT,
    IN_TURN,
    NEW,
    PAST,
    REFUSED,
    TAKE,
    TAKEOVER,
    WHY,
    edit,
    make_documents,
    new_keys,
)
from benchmarks.ours import keys_of
from sqlalchemy import JSON, DateTime, create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

TTL = timedelta(seconds=60)


class Base(DeclarativeBase):
    """The tables of such a system."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSON(none_as_null=True),
    }


class LockRow(Base):
    """Who holds what now; no row when it is free."""

    __tablename__ = "bench_lock"
    key: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    taken_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    taken_over_from: Mapped[str | None]
    reason: Mapped[str | None]


class AuditRow(Base):
    """What was done, by whom, with the state before and after."""

    __tablename__ = "bench_audit"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(index=True)
    action: Mapped[str]
    actor: Mapped[str]
    at: Mapped[datetime]
    before: Mapped[dict[str, Any] | None]
    after: Mapped[dict[str, Any] | None]
    comment: Mapped[str | None]


def take(
    session: Session, key: str, holder: str, ttl: timedelta | None = TTL, reason: str | None = None
) -> bool:
    """Whether the holder has the lock now."""
    now = datetime.now(UTC)
    row = _locked(session, key)
    if row is not None and row.expires_at is not None and row.expires_at <= now:
        session.delete(row)
        session.flush()
        row = None
    expires_at = None if ttl is None else now + ttl
    if row is None:
        row = LockRow(key=key, holder=holder, taken_at=now, expires_at=expires_at)
        try:
            with session.begin_nested():
                session.add(row)
        except IntegrityError:
            return False
        _record(session, row, "taken", holder, None, _facts(row), None)
        return True
    if row.holder == holder:
        return True
    if not reason:
        return False
    before = _facts(row)
    row.taken_over_from, row.reason = row.holder, reason
    row.holder, row.taken_at, row.expires_at = holder, now, expires_at
    _record(session, row, "taken over", holder, before, _facts(row), reason)
    return True


def release(session: Session, key: str, holder: str) -> bool:
    """Whether there was something of this holder's to release."""
    row = _locked(session, key)
    if row is None or row.holder != holder:
        return False
    session.delete(row)
    _record(session, row, "released", holder, _facts(row), None, None)
    return True


def _locked(session: Session, key: str) -> LockRow | None:
    return session.scalars(select(LockRow).where(LockRow.key == key).with_for_update()).first()


def _facts(row: LockRow) -> dict[str, Any]:
    return {
        "holder": row.holder,
        "taken_at": row.taken_at.isoformat(),
        "expires_at": None if row.expires_at is None else row.expires_at.isoformat(),
        "taken_over_from": row.taken_over_from,
        "reason": row.reason,
    }


def _record(
    session: Session,
    row: LockRow,
    action: str,
    actor: str,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    comment: str | None,
) -> None:
    session.add(
        AuditRow(
            key=row.key,
            action=action,
            actor=actor,
            at=datetime.now(UTC),
            before=before,
            after=after,
            comment=comment,
        )
    )


def prepare(url: str) -> None:
    """The tables, one lock that is held, and one with a past."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        with session.begin():
            take(session, HELD, BOSS, ttl=None)
        has_past = session.scalars(select(AuditRow.id).where(AuditRow.key == PAST)).first()
        session.rollback()
        for _ in range(0 if has_past else AT_ONCE // 2):
            with session.begin():
                take(session, PAST, BOSS)
            with session.begin():
                release(session, PAST, BOSS)
    engine.dispose()
    make_documents(url)


@contextmanager
def site(url: str, width: int) -> Iterator[Callable[[int], Client]]:
    """One engine for all clients of a process."""
    engine = create_engine(url, pool_size=width)
    with Session(engine) as session:
        past = session.scalars(select(AuditRow.at).where(AuditRow.key == PAST)).all()
        middle = sorted(past)[len(past) // 2]

    def client(worker: int) -> Client:
        keys, holder = keys_of(worker), f"run:{worker}"
        fresh, mine, wanted = new_keys(), f"guarded:{worker}", f"wanted:{worker}"
        others = cycle([f"{holder}:a", f"{holder}:b"])
        with Session(engine) as session, session.begin():
            take(session, mine, holder, ttl=None)

        def take_and_release(key: str) -> int:
            with Session(engine) as session, session.begin():
                take(session, key, holder)
            with Session(engine) as session, session.begin():
                release(session, key, holder)
            return 2

        def refused() -> int:
            with Session(engine) as session, session.begin():
                take(session, HELD, holder)
            return 1

        def takeover() -> int:
            with Session(engine) as session, session.begin():
                take(session, wanted, next(others), reason=WHY)
            return 1

        def guarded() -> int:
            with Session(engine) as session, session.begin():
                row = _locked(session, mine)
                if row is None or row.holder != holder:
                    raise RuntimeError(f"{mine} is not held by {holder}")
                edit(session, worker)
            return 1

        return {
            TAKE: lambda: take_and_release(next(keys)),
            NEW: lambda: take_and_release(f"{next(fresh)}:{worker}"),
            IN_TURN: lambda: take_and_release(f"turns:{worker}"),
            REFUSED: refused,
            TAKEOVER: takeover,
            GUARD: guarded,
            HOLDER: lambda: _asked(engine, lambda session: session.get(LockRow, HELD)),
            HISTORY: lambda: _asked(engine, _history),
            HOLDER_AT: lambda: _asked(engine, lambda session: _newest(session, middle)),
        }

    yield client
    engine.dispose()


def _asked(engine: Any, question: Callable[[Session], Any]) -> int:
    with Session(engine) as session:
        question(session)
    return 1


def _history(session: Session) -> Any:
    return session.scalars(
        select(AuditRow).where(AuditRow.key == PAST).order_by(AuditRow.id).limit(AT_ONCE)
    ).all()


def _newest(session: Session, when: datetime) -> Any:
    entries = select(AuditRow).where(AuditRow.key == PAST, AuditRow.at <= when)
    return session.scalars(entries.order_by(AuditRow.id.desc()).limit(1)).first()


@asynccontextmanager
async def tasks(url: str, width: int) -> AsyncIterator[Callable[[int], Awaitable[AsyncClient]]]:
    """The same code in async sessions."""
    engine = create_async_engine(url, pool_size=width)

    async def client(worker: int) -> AsyncClient:
        keys, holder = keys_of(worker), f"run:{worker}"

        async def take_and_release() -> int:
            key = next(keys)
            async with AsyncSession(engine) as session, session.begin():
                await session.run_sync(take, key, holder)
            async with AsyncSession(engine) as session, session.begin():
                await session.run_sync(release, key, holder)
            return 2

        return {TAKE: take_and_release}

    yield client
    await engine.dispose()


def _alone(url: str, _width: int) -> Any:
    @contextmanager
    def opened() -> Iterator[Callable[[int], Client]]:
        engine = create_engine(url, pool_size=_width)

        def client(worker: int) -> Client:
            def edited() -> int:
                with Session(engine) as session, session.begin():
                    edit(session, worker)
                return 1

            return {GUARD: edited}

        yield client
        engine.dispose()

    return opened()


ORM = Contender(
    "ORM lock row and audit row",
    prepare,
    site,
    "tokens, expiry by the database's clock, replay, tamper evidence, subscriptions",
    tasks=tasks,
)
HOST_ALONE = Contender("the host's transaction alone", make_documents, _alone, "any lock")
