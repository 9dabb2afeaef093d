"""The web application: the lock router, and the service's own requests, which keep to the locks."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from consolidation.locks import user_holder, version_id_of, version_key, version_ledger
from consolidation.tables import AuditRow, Note, User, Version
from lockledger import AsyncLockLedger, Hold, NotHolding
from lockledger.http import Verb, Verdict, lock_router


@dataclass(frozen=True)
class Caller:
    """Who asks, and which versions they see."""

    holder: str
    is_admin: bool
    versions: frozenset[int]


def create_app(database: str) -> FastAPI:
    """The service on a database (`postgresql+psycopg://…`) that has its tables and the ledger's."""
    engine = create_async_engine(database)
    ledger = version_ledger(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await ledger.close()
        await engine.dispose()

    app = FastAPI(title="Consolidation", lifespan=lifespan)
    app.state.sessions = async_sessionmaker(engine)
    app.state.ledger = ledger
    app.include_router(
        lock_router(
            ledger,
            session=unit_of_work,
            principal=caller,
            authorize=authorize,
            holder=lambda somebody: somebody.holder,
            expiry=False,
        ),
        prefix="/locks",
        tags=["locks"],
    )
    app.include_router(versions)
    app.add_exception_handler(NotHolding, not_in_work)
    return app


# What the router and the service's own requests share.


def unit_of_work(request: Request) -> AbstractAsyncContextManager[AsyncSession]:
    """One transaction: committed when it is left, rolled back when it is left with an exception."""
    sessions: async_sessionmaker[AsyncSession] = request.app.state.sessions
    return sessions.begin()


async def caller(request: Request, x_user: Annotated[int | None, Header()] = None) -> Caller | None:
    """Who asks. A real service would look into its token or session; here the request says it."""
    async with request.app.state.sessions() as session:
        user = None if x_user is None else await session.get(User, x_user)
        if user is None:
            return None
        seen = select(Version.id)
        if not user.is_admin:
            seen = seen.where(Version.group == user.group)
        versions = frozenset(await session.scalars(seen))
        return Caller(user_holder(user.id), user.is_admin, versions)


def authorize(somebody: Caller, verb: Verb, key: str | None, current: Hold | None) -> Verdict:
    """What is outside somebody's visibility is not there; only administrators force."""
    if key is None:
        return "allow"  # a list: its items are asked about one by one
    if version_id_of(key) not in somebody.versions:
        return "hide"
    if verb == "force_release" and not somebody.is_admin:
        return "forbid"
    return "allow"


def locks_of(request: Request) -> AsyncLockLedger:
    """The service's ledger."""
    ledger: AsyncLockLedger = request.app.state.ledger
    return ledger


def visible(version_id: int, somebody: Annotated[Caller | None, Depends(caller)]) -> Caller:
    """Who asks for a version that they see."""
    if somebody is None:
        raise HTTPException(401, "say who you are")
    if version_id not in somebody.versions:
        raise HTTPException(404, "there is no such version")
    return somebody


async def not_in_work(request: Request, refusal: Exception) -> JSONResponse:
    """The service's own requests want the version to be in its user's work."""
    code = refusal.code if isinstance(refusal, NotHolding) else None
    return JSONResponse({"code": code, "detail": str(refusal)}, 409)


# The service's own requests.

versions = APIRouter(prefix="/versions/{version_id}", tags=["versions"])
Unit = Annotated[AbstractAsyncContextManager[AsyncSession], Depends(unit_of_work)]
Somebody = Annotated[Caller, Depends(visible)]
Ledger = Annotated[AsyncLockLedger, Depends(locks_of)]
Text = Annotated[str, Body(embed=True)]


@versions.get("")
async def show(version_id: int, somebody: Somebody, unit: Unit, ledger: Ledger) -> dict[str, Any]:
    """A version, and who has it in work."""
    async with unit as session:
        version = await session.get_one(Version, version_id)
        locks = ledger.using(session)
        hold = await locks.holder_of(version_key(version_id))
        people = await locks.display_names([] if hold is None else [hold.holder])
        return {
            "status": version.status,
            "figures": version.figures,
            "in_work_by": None if hold is None else people[hold.holder],
        }


@versions.put("/figures", status_code=204)
async def edit(
    version_id: int, somebody: Somebody, unit: Unit, ledger: Ledger, figures: Text
) -> None:
    """Only who has the version in work edits it; a takeover waits until this is committed, and sees it."""
    async with unit as session:
        await ledger.using(session).guard(version_key(version_id), somebody.holder)
        version = await session.get_one(Version, version_id)
        version.figures = figures


@versions.post("/submission", status_code=204)
async def submit(version_id: int, somebody: Somebody, unit: Unit, ledger: Ledger) -> None:
    """The end of the work: the status and the end of the hold are one transaction."""
    async with unit as session:
        locks = ledger.using(session)
        await locks.guard(version_key(version_id), somebody.holder)
        version = await session.get_one(Version, version_id)
        version.status = "submitted"
        await locks.release(version_key(version_id), somebody.holder, reason="submitted")


@versions.post("/cancellation", status_code=204)
async def cancel(version_id: int, somebody: Somebody, unit: Unit, ledger: Ledger) -> None:
    """Whoever sees a version may cancel it, which ends whoever's hold: here the service has decided who may."""
    async with unit as session:
        version = await session.get_one(Version, version_id, with_for_update=True)
        if version.status != "open":
            raise HTTPException(409, f"this version is {version.status}")
        version.status = "cancelled"
        await ledger.using(session).force_release(
            version_key(version_id), actor=somebody.holder, reason="the version was cancelled"
        )


@versions.post("/notes", status_code=201)
async def note(
    version_id: int, somebody: Somebody, unit: Unit, ledger: Ledger, text: Text
) -> dict[str, bool]:
    """Keeps a note, and takes the version into work if nobody else has it; the note is kept either way."""
    async with unit as session:
        session.add(Note(version_id=version_id, author=somebody.holder, text=text))
        grant = await ledger.using(session).try_take(version_key(version_id), somebody.holder)
        return {"in_work": grant is not None}


@versions.get("/audit")
async def audit(
    version_id: int, somebody: Somebody, unit: Unit, ledger: Ledger
) -> list[dict[str, Any]]:
    """The service's own audit rows, with people's names as they are now."""
    async with unit as session:
        rows = (
            await session.scalars(
                select(AuditRow).where(AuditRow.version_id == version_id).order_by(AuditRow.id)
            )
        ).all()
        people = {each for row in rows for each in (row.actor, row.before, row.after) if each}
        known = await ledger.using(session).display_names(people)
        return [
            {
                "action": row.action,
                "actor": known.get(row.actor or ""),
                "before": known.get(row.before or ""),
                "after": known.get(row.after or ""),
                "comment": row.comment,
            }
            for row in rows
        ]
