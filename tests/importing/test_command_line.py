"""`lockledger import`: the same from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockledger import LockLedger
from lockledger.cli.program import run
from support.databases import Database, sqlite_file
from support.old_system import OldSystem


class CommandLine:
    """Runs commands on the test's database."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        printed = self._capture.readouterr()
        return code, printed.out, printed.err

    def done(self, *arguments: str) -> Any:
        """The JSON of a command that has to succeed."""
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def cli(
    sqlite_database: Database,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[CommandLine]:
    monkeypatch.setenv("LOCKLEDGER_DATABASE", sqlite_database.url)
    monkeypatch.delenv("LOCKLEDGER_NAMES", raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield CommandLine(capsys)
    with LockLedger(sqlite_database.url) as ledger:
        assert ledger.verify().ok


HISTORY = (
    *("--table", "version_lock", "--shape", "history", "--timezone", "UTC"),
    *("--column", "key=version:{version_id}", "--column", "holder=user:{locked_by}"),
    *("--column", "taken_at=locked_at", "--column", "ended_at=released_at"),
    *("--column", "taken_over_from=user:{taken_over_from}", "--column", "reason=reason"),
)


def test_a_table_with_history_in_another_database(cli: CommandLine) -> None:
    with sqlite_file(Path("old.db")) as database:
        old = OldSystem(database)
        old.hold(1, 7, 1, 0, 50)
        old.hold(2, 7, 2, 50, None, taken_over_from=1, reason="1 is ill")
        old.hold(3, 8, 1, 60, 50)
    arguments = (*HISTORY, "--from-url", "sqlite:///old.db")
    dry = cli.done("import", *arguments, "--dry-run")
    assert (dry["dry_run"], dry["locks"], dry["events"], dry["refused_count"]) == (True, 1, 2, 1)
    code, out, err = cli("import", *arguments)
    assert code == 0
    first, *counts = out.splitlines()
    assert first.startswith(
        "row 3 of 'version:8': it ended at 2026-03-02T09:00:50+00:00, before it"
    )
    assert [line.split() for line in counts] == [
        ["rows", "3"],
        ["locks", "1"],
        ["events", "2"],
        ["unchanged", "0"],
        ["refused", "1"],
    ]
    assert "3 rows in" in err
    again = cli.done("import", *arguments)
    assert (again["ok"], again["unchanged"], again["events"]) == (False, 1, 0)
    assert again["refused"][0]["row"] == 3
    held = cli.done("holders")
    assert (held["holder"], held["taken_over_from"]) == ("user:2", "user:1")


def test_a_table_of_live_locks_in_the_same_database(
    cli: CommandLine, sqlite_database: Database
) -> None:
    OldSystem(sqlite_database).lock("round:5", "run:42", 10)
    live = ("--table", "run_lock", "--shape", "live", "--timezone", "UTC", "--source", "pipeline")
    columns = (
        "--column",
        "key=lock_key",
        "--column",
        "holder=owner",
        "--column",
        "taken_at=taken_at",
    )
    assert cli.done("import", *live, *columns)["source"] == "pipeline"
    assert cli.done("holders")["metadata"]["lockledger_import"]["source"] == "pipeline"


def test_an_exported_audit_trail(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.done("take", "k", "run:1", "--ttl", "1h")
    cli.done("extend", "k", "run:1", "--ttl", "2h")
    cli.done("force-release", "k", "--actor", "root", "--reason", "by order")
    cli.done("export", "audit", "--extensions", "--output", "audit.jsonl")
    named = ("--ledger", "copy", "--from-ledger", "default")
    report = cli.done("import", "audit.jsonl", *named)
    assert (report["source"], report["locks"], report["events"]) == ("audit.jsonl", 1, 3)
    with Path("audit.jsonl").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert cli.done("import", "-", *named)["unchanged"] == 1
    code, out, _ = cli("import", "audit.jsonl", "--ledger", "third")
    assert code == 0
    assert out.startswith("row 1 of 'k': version 1 does not have the hash that follows from it")


BAD = {
    (): "name either a file or, with --table, a table to import",
    ("a.jsonl", "--table", "t"): "name either a file",
    ("a.jsonl",): "a.jsonl: No such file or directory",
    ("a.jsonl", "--shape", "live"): "--shape: only with --table",
    ("--table", "t", "--from-ledger", "x"): "--from-ledger: only with a file",
    ("--table", "t"): "--shape is missing: live, or history",
    ("--table", "t", "--shape", "live"): "missing for key, holder, taken_at; write key=COLUMN",
    (
        "--table",
        "t",
        "--shape",
        "live",
        "--column",
        "k",
    ): "write FACT=COLUMN, where the fact is one",
    (*HISTORY, "--column", "key=x"): "key is given twice",
    HISTORY: "there is no table 'version_lock'; there are lockledger_",
    (*HISTORY, "--from-url", "sqlite:///none.db"): "there is no file",
    (*HISTORY, "--from-url", "old.db"): "the database is no URL",
    (*HISTORY, "--timezone", "Mars"): "is no time zone that is known here",
}


def test_bad_input_is_told_and_nothing_is_made(cli: CommandLine) -> None:
    for arguments, why in BAD.items():
        code, out, err = cli("import", *arguments)
        assert (code, out) == (2, ""), arguments
        assert why in err, arguments
    assert list(Path().iterdir()) == []
