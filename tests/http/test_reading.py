"""`GET /hold`, `/holders` and `/audit`: who holds, and who did what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from lockledger import Hold
from support.sites import Site


def pages(site: Site, address: str, **query: Any) -> list[list[Any]]:
    """All pages of a list, the next one always asked for by `next_after`."""
    found = []
    after: Any = None
    while True:
        given = query if after is None else query | {"after": after}
        answer = site.request("GET", f"{address}?{urlencode(given)}")
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["items"])
        after = answer.json()["next_after"]
        if after is None:
            return found


def keys(items: list[Any]) -> list[str]:
    return [item["key"] for item in items]


def test_a_hold_is_told_with_names(site: Site) -> None:
    held = site.ledger.take("k", "user:8")
    site.ledger.take("k", "user:7", takeover_reason="the deadline", metadata={"request": "r1"})
    answer = site.call("holder_of")

    assert answer.status_code == 200
    told = answer.json()
    assert told["token"] > held.token
    assert (told["holder"], told["holder_name"]) == ("user:7", "Ann")
    assert (told["taken_over_from"], told["previous_holder_name"]) == ("user:8", "Bo")
    assert (told["takeover_reason"], told["metadata"]) == ("the deadline", {"request": "r1"})
    assert "created" not in told


def test_a_free_lock_is_404(site: Site) -> None:
    site.ledger.take("k", "user:8")
    site.ledger.release("k", "user:8")
    answer = site.call("holder_of")

    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    assert "current" not in answer.json()


def test_holders_are_live_holds_by_key(site: Site) -> None:
    for key in ("b", "a", "c"):
        site.ledger.take(key, "user:8")
    site.ledger.release("c", "user:8")
    answer = site.call("current_holders").json()

    assert keys(answer["items"]) == ["a", "b"]
    assert {item["holder_name"] for item in answer["items"]} == {"Bo"}
    assert answer["next_after"] is None


def test_holders_can_be_narrowed(site: Site) -> None:
    for key, holder in (
        ("round:5", "run:1"),
        ("round:5:band:2", "run:2"),
        ("round:50", "run:1"),
        ("other", "run:1"),
    ):
        site.ledger.take(key, holder)

    def asked(**query: str) -> list[str]:
        return keys(pages(site, "/locks/holders", **query)[0])

    assert asked(under="round:5") == ["round:5", "round:5:band:2"]
    assert asked(key_prefix="round:5") == ["round:5", "round:50", "round:5:band:2"]
    assert asked(holder="run:1", key_prefix="round") == ["round:5", "round:50"]
    assert asked(under="nothing") == []


def test_holders_come_in_pages(site: Site) -> None:
    for number in range(5):
        site.ledger.take(f"k{number}", "user:8")

    found = pages(site, "/locks/holders", limit=2)
    assert [keys(page) for page in found] == [["k0", "k1"], ["k2", "k3"], ["k4"]]
    assert [keys(page) for page in pages(site, "/locks/holders", limit=5)] == [
        ["k0", "k1", "k2", "k3", "k4"]
    ]


def test_a_page_holds_a_thousand(site: Site) -> None:
    with site.ledgers.database.engine().begin() as connection:
        bound = site.ledger.using(connection)
        for number in range(1001):
            bound.take(f"k:{number:04}", "user:8")

    assert [len(page) for page in pages(site, "/locks/holders", limit=1000)] == [1000, 1]
    assert [len(page) for page in pages(site, "/locks/audit", limit=1000)] == [1000, 1]
    assert [len(page) for page in pages(site, "/locks/holders")] == [100] * 10 + [1]


def test_holds_are_live_and_ended_ones_with_their_ends(site: Site) -> None:
    site.ledger.take("a", "user:8")
    site.ledger.take("a", "user:7", takeover_reason="the deadline")
    site.ledger.take("b", "user:9")
    site.ledger.force_release("b", actor="user:8", reason="cleaning up")
    [items] = pages(site, "/locks/holds")

    for item, hold in zip(items, site.ledger.holds(), strict=True):
        told = hold.model_dump(mode="json")
        assert {name: item[name] for name in told} == told
    assert [
        (item["key"], item["holder_name"], item["ended_by"], item["actor_name"]) for item in items
    ] == [
        ("a", "Bo", "takeover", "Ann"),
        ("a", "Ann", None, None),
        ("b", None, "forced", "Bo"),
    ]
    assert items[1]["previous_holder_name"] == "Bo"


def test_holds_can_be_narrowed_and_come_in_pages(site: Site) -> None:
    for key in ("round:5", "round:5:band:2", "round:50"):
        for holder in ("run:1", "run:2"):
            site.ledger.take(key, holder)
            site.ledger.release(key, holder)
    ends = [hold.ended_at for hold in site.ledger.holds(key="round:5") if hold.ended_at]

    def asked(**query: Any) -> list[list[tuple[str, str]]]:
        return [
            [(item["key"], item["holder"]) for item in page]
            for page in pages(site, "/locks/holds", **query)
        ]

    everything = [hold.key for hold in site.ledger.holds()]
    assert [key for page in asked(limit=4) for key, _ in page] == everything
    assert [len(page) for page in asked(limit=4)] == [4, 2]
    assert asked(key="round:5") == [[("round:5", "run:1"), ("round:5", "run:2")]]
    assert {key for key, _ in asked(under="round:5")[0]} == {"round:5", "round:5:band:2"}
    assert len(asked(key_prefix="round:50")[0]) == 2
    assert len(asked(holder="run:1")[0]) == 3
    assert asked(key="round:5", until=ends[0].isoformat()) == [[("round:5", "run:1")]]
    assert asked(key="round:5", since=ends[1].isoformat()) == [[]]


def test_the_audit_trail_tells_everything_in_order(site: Site) -> None:
    site.ledger.take("k", "user:8", ttl=60, metadata={"request": "r1"})
    site.ledger.take("k", "user:7", takeover_reason="the deadline")
    site.ledger.extend("k", "user:7", 60)
    site.ledger.force_release("k", actor="user:8", reason="mine again")
    [items] = pages(site, "/locks/audit")

    entries = site.ledger.audit_trail()
    assert [item["action"] for item in items] == ["LockTaken", "LockTakenOver", "LockReleased"]
    for item, entry in zip(items, entries, strict=True):
        told = entry.model_dump(mode="json", exclude={"before", "after"})
        assert {name: item[name] for name in told} == told
    taken, over, forced = items
    assert (taken["before"], taken["after"]["holder"]) == (None, "user:8")
    assert (over["before"]["holder_name"], over["after"]["holder_name"]) == ("Bo", "Ann")
    assert over["after"]["previous_holder_name"] == over["previous_holder_name"] == "Bo"
    assert (over["actor_name"], over["holder_name"], over["reason"]) == (
        "Ann",
        "Ann",
        "the deadline",
    )
    assert (forced["actor_name"], forced["holder_name"], forced["after"]) == ("Bo", "Ann", None)


def test_an_expiry_has_no_actor(site: Site) -> None:
    site.ledger.take("k", "user:8", ttl=0.01)
    while site.ledger.is_locked("k"):
        pass
    site.call("take")
    _, expired, _ = pages(site, "/locks/audit")[0]

    assert expired["action"] == "LockExpired"
    assert (expired["actor"], expired["actor_name"], expired["holder_name"]) == (None, None, "Bo")


def test_the_audit_trail_can_be_narrowed(site: Site) -> None:
    site.ledger.take("round:5", "user:8", ttl=60)
    site.ledger.extend("round:5", "user:8", 600)
    site.ledger.take("round:5:band:2", "user:7")
    site.ledger.take("other", "user:7")
    site.ledger.force_release("other", actor="user:8", reason="why")
    between = site.ledger.history("other")[-1].occurred_at

    def asked(**query: Any) -> list[tuple[str, str]]:
        return [(item["key"], item["action"]) for item in pages(site, "/locks/audit", **query)[0]]

    everything = [
        ("round:5", "LockTaken"),
        ("round:5:band:2", "LockTaken"),
        ("other", "LockTaken"),
        ("other", "LockReleased"),
    ]
    assert asked() == everything
    assert asked(key="other") == everything[2:]
    assert asked(key_prefix="round") == asked(under="round:5") == everything[:2]
    assert asked(holder="user:8") == everything[:1]
    assert asked(actor="user:8") == [everything[0], everything[3]]
    assert asked(action="LockReleased") == everything[3:]
    assert asked(extensions="true", key="round:5") == [everything[0], ("round:5", "LockExtended")]
    assert asked(action="LockExtended") == [("round:5", "LockExtended")]
    assert asked(since=between.isoformat()) == everything[3:]
    assert asked(until=between.isoformat()) == everything[:3]
    assert asked(since=datetime(2999, 1, 1, tzinfo=UTC).isoformat()) == []


@pytest.mark.parametrize("key", [None, "k"])
def test_the_audit_trail_comes_in_pages_by_position(site: Site, key: str | None) -> None:
    for _ in range(3):
        site.ledger.take("k", "user:7")
        site.ledger.release("k", "user:7")
    query = {"limit": 4} if key is None else {"limit": 4, "key": key}
    found = pages(site, "/locks/audit", **query)

    assert [len(page) for page in found] == [4, 2]
    positions = [item["position"] for page in found for item in page]
    assert positions == [entry.position for entry in site.ledger.audit_trail()]


BAD_QUERIES = {
    "no key": ("/locks/hold", None),
    "empty key": ("/locks/hold?key=", "INVALID_KEY"),
    "limit 0": ("/locks/holders?limit=0", None),
    "limit beyond": ("/locks/holders?limit=1001", None),
    "limit no number": ("/locks/audit?limit=x", None),
    "NUL in prefix": ("/locks/holders?key_prefix=%00", None),
    "limit with a separator": ("/locks/holders?limit=1_0", None),
    "limit as a fraction": ("/locks/holds?limit=10.0", None),
    "limit in other digits": ("/locks/audit?limit=%D9%A5", None),
    "NUL in after": ("/locks/holders?after=%00", None),
    "NUL in audit prefix": ("/locks/audit?key_prefix=%00", None),
    "bad under": ("/locks/holders?under=%20a", "INVALID_KEY"),
    "bad holder": ("/locks/holders?holder=%20a", "INVALID_HOLDER"),
    "bad holds key": ("/locks/holds?key=%20a", "INVALID_KEY"),
    "no place among holds": ("/locks/holds?after=k", None),
    "NUL in place": ("/locks/holds?after=%00", None),
    "until before since": (
        "/locks/holds?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z",
        None,
    ),
    "audit until before since": (
        "/locks/audit?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z",
        None,
    ),
    "naive until": ("/locks/holds?until=2026-01-01T00:00:00", None),
    "bad audit key": ("/locks/audit?key=%20a", "INVALID_KEY"),
    "bad audit under": ("/locks/audit?under=%20a", "INVALID_KEY"),
    "bad actor": ("/locks/audit?actor=", "INVALID_HOLDER"),
    "unknown action": ("/locks/audit?action=LockStolen", None),
    "naive since": ("/locks/audit?since=2026-01-01T00:00:00", None),
    "since no instant": ("/locks/audit?since=yesterday", None),
    "since a number": ("/locks/audit?since=1700000000", None),
    "since before time": ("/locks/audit?since=0001-01-01T00:00:00%2B01:00", None),
    "until before time": ("/locks/holds?until=0001-01-01T00:00:00%2B01:00", None),
    "negative position": ("/locks/audit?after=-1", None),
    "position with a separator": ("/locks/audit?after=1_0", None),
    "position as a fraction": ("/locks/audit?after=1.0", None),
    "position beyond 64 bits": (f"/locks/audit?after={2**63}", None),
}


def test_a_bad_query_is_422(site: Site) -> None:
    for what, (address, code) in BAD_QUERIES.items():
        answer = site.request("GET", address)
        assert (answer.status_code, answer.json().get("code")) == (422, code), what


def hidden(*hidden_keys: str) -> Any:
    """A judge that hides these keys, and lets everything else be seen."""
    return lambda principal, verb, key, current: "hide" if key in hidden_keys else "allow"


def test_hidden_holds_are_not_listed(site: Site) -> None:
    for number in range(6):
        site.ledger.take(f"k{number}", "user:8")
    site.judge = hidden("k1", "k2", "k5")
    found = pages(site, "/locks/holders", limit=2)

    assert [keys(page) for page in found] == [["k0", "k3"], ["k4"]]


def test_where_the_next_page_begins_tells_nothing_of_what_is_hidden(site: Site) -> None:
    for key in ("a", "b", "hidden"):
        site.ledger.take(key, "user:8")
    site.judge = hidden("hidden")

    for limit in (1, 2, 3):
        for query in ({}, {"key_prefix": "b"}, {"after": "a"}):
            for page in pages(site, "/locks/holders", limit=limit, **query):
                assert "hidden" not in keys(page)
        for page in pages(site, "/locks/holds", limit=limit):
            assert "hidden" not in keys(page)
    for address in ("/locks/holders", "/locks/holds", "/locks/audit"):
        assert site.request("GET", f"{address}?limit=2").json()["next_after"] is None
    assert site.request("GET", "/locks/holders?key_prefix=hid").json()["items"] == []


def test_names_of_what_is_hidden_are_not_asked_for(site: Site) -> None:
    site.ledger.take("a", "user:7")
    site.ledger.take("hidden", "user:8")
    site.judge = hidden("hidden")
    pages(site, "/locks/holders")
    pages(site, "/locks/holds")
    pages(site, "/locks/audit")

    assert site.named == ["user:7"] * 3


@pytest.mark.parametrize("verdict", ["hide", "forbid"])
def test_audit_entries_are_judged_one_by_one(site: Site, verdict: Any) -> None:
    """Each by the hold that it is about, so that a host may show people their own."""
    site.ledger.take("k", "user:7")
    site.ledger.take("k", "user:8", takeover_reason="why")
    site.ledger.release("k", "user:8")

    def own(principal: str, verb: str, key: str | None, current: Hold | None) -> Any:
        return "allow" if key is None or (current and current.holder == principal) else verdict

    site.judge = own
    [mine] = pages(site, "/locks/audit")
    assert [item["version"] for item in mine] == [1]
    assert pages(site, "/locks/audit", limit=1) == [mine]


def test_many_hidden_holds_are_read_past(site: Site) -> None:
    with site.ledgers.database.engine().begin() as connection:
        bound = site.ledger.using(connection)
        for number in range(1500):
            bound.take(f"hidden:{number}", "user:8")
        bound.take("zebra", "user:8")
    site.judge = lambda principal, verb, key, current: (
        "hide" if key is not None and key.startswith("hidden") else "allow"
    )

    assert [keys(page) for page in pages(site, "/locks/holders", limit=1)] == [["zebra"]]
    assert [keys(page) for page in pages(site, "/locks/audit", limit=1)] == [["zebra"]]
