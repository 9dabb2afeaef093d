"""The routes that change something."""

# No `from __future__ import annotations` here: FastAPI could not resolve the aliases inside the functions.

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Response

from lockledger.domain.holds import Hold
from lockledger.domain.ttl import Ttl
from lockledger.http.answers import GrantAnswer, PastHoldAnswer, people_in
from lockledger.http.asking import AskingLedger
from lockledger.http.bodies import Extension, ForcedRelease, LastingTake, Take
from lockledger.http.exchange import Exchange, Exchanges, Verb
from lockledger.http.parameters import Key, Token, one_token
from lockledger.http.problems import documented

_TAKE_ANSWERS = {
    201: {"description": "A new hold began", "model": GrantAnswer},
    **documented(
        412, 413, conflict="`LOCKED_BY_OTHER`, `NOT_LOCKABLE` or a code of the host's own"
    ),
}


def mount_commands(router: APIRouter, exchanges: Exchanges, *, expiry: bool) -> None:
    """Adds the routes that change something."""
    (_mount_take if expiry else _mount_lasting_take)(router, exchanges)
    _mount_release(router, exchanges)
    if expiry:
        _mount_extension(router, exchanges)
    _mount_forced_release(router, exchanges)


def _mount_take(router: APIRouter, exchanges: Exchanges) -> None:
    Asking = Annotated[Exchange, Depends(exchanges({"key"}))]

    @router.put("/hold", responses=_TAKE_ANSWERS, response_description="Already the caller's")
    async def take(
        asking: Asking, key: Key, response: Response, wish: Annotated[Take | None, Body()] = None
    ) -> GrantAnswer:
        """Takes the lock, or with a reason takes it over from who holds it. Repeating is safe."""
        wish = wish or Take()
        return await _taken(asking, key, response, wish, wish.ttl)


def _mount_lasting_take(router: APIRouter, exchanges: Exchanges) -> None:
    Asking = Annotated[Exchange, Depends(exchanges({"key"}))]

    @router.put("/hold", responses=_TAKE_ANSWERS, response_description="Already the caller's")
    async def take(
        asking: Asking,
        key: Key,
        response: Response,
        wish: Annotated[LastingTake | None, Body()] = None,
    ) -> GrantAnswer:
        """Takes the lock, or with a reason takes it over from who holds it. Repeating is safe."""
        return await _taken(asking, key, response, wish or LastingTake(), None)


async def _taken(
    asking: Exchange, key: str, response: Response, wish: LastingTake, ttl: Ttl
) -> GrantAnswer:
    def verb(current: Hold | None) -> Verb:
        anothers = current is not None and current.holder != asking.holder
        return "takeover" if anothers and (wish.takeover_reason or "").strip() else "take"

    def work(ledger: AskingLedger) -> GrantAnswer:
        grant = ledger.take(
            key,
            asking.holder,
            ttl=ttl,
            takeover_reason=wish.takeover_reason,
            expected_token=wish.expected_token,
        )
        return GrantAnswer.of(grant, ledger.display_names(people_in([grant])))

    answer = await asking.inside(verb, key, work)
    response.status_code = 201 if answer.created else 200
    return answer


def _mount_release(router: APIRouter, exchanges: Exchanges) -> None:
    Asking = Annotated[Exchange, Depends(exchanges({"key", "token"}))]

    @router.delete(
        "/hold",
        status_code=204,
        response_class=Response,
        response_description="The caller holds nothing any more, or held nothing",
        responses=documented(conflict="`NOT_LOCK_OWNER`, `HOLD_LOST`", lost=True),
    )
    async def release(asking: Asking, key: Key, token: Token = None) -> None:
        """Releases the caller's own hold. Repeating is safe."""

        def work(ledger: AskingLedger) -> None:
            ledger.release(key, asking.holder, token=token)

        await asking.inside("release", key, work)


def _mount_extension(router: APIRouter, exchanges: Exchanges) -> None:
    Asking = Annotated[Exchange, Depends(exchanges({"key", "token"}))]

    @router.post(
        "/hold/extension",
        responses=documented(413, conflict="`NOT_HELD`, `NOT_LOCK_OWNER`, `HOLD_LOST`", lost=True),
    )
    async def extend(
        asking: Asking, key: Key, extension: Extension, token: Token = None
    ) -> GrantAnswer:
        """Moves the end of the caller's own hold to a later instant; never to an earlier one."""
        meant = one_token(token, extension.token)

        def work(ledger: AskingLedger) -> GrantAnswer:
            grant = ledger.extend(key, asking.holder, extension.ttl, token=meant)
            return GrantAnswer.of(grant, ledger.display_names(people_in([grant])))

        return await asking.inside("extend", key, work)


def _mount_forced_release(router: APIRouter, exchanges: Exchanges) -> None:
    Asking = Annotated[Exchange, Depends(exchanges({"key"}))]

    @router.post(
        "/hold/forced-release",
        responses=documented(412, 413),
        response_description="The hold with its end; null when nobody held the lock",
    )
    async def force_release(
        asking: Asking, key: Key, forced: ForcedRelease
    ) -> PastHoldAnswer | None:
        """Ends whoever's hold."""

        def work(ledger: AskingLedger) -> PastHoldAnswer | None:
            hold = ledger.force_release(
                key, reason=forced.reason, expected_token=forced.expected_token
            )
            if hold is None:
                return None
            return PastHoldAnswer.of(hold, ledger.display_names(people_in([hold])))

        return await asking.inside("force_release", key, work)
