"""The commands that look: every option, both outputs, and answers of any length."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.ledgers import Ledgers, SettableClock

HOLD = [
    "key",
    "holder",
    "token",
    "taken_at",
    "expires_at",
    "taken_over_from",
    "takeover_reason",
    "metadata",
]
ENTRY = [
    *(
        "position",
        "key",
        "version",
        "action",
        "actor",
        "holder",
        "previous_holder",
        "token",
        "occurred_at",
    ),
    *("recorded_at", "reason", "before", "after", "metadata", "event_hash"),
]


@pytest.fixture
def told(cli: Any, ledgers: Ledgers) -> Any:
    """A short story in the past: two takes under one key, a takeover with a reason, an extension, a release."""
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
    ledger.take("roundabout", "run:1")
    clock.set(300)
    ledger.release("round:5:band:2", "run:2", reason="done")
    return cli


def keys(ran: Any) -> list[str]:
    return [line["key"] for line in ran.lines]


def actions(ran: Any) -> list[str]:
    return [line["action"] for line in ran.lines]


def test_holders_as_json_are_one_object_a_line_by_key(told: Any) -> None:
    ran = told("holders", "--json")
    assert ran.code == 0
    assert keys(ran) == ["round:5", "roundabout"]
    assert all(list(line) == HOLD for line in ran.lines)
    assert ran.lines[0]["taken_at"] == "2026-03-02T09:02:00Z"
    assert ran.lines[0]["takeover_reason"] == "urgent\nvery"


def test_holders_for_people_are_a_table(told: Any) -> None:
    ran = told("holders")
    assert ran.err == ""
    assert ran.out.splitlines() == [
        "KEY         HOLDER  SINCE                 UNTIL      TOKEN  TAKEN OVER FROM  REASON",
        r"round:5     run:3   2026-03-02T09:02:00Z  no expiry  2      run:1            urgent\nvery",
        "roundabout  run:1   2026-03-02T09:04:00Z  no expiry  1      -                -",
    ]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--holder", "run:1"], ["roundabout"]),
        (["--holder", "run:9"], []),
        (["--key-prefix", "round"], ["round:5", "roundabout"]),
        (["--key-prefix", "rounda"], ["roundabout"]),
        (["--under", "round:5"], ["round:5"]),
        (["--after", "round:5"], ["roundabout"]),
        (["--limit", "1"], ["round:5"]),
    ],
)
def test_holders_can_be_narrowed(told: Any, options: list[str], found: list[str]) -> None:
    assert keys(told("holders", *options, "--json")) == found


def test_nobody_holding_anything_is_an_empty_answer(cli: Any) -> None:
    for command in (["holders"], ["audit"], ["timeline"]):
        for output in ([], ["--json"]):
            ran = cli(*command, *output)
            assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_a_hold_that_has_run_out_is_not_shown(cli: Any, ledgers: Ledgers) -> None:
    ledgers.open(clock=lambda: datetime.now(UTC) - timedelta(hours=1)).take("k", "h", ttl=60)
    assert cli("holders").out == ""


def test_a_key_that_was_never_a_lock_is_said_to_be_none(told: Any) -> None:
    ran = told("history", "round:5:ban", "--json")
    assert (ran.code, ran.out) == (0, "")
    assert (
        ran.err == "lockledger: there was never a lock with the key 'round:5:ban' in this ledger\n"
    )
    assert told("history", "round:5", "--json", "--after", "99").err == ""


def test_a_history_tells_what_happened_to_one_lock(told: Any) -> None:
    ran = told("history", "round:5:band:2", "--json")
    assert actions(ran) == ["LockTaken", "LockReleased"]
    assert all(list(line) == ENTRY for line in ran.lines)
    assert list(ran.lines[0]["after"]) == HOLD
    assert ran.lines[0]["before"] is None
    assert actions(told("history", "round:5:band:2", "--extensions", "--json"))[1] == "LockExtended"
    assert told("history", "round:5", "--limit", "1", "--json").json["position"] == 1
    assert told("history", "round:5", "--after", "1", "--json").json["action"] == "LockTakenOver"


def test_a_history_for_people_is_a_table(told: Any) -> None:
    assert told("history", "round:5").out.splitlines() == [
        "POSITION  WHEN                  ACTION         KEY      HOLDER  FROM   ACTOR  TOKEN  UNTIL  REASON",
        "1         2026-03-02T09:00:00Z  LockTaken      round:5  run:1   -      run:1  1      -      -",
        r"3         2026-03-02T09:02:00Z  LockTakenOver  round:5  run:3   run:1  boss   2      -      urgent\nvery",
    ]


@pytest.mark.parametrize(
    ("options", "positions"),
    [
        ([], [1, 2, 3, 5, 6]),
        (["--extensions"], [1, 2, 3, 4, 5, 6]),
        (["--key", "round:5"], [1, 3]),
        (["--key-prefix", "rounda"], [5]),
        (["--under", "round:5"], [1, 2, 3, 6]),
        (["--holder", "run:1"], [1, 3, 5]),
        (["--actor", "boss"], [3]),
        (["--action", "LockExtended"], [4]),
        (["--since", "2026-03-02T09:02:00Z"], [3, 5, 6]),
        (["--until", "2026-03-02T10:02:00+01:00"], [1, 2]),
        (["--since", "2026-03-02T09:01:00Z", "--until", "2026-03-02T09:04:00Z"], [2, 3]),
        (["--after", "3"], [5, 6]),
        (["--limit", "2"], [1, 2]),
        (["--after", "1", "--limit", "2"], [2, 3]),
    ],
)
def test_the_audit_trail_can_be_narrowed(
    told: Any, options: list[str], positions: list[int]
) -> None:
    assert [line["position"] for line in told("audit", *options, "--json").lines] == positions


def test_the_audit_trail_for_people_is_a_table(told: Any) -> None:
    lines = told("audit", "--limit", "2").out.splitlines()
    assert lines[0].split() == [
        "POSITION",
        "WHEN",
        "ACTION",
        "KEY",
        "HOLDER",
        "FROM",
        "ACTOR",
        "TOKEN",
        "UNTIL",
        "REASON",
    ]
    assert lines[2].split() == [
        *("2", "2026-03-02T09:01:00Z", "LockTaken", "round:5:band:2", "run:2", "-", "run:2", "1"),
        *("2026-03-02T10:01:00Z", "-"),
    ]


def test_an_answer_of_many_pages_is_whole(cli: Any, ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    for number in range(2100):
        ledger.take(f"k:{number:04}", "h")
    wanted = [f"k:{number:04}" for number in range(2100)]
    assert keys(cli("holders", "--json")) == wanted
    assert keys(cli("holders", "--json", "--limit", "1500")) == wanted[:1500]
    assert keys(cli("audit", "--json")) == wanted
    assert [line.split()[0] for line in cli("holders").out.splitlines()] == ["KEY", *wanted]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["audit", "--since", "2026-03-02T09:00:00"],
            "--since '2026-03-02T09:00:00' has no time zone; add its offset",
        ),
        (
            ["audit", "--until", "2026-03-02"],
            "--until '2026-03-02' has no time zone; add its offset",
        ),
        (["audit", "--since", "yesterday"], "--since 'yesterday' is no instant; write 2026-"),
        (["timeline", "--since", "2026-03-02T09:00:00"], "has no time zone"),
        (["timeline", "--until", "x"], "is no instant"),
        (["audit", "--action", "LockEaten"], "use one of LockTaken"),
        (["audit", "--key", ""], "the key '' is empty"),
        (["audit", "--holder", " h"], "surrounded by white space"),
        (["history", ""], "the key '' is empty"),
        (["audit", "--under", ""], "under='' is empty; leave it out, or give a key"),
        (["holders", "--limit", "0"], "--limit"),
        (["holders", "--limit", "many"], "--limit"),
        (["holders", "--key-prefix", "\udcff"], "surrogate"),
        (["history", "k", "--after", "-1"], "--after"),
        (["audit", "--after", "99999999999999999999"], "position"),
        (["timeline", "--width", "3"], "--width"),
    ],
)
def test_bad_options_are_bad_input(cli: Any, arguments: list[str], said: str) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


@pytest.mark.parametrize("number", ["1_0", "٥", " 5", "5 ", "5.0", "1e1", "", "9" * 41])
@pytest.mark.parametrize(
    "arguments",
    [
        ["take", "k", "h", "--expected-token"],
        ["release", "k", "h", "--token"],
        ["holders", "--limit"],
        ["audit", "--after"],
        ["timeline", "--limit"],
        ["timeline", "--width"],
        ["sweep", "--limit"],
        ["apply", "log.jsonl", "--from-line"],
    ],
    ids=" ".join,
)
def test_a_whole_number_is_written_in_digits(
    lockledger: Any, arguments: list[str], number: str
) -> None:
    ran = lockledger(*arguments, number)
    assert (ran.code, ran.out) == (2, "")
    assert f"Invalid value for '{arguments[-1]}': {number!a} is no whole number" in ran.err


@pytest.mark.parametrize("number", ["1_0", "٥", " 5", "inf", "nan", "", "1h"])
def test_seconds_are_a_number_as_a_person_writes_it(lockledger: Any, number: str) -> None:
    ran = lockledger("sweep", "--every", number)
    assert (ran.code, ran.out) == (2, "")
    assert f"{number!a} is no number of seconds; write 600 or 1.5" in ran.err


def test_a_schema_of_ones_own_is_used_everywhere(
    cli: Any, ledgers: Ledgers, request: pytest.FixtureRequest
) -> None:
    if ledgers.database.dialect == "sqlite":
        ran = cli("holders", "--schema", "tenant")
        assert ran.code == 2
        assert "SQLite has no schemas" in ran.err
        return
    ledgers.schemas.add("tenant")
    assert cli("holders", "--schema", "tenant").code == 4
    cli.done("migrate", "--schema", "tenant")
    cli.done("--schema", "tenant", "take", "k", "h")
    assert cli("holders", "--schema", "tenant", "--json").json["key"] == "k"
    assert cli("holders").out == ""
    assert cli("doctor", "--schema", "tenant").code == 0
