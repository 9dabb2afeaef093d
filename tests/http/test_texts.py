"""Keys and holders of any text survive the way through address, database and answer."""

from __future__ import annotations

from itertools import product
from urllib.parse import quote, urlencode

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockledger.domain.keys import fault_of
from support.sites import Site

KEYS = [
    "a/b",
    "../..",
    "/",
    "//",
    "100%",
    "%2F",
    "a%20b",
    "a b",
    "a+b",
    "a&b=c",
    "key=k&key=l",
    "#fragment",
    "?",
    ";",
    "\\",
    '"',
    "'; DROP TABLE lockledger_events; --",
    "%s",
    ":key",
    "{k}",
    "round:5:band:2",
    "Grün",
    "ключ",
    "鍵",
    "🔒",
    "a\u200bb",
    "\u202eabc",
    "\ufffd",
    "ﬁle",
    "İ",
    "null",
    "x" * 255,
    "😀" * 255,
]


def test_a_key_of_any_text_survives(site: Site) -> None:
    for key in KEYS:
        _survives(site, key)


def _survives(site: Site, key: str) -> None:
    address = f"/locks/hold?key={quote(key, safe='')}"

    assert site.request("PUT", address).json()["key"] == key
    assert site.ledger.is_locked(key)
    assert site.request("GET", address).json()["key"] == key
    assert site.request("PUT", address, user="user:8").json()["current"]["key"] == key
    [entry] = site.request("GET", f"/locks/audit?{urlencode({'key': key})}").json()["items"]
    assert entry["key"] == key
    [hold] = site.request("GET", f"/locks/holds?{urlencode({'key': key})}").json()["items"]
    assert hold["key"] == key
    [hold] = site.request("GET", f"/locks/holders?{urlencode({'under': key})}").json()["items"]
    assert hold["key"] == key
    assert site.request("DELETE", address).status_code == 204
    assert not site.ledger.is_locked(key)


REFUSED = ["", " a", "a ", "\ta", "a\nb", "a\x00b", "\x7f", "e\u0301", "\u00a0a", "x" * 256]


ROUTES_WITH_A_KEY: list[tuple[str, str, dict[str, object] | None]] = [
    ("PUT", "/locks/hold", {}),
    ("GET", "/locks/hold", None),
    ("DELETE", "/locks/hold", None),
    ("POST", "/locks/hold/extension", {"ttl": 60}),
    ("POST", "/locks/hold/forced-release", {"reason": "why"}),
    ("GET", "/locks/holds", None),
    ("GET", "/locks/audit", None),
]


def test_a_key_outside_the_limits_is_422_on_every_route(site: Site) -> None:
    for key, (method, address, body) in product(REFUSED, ROUTES_WITH_A_KEY):
        answer = site.request(method, f"{address}?{urlencode({'key': key})}", body)
        assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_KEY")
    assert site.asked == []


def test_a_key_that_is_not_utf8_is_422(site: Site) -> None:
    """Read leniently, `Gr%FCn` and `Gr%E4n` would be one lock."""
    for address in ("/locks/hold?key=Gr%FCn", "/locks/holders?key_prefix=%E4"):
        answer = site.request("GET", address)
        assert answer.status_code == 422
        assert "should be UTF-8" in answer.json()["detail"][0]["msg"]


def test_a_parameter_that_is_given_twice_is_422(site: Site) -> None:
    """Whoever stood before the router may have judged the other key."""
    for address in ("/locks/hold?key=a&key=b", "/locks/audit?key=a&limit=1&key=a"):
        answer = site.request("GET", address)
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["loc"] == ["query", "key"]
    assert site.request("PUT", "/locks/hold?key=a&trace=1&trace=2").status_code == 201


MISPLACED = [
    ("PUT", "hold?key=k", "ttl", "in the body"),
    ("PUT", "hold?key=k", "token", "in the body"),
    ("PUT", "hold?key=k", "expected_token", "in the body"),
    ("POST", "hold/forced-release?key=k", "expected_token", "in the body"),
    ("DELETE", "hold?key=k", "expected_token", "left out"),
    ("DELETE", "hold?key=k", "reason", "left out"),
    ("GET", "hold?key=k", "token", "left out"),
    ("GET", "holders?limit=1", "key", "left out"),
    ("GET", "holders?limit=1", "since", "left out"),
    ("GET", "holds?limit=1", "actor", "left out"),
    ("GET", "audit?limit=1", "token", "left out"),
]


def test_a_parameter_that_would_be_ignored_is_422(site: Site) -> None:
    """A ttl in the query would be none, and a filter that another list has would select everything."""
    for method, address, name, where in MISPLACED:
        body = {"reason": "why"} if method == "POST" else None
        answer = site.request(method, f"/locks/{address}&{name}=5", body)
        assert answer.status_code == 422, (method, address, name)
        assert answer.json()["detail"][0]["loc"] == ["query", name]
        assert f"should be {where}" in answer.json()["detail"][0]["msg"]
    assert not site.ledger.is_locked("k")


def test_a_holder_of_any_text_survives(bare_site: Site) -> None:
    holders = ["run:42", "O'Brien", "100%", "用户:7", "😀" * 255]
    asking = iter([each for each in holders for _ in range(3)])
    bare_site.mount(principal=lambda: next(asking))
    with bare_site.running() as site:
        for number, holder in enumerate(holders):
            assert site.request("PUT", f"/locks/hold?key={number}").json()["holder"] == holder
            query = urlencode({"holder": holder})
            assert len(site.request("GET", f"/locks/holders?{query}").json()["items"]) == 1
            assert len(site.request("GET", f"/locks/audit?{query}").json()["items"]) == 1


def test_any_valid_text_is_a_key(sqlite_site: Site) -> None:
    site = sqlite_site

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.text(max_size=40).filter(lambda text: fault_of(text) is None))
    def survives(key: str) -> None:
        address = f"/locks/hold?{urlencode({'key': key})}"
        assert site.request("PUT", address).json()["key"] == key
        assert site.request("GET", address).json()["key"] == key

    survives()


def test_reasons_keep_their_lines_and_letters(site: Site) -> None:
    site.ledger.take("k", "user:8")
    reason = "première ligne\n\t— 第二行 🔒"
    told = site.request("PUT", "/locks/hold?key=k", {"takeover_reason": f"  {reason}\n"}).json()

    assert told["takeover_reason"] == reason
    [*_, entry] = site.request("GET", "/locks/audit?key=k").json()["items"]
    assert entry["reason"] == reason
