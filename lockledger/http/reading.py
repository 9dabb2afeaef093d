"""The routes that change nothing."""

# No `from __future__ import annotations` here: FastAPI could not resolve the aliases inside the functions.

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from lockledger.bound import BoundLedger
from lockledger.domain.holds import AuditEntry, Hold
from lockledger.http.answers import (
    AuditEntryAnswer,
    AuditPage,
    HoldAnswer,
    HoldersPage,
    people_in,
)
from lockledger.http.asking import AskingLedger
from lockledger.http.exchange import Exchange
from lockledger.http.pages import visible_page
from lockledger.http.parameters import AuditQuery, HoldersQuery, Key
from lockledger.http.problems import documented, not_found
from lockledger.ledger import LockLedger

Dependency = Callable[..., Exchange]


def mount_reading(router: APIRouter, exchange: Dependency) -> None:
    """Adds the routes that change nothing."""
    Asking = Annotated[Exchange, Depends(exchange)]

    @router.get("/hold", responses=documented())
    async def hold(asking: Asking, key: Key) -> HoldAnswer:
        """Who holds the lock; 404 also when nobody does."""

        def work(ledger: AskingLedger) -> HoldAnswer:
            current = ledger.look(key)
            if current is None:
                raise not_found(key)
            return HoldAnswer.of(current, ledger.display_names(people_in([current])))

        return await asking.inside("holder_of", key, work)

    @router.get("/holders", responses=documented())
    async def holders(asking: Asking, wanted: Annotated[HoldersQuery, Query()]) -> HoldersPage:
        """The live holds that the caller may see, by key."""
        return await asking.inside(
            "current_holders", None, lambda ledger: _holders(asking, ledger, wanted)
        )

    @router.get("/audit", responses=documented())
    async def audit(asking: Asking, wanted: Annotated[AuditQuery, Query()]) -> AuditPage:
        """Who did what to which lock, as far as the caller may see it, in the order in which it was recorded."""
        if wanted.key is not None:
            return await asking.inside(
                "audit_trail", wanted.key, lambda ledger: _history(asking, ledger, wanted)
            )
        # Apart from the host's transaction, whose snapshot may be old: following next_after must skip nothing.
        return await asking.apart(lambda ledger: _audit(asking, ledger, wanted))


def _holders(asking: Exchange, ledger: AskingLedger, wanted: HoldersQuery) -> HoldersPage:
    def may_see(hold: Hold) -> bool:
        return asking.verdict("current_holders", hold.key, hold) == "allow"

    asking.require("current_holders", None, None)
    page = visible_page(
        lambda after, limit: ledger.current_holders(
            holder=wanted.holder,
            key_prefix=wanted.key_prefix,
            under=wanted.under,
            after=after,
            limit=limit,
        ),
        may_see,
        lambda hold: hold.key,
        after=wanted.after,
        limit=wanted.limit,
    )
    names = ledger.display_names(people_in(page))
    items = [HoldAnswer.of(hold, names) for hold in page]
    return HoldersPage(items=items, next_after=page.next_after)


def _history(asking: Exchange, ledger: AskingLedger, wanted: AuditQuery) -> AuditPage:
    """The entries of one lock; nothing of it can still come before what is there."""
    if wanted.key is not None:
        ledger.look(wanted.key)
    return _entries(asking, ledger, wanted)


def _audit(asking: Exchange, ledger: LockLedger, wanted: AuditQuery) -> AuditPage:
    asking.require("audit_trail", None, None)
    return _entries(asking, ledger, wanted)


def _entries(asking: Exchange, ledger: BoundLedger | LockLedger, wanted: AuditQuery) -> AuditPage:
    def may_see(entry: AuditEntry) -> bool:
        about = entry.before if entry.after is None else entry.after
        return asking.verdict("audit_trail", entry.key, about) == "allow"

    filters = wanted.model_dump(exclude={"after", "limit"})
    page = visible_page(
        lambda after, limit: ledger.audit_trail(**filters, after=after, limit=limit),
        may_see,
        lambda entry: entry.position,
        after=wanted.after,
        limit=wanted.limit,
    )
    names = ledger.display_names(people_in(page))
    items = [AuditEntryAnswer.of(entry, names) for entry in page]
    return AuditPage(items=items, next_after=page.next_after)
