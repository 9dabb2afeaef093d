"""Text on a terminal: what is escaped, how wide it is, how columns line up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import make_url

from lockledger.cli.given import place
from lockledger.cli.output import json_text, padded, print_table, safe, width

UNSAFE = [
    *(chr(code) for code in (*range(32), *range(127, 160))),
    *"\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff",
    *"\ud800\udfff\U000e0001\ue000",
]


@pytest.mark.parametrize("character", UNSAFE, ids=ascii)
def test_what_a_terminal_could_obey_is_escaped(character: str) -> None:
    assert safe(f"a{character}b") == f"a{ascii(character)[1:-1]}b"
    encoded = json_text({"name": f"a{character}b"})
    assert character not in encoded
    assert json.loads(encoded) == {"name": f"a{character}b"}


@pytest.mark.parametrize(
    "text", ["plain", "Grüße", "Ἀθῆναι", "日本語", "می\u200cخواهم", "👩\u200d💻", "a\\b 'c' \"d\""]
)
def test_letters_of_every_script_stay_as_they_are(text: str) -> None:
    assert safe(text) == text
    assert json.loads(json_text(text)) == text


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("", 0), ("ö", 1), ("👍", 2)]
)
def test_a_width_counts_columns_and_not_characters(text: str, columns: int) -> None:
    assert width(text) == columns
    assert width(padded(text, 10)) == 10


def test_columns_line_up_whatever_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["A", "B"], [["日本", "x\ny"], ["abcdef", "z"]])
    assert capsys.readouterr().out == "A       B\n日本    x\\ny\nabcdef  z\n"


def test_a_table_without_rows_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["A"], [])
    assert capsys.readouterr().out == ""


def test_a_long_table_widens_where_it_has_to(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["A", "B"], [*[["x", "y"]] * 1000, ["longer", "y"]])
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[1000], lines[1001]) == ("A  B", "x  y", "longer  y")


def test_keys_holders_and_reasons_come_out_escaped(cli: Any) -> None:
    trick = "k\u202ecod.exe"
    cli.done("take", trick, "h\u2028h", "--metadata", '{"a": "\\u009b31m"}')
    ran = cli("take", trick, "other")
    everything = "".join(
        cli(*command, *form).out
        for command in (
            ["holders"],
            ["audit"],
            ["history", trick],
            ["timeline"],
            ["take", trick, "h\u2028h"],
        )
        for form in ([], ["--json"])
    )
    for character in "\u202e\u2028\x9b":
        assert character not in everything + ran.err
    assert r"k\u202ecod.exe" in cli("holders").out
    assert cli("holders", "--json").json["key"] == trick


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a.db", "a.db"),
        ("postgresql://u:secret@server/db", "postgresql://server/db"),
        ("postgresql://u@server:5433/db?sslmode=require", "postgresql://server:5433/db"),
        ("postgresql:///db", "postgresql:///db"),
        ("postgresql:///db?host=server&port=5433", "postgresql://server:5433/db"),
        (
            "postgresql+psycopg://u:secret@/db?host=/var/run/postgresql&sslmode=disable",
            "postgresql:///db?host=/var/run/postgresql",
        ),
        ("postgresql://u@:5433/db?host=/run/pg", "postgresql://:5433/db?host=/run/pg"),
        ("postgresql:///db?host=/run/pg&port=5433", "postgresql://:5433/db?host=/run/pg"),
    ],
)
def test_a_database_is_named_so_that_it_can_be_given_again(url: str, shown: str) -> None:
    assert place(make_url(url)) == shown
