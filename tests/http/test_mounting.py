"""What a host may choose, and what it cannot leave out."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from fastapi import FastAPI, Request

from lockledger.http import lock_router
from support.sites import ROUTES, Site, identified

COMMANDS = {"take", "release", "extend", "force_release"}
READING = {"holder_of", "current_holders", "holds", "audit_trail"}


def nothing(*_: object) -> Any:
    """A callable for what is not reached."""


@pytest.mark.parametrize("missing", ["session", "principal", "authorize"])
def test_there_is_no_router_without_somebody_to_ask(bare_site: Site, missing: str) -> None:
    given: dict[str, Any] = dict.fromkeys(["session", "principal", "authorize"], nothing)
    del given[missing]
    with pytest.raises(TypeError, match=missing):
        lock_router(bare_site.router_ledger, **given)
    with pytest.raises(TypeError, match=missing):
        lock_router(bare_site.router_ledger, **(given | {missing: None}))


@pytest.mark.parametrize("library", ["fastapi", "anyio"])
def test_without_its_libraries_the_router_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    for name in [each for each in sys.modules if each.startswith("lockledger.http")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [each for each in sys.modules if each.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        ModuleNotFoundError, match=r"pip install 'lockledger\[fastapi\]'"
    ) as missing:
        importlib.import_module("lockledger.http")
    assert missing.value.name is not None
    assert missing.value.name.partition(".")[0] == library


def test_a_router_wants_a_ledger() -> None:
    ledger: Any = "postgresql://"
    with pytest.raises(TypeError, match="wants a LockLedger or AsyncLockLedger"):
        lock_router(ledger, session=nothing, principal=nothing, authorize=nothing)


@pytest.mark.parametrize("half", ["reading", "commands"])
def test_reading_and_commands_mount_separately(bare_site: Site, half: str) -> None:
    bare_site.mount(reading=half == "reading", commands=half == "commands")
    with bare_site.running() as site:
        for verb in READING | COMMANDS:
            mounted = verb in (READING if half == "reading" else COMMANDS)
            assert (site.call(verb).status_code in (404, 405)) is not mounted or (
                verb == "holder_of"  # a free lock is 404 as well
            )


def test_each_half_may_have_its_own_rules(bare_site: Site) -> None:
    bare_site.mount(commands=False, authorize=lambda *_: "allow")
    bare_site.mount("/admin", reading=False, authorize=lambda *_: "forbid")
    with bare_site.running() as site:
        assert site.call("current_holders").status_code == 200
        assert site.call("take").status_code == 405
        assert site.request("PUT", "/admin/hold?key=k").status_code == 403
        assert site.request("GET", "/admin/holders").status_code == 404


def test_a_router_of_nothing_is_refused(bare_site: Site) -> None:
    with pytest.raises(ValueError, match="nothing in the router"):
        bare_site.mount(reading=False, commands=False)


def test_holds_need_not_expire(bare_site: Site) -> None:
    bare_site.mount(expiry=False)
    with bare_site.running() as site:
        assert site.request("PUT", "/locks/hold?key=k", {"ttl": 60}).status_code == 422
        assert site.request("PUT", "/locks/hold?key=k", {"ttl": None}).status_code == 422
        assert site.call("extend").status_code == 404
        assert site.call("take").json()["expires_at"] is None
        body = {"takeover_reason": "why", "expected_token": 1}
        assert site.request("PUT", "/locks/hold?key=k", body, user="user:8").status_code == 201


def test_the_principal_can_be_overridden(bare_site: Site) -> None:
    bare_site.mount()
    bare_site.app.dependency_overrides[identified] = lambda: "user:8"
    with bare_site.running() as site:
        assert site.call("take", user=None).json()["holder_name"] == "Bo"


def test_metadata_of_a_request_is_recorded(bare_site: Site) -> None:
    def request_id(request: Request) -> dict[str, Any]:
        return {"request": request.headers["x-request-id"]}

    # FastAPI reads the annotation, which this module keeps as a text.
    request_id.__annotations__["request"] = Request
    bare_site.mount(metadata=request_id)
    with bare_site.running() as site:
        told = site.request("PUT", "/locks/hold?key=k", headers={"x-request-id": "r17"}).json()

    assert told["metadata"] == {"request": "r17"}
    assert bare_site.ledger.history("k")[0].metadata == {"request": "r17"}


def test_metadata_beyond_the_limits_is_422(bare_site: Site) -> None:
    """Hosts make it of what the client sends, such as the id of a request."""
    bare_site.mount(metadata=lambda: {"request": "x" * 9000})
    with bare_site.running() as site:
        answer = site.call("take")

    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_METADATA")
    assert not site.ledger.is_locked("k")


def test_the_host_gets_no_handler_it_did_not_ask_for(bare_site: Site) -> None:
    before = dict(bare_site.app.exception_handlers)
    bare_site.mount()

    assert bare_site.app.exception_handlers == before


def test_the_hosts_handler_of_bad_input_is_used(bare_site: Site) -> None:
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import PlainTextResponse

    async def own(request: Any, error: Any) -> PlainTextResponse:
        return PlainTextResponse("the host's own words", 400)

    bare_site.app.add_exception_handler(RequestValidationError, own)
    bare_site.mount()
    with bare_site.running() as site:
        answer = site.request("PUT", "/locks/hold?key=k", {"unknown": 1})

    assert (answer.status_code, answer.text) == (400, "the host's own words")


def test_a_router_lives_in_a_mounted_application_too(bare_site: Site) -> None:
    # Nobody runs the lifespan of a mounted application but the outer one's.
    outer = FastAPI(lifespan=bare_site.app.router.lifespan_context)
    bare_site.mount()
    outer.mount("/api", bare_site.app)
    bare_site.app.dependency_overrides[identified] = lambda: "user:8"
    bare_site.app = outer
    with bare_site.running() as site:
        answer = site.request("PUT", "/api/locks/hold?key=k", user=None)

    assert (answer.status_code, answer.json()["holder"]) == (201, "user:8")


def test_a_closed_ledger_answers_nothing(bare_site: Site) -> None:
    if bare_site.colour == "sync":
        bare_site.router_ledger.close()
    else:
        bare_site.router_ledger.sync_ledger.close()  # type: ignore[union-attr]  # the async one
    bare_site.mount()
    with bare_site.running() as site, pytest.raises(RuntimeError, match="is closed"):
        site.call("take")


def test_every_route_is_known_to_these_tests(bare_site: Site) -> None:
    router = lock_router(
        bare_site.router_ledger, session=nothing, principal=nothing, authorize=nothing
    )
    known = {
        (method, address.partition("?")[0].removeprefix("/locks"))
        for method, address, _ in ROUTES.values()
    }
    mounted: set[tuple[str, str]] = set()
    for route in router.routes:
        mounted |= {(method, route.path) for method in route.methods}  # type: ignore[attr-defined]  # an APIRoute
    assert mounted == known
