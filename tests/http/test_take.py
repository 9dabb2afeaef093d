"""`PUT /hold`: taking, taking again, taking over, and every refusal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockledger import Hold
from support.sites import Site

PROBLEM = "application/problem+json"


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_new_hold_is_201_and_committed(site: Site) -> None:
    answer = site.request("PUT", "/locks/hold?key=version:17")

    hold = site.ledger.holder_of("version:17")
    assert hold is not None
    assert answer.status_code == 201
    assert answer.json() == {
        "key": "version:17",
        "holder": "user:7",
        "holder_name": "Ann",
        "token": 1,
        "taken_at": hold.model_dump(mode="json")["taken_at"],
        "expires_at": None,
        "taken_over_from": None,
        "previous_holder_name": None,
        "takeover_reason": None,
        "metadata": {},
        "created": True,
    }


def test_taking_again_is_200_with_the_same_grant(site: Site) -> None:
    first = site.call("take").json()
    again = site.request("PUT", "/locks/hold?key=k", {"ttl": 60, "takeover_reason": "mine"})

    assert again.status_code == 200
    assert again.json() == {**first, "created": False}
    assert len(site.ledger.history("k")) == 1


def test_a_body_is_not_needed(site: Site) -> None:
    assert site.request("PUT", "/locks/hold?key=a").status_code == 201
    null: dict[str, Any] = {"content": b"null", "headers": {"content-type": "application/json"}}
    assert site.request("PUT", "/locks/hold?key=b", **null).status_code == 201


def test_anothers_hold_is_409_with_who_holds_it_since_when(site: Site) -> None:
    held = site.ledger.take("k", "user:8", ttl=60, metadata={"request": "r1"})
    answer = site.call("take")

    assert answer.status_code == 409
    assert answer.headers["content-type"] == PROBLEM
    problem = answer.json()
    current = problem.pop("current")
    assert problem == {
        "type": "about:blank",
        "title": "Conflict",
        "status": 409,
        "code": "LOCKED_BY_OTHER",
        "key": "k",
        "detail": problem["detail"],
    }
    assert "held by 'user:8' since" in problem["detail"]
    assert current == {
        **held.model_dump(mode="json", exclude={"created"}),
        "holder_name": "Bo",
        "previous_holder_name": None,
    }


def test_names_are_as_they_are_now_and_null_when_unknown(site: Site) -> None:
    site.ledger.take("k", "user:8")
    assert site.call("take").json()["current"]["holder_name"] == "Bo"
    site.people["user:8"] = "Bo Married"
    assert site.call("take").json()["current"]["holder_name"] == "Bo Married"
    del site.people["user:8"]
    assert site.call("take").json()["current"]["holder_name"] is None


def test_a_reason_takes_the_hold_over(site: Site) -> None:
    old = site.ledger.take("k", "user:8")
    answer = site.request("PUT", "/locks/hold?key=k", {"takeover_reason": "  the deadline \n"})

    assert answer.status_code == 201
    told = answer.json()
    assert told["holder"] == "user:7"
    assert told["taken_over_from"] == "user:8"
    assert told["previous_holder_name"] == "Bo"
    assert told["takeover_reason"] == "the deadline"
    assert told["token"] > old.token
    [_, entry] = site.ledger.history("k")
    assert (entry.actor, entry.previous_holder, entry.reason) == (
        "user:7",
        "user:8",
        "the deadline",
    )


@pytest.mark.parametrize("reason", ["", "  \n", None])
def test_a_blank_reason_is_no_reason(site: Site, reason: str | None) -> None:
    site.ledger.take("k", "user:8")
    answer = site.request("PUT", "/locks/hold?key=k", {"takeover_reason": reason})

    assert (answer.status_code, answer.json()["code"]) == (409, "LOCKED_BY_OTHER")


def test_a_reason_given_when_the_lock_is_free_is_not_kept(site: Site) -> None:
    told = site.request("PUT", "/locks/hold?key=k", {"takeover_reason": "in case"}).json()

    assert told["takeover_reason"] is None
    assert site.ledger.history("k")[0].reason is None


def test_the_hosts_own_code_is_told_with_the_current_hold(site: Site) -> None:
    site.ledger.take("k", "user:8")
    site.policy.closed["k"] = "VERSION_CANCELLED"
    answer = site.request("PUT", "/locks/hold?key=k", {"takeover_reason": "now"})

    assert answer.status_code == 409
    problem = answer.json()
    assert (problem["code"], problem["key"], problem["detail"]) == (
        "VERSION_CANCELLED",
        "k",
        "k is closed",
    )
    assert problem["current"]["holder_name"] == "Bo"
    assert site.ledger.history("k")[-1].holder == "user:8"


def test_a_free_lock_that_may_not_be_taken_has_no_current_hold(site: Site) -> None:
    site.policy.closed["k"] = "VERSION_CANCELLED"
    problem = site.call("take").json()

    assert (problem["code"], problem["current"]) == ("VERSION_CANCELLED", None)


def test_another_token_than_expected_is_412_with_the_actual_hold(site: Site) -> None:
    held = site.ledger.take("k", "user:8")
    answer = site.request(
        "PUT", "/locks/hold?key=k", {"takeover_reason": "now", "expected_token": held.token + 1}
    )

    assert (answer.status_code, answer.json()["code"]) == (412, "HOLD_CHANGED")
    assert answer.json()["current"]["token"] == held.token
    assert answer.headers["content-type"] == PROBLEM


def test_a_takeover_of_the_expected_hold_succeeds(site: Site) -> None:
    held = site.ledger.take("k", "user:8")
    body = {"takeover_reason": "now", "expected_token": held.token}

    assert site.request("PUT", "/locks/hold?key=k", body).status_code == 201


def test_a_free_lock_is_told_as_such_when_another_token_was_expected(site: Site) -> None:
    answer = site.request("PUT", "/locks/hold?key=k", {"expected_token": 5})

    assert (answer.status_code, answer.json()["current"]) == (412, None)


def test_a_ttl_in_seconds_runs_from_the_grant(site: Site) -> None:
    told = site.request("PUT", "/locks/hold?key=k", {"ttl": 0.5}).json()

    assert instant(told["expires_at"]) - instant(told["taken_at"]) == timedelta(seconds=0.5)


def test_a_ttl_may_be_an_instant(site: Site) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    told = site.request("PUT", "/locks/hold?key=k", {"ttl": until.isoformat()}).json()

    assert instant(told["expires_at"]) == until


BAD_BODIES: dict[str, tuple[Any, str | None]] = {
    "zero": ({"ttl": 0}, "INVALID_TTL"),
    "negative": ({"ttl": -1}, "INVALID_TTL"),
    "too long": ({"ttl": 3_200_000_000}, "INVALID_TTL"),
    "immense": ({"ttl": 10**400}, "INVALID_TTL"),
    "naive instant": ({"ttl": "2126-01-01T00:00:00"}, "INVALID_TTL"),
    "past instant": ({"ttl": "2001-01-01T00:00:00Z"}, "INVALID_TTL"),
    "boolean": ({"ttl": True}, None),
    "seconds in a text": ({"ttl": "60"}, None),
    "an object": ({"ttl": {}}, None),
    "reason too long": ({"takeover_reason": "x" * 2001}, "INVALID_REASON"),
    "reason with control characters": ({"takeover_reason": "a\x00b"}, "INVALID_REASON"),
    "reason of another type": ({"takeover_reason": 5}, None),
    "token of another type": ({"expected_token": "1"}, None),
    "boolean token": ({"expected_token": True}, None),
    "negative token": ({"expected_token": -1}, None),
    "token beyond 64 bits": ({"expected_token": 2**63}, None),
    "unknown field": ({"ttl": 1, "if_mine": "replace"}, None),
    "a list": ([], None),
}


def test_bad_input_is_422_and_changes_nothing(site: Site) -> None:
    """With our code in a problem where the ledger refuses it, else in the application's own form."""
    for what, (body, code) in BAD_BODIES.items():
        answer = site.request("PUT", "/locks/hold?key=k", body)

        assert answer.status_code == 422, what
        if code is None:
            assert answer.headers["content-type"] == "application/json", what
            assert answer.json()["detail"][0]["loc"][0] == "body", what
        else:
            assert answer.headers["content-type"] == PROBLEM, what
            assert (answer.json()["code"], answer.json()["key"]) == (code, "k"), what
    assert not site.ledger.is_locked("k")


def test_a_ttl_that_is_refused_is_told_in_words_for_every_face(site: Site) -> None:
    for method, address in (("PUT", "/locks/hold?key=k"), ("POST", "/locks/hold/extension?key=k")):
        told = site.request(method, address, {"ttl": 0}).json()["detail"]
        assert told.endswith("; a hold that never expires is taken without a ttl")


BAD_JSON = {
    "not a number": b'{"expected_token": NaN}',
    "a field twice": b'{"ttl": 60, "ttl": 60}',
    "a field twice, within": b'{"ttl": {"a": 1, "a": 2}}',
    "infinity": b'{"ttl": Infinity}',
    "too large": b'{"expected_token": 1e999}',
    "half a surrogate": b'{"takeover_reason": "\\ud800"}',
    "half a surrogate as a name": b'{"\\ud800": 1}',
    "not UTF-8": b'{"takeover_reason": "\xff"}',
    "cut off": b'{"ttl": 1',
    "nested without end": b"[" * 50_000,
    "digits without end": b'{"expected_token": ' + b"9" * 5000 + b"}",
}


def test_what_is_no_json_is_422(site: Site) -> None:
    json = {"content-type": "application/json"}
    for what, content in BAD_JSON.items():
        answer = site.request("PUT", "/locks/hold?key=k", content=content, headers=json)
        assert answer.status_code == 422, what
    assert not site.ledger.is_locked("k")


def test_a_number_of_too_many_digits_is_told_in_our_words(site: Site) -> None:
    json = {"content-type": "application/json"}
    for number in (b"9" * 5000, b"-" + b"9" * 5000):
        content = b'{"expected_token": ' + number + b"}"
        answer = site.request("PUT", "/locks/hold?key=k", content=content, headers=json)
        assert "a number has too many digits; write it as a text" in answer.text
        assert "sys." not in answer.text


def test_an_expired_hold_does_not_block(site: Site) -> None:
    site.ledger.take("k", "user:8", ttl=0.01)

    def free() -> bool:
        return not site.ledger.is_locked("k")

    while not free():
        pass
    assert site.call("take").status_code == 201


def test_the_hold_that_is_in_the_way_is_the_one_that_was_asked_about(site: Site) -> None:
    held = site.ledger.take("k", "user:8")
    site.call("take")

    assert site.asked == [("user:7", "take", "k", Hold(**held.model_dump(exclude={"created"})))]
