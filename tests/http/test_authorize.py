"""Who asks, and what the host says to it: on every route, before anything is told or changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from fastapi import HTTPException

from lockledger import Hold, LockedByOther, LockLedgerError
from lockledger.http import Verb, Verdict
from support.ledgers import unchanged
from support.sites import ROUTES, Site, identified

ADDRESSES = {
    **ROUTES,
    "history": ("GET", "/locks/audit?key=k", None),
    "its holds": ("GET", "/locks/holds?key=k", None),
}
COMMANDS = ("take", "release", "extend", "force_release")
LISTS = ("current_holders", "holds", "audit_trail")


def call(site: Site, route: str, user: str | None = "user:7") -> Any:
    method, address, body = ADDRESSES[route]
    return site.request(method, address, body, user=user)


def test_without_a_principal_every_route_is_401(site: Site) -> None:
    site.ledger.take("k", "user:7")
    for route in ADDRESSES:
        with unchanged(site.ledgers):
            answer = call(site, route, user=None)

        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json() == {
            "type": "about:blank",
            "title": "Unauthorized",
            "status": 401,
            "detail": "say who you are",
            "code": "NOT_AUTHENTICATED",
        }
    assert site.asked == []


def test_without_a_principal_not_even_bad_input_is_told(site: Site) -> None:
    for address in ("/locks/hold", "/locks/hold?key=%20", "/locks/hold?key=%FF"):
        assert site.request("PUT", address, {"nonsense": 1}, user=None).status_code == 401


@pytest.mark.parametrize("free", [True, False], ids=["free", "held"])
@pytest.mark.parametrize(
    ("verdict", "status", "code"), [("forbid", 403, "FORBIDDEN"), ("hide", 404, "NOT_FOUND")]
)
def test_a_no_is_told_and_changes_nothing(
    site: Site, verdict: Verdict, status: int, code: str, free: bool
) -> None:
    if not free:
        site.ledger.take("k", "user:7", ttl=60)
    site.judge = lambda *_: verdict
    for route in ADDRESSES:
        with unchanged(site.ledgers):
            answer = call(site, route)

        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["code"] == code
        assert set(problem) <= {"type", "title", "status", "detail", "code", "key"}
        assert site.named == []


def test_the_policy_is_not_asked_about_what_is_not_allowed(site: Site) -> None:
    """It would lock the host's row, and might tell that the subject is there."""
    locked: list[str] = []
    site.policy.on_subject = lambda connection, key: locked.append(key)
    site.policy.closed["k"] = "VERSION_CANCELLED"
    site.judge = lambda *_: "hide"

    for route in COMMANDS:
        assert call(site, route).json()["code"] == "NOT_FOUND"
    assert locked == []


def test_a_hidden_lock_answers_as_a_free_one_and_as_one_that_never_was(site: Site) -> None:
    site.ledger.take("k", "user:8")
    site.judge = lambda *_: "hide"
    hidden = site.call("holder_of")
    site.judge = lambda *_: "allow"
    free = site.request("GET", "/locks/hold?key=x")

    assert hidden.status_code == free.status_code == 404
    assert {**hidden.json(), "key": None} == {**free.json(), "key": None}
    assert set(hidden.headers) == set(free.headers)


@pytest.mark.parametrize("route", [route for route in ADDRESSES if route not in LISTS])
def test_the_host_is_asked_once_about_the_live_hold(site: Site, route: str) -> None:
    grant = site.ledger.take("k", "user:7", ttl=60)
    assert call(site, route).status_code in (200, 201, 204)

    of_one = {"history": "audit_trail", "its holds": "holds"}
    verb = of_one.get(route, route)
    hold = Hold(**grant.model_dump(exclude={"created"}))
    assert site.asked[0] == ("user:7", verb, "k", hold)
    items = [("user:7", verb, "k", hold)] if route in of_one else []
    assert site.asked[1:] == items


@pytest.mark.parametrize("route", LISTS)
def test_the_host_is_asked_about_a_list_and_then_about_each_item(site: Site, route: str) -> None:
    site.ledger.take("a", "user:7")
    site.ledger.take("b", "user:8")
    call(site, route)

    assert [(verb, key) for _, verb, key, _ in site.asked] == [
        (route, None),
        (route, "a"),
        (route, "b"),
    ]
    holders = [current and current.holder for _, _, _, current in site.asked]
    assert holders == [None, "user:7", "user:8"]


@pytest.mark.parametrize(
    ("held_by", "reason", "verb"),
    [
        (None, None, "take"),
        (None, "the deadline", "take"),
        ("user:7", "the deadline", "take"),
        ("user:8", None, "take"),
        ("user:8", "  ", "take"),
        ("user:8", "the deadline", "takeover"),
    ],
)
def test_a_takeover_is_a_verb_of_its_own(
    site: Site, held_by: str | None, reason: str | None, verb: str
) -> None:
    if held_by is not None:
        site.ledger.take("k", held_by)
    site.judge = lambda principal, asked, key, current: "forbid" if asked == verb else "allow"
    answer = site.request("PUT", "/locks/hold?key=k", {"takeover_reason": reason})

    assert answer.status_code == 403
    assert [asked for _, asked, _, _ in site.asked] == [verb]


def once(site: Site, change: Callable[[], object]) -> Callable[..., Verdict]:
    """A judge that lets the lock change right after it was asked for the first time, and allows that."""

    def judge(principal: str, verb: Verb, key: str | None, current: Hold | None) -> Verdict:
        if len(site.asked) == 1:
            change()
        return "allow"

    return judge


def on_free_only(site: Site, change: Callable[[], object]) -> Callable[..., Verdict]:
    """As `once`, but allows only what is done to a free lock."""
    first = once(site, change)

    def judge(principal: str, verb: Verb, key: str | None, current: Hold | None) -> Verdict:
        first(principal, verb, key, current)
        return "allow" if current is None else "hide"

    return judge


def test_a_yes_holds_only_for_the_hold_that_it_was_about(postgres_site: Site) -> None:
    """On SQLite the transaction that asks keeps everybody else from writing."""
    site = postgres_site
    site.judge = on_free_only(site, lambda: site.ledger.take("k", "user:8"))
    answer = site.request("PUT", "/locks/hold?key=k", {"takeover_reason": "the deadline"})

    assert answer.status_code == 404
    assert [(verb, current and current.holder) for _, verb, _, current in site.asked] == [
        ("take", None),
        ("takeover", "user:8"),
    ]
    hold = site.ledger.holder_of("k")
    assert hold is not None
    assert hold.holder == "user:8"


@pytest.mark.parametrize("route", ["release", "extend", "force_release"])
def test_a_refusal_tells_only_of_a_hold_that_was_allowed(postgres_site: Site, route: str) -> None:
    site = postgres_site
    site.judge = on_free_only(site, lambda: site.ledger.take("k", "user:8"))

    assert call(site, route).status_code == 404
    assert len(site.asked) == 2


def test_a_change_that_is_allowed_too_is_acted_upon(postgres_site: Site) -> None:
    site = postgres_site
    site.judge = once(site, lambda: site.ledger.take("k", "user:8"))
    answer = site.request("PUT", "/locks/hold?key=k", {"takeover_reason": "the deadline"})

    assert (answer.status_code, answer.json()["taken_over_from"]) == (201, "user:8")


def test_a_hold_of_another_key_in_the_way_is_told_only_to_who_may_see_it(site: Site) -> None:
    """As a hold above or under the key is, where locks have scopes."""
    above = site.ledger.take("round:5", "user:8")
    hold = Hold(**above.model_dump(exclude={"created"}))

    def refuse(connection: object, key: str) -> None:
        raise LockedByOther(key, hold)

    site.policy.on_subject = refuse
    answer = site.request("PUT", "/locks/hold?key=round:5:band:2")
    assert (answer.status_code, answer.json()["current"]["holder_name"]) == (409, "Bo")

    site.judge = lambda principal, verb, key, current: "hide" if key == "round:5" else "allow"
    answer = site.request("PUT", "/locks/hold?key=round:5:band:2")
    assert (answer.status_code, answer.json()["code"]) == (409, "LOCKED_BY_OTHER")
    assert answer.json()["current"] is None
    assert "user:8" not in answer.text
    assert site.asked[-1] == ("user:7", "holder_of", "round:5", hold)


def _answering(said: Any, *_: object) -> Any:
    return said


def test_only_the_three_words_are_an_answer(site: Site) -> None:
    site.ledger.take("k", "user:8")
    for said, route in product(
        [None, True, "", "Allow", 1, object()], ["take", "holder_of", "current_holders"]
    ):
        site.judge = partial(_answering, said)
        with (
            unchanged(site.ledgers),
            pytest.raises(TypeError, match="say 'allow', 'forbid' or 'hide'"),
        ):
            call(site, route)


def test_the_hosts_own_errors_pass_and_nothing_is_done(site: Site) -> None:
    def judge(*_: object) -> Verdict:
        raise HTTPException(418, "the host's own")

    site.judge = judge
    for route in ADDRESSES:
        with unchanged(site.ledgers):
            answer = call(site, route)
        assert (answer.status_code, answer.json()) == (418, {"detail": "the host's own"})


@pytest.mark.parametrize(
    ("verdict", "statuses"), [("allow", {200, 204}), ("forbid", {403}), ("hide", {404})]
)
def test_the_host_may_be_asked_with_an_awaitable(
    bare_site: Site, verdict: Verdict, statuses: set[int]
) -> None:
    site = bare_site
    site.judge = lambda *_: verdict

    async def authorize(*question: Any) -> Verdict:
        return site.authorize(*question)

    site.mount(authorize=authorize)
    with site.running():
        for route in ADDRESSES:
            site.ledger.take("k", "user:7", ttl=60)
            assert call(site, route).status_code in statuses


def test_the_hosts_own_401_passes(bare_site: Site) -> None:
    def principal() -> None:
        raise HTTPException(401, "log in first", headers={"WWW-Authenticate": "Basic"})

    bare_site.mount(principal=principal)
    with bare_site.running() as site:
        answer = site.call("take")

    assert (answer.status_code, answer.json()) == (401, {"detail": "log in first"})
    assert answer.headers["www-authenticate"] == "Basic"


def test_the_challenge_is_the_hosts(bare_site: Site) -> None:
    bare_site.mount(challenge='Basic realm="locks"')
    with bare_site.running() as site:
        assert site.call("take", user=None).headers["www-authenticate"] == 'Basic realm="locks"'


def test_a_holder_is_made_from_the_principal(bare_site: Site) -> None:
    bare_site.mount(
        principal=lambda: {"id": 7},
        holder=lambda principal: f"user:{principal['id']}",
    )
    with bare_site.running() as site:
        assert site.call("take").json()["holder_name"] == "Ann"
        assert site.call("force_release").json()["ended_by_actor"] == "user:7"
    assert site.asked[0][0] == {"id": 7}


@pytest.mark.parametrize(
    ("principal", "kind"),
    [
        (7, TypeError),
        ({"id": 7}, TypeError),
        ("", ValueError),
        (" user:7", ValueError),
        ("x" * 256, ValueError),
        ("e\u0301", ValueError),
        ("user\n7", ValueError),
    ],
)
def test_a_principal_that_is_no_id_is_the_hosts_error(
    bare_site: Site, principal: Any, kind: type[Exception]
) -> None:
    """Not the client's: it is no 422, whatever the host makes of the ledger's errors, and the client is told nothing."""
    bare_site.mount(principal=lambda: principal)
    with bare_site.running(raises=False) as site:
        answer = site.call("take")
        assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    with bare_site.running() as site, pytest.raises(kind, match="can hold no lock") as mistake:
        site.call("take")
    assert not isinstance(mistake.value, LockLedgerError)
    assert repr(principal)[:20] in str(mistake.value)


def test_principals_are_found_by_the_hosts_dependencies(site: Site) -> None:
    assert identified("user:1") == "user:1"
    assert site.request("PUT", "/locks/hold?key=k", user="user:42").json()["holder"] == "user:42"
