"""What people named and wrote, or put into the tables, never acts on a terminal, in a log or in a spreadsheet."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lockledger import LockLedger, LockLedgerError
from lockledger.cli.output import safe
from lockledger.cli.program import run
from support.databases import Database
from support.tampering import tamper

ALLOWED = "k\u202etxt\u200b\u2066\u2028=1+1"
"""What a key and a holder may be: letters that turn or hide what is around them, and a formula."""
FORGED = "\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\r\\n"
NAMES = f"""
def names(connection, ids):
    return {{each: "Ann {FORGED}{ALLOWED}" for each in ids}}
"""
COMMANDS = [
    ["holders"],
    ["holds"],
    ["audit", "--extensions"],
    ["history", ALLOWED],
    ["at", "now"],
    ["timeline"],
    ["timeline", "--format", "svg"],
    ["timeline", "--format", "html"],
    ["take", ALLOWED, "another"],
    ["release", ALLOWED, "another"],
    ["extend", ALLOWED, ALLOWED, "--ttl", "1h"],
    ["force-release", ALLOWED, "--actor", ALLOWED, "--reason", ALLOWED],
    ["verify"],
    ["doctor"],
    ["rebuild"],
]
READING = ("holders", "holds", "audit", "history", "at")


@pytest.fixture
def told(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Database:
    """A database with names and texts that are tricks, in a folder where the host's names are found."""
    (tmp_path / "tricky_names.py").write_text(NAMES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LOCKLEDGER_DATABASE", sqlite_database.url)
    monkeypatch.setenv("LOCKLEDGER_NAMES", "tricky_names:names")
    with LockLedger(sqlite_database.url) as ledger:
        ledger.take(ALLOWED, "run:1", metadata={"\x1b]0;t\x07": "\x9b31m\u202e"})
        ledger.take(ALLOWED, ALLOWED, takeover_reason=f"a\n\tb{ALLOWED}", ttl=3600)
        ledger.take("forged", "run:1")
    return sqlite_database


def _is_harmless(text: str) -> bool:
    return all(safe(line) == line for line in text.split("\n"))


def _forge(database: Database) -> None:
    """Control characters where no verb would let them in."""
    forged = "\x1b]0;title\x07\x9b31m\r"
    for table in ("current_holders", "audit_trail"):
        tamper(
            database,
            f"UPDATE lockledger_{table} SET key = '{forged}', holder = '{forged}' WHERE lock_id = :forged",
            forged="forged",
        )


@pytest.mark.parametrize("forged", [False, True])
def test_no_command_prints_what_a_terminal_obeys(
    told: Database, forged: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if forged:
        _forge(told)
    for command in COMMANDS:
        for form in ([], ["--json"]):
            if "--format" in command and form:
                continue
            capsys.readouterr()
            now = datetime.now(UTC).isoformat()
            code = run([now if word == "now" else word for word in (*command, *form)])
            printed = capsys.readouterr()
            assert code in (0, 1, 3), (command, printed.err)
            out = printed.out
            if "--format" in command:  # where names are set apart, and a reason keeps its lines
                out = out.translate(dict.fromkeys(map(ord, "\u2068\u2069\t")))
            assert _is_harmless(out), command
            assert _is_harmless(printed.err), command
            if command[0] in READING:
                assert r"\u202etxt" in printed.out, command


def test_errors_of_any_text_are_one_harmless_line(
    told: Database, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trick = "\x1b]0;t\x07\r\n\u202e\x9b31m"
    log = tmp_path / f"log{trick}"
    log.write_bytes(json.dumps({"at": trick, "do": trick, "key": "k", "holder": "h"}).encode())
    for arguments in (
        ["take", trick, "h"],
        ["take", "k", trick],
        ["take", "k", "h", "--ttl", trick],
        ["take", "k", "h", "--reason", trick],
        ["take", "k", "h", "--metadata", trick],
        ["take", "k", "h", "--actor", trick],
        ["holders", "--ledger", trick],
        ["holders", "--schema", trick],
        ["holders", "--names", trick],
        ["holders", "--database", trick],
        ["holders", "--database", f"sqlite:///{trick}"],
        ["audit", "--since", trick],
        ["audit", "--action", trick],
        ["at", trick],
        ["apply", str(log)],
        ["apply", trick],
        ["import", trick],
        ["import", str(log)],
        ["export", "audit", "--output", f"/nowhere/{trick}"],
        ["timeline", "--output", f"/nowhere/{trick}.svg"],
        ["verify", "--checkpoint", trick],
        ["checkpoint", f"/nowhere/{trick}"],
    ):
        for form in ([], ["--json"]):
            capsys.readouterr()
            assert run([*arguments, *form]) in (2, 4), arguments
            printed = capsys.readouterr()
            assert printed.out == "", arguments
            assert _is_harmless(printed.err), arguments
            assert printed.err.count("\n") == 1, arguments


def test_errors_of_the_library_are_harmless_in_a_log(told: Database) -> None:
    trick = "\x1b]0;t\x07\r\n\u2028\x9b31m"
    with LockLedger(told.url) as ledger:
        calls: list[tuple[str, Any]] = [
            ("key", lambda: ledger.take(trick, "h")),
            ("holder", lambda: ledger.take("k", trick)),
            ("reason", lambda: ledger.take("k", "h", takeover_reason=trick)),
            ("taken", lambda: ledger.take(ALLOWED, "another")),
            ("not held", lambda: ledger.extend(ALLOWED, "another", 60)),
            ("ttl", lambda: ledger.take("k", "h", ttl=trick)),  # type: ignore[arg-type]
            ("metadata", lambda: ledger.take("k", "h", metadata={"a": {trick}})),
            ("action", lambda: ledger.audit_trail(action=trick)),
            ("after", lambda: ledger.holds(after=trick)),
            ("prefix", lambda: ledger.holds(key_prefix=trick + "\0")),
        ]
        for what, call in calls:
            with pytest.raises((LockLedgerError, ValueError, TypeError)) as found:
                call()
            assert not set("\x1b\x07\r\n\u2028\x9b\u202e\u2066") & set(str(found.value)), what


def test_files_keep_every_text_but_for_what_a_terminal_obeys_in_names(
    told: Database, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A file of rows is data, exactly; keys hold nothing that a terminal obeys, and names of people may."""
    for form in ("csv", "jsonl"):
        assert run(["export", "audit", "--format", form]) == 0
        text = capsysbinary.readouterr().out.decode()
        assert "Ann ?]0;title??[2J?31m??" in text
        assert not set("\x1b\x07\x9b") & set(text)
        if form == "jsonl":
            assert not set("\u202e\u2028\u200b\u2066") & set(text)
