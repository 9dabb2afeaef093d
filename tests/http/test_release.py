"""`DELETE /hold`, `POST /hold/extension` and `POST /hold/forced-release`: ends and extensions of holds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from support.sites import Site

HOLD = "/locks/hold?key=k"
EXTENSION = "/locks/hold/extension?key=k"
FORCED = "/locks/hold/forced-release?key=k"


def facts(problem: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(problem[name] for name in names)


# Release.


def test_a_release_is_204_without_a_body_and_committed(site: Site) -> None:
    site.ledger.take("k", "user:7")
    answer = site.call("release")

    assert (answer.status_code, answer.content) == (204, b"")
    assert "content-type" not in answer.headers
    assert not site.ledger.is_locked("k")
    assert site.ledger.history("k")[-1].actor == "user:7"


def test_a_release_of_nothing_is_quietly_204(site: Site) -> None:
    assert site.call("release").status_code == 204
    assert len(site.ledger.history("k")) == 0


def test_a_repeated_release_is_204(site: Site) -> None:
    token = site.call("take").json()["token"]
    for _ in range(2):
        assert site.request("DELETE", f"{HOLD}&token={token}").status_code == 204


def test_anothers_hold_is_not_released(site: Site) -> None:
    held = site.ledger.take("k", "user:8")
    answer = site.call("release")

    assert answer.status_code == 409
    assert facts(answer.json(), "code", "key", "status") == ("NOT_LOCK_OWNER", "k", 409)
    assert facts(answer.json()["current"], "holder", "holder_name", "token") == (
        "user:8",
        "Bo",
        held.token,
    )
    assert site.ledger.is_locked("k")


def test_a_hold_that_was_taken_over_is_told_as_lost(site: Site) -> None:
    token = site.call("take").json()["token"]
    site.ledger.take("k", "user:8", takeover_reason="the deadline")
    answer = site.request("DELETE", f"{HOLD}&token={token}")

    assert answer.status_code == 409
    problem = answer.json()
    assert facts(problem, "code", "ended_by", "ended_by_actor", "actor_name", "reason") == (
        "HOLD_LOST",
        "takeover",
        "user:8",
        "Bo",
        "the deadline",
    )
    assert datetime.fromisoformat(problem["ended_at"]) == site.ledger.history("k")[-1].occurred_at
    assert problem["current"]["holder"] == "user:8"


def test_a_hold_that_never_was_is_told_as_lost_by_nobody(site: Site) -> None:
    problem = site.request("DELETE", f"{HOLD}&token=3").json()

    assert facts(problem, "code", "ended_by", "ended_at", "ended_by_actor", "reason") == (
        "HOLD_LOST",
        *(None,) * 4,
    )
    assert facts(problem, "current", "actor_name") == (None, None)


@pytest.mark.parametrize(
    "token",
    [
        *("x", "-1", "1.5", str(2**63), "", "9" * 5000),
        *("0_1", "1.0", "%2B1", "%201", "1%20", "1e0", "%D9%A1", "%C2%B9"),
    ],
    ids=lambda token: token[:10],
)
def test_a_token_that_is_none_is_422(site: Site, token: str) -> None:
    site.call("take")

    assert site.request("DELETE", f"{HOLD}&token={token}").status_code == 422
    assert site.request("POST", f"{EXTENSION}&token={token}", {"ttl": 60}).status_code == 422
    assert site.ledger.is_locked("k")
    assert site.request("DELETE", f"{HOLD}&token=01").status_code == 204


def test_a_token_in_other_than_plain_digits_is_told_so(site: Site) -> None:
    (fault,) = site.request("DELETE", f"{HOLD}&token=1_0").json()["detail"]

    assert (fault["loc"], fault["msg"]) == (
        ["query", "token"],
        "Input should be a whole number in plain digits",
    )


# Extension.


def test_an_extension_moves_the_end(site: Site) -> None:
    before = site.request("PUT", HOLD, {"ttl": 60}).json()
    answer = site.request("POST", EXTENSION, {"ttl": 600, "token": before["token"]})

    assert answer.status_code == 200
    told = answer.json()
    assert facts(told, "token", "created", "holder_name") == (before["token"], False, "Ann")
    moved = datetime.fromisoformat(told["expires_at"]) - datetime.fromisoformat(
        before["expires_at"]
    )
    assert moved >= timedelta(seconds=540)
    hold = site.ledger.holder_of("k")
    assert hold is not None
    assert hold.expires_at == datetime.fromisoformat(told["expires_at"])


def test_an_extension_of_nothing_is_409(site: Site) -> None:
    answer = site.call("extend")

    assert (answer.status_code, *facts(answer.json(), "code", "current")) == (409, "NOT_HELD", None)


def test_anothers_hold_is_not_extended(site: Site) -> None:
    site.ledger.take("k", "user:8", ttl=60)
    answer = site.call("extend")

    assert (answer.status_code, answer.json()["code"]) == (409, "NOT_LOCK_OWNER")
    assert answer.json()["current"]["holder_name"] == "Bo"


def test_a_lost_hold_is_not_extended(site: Site) -> None:
    token = site.call("take").json()["token"]
    site.ledger.force_release("k", actor="user:8", reason="cleaning up")
    answer = site.request("POST", EXTENSION, {"ttl": 60, "token": token})

    assert answer.status_code == 409
    assert facts(answer.json(), "code", "ended_by", "actor_name", "reason", "current") == (
        "HOLD_LOST",
        "forced",
        "Bo",
        "cleaning up",
        None,
    )


def test_an_extension_takes_the_token_in_the_query_too(site: Site) -> None:
    token = site.call("take").json()["token"]
    for wanted, status in ((token, 200), (token + 1, 409)):
        address = f"{EXTENSION}&token={wanted}"
        assert site.request("POST", address, {"ttl": 60}).status_code == status
        assert site.request("POST", address, {"ttl": 60, "token": wanted}).status_code == status
    answer = site.request("POST", f"{EXTENSION}&token={token}", {"ttl": 60, "token": token + 1})

    assert answer.status_code == 422
    assert "the token that the body names" in answer.json()["detail"][0]["msg"]


@pytest.mark.parametrize("body", [None, {}, {"ttl": None}, {"ttl": 0}, {"ttl": 1, "until": 5}])
def test_an_extension_must_say_until_when(site: Site, body: Any) -> None:
    site.call("take")

    assert site.request("POST", EXTENSION, body).status_code == 422


# Forced release.


def test_a_forced_release_gives_the_ended_hold(site: Site) -> None:
    held = site.ledger.take("k", "user:8")
    answer = site.request("POST", FORCED, {"reason": " left the company "})

    assert answer.status_code == 200
    told = answer.json()
    assert facts(told, "key", "holder", "holder_name", "token") == ("k", "user:8", "Bo", held.token)
    assert facts(told, "ended_by", "end_reason", "ended_by_actor", "actor_name") == (
        "forced",
        "left the company",
        "user:7",
        "Ann",
    )
    assert datetime.fromisoformat(told["ended_at"]) >= held.taken_at
    assert not site.ledger.is_locked("k")


def test_a_forced_release_of_nothing_is_null(site: Site) -> None:
    answer = site.call("force_release")

    assert (answer.status_code, answer.json()) == (200, None)


def test_a_forced_release_ends_only_the_expected_hold(site: Site) -> None:
    held = site.ledger.take("k", "user:8")
    answer = site.request("POST", FORCED, {"reason": "why", "expected_token": held.token + 1})

    assert answer.status_code == 412
    assert facts(answer.json(), "code", "key") == ("HOLD_CHANGED", "k")
    assert answer.json()["current"]["holder_name"] == "Bo"
    assert site.ledger.is_locked("k")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (None, None),
        ({}, None),
        ({"reason": None}, None),
        ({"reason": " "}, "INVALID_REASON"),
        ({"reason": "x" * 2001}, "INVALID_REASON"),
        ({"reason": "why", "actor": "user:9"}, None),
    ],
)
def test_a_forced_release_must_say_why(site: Site, body: Any, code: str | None) -> None:
    site.ledger.take("k", "user:8")
    answer = site.request("POST", FORCED, body)

    assert answer.status_code == 422
    assert answer.json().get("code") == code
    assert site.ledger.is_locked("k")
