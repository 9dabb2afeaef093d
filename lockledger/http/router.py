"""The router: which request is which verb. Without somebody to ask who is asking and what they may do, there is none."""

# No `from __future__ import annotations` here: FastAPI could not resolve the aliases inside the functions.

from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from lockledger.asynchronous import AsyncLockLedger
from lockledger.domain.errors import InvalidHolder
from lockledger.domain.keys import check_holder
from lockledger.http.bodies import BodyTooLarge, StrictRequest
from lockledger.http.commands import mount_commands
from lockledger.http.exchange import Authorize, Exchange, Exchanges
from lockledger.http.parameters import check_query
from lockledger.http.problems import Refusal, too_large, unauthenticated
from lockledger.http.reading import mount_reading
from lockledger.http.units import accept_decorated_override, opening
from lockledger.ledger import LockLedger


def lock_router(
    ledger: LockLedger | AsyncLockLedger,
    *,
    session: Callable[..., Any],
    principal: Callable[..., Any],
    authorize: Authorize,
    holder: Callable[[Any], str] | None = None,
    metadata: Callable[..., Any] | None = None,
    reading: bool = True,
    commands: bool = True,
    expiry: bool = True,
    challenge: str = "Bearer",
) -> APIRouter:
    """A router with the verbs of a ledger, to be included in the host's application, under a prefix of its choice.

    `session`, `principal` and `metadata` are dependencies of the host's (so may have some themselves, and be overridden
    in tests). `session` gives a context manager that yields a session or connection and commits when it is left, such
    as `sessions.begin`; it is left before the answer, and with an exception when the request is refused. `principal`
    gives who asks, or `None` (401). `authorize` is asked on every route, see `Authorize`; a plain function must not
    block when the ledger is an `AsyncLockLedger`. `holder` makes the principal's id, which holds and acts; without it
    the principal must be that id; what can be none raises in the application. `metadata` gives what is to be recorded
    with a command, such as a request's id.

    `reading`, `commands`: which half to mount. `expiry=False`: clients can give no ttl, for holds that never run out.
    `challenge`: the `WWW-Authenticate` of a 401.

    Raises `TypeError` for a ledger, callable or session that cannot be one, `ValueError` when nothing is mounted.
    """
    if not isinstance(ledger, LockLedger | AsyncLockLedger):
        raise TypeError(f"lock_router wants a LockLedger or AsyncLockLedger, not {ledger!r}")
    for name, given in (("principal", principal), ("authorize", authorize)):
        if not callable(given):
            raise TypeError(f"{name} must be a callable, not {given!r}: nobody is let in unasked")
    if not reading and not commands:
        raise ValueError("reading=False and commands=False: there would be nothing in the router")
    exchanges = _exchanges(ledger, session, principal, authorize, holder, metadata, challenge)
    router = APIRouter(route_class=_route_class(session))
    if reading:
        mount_reading(router, exchanges)
    if commands:
        mount_commands(router, exchanges, expiry=expiry)
    return router


def _exchanges(
    ledger: LockLedger | AsyncLockLedger,
    session: Callable[..., Any],
    principal: Callable[..., Any],
    authorize: Authorize,
    holder: Callable[[Any], str] | None,
    metadata: Callable[..., Any] | None,
    challenge: str,
) -> Exchanges:
    """Makes the dependency that opens an exchange, of what the route takes in the query.

    Nobody learns anything, not even what a body should be, unless known.
    """
    opened = opening(session)

    async def known(found: Annotated[Any, Depends(principal)]) -> Any:
        if found is None:
            raise unauthenticated(challenge)
        return found

    def taking(takes: Collection[str]) -> Callable[..., Awaitable[Exchange]]:
        async def exchange(
            request: Request,
            somebody: Annotated[Any, Depends(known)],
            unit: Annotated[Any, Depends(opened)],
            recorded: Annotated[Any, Depends(metadata or _nothing)],
        ) -> Exchange:
            check_query(request, takes)
            me = _checked_holder(somebody if holder is None else holder(somebody))
            return Exchange(
                ledger, authorize, principal=somebody, holder=me, unit=unit, metadata=recorded
            )

        return exchange

    return taking


def _checked_holder(holder: Any) -> str:
    """The principal's id. What cannot be one is the host's mistake, and nothing that a client should be told."""
    try:
        return check_holder(holder)
    except InvalidHolder as error:
        raise ValueError(f"{_NO_HOLDER}: {error}") from error
    except TypeError as error:
        raise TypeError(f"{_NO_HOLDER}: {error}") from error


_NO_HOLDER = "principal (or holder=…, which makes an id of it) gave what can hold no lock"


async def _nothing() -> None:
    return None


def _route_class(session: Callable[..., Any]) -> type[APIRoute]:
    class LockRoute(APIRoute):
        """Answers refusals itself, so that the host needs no handler for them."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """The route's handler, with refusals made into answers."""
            handle = super().get_route_handler()

            async def answered(request: Request) -> Response:
                accept_decorated_override(request, session)
                try:
                    return await handle(StrictRequest(request.scope, request.receive))
                except Refusal as refusal:
                    return refusal.response()
                except BodyTooLarge:
                    return too_large().response()
                except HTTPException as error:
                    # FastAPI's word for whatever goes wrong when it reads a body.
                    if isinstance(error.__cause__, BodyTooLarge):
                        return too_large().response()
                    raise

            return answered

    return LockRoute
