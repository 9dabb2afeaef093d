"""The host's unit of work as a dependency: any callable that gives a context manager."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import Request
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker


class Opening:
    """A function decorated with `contextmanager`, as a callable that FastAPI takes for what it is.

    FastAPI looks through the decorator, sees a generator, and would run it as a dependency with `yield`, which is left
    after the answer. Equal to what it wraps, so that `dependency_overrides` finds it.
    """

    def __init__(self, opened: Callable[..., Any]) -> None:
        self.opened = opened
        self.__signature__ = _signature(opened)

    def __call__(self, *args: Any, **values: Any) -> Any:
        """The context manager, not entered."""
        return self.opened(*args, **values)

    def __eq__(self, other: object) -> bool:
        return bool(self.opened == (other.opened if isinstance(other, Opening) else other))

    def __hash__(self) -> int:
        return hash(self.opened)


def opening(session: Callable[..., Any]) -> Callable[..., Any]:
    """The host's `session` as FastAPI may call it. Raises `TypeError` for what can be no unit of work."""
    if isinstance(session, sessionmaker | async_sessionmaker):
        raise TypeError("session is a sessionmaker, whose sessions do not commit: give its begin")
    if not callable(session):
        raise TypeError(
            f"session must be a callable that gives a context manager, such as sessions.begin, not {session!r}"
        )
    if inspect.isgeneratorfunction(session) or inspect.isasyncgenfunction(session):
        raise TypeError(
            f"session={session!r} is a dependency with yield, which FastAPI leaves after the answer has been sent; give"
            " a callable that gives a context manager: sessions.begin, or a generator function decorated with"
            " contextlib.contextmanager or asynccontextmanager that commits at its end"
        )
    return Opening(session) if _is_decorated(session) else session


def accept_decorated_override(request: Request, session: Callable[..., Any]) -> None:
    """Lets a test override the unit of work with a decorated function too, as it may be one itself."""
    overrides = getattr(request.app, "dependency_overrides", {})
    override = overrides.get(session)
    if override is not None and _is_decorated(override):
        overrides[session] = Opening(override)


def _is_decorated(call: Any) -> bool:
    if isinstance(call, Opening):
        return False
    while isinstance(call, partial):
        call = call.func
    inner = inspect.unwrap(call)
    return inner is not call and (
        inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)
    )


def _signature(call: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(call, eval_str=True)
    except (
        NameError
    ):  # a name that only its type checker knows; FastAPI will say which, where it needs it
        return inspect.signature(call)
