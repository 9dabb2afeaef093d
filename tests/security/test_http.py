"""The router: how much it reads, from whom it takes a body, and what a refusal gives away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lockledger import LockLedger
from lockledger.http.bodies import MAX_BODY_BYTES
from support.databases import Database
from support.ledgers import proven
from support.sites import COLOURS, ROUTES, Site, site_on

JSON = {"content-type": "application/json"}


@pytest.fixture(params=COLOURS)
def site(request: pytest.FixtureRequest, sqlite_database: Database) -> Iterator[Site]:
    """A site of each colour with the router under `/locks`, answering."""
    with proven(sqlite_database) as ledgers, site_on(ledgers, request.param) as bare:
        bare.mount()
        with bare.running() as site:
            yield site


BODIES = [route for route in ROUTES.values() if route[2] is not None]


def test_a_body_is_read_as_far_as_one_can_be_long(site: Site) -> None:
    for method, address, body in BODIES:
        padded = json.dumps(body).encode().ljust(MAX_BODY_BYTES)
        assert site.request(method, address, content=padded, headers=JSON).status_code < 410
        for content in (padded + b" ", b"[" * 5_000_000, iter([b"[" * 1000] * 100)):
            answer = site.request(method, address, content=content, headers=JSON)
            assert answer.status_code == 413
            assert answer.json()["code"] == "BODY_TOO_LARGE"
            assert answer.headers["content-type"] == "application/problem+json"


def test_the_largest_body_within_the_limits_fits(site: Site) -> None:
    """With every character of a reason escaped, as some clients write it."""
    reason = "\U0001f512" * 2000
    site.ledger.take("k", "user:8")
    content = json.dumps({"takeover_reason": reason, "expected_token": 1}).encode()
    answer = site.request("PUT", "/locks/hold?key=k", content=content, headers=JSON)
    assert answer.json()["takeover_reason"] == reason


def test_a_body_that_another_sites_page_may_send_unasked_is_refused(site: Site) -> None:
    """Without a preflight a browser sends plain text, a form, or a body without a type (CSRF)."""
    site.ledger.take("k", "user:8")
    content = json.dumps({"reason": "why"}).encode()
    address = "/locks/hold/forced-release?key=k"
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = {"content-type": kind} if kind else {}
        answer = site.request("POST", address, content=content, headers=headers)
        assert answer.status_code == 422, kind
        answer = site.request("POST", address, content=b"\xff", headers=headers)
        assert answer.status_code == 422, kind
    assert site.ledger.is_locked("k")
    assert "access-control-allow-origin" not in site.request("GET", "/locks/holders").headers


def test_who_may_not_see_learns_nothing_about_a_hold(site: Site) -> None:
    secret = {"takeover_reason": "secret reason", "metadata": {"secret": "secret metadata"}}
    site.ledger.take("k", "user:6")
    site.ledger.take("k", "user:8", **secret)  # type: ignore[arg-type]
    site.ledger.take("other", "user:8")
    for verdict in ("hide", "forbid"):
        site.judge = lambda *_: verdict  # noqa: B023
        for method, address, body in ROUTES.values():
            answer = site.request(method, address, body, user="user:9")
            assert answer.status_code in (403, 404)
            assert set(answer.json()) <= {"type", "title", "status", "detail", "code", "key"}
            assert not any(word in answer.text for word in ("user:6", "user:8", "secret", "other"))


def test_one_tenants_router_knows_nothing_of_anothers_locks(site: Site) -> None:
    with LockLedger(site.ledgers.database.url, name="another tenant") as other:
        other.take("k", "their:1")
        other.take("theirs", "their:1")
        assert site.request("PUT", "/locks/hold?key=k", {}).status_code == 201
        for address in ("holders", "holds", "audit", "holders?after=a", "holds?key=theirs"):
            assert "their" not in json.dumps(
                site.request("GET", f"/locks/{address}").json()["items"]
            )
        assert other.holder_of("k").holder == "their:1"  # type: ignore[union-attr]


def test_an_error_of_the_database_is_no_answer(site: Site) -> None:
    """What it says is the host's own affair: the router makes no answer of it."""
    with site.ledgers.database.engine().begin() as connection:
        connection.exec_driver_sql("ALTER TABLE lockledger_holds RENAME TO elsewhere")
    answers: list[Any] = []
    with pytest.raises(Exception, match="lockledger_holds"):
        answers.append(site.request("GET", "/locks/holds"))
    assert answers == []
    with site.ledgers.database.engine().begin() as connection:
        connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO lockledger_holds")
