"""Display names beside the ids: asked of the host when an answer is made, and never stored."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.ledgers import Ledgers

PEOPLE = """
asked = []

class People:
    @staticmethod
    def names(connection, ids):
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
        asked.append(sorted(ids))
        return {"user:1": "Ana", "user:2": "Ben\\x1b[31m \\u202e", "nobody": "never asked for"}
"""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module of the host's into the current folder, and gives its name."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)

    def written(code: str) -> str:
        name = f"host_{len(list(Path().glob('host_*.py')))}_{abs(hash(code))}"
        Path(f"{name}.py").write_text(code, encoding="utf-8")
        return name

    yield written
    for name in set(sys.modules) - known:
        if name.startswith("host_"):
            del sys.modules[name]


@pytest.fixture
def people(host: Callable[[str], str]) -> str:
    """The name of a module that knows user:1 and user:2."""
    return host(PEOPLE)


@pytest.fixture
def named(cli: Any, people: str) -> Callable[..., Any]:
    """The command line with names; user:1 took a lock over from user:2, and user:3, who did it, has no name."""
    cli.done("take", "k", "user:2")
    cli.done("take", "k", "user:1", "--reason", "urgent", "--actor", "user:3")
    return lambda *arguments: cli(*arguments, "--names", f"{people}:People.names")


def test_names_stand_beside_the_ids_as_json(named: Callable[..., Any]) -> None:
    (hold,) = named("holders", "--json").lines
    assert (hold["holder"], hold["holder_name"]) == ("user:1", "Ana")
    assert list(hold).index("holder_name") == list(hold).index("holder") + 1
    taken, over = named("audit", "--json").lines
    assert (taken["holder_name"], taken["previous_holder_name"], taken["actor_name"]) == (
        "Ben\x1b[31m \u202e",
        None,
        "Ben\x1b[31m \u202e",
    )
    assert (over["holder_name"], over["actor"], over["actor_name"]) == ("Ana", "user:3", None)
    assert over["previous_holder_name"] == "Ben\x1b[31m \u202e"


def test_names_are_asked_once_for_the_distinct_ids_of_an_answer(
    named: Callable[..., Any], people: str
) -> None:
    named("audit", "--json")
    assert sys.modules[people].asked == [["user:1", "user:2", "user:3"]]


def test_names_are_a_column_for_people_and_come_out_escaped(named: Callable[..., Any]) -> None:
    header, row = named("holders").out.splitlines()
    assert header.split()[:3] == ["KEY", "HOLDER", "NAME"]
    assert row.split()[:3] == ["k", "user:1", "Ana"]
    out = named("audit").out
    assert r"Ben\x1b[31m \u202e" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_json_escapes_what_a_terminal_could_obey_and_reads_back_the_same(
    named: Callable[..., Any],
) -> None:
    out = named("audit", "--json").out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert json.loads(out.splitlines()[0])["holder_name"] == "Ben\x1b[31m \u202e"


def test_a_refusal_names_the_holder(named: Callable[..., Any]) -> None:
    ran = named("take", "k", "user:2")
    assert ran.code == 1
    assert ran.err.endswith("; user:1 is Ana\n")
    ran = named("take", "k", "user:2", "--json")
    assert json.loads(ran.err)["current"]["holder_name"] == "Ana"


def test_changes_are_answered_with_names(named: Callable[..., Any]) -> None:
    assert "held by user:3 since" in named("take", "k3", "user:3").out
    assert named("take", "k4", "user:3", "--json").json["holder_name"] is None
    assert "held by user:1 (Ana) since" in named("take", "k5", "user:1").out
    assert named("take", "k6", "user:1", "--json").json["holder_name"] == "Ana"
    forced = named("force-release", "k5", "--actor", "user:2", "--reason", "r", "--json").json
    assert forced["holder_name"] == "Ana"


def test_a_timeline_shows_names(named: Callable[..., Any]) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)  # so that her bar has room for it
    assert " Ana " in named("timeline", "--until", later.isoformat()).out
    assert {each["holder_name"] for each in named("timeline", "--json").lines} == {
        "Ana",
        "Ben\x1b[31m \u202e",
    }


def test_without_names_nothing_is_added(cli: Any) -> None:
    cli.done("take", "k", "h")
    assert not [name for name in cli("audit", "--json").json if name.endswith("_name")]


def test_the_environment_may_name_them(
    cli: Any, people: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.done("take", "k", "user:1")
    monkeypatch.setenv("LOCKLEDGER_NAMES", f"{people}:People.names")
    assert cli("holders", "--json").json["holder_name"] == "Ana"
    monkeypatch.setenv("LOCKLEDGER_NAMES", "")
    assert "holder_name" not in cli("holders", "--json").json


@pytest.mark.parametrize(
    ("code", "target", "said"),
    [
        ("", "{module}", "write module:callable"),
        ("", ":names", "write module:callable"),
        ("", "{module}:", "write module:callable"),
        ("", "no_such_module_anywhere:names", "cannot be loaded: No module named"),
        ("", "{module}:names", "cannot be loaded: "),
        ("names = 7", "{module}:names", "is no callable"),
        ("def names(", "{module}:names", "cannot be loaded: "),
        ("raise RuntimeError('host')", "{module}:names", "cannot be loaded: host"),
        ("def names(connection, ids): return None", "{module}:names", "gave NoneType"),
        (
            "def names(connection, ids): raise KeyError('host')",
            "{module}:names",
            "failed: KeyError: 'host'",
        ),
        ("def names(): return {}", "{module}:names", "failed: TypeError: "),
    ],
)
def test_names_that_cannot_be_had_are_bad_input(
    cli: Any, host: Callable[[str], str], code: str, target: str, said: str
) -> None:
    cli.done("take", "k", "h")
    ran = cli("holders", "--names", target.format(module=host(code)))
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_a_database_error_of_the_hosts_names_is_one_of_the_database(
    cli: Any, ledgers: Ledgers, host: Callable[[str], str]
) -> None:
    ledgers.may_log_errors = True
    cli.done("take", "k", "h")
    module = host(
        "def names(connection, ids): connection.exec_driver_sql('SELECT * FROM no_such_table')"
    )
    ran = cli("holders", "--names", f"{module}:names")
    assert ran.code == 4
    assert "no_such_table" in ran.err


def test_a_refusal_stands_when_names_cannot_be_had(cli: Any, host: Callable[[str], str]) -> None:
    cli.done("take", "k", "h")
    module = host("def names(connection, ids): raise KeyError('host')")
    assert cli("take", "k", "other", "--names", f"{module}:names").code == 1
