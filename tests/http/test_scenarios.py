"""Faults that users of lock systems have reported, as they would show in answers over HTTP; named by their ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockledger import AsyncLockLedger, HoldLost, LockLedger
from lockledger.http import lock_router
from support.sites import Site, identified

HOLD = "/locks/hold?key=k"


def test_s70_a_conflict_carries_the_actual_hold_not_the_attempted_one(site: Site) -> None:
    """So that a forced release by what the answer said hits the hold that is there."""
    held = site.ledger.take("k", "user:8", ttl=60)
    current = site.request("PUT", HOLD, {"ttl": 5}).json()["current"]
    assert (current["holder"], current["token"]) == ("user:8", held.token)
    assert current["expires_at"] == held.model_dump(mode="json")["expires_at"]

    forced = {"reason": "stuck", "expected_token": current["token"]}
    ended = site.request("POST", "/locks/hold/forced-release?key=k", forced).json()
    assert (ended["holder"], ended["token"]) == ("user:8", held.token)


def test_s63b_holder_and_hold_have_one_shape_in_every_answer(site: Site) -> None:
    site.ledger.take("k", "user:8", ttl=60, metadata={"n": 1})
    conflict = site.call("take").json()["current"]
    asked = site.call("holder_of").json()
    [listed] = site.call("current_holders").json()["items"]
    [entry] = site.call("audit_trail").json()["items"]

    assert conflict == asked == listed == entry["after"]


def test_s66_who_holds_what_agrees_after_an_expiry(site: Site) -> None:
    site.ledger.take("k", "user:7", ttl=0.01)
    while site.ledger.is_locked("k"):
        pass
    site.ledger.take("k", "user:8")

    def listed(holder: str) -> list[Any]:
        items: list[Any] = site.request("GET", f"/locks/holders?holder={holder}").json()["items"]
        return [item["key"] for item in items]

    assert (listed("user:7"), listed("user:8")) == ([], ["k"])
    refused = site.call("release").json()
    assert (refused["code"], refused["current"]["holder"]) == ("NOT_LOCK_OWNER", "user:8")
    lost = site.request("DELETE", f"{HOLD}&token=1").json()
    assert (lost["code"], lost["ended_by"], lost["current"]["holder"]) == (
        "HOLD_LOST",
        "expiry",
        "user:8",
    )


def test_s67_a_save_after_a_takeover_is_refused_with_by_whom_and_why(site: Site) -> None:
    token = site.call("take").json()["token"]
    site.request("PUT", HOLD, {"takeover_reason": "deadline"}, user="user:8")
    engine = site.ledgers.database.engine()
    with engine.connect() as connection, connection.begin(), pytest.raises(HoldLost) as lost:
        site.ledger.using(connection).guard("k", "user:7", token=token)

    assert (lost.value.ended_by_actor, lost.value.reason) == ("user:8", "deadline")


def test_s72_a_forced_release_names_actor_victim_and_reason(site: Site) -> None:
    site.ledger.take("k", "user:8", ttl=60)
    site.request("POST", "/locks/hold/forced-release?key=k", {"reason": "on holiday"})
    [*_, entry] = site.request("GET", "/locks/audit?holder=user:8").json()["items"]

    assert (entry["actor_name"], entry["holder_name"], entry["reason"]) == (
        "Ann",
        "Bo",
        "on holiday",
    )
    assert entry["before"]["expires_at"] is not None


def test_s82_a_take_repeated_after_a_lost_answer_is_the_same_grant(site: Site) -> None:
    body = {"ttl": 60}
    lost_answer = site.request("PUT", HOLD, body).json()
    again = site.request("PUT", HOLD, body).json()

    assert again == {**lost_answer, "created": False}
    assert len(site.ledger.history("k")) == 1


@pytest.fixture
def tenants(bare_site: Site) -> Iterator[Site]:
    """A site with a router for each of two tenants, under `/a` and `/b`, on the same tables."""
    kind: type[Any] = LockLedger if bare_site.colour == "sync" else AsyncLockLedger
    for name in ("a", "b"):
        ledger = kind(bare_site.engine, name=name)
        router = lock_router(
            ledger,
            session=bare_site.session,
            principal=identified,
            authorize=bare_site.authorize,
        )
        bare_site.app.include_router(router, prefix=f"/{name}")
    with bare_site.running() as site:
        yield site


def test_s65_a_lock_of_another_tenant_is_not_there(tenants: Site) -> None:
    token = tenants.request("PUT", "/a/hold?key=k").json()["token"]

    def b(method: str, address: str, body: Any = None) -> Any:
        answer = tenants.request(method, f"/b{address}", body)
        return answer.status_code, answer.json() if answer.content else None

    assert b("GET", "/hold?key=k")[0] == 404
    assert b("GET", "/holders") == b("GET", "/holds") == (200, {"items": [], "next_after": None})
    assert (
        b("GET", "/audit") == b("GET", "/audit?key=k") == (200, {"items": [], "next_after": None})
    )
    forced = {"reason": "why", "expected_token": token}
    status, refused = b("POST", "/hold/forced-release?key=k", forced)
    assert (status, refused["code"], refused["current"]) == (412, "HOLD_CHANGED", None)
    assert b("POST", "/hold/forced-release?key=k", {"reason": "why"}) == (200, None)
    status, lost = b("DELETE", f"/hold?key=k&token={token}")
    assert (status, lost["code"], lost["ended_by"], lost["current"]) == (
        409,
        "HOLD_LOST",
        None,
        None,
    )
    assert tenants.request("GET", "/a/hold?key=k").json()["token"] == token


def test_s64_tenants_do_not_stand_in_each_others_way(tenants: Site) -> None:
    for name in ("a", "b"):
        assert tenants.request("PUT", f"/{name}/hold?key=k", user=f"user:{name}").status_code == 201
