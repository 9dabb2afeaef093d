"""The routes that change nothing."""

# No `from __future__ import annotations` here: FastAPI could not resolve the aliases inside the functions.

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query

from lockledger.bound import BoundLedger
from lockledger.domain.holds import AuditEntry, Hold, Page
from lockledger.http.answers import (
    AuditEntryAnswer,
    AuditPage,
    HoldAnswer,
    HoldersPage,
    HoldsPage,
    PastHoldAnswer,
    people_in,
)
from lockledger.http.asking import AskingLedger
from lockledger.http.exchange import Exchange, Exchanges, Verb
from lockledger.http.pages import visible_page
from lockledger.http.parameters import AuditQuery, HoldersQuery, HoldsQuery, Key
from lockledger.http.problems import documented, not_found
from lockledger.ledger import LockLedger
from lockledger.past import place_after

T = TypeVar("T", Hold, AuditEntry)


def mount_reading(router: APIRouter, exchanges: Exchanges) -> None:
    """Adds the routes that change nothing."""

    @router.get("/hold", responses=documented())
    async def hold(
        asking: Annotated[Exchange, Depends(exchanges({"key"}))], key: Key
    ) -> HoldAnswer:
        """Who holds the lock; 404 also when nobody does."""

        def work(ledger: AskingLedger) -> HoldAnswer:
            current = ledger.look(key)
            if current is None:
                raise not_found(key)
            return HoldAnswer.of(current, ledger.display_names(people_in([current])))

        return await asking.inside("holder_of", key, work)

    @router.get("/holders", responses=documented())
    async def holders(
        asking: Annotated[Exchange, Depends(exchanges(HoldersQuery.model_fields))],
        wanted: Annotated[HoldersQuery, Query()],
    ) -> HoldersPage:
        """The live holds that the caller may see, by key."""
        return await asking.inside(
            "current_holders", None, lambda ledger: _holders(asking, ledger, wanted)
        )

    @router.get("/holds", responses=documented())
    async def holds(
        asking: Annotated[Exchange, Depends(exchanges(HoldsQuery.model_fields))],
        wanted: Annotated[HoldsQuery, Query()],
    ) -> HoldsPage:
        """The holds, live and ended, that the caller may see, by key, then token."""
        return await asking.inside(
            "holds", wanted.key, lambda ledger: _holds(asking, ledger, wanted)
        )

    @router.get("/audit", responses=documented())
    async def audit(
        asking: Annotated[Exchange, Depends(exchanges(AuditQuery.model_fields))],
        wanted: Annotated[AuditQuery, Query()],
    ) -> AuditPage:
        """Who did what to which lock, as far as the caller may see it, in the order in which it was recorded."""
        if wanted.key is not None:
            return await asking.inside(
                "audit_trail", wanted.key, lambda ledger: _history(asking, ledger, wanted)
            )
        # Apart from the host's transaction, whose snapshot may be old: following next_after must skip nothing.
        return await asking.apart(lambda ledger: _audit(asking, ledger, wanted))


def _holders(asking: Exchange, ledger: AskingLedger, wanted: HoldersQuery) -> HoldersPage:
    asking.require("current_holders", None, None)
    page = _seen(
        asking, "current_holders", ledger.current_holders, wanted, lambda hold: hold.key, _itself
    )
    names = ledger.display_names(people_in(page))
    items = [HoldAnswer.of(hold, names) for hold in page]
    return HoldersPage(items=items, next_after=page.next_after)


def _holds(asking: Exchange, ledger: AskingLedger, wanted: HoldsQuery) -> HoldsPage:
    if wanted.key is None:
        asking.require("holds", None, None)
    else:
        ledger.look(wanted.key)
    page = _seen(asking, "holds", ledger.holds, wanted, place_after, _itself)
    names = ledger.display_names(people_in(page))
    items = [PastHoldAnswer.of(hold, names) for hold in page]
    return HoldsPage(items=items, next_after=page.next_after)


def _history(asking: Exchange, ledger: AskingLedger, wanted: AuditQuery) -> AuditPage:
    """The entries of one lock; nothing of it can still come before what is there."""
    if wanted.key is not None:
        ledger.look(wanted.key)
    return _entries(asking, ledger, wanted)


def _audit(asking: Exchange, ledger: LockLedger, wanted: AuditQuery) -> AuditPage:
    asking.require("audit_trail", None, None)
    return _entries(asking, ledger, wanted)


def _entries(asking: Exchange, ledger: BoundLedger | LockLedger, wanted: AuditQuery) -> AuditPage:
    page = _seen(
        asking, "audit_trail", ledger.audit_trail, wanted, lambda entry: entry.position, _told_of
    )
    names = ledger.display_names(people_in(page))
    items = [AuditEntryAnswer.of(entry, names) for entry in page]
    return AuditPage(items=items, next_after=page.next_after)


def _seen(
    asking: Exchange,
    verb: Verb,
    read: Callable[..., Page[T, Any]],
    wanted: HoldersQuery | HoldsQuery | AuditQuery,
    cursor: Callable[[T], Any],
    hold_of: Callable[[T], Hold | None],
) -> Page[T, Any]:
    """The page that is asked for, without what the host does not allow."""
    filters = wanted.model_dump(exclude={"after", "limit"})
    return visible_page(
        lambda after, limit: read(**filters, after=after, limit=limit),
        lambda item: asking.verdict(verb, item.key, hold_of(item)) == "allow",
        cursor,
        after=wanted.after,
        limit=wanted.limit,
    )


def _itself(hold: Hold) -> Hold:
    return hold


def _told_of(entry: AuditEntry) -> Hold | None:
    """The hold that the entry begins, extends or ends."""
    return entry.before if entry.after is None else entry.after
