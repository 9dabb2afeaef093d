"""The commands that change who holds what: every option, both outputs, every exit code."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.ledgers import Ledgers

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
END = ["ended_at", "ended_by", "end_reason", "ended_by_actor"]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_take_says_who_holds_the_lock_since_when_and_until_when(cli: Any) -> None:
    ran = cli("take", "round:5", "run:42")
    assert ran.code == 0
    assert ran.out.startswith("taken: round:5 held by run:42 since 2")
    assert ran.out.endswith("Z without expiry, token 1\n")
    assert ran.err == ""


def test_a_take_gives_the_grant_as_json(cli: Any) -> None:
    grant = cli("take", "round:5", "run:42", "--ttl", "90", "--json").json
    assert list(grant) == [*HOLD, "created"]
    assert grant["created"] is True
    assert instant(grant["expires_at"]) - instant(grant["taken_at"]) == timedelta(seconds=90)
    assert instant(grant["taken_at"]).tzinfo is not None


def test_a_repeated_take_is_done_and_says_so(cli: Any) -> None:
    first = cli("take", "k", "h", "--json").json
    assert cli("take", "k", "h", "--json").json == first | {"created": False}
    assert cli("take", "k", "h").out.startswith("already taken: k held by h since")


def test_a_take_of_anothers_lock_is_refused_with_the_holder(cli: Any, ledgers: Ledgers) -> None:
    cli.done("take", "k", "a")
    before = ledgers.rows()
    ran = cli("take", "k", "b")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("lockledger: 'k' cannot be taken: held by 'a' since ")
    assert ran.err.count("\n") == 1
    assert ledgers.rows() == before


def test_a_refusal_as_json_names_its_code_and_the_hold_in_the_way(cli: Any) -> None:
    grant = cli.done("take", "k", "a", "--json").json
    ran = cli("take", "k", "b", "--json")
    assert (ran.code, ran.out) == (1, "")
    error = json.loads(ran.err)
    assert (error["error"], error["key"]) == ("LOCKED_BY_OTHER", "k")
    assert error["current"] == {name: grant[name] for name in HOLD}


@pytest.mark.parametrize("option", ["--takeover-reason", "--reason"])
def test_a_reason_takes_the_lock_over(cli: Any, option: str) -> None:
    cli.done("take", "k", "a")
    ran = cli("take", "k", "b", option, "  deadline  ", "--json")
    assert ran.code == 0
    assert (ran.json["taken_over_from"], ran.json["takeover_reason"]) == ("a", "deadline")
    assert cli("take", "k", "c", option, "again").out.startswith("taken over from b: k held by c ")


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("30m", 1800),
        ("8h", 28_800),
        ("2d", 172_800),
        ("1w", 604_800),
        ("45s", 45),
        ("1.5", 1.5),
        ("1e3", 1000),
        (".5h", 1800),
    ],
)
def test_a_ttl_is_a_number_of_seconds_or_has_a_unit(cli: Any, ttl: str, seconds: float) -> None:
    grant = cli("take", "k", "h", "--ttl", ttl, "--json").json
    assert instant(grant["expires_at"]) - instant(grant["taken_at"]) == timedelta(seconds=seconds)


def test_a_ttl_may_be_an_instant_with_its_offset(cli: Any) -> None:
    until = (datetime.now(UTC) + timedelta(days=3)).replace(microsecond=0)
    grant = cli("take", "k", "h", "--ttl", until.isoformat(), "--json").json
    assert instant(grant["expires_at"]) == until


@pytest.mark.parametrize(
    ("ttl", "said"),
    [
        (
            "0",
            "more than 0 and at most 100 years; a hold that never expires is taken without a ttl",
        ),
        ("-5", "more than 0"),
        ("1e-9", "more than 0"),
        ("nan", "is no ttl; give seconds"),
        ("inf", "is no ttl; give seconds"),
        *(
            (ttl, "is no ttl; give seconds")
            for ttl in ("1_000", "٥", " 5", "5 ", "1_0h", "٥h", "h")
        ),
        ("9" * 5000, "is no ttl; give seconds"),
        ("1e99", "at most 100 years"),
        ("99999d", "at most 100 years"),
        ("soon", "is no ttl; give seconds"),
        ("", "is no ttl; give seconds"),
        ("2020-01-01T00:00:00+00:00", "has passed"),
        ("2030-01-01T00:00:00", "has no time zone; add its offset"),
        ("2030-01-01", "has no time zone; add its offset"),
        ("2030-13-01T00:00:00Z", "is no instant"),
    ],
)
def test_a_ttl_outside_the_limits_is_bad_input(
    cli: Any, ledgers: Ledgers, ttl: str, said: str
) -> None:
    before = ledgers.rows()
    ran = cli("take", "k", "h", "--ttl", ttl)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert ledgers.rows() == before


def test_if_mine_decides_what_an_own_hold_means(cli: Any) -> None:
    cli.done("take", "k", "h", "--ttl", "60")
    extended = cli("take", "k", "h", "--if-mine", "extend", "--ttl", "600", "--json").json
    assert (extended["token"], extended["created"]) == (1, False)
    refused = cli("take", "k", "h", "--if-mine", "refuse")
    assert (refused.code, "already yours" in refused.err) == (1, True)
    replaced = cli("take", "k", "h", "--if-mine", "replace", "--json").json
    assert (replaced["token"], replaced["created"]) == (3, True)
    assert cli("take", "k", "h", "--if-mine", "return", "--json").json["token"] == 3


def test_an_expected_token_that_is_not_the_holds_is_refused(cli: Any, ledgers: Ledgers) -> None:
    cli.done("take", "k", "a", "--expected-token", "0")
    before = ledgers.rows()
    ran = cli("take", "k", "b", "--reason", "because", "--expected-token", "7")
    assert ran.code == 1
    assert "was expected at token 7" in ran.err
    assert ledgers.rows() == before
    cli.done("take", "k", "b", "--reason", "because", "--expected-token", "1")


def test_actor_and_metadata_are_kept(cli: Any) -> None:
    cli.done("take", "k", "h", "--actor", "boss", "--metadata", '{"ticket": 7}')
    (entry,) = cli("history", "k", "--json").lines
    assert (entry["actor"], entry["holder"], entry["metadata"]) == ("boss", "h", {"ticket": 7})


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ("{", "--metadata is no JSON: "),
        ("[1]", "is no JSON object"),
        ('{"a": 1, "a": 2}', "it says 'a' twice"),
        ('{"a": NaN}', "NaN is no JSON"),
        ('{"a": 1e999}', "which JSON cannot express"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "has too many digits; write it as a text"),
        ('{"a": "' + "x" * 9000 + '"}', "at most 8192"),
    ],
)
def test_bad_metadata_is_bad_input(cli: Any, ledgers: Ledgers, metadata: str, said: str) -> None:
    before = ledgers.rows()
    ran = cli("take", "k", "h", "--metadata", metadata)
    assert ran.code == 2
    assert said in ran.err
    assert ledgers.rows() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("take", "", "h"),
        ("take", " k", "h"),
        ("take", "k" * 256, "h"),
        ("take", "e\u0301", "h"),
        ("take", "k\x1b[31m", "h"),
        ("take", "\udcff", "h"),
        ("take", "k", "h", "--actor", ""),
        ("take", "k", "h", "--reason", "r" * 2001),
        ("take", "k", "h", "--reason", "bell\a"),
        ("take", "k", "h", "--expected-token", "-1"),
        ("take", "k", "h", "--expected-token", "x"),
        ("take", "k", "h", "--if-mine", "maybe"),
        ("take", "k", "h", "--no-such-option"),
        ("take", "k"),
        ("take", "k", "h", "too much"),
        ("release", "k", "h", "--token", "x"),
        ("release", "k", " "),
        ("extend", "k", "h"),
        ("extend", "k", "h", "--ttl", "0"),
        ("force-release", "k"),
        ("force-release", "k", "--actor", "a"),
        ("force-release", "k", "--actor", "a", "--reason", "  "),
        ("force-release", "k", "--actor", "", "--reason", "r"),
        ("no-such-command",),
        ("take", "k", "h", "--ledger", ""),
    ],
)
def test_bad_usage_is_code_2_and_changes_nothing(
    cli: Any, ledgers: Ledgers, arguments: tuple[str, ...]
) -> None:
    before = ledgers.rows()
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err
    assert "Traceback" not in ran.err
    assert "\x1b" not in ran.err
    assert ledgers.rows() == before


def test_a_release_ends_the_hold(cli: Any) -> None:
    cli.done("take", "k", "h")
    ran = cli("release", "k", "h", "--reason", "done", "--actor", "boss", "--metadata", '{"a": 1}')
    assert (ran.code, ran.out) == (0, "released: k\n")
    entry = cli("history", "k", "--json").lines[-1]
    assert (entry["reason"], entry["actor"], entry["metadata"]) == ("done", "boss", {"a": 1})


def test_a_release_of_nothing_is_done(cli: Any) -> None:
    assert cli("release", "k", "h").out == "nothing to release: k is not held\n"
    ran = cli("release", "k", "h", "--json")
    assert (ran.code, ran.json) == (0, {"key": "k", "released": False})


def test_a_release_as_json(cli: Any) -> None:
    cli.done("take", "k", "h")
    assert cli("release", "k", "h", "--json").json == {"key": "k", "released": True}


def test_a_release_of_anothers_hold_or_of_a_lost_one_is_refused(cli: Any, ledgers: Ledgers) -> None:
    cli.done("take", "k", "a")
    before = ledgers.rows()
    another = cli("release", "k", "b")
    lost = cli("release", "k", "a", "--token", "7")
    assert (another.code, lost.code) == (1, 1)
    assert "'k' is not held by 'b': held by 'a'" in another.err
    assert "never had a hold with token 7" in lost.err
    assert ledgers.rows() == before
    cli.done("release", "k", "a", "--token", "1")


def test_a_forced_release_gives_the_hold_with_its_end(cli: Any) -> None:
    cli.done("take", "k", "a")
    ran = cli("force-release", "k", "--actor", "boss", "--reason", "on leave", "--json")
    assert ran.code == 0
    assert list(ran.json) == [*HOLD, *END]
    assert (ran.json["ended_by"], ran.json["ended_by_actor"], ran.json["end_reason"]) == (
        "forced",
        "boss",
        "on leave",
    )
    cli.done("take", "k", "b")
    human = cli(
        "force-release", "k", "--actor", "boss", "--reason", "again", "--metadata", '{"a": 1}'
    )
    assert human.out.startswith("released by force: k held by b since ")
    assert cli("history", "k", "--json").lines[-1]["metadata"] == {"a": 1}


def test_a_forced_release_of_nothing_is_done(cli: Any) -> None:
    force = ("force-release", "k", "--actor", "a", "--reason", "r")
    assert cli(*force).out == "nothing to release: k is not held\n"
    ran = cli(*force, "--json")
    assert (ran.code, ran.json) == (0, None)


def test_a_forced_release_of_another_hold_than_expected_is_refused(
    cli: Any, ledgers: Ledgers
) -> None:
    cli.done("take", "k", "a")
    before = ledgers.rows()
    force = ("force-release", "k", "--actor", "b", "--reason", "r", "--expected-token")
    assert cli(*force, "0").code == 1
    assert ledgers.rows() == before
    assert cli(*force, "1").code == 0


def test_an_extension_moves_the_expiry(cli: Any) -> None:
    taken = cli.done("take", "k", "h", "--ttl", "60", "--json").json
    ran = cli(
        "extend",
        "k",
        "h",
        "--ttl",
        "1h",
        "--token",
        "1",
        "--actor",
        "boss",
        "--metadata",
        '{"a": 1}',
        "--json",
    )
    assert ran.code == 0
    assert instant(ran.json["expires_at"]) > instant(taken["expires_at"]) + timedelta(minutes=50)
    assert ran.json["created"] is False
    assert cli("extend", "k", "h", "--ttl", "1s").out.startswith("extended: k held by h since ")
    (_, entry) = cli("history", "k", "--extensions", "--json").lines
    assert (entry["action"], entry["actor"], entry["metadata"]) == (
        "LockExtended",
        "boss",
        {"a": 1},
    )


def test_an_extension_by_somebody_else_or_of_nothing_is_refused(cli: Any, ledgers: Ledgers) -> None:
    cli.done("take", "k", "a", "--ttl", "60")
    before = ledgers.rows()
    assert cli("extend", "k", "b", "--ttl", "60").code == 1
    assert cli("extend", "k", "a", "--ttl", "60", "--token", "9").code == 1
    assert cli("extend", "free", "a", "--ttl", "60").code == 1
    assert ledgers.rows() == before


def test_ledgers_of_one_database_do_not_see_each_other(cli: Any) -> None:
    cli.done("take", "k", "a", "--ledger", "one")
    cli.done("--ledger", "two", "take", "k", "b")
    assert cli("holders", "--ledger", "one", "--json").json["holder"] == "a"
    assert cli("--ledger", "two", "holders", "--json").json["holder"] == "b"
    assert cli("--ledger", "two", "holders", "--ledger", "one", "--json").json["holder"] == "a"
    assert cli("holders").out == ""
