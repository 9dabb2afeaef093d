"""The commands that look back: every option, both outputs, and who held what."""

from __future__ import annotations

from typing import Any

import pytest

from support.ledgers import Ledgers, SettableClock
from support.stories import at

LIVE = [
    *("key", "holder", "token", "taken_at", "expires_at", "taken_over_from", "takeover_reason"),
    "metadata",
]
END = ["ended_at", "ended_by", "end_reason", "ended_by_actor"]


@pytest.fixture
def told(cli: Any, ledgers: Ledgers) -> Any:
    """A story in the past: two locks under one key, a takeover, an extension, a forced end, a hold that ran out."""
    clock = SettableClock()
    ledger = ledgers.open(clock=clock)
    ledger.take("round:5", "run:1")
    clock.set(60)
    ledger.take("round:5:band:2", "run:2", ttl=3600)
    clock.set(120)
    ledger.take("round:5", "run:3", takeover_reason="urgent\nvery", actor="boss")
    clock.set(180)
    ledger.extend("round:5:band:2", "run:2", 7200)
    clock.set(240)
    ledger.take("roundabout", "run:1", ttl=60)
    clock.set(400)
    ledger.force_release("round:5", actor="user:9", reason="holiday")
    return cli


def instant(seconds: float) -> str:
    return at(seconds).isoformat()


def holders(ran: Any) -> list[str]:
    return [line["holder"] for line in ran.lines]


def test_at_an_instant_every_hold_is_shown_as_it_was(told: Any) -> None:
    ran = told("at", instant(150), "--json")
    assert (ran.code, ran.err) == (0, "")
    assert all(list(line) == LIVE for line in ran.lines)
    assert [(line["key"], line["holder"]) for line in ran.lines] == [
        ("round:5", "run:3"),
        ("round:5:band:2", "run:2"),
    ]
    assert ran.lines[1]["expires_at"] == "2026-03-02T10:01:00Z"
    assert told("at", instant(180), "round:5:band:2", "--json").json["expires_at"] == (
        "2026-03-02T11:03:00Z"
    )
    text = told("at", instant(150)).out.splitlines()
    assert text[0].split()[:4] == ["KEY", "HOLDER", "SINCE", "UNTIL"]
    assert text[1].split()[:4] == ["round:5", "run:3", "2026-03-02T09:02:00Z", "no"]
    assert text[1].endswith("run:1            urgent\\nvery")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], ["run:3", "run:2", "run:1"]),
        (["--holder", "run:1"], ["run:1"]),
        (["--key-prefix", "round:5:"], ["run:2"]),
        (["--under", "round:5"], ["run:3", "run:2"]),
        (["--after", "round:5"], ["run:2", "run:1"]),
        (["--limit", "1"], ["run:3"]),
    ],
)
def test_at_can_be_narrowed(told: Any, options: list[str], found: list[str]) -> None:
    assert holders(told("at", instant(250), *options, "--json")) == found


def test_at_of_one_lock_says_when_nobody_held_it(told: Any) -> None:
    for output in ([], ["--json"]):
        ran = told("at", instant(300), "roundabout", *output)
        assert (ran.code, ran.out) == (0, "")
        assert ran.err == "lockledger: nobody held roundabout then\n"
    assert holders(told("at", instant(299.999999), "roundabout", "--json")) == ["run:1"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["2026-03-02T09:00:00"], "has no time zone"),
        (["yesterday"], "is no instant"),
        (
            ["2999-01-01T00:00:00Z"],
            "give an instant that has passed, or ask who holds it now instead",
        ),
        (["2999-01-01T00:00:00Z", "round:5"], "is later than now"),
        ([instant(0), ""], "the key '' is empty"),
        ([instant(0), "round:5", "--holder", "run:1"], "not both"),
        ([instant(0), "round:5", "--limit", "1"], "not both"),
        ([instant(0), "--under", " x"], "surrounded by white space"),
        ([], "Missing argument"),
    ],
)
def test_at_refuses_what_is_no_instant_that_has_passed(
    told: Any, arguments: list[str], fault: str
) -> None:
    ran = told("at", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert fault in ran.err


def test_every_hold_is_shown_with_its_end(told: Any) -> None:
    ran = told("holds", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert all(list(line) == LIVE + END for line in ran.lines)
    assert [(line["holder"], *(line[fact] for fact in END)) for line in ran.lines] == [
        ("run:1", "2026-03-02T09:02:00Z", "takeover", "urgent\nvery", "boss"),
        ("run:3", "2026-03-02T09:06:40Z", "forced", "holiday", "user:9"),
        ("run:2", "2026-03-02T11:03:00Z", "expiry", None, None),
        ("run:1", "2026-03-02T09:05:00Z", "expiry", None, None),
    ]
    text = told("holds").out.splitlines()
    assert text[0].split() == [
        *("KEY", "HOLDER", "FROM", "UNTIL", "ENDED", "BY", "ACTOR", "REASON", "TOKEN")
    ]
    assert "takeover  boss    urgent\\nvery  1" in text[1]


def test_a_hold_that_is_still_live_is_shown_as_held(told: Any) -> None:
    told.done("take", "round:6", "run:9")
    assert "still held" in told("holds", "--key", "round:6").out
    assert told("holds", "--holder", "run:9", "--json").json["ended_at"] is None


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--key", "round:5"], ["run:1", "run:3"]),
        (["--key-prefix", "rounda"], ["run:1"]),
        (["--under", "round:5"], ["run:1", "run:3", "run:2"]),
        (["--holder", "run:1"], ["run:1", "run:1"]),
        (["--since", instant(300)], ["run:3", "run:2"]),
        (["--until", instant(60)], ["run:1"]),
        (["--since", instant(60), "--until", instant(60.000001)], ["run:1", "run:2"]),
        (["--limit", "2"], ["run:1", "run:3"]),
        (["--key", "never"], []),
    ],
)
def test_holds_can_be_narrowed(told: Any, options: list[str], found: list[str]) -> None:
    assert holders(told("holds", *options, "--json")) == found


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--since", "2026-03-02"], "has no time zone"),
        (["--since", instant(2), "--until", instant(1)], "is before since="),
        (["--limit", "0"], "0 is less than 1, the least that it can be"),
        (["--key", "x" * 256], "at most 255"),
    ],
)
def test_holds_refuses_what_selects_nothing_sensible(
    told: Any, options: list[str], fault: str
) -> None:
    ran = told("holds", *options)
    assert (ran.code, ran.out) == (2, "")
    assert fault in ran.err


def test_more_holds_than_a_page_has_are_all_shown(cli: Any, ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    ledger.take_all([f"k:{number:04}" for number in range(1100)], "run:1")
    ledger.release_all(holder="run:1", actor="run:1", reason="done")
    assert len(cli("holds", "--json").lines) == 1100
    grants = ledger.take_all([f"l:{number:04}" for number in range(1100)], "run:1")
    when = max(grant.taken_at for grant in grants)
    assert len(cli("at", when.isoformat(), "--json").lines) == 1100


def test_nobody_having_held_anything_is_an_empty_answer(cli: Any) -> None:
    for command in (["holds"], ["at", instant(0)]):
        for output in ([], ["--json"]):
            ran = cli(*command, *output)
            assert (ran.code, ran.out, ran.err) == (0, "", "")
