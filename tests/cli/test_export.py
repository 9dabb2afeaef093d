"""`lockledger export`: to a file and to standard output, with the filters of the queries."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from lockledger import LockLedger
from lockledger.cli import export
from lockledger.formats import Columns
from support.databases import Database
from support.exports import FORMULA, exported, read
from support.ledgers import SettableClock
from support.stories import T0

NO_COLUMNS: Columns = {}
COMMON = ["--key-prefix", "round", "--since", T0.isoformat()]


@pytest.fixture
def ledger(sqlite_database: Database, lockledger: Any) -> Iterator[LockLedger]:
    """Three locks, one of which is named like a formula; the command line is on the same database."""
    lockledger.on(sqlite_database.url)
    clock = SettableClock()
    ledger = LockLedger(sqlite_database.url, clock=clock)
    for key in ("round:5", "round:5:band:2", FORMULA):
        clock.forward(60)
        ledger.take(key, "run:1", ttl=60)
        ledger.extend(key, "run:1", 120)
        ledger.take(key, "run:2", takeover_reason="urgent", actor="boss")
    ledger.close()
    with LockLedger(sqlite_database.url) as ledger:
        yield ledger


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["audit"], {}),
        (["audit", "--extensions", *COMMON], {"extensions": True, "key_prefix": "round"}),
        (["audit", "--under", "round:5", "--actor", "boss"], {"under": "round:5", "actor": "boss"}),
        (
            ["audit", "--key", FORMULA, "--action", "LockTaken"],
            {"key": FORMULA, "action": "LockTaken"},
        ),
        (["audit", "--until", T0.isoformat()], {"until": T0}),
        (["holds", "--holder", "run:1"], {"holder": "run:1"}),
        (["holds", *COMMON], {"key_prefix": "round", "since": T0}),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_standard_output_gets_what_the_ledger_exports(
    ledger: LockLedger, lockledger: Any, arguments: list[str], wanted: dict[str, Any]
) -> None:
    write = ledger.export_audit_trail if arguments[0] == "audit" else ledger.export_holds
    for options, form in (([], "csv"), (["--json"], "jsonl"), (["--format", "jsonl"], "jsonl")):
        count, data = exported(write, form, **wanted)
        ran = lockledger.done("export", *arguments, *options)
        assert ran.out == data.decode()
        assert ran.err.startswith(f"lockledger: {count} rows in ")
        assert (count == 0) == ("until" in wanted)


def test_a_file_is_written_in_the_format_that_its_name_says(
    ledger: LockLedger, lockledger: Any
) -> None:
    for name, options, form in (
        ("trail.csv", [], "csv"),
        ("trail.JSONL", [], "jsonl"),
        ("trail.parquet", [], "parquet"),
        ("trail", [], "csv"),
        ("trail.txt", ["--format", "jsonl"], "jsonl"),
    ):
        ran = lockledger.done("export", "audit", "--output", name, *options)
        assert ran.out == f"{name}: 6 rows\n"
        assert Path(name).read_bytes() == exported(ledger.export_audit_trail, form)[1]
        ran = lockledger("export", "audit", "--output", name, *options)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.endswith(
            f"{name}: there is one already; name another, or let it be overwritten\n"
        )
        ran = lockledger.done(
            "export", "holds", "--output", name, *options, "--overwrite", "--json"
        )
        assert ran.json == {"file": name, "format": form, "rows": 6}
        assert Path(name).read_bytes() == exported(ledger.export_holds, form)[1]


def test_parquet_goes_through_a_pipe_and_to_no_terminal(
    ledger: LockLedger, lockledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "lockledger", "export", "audit", "--format", "parquet"]
    piped = subprocess.run(command, capture_output=True, check=True).stdout
    assert pyarrow.parquet.read_table(io.BytesIO(piped)).num_rows == 6
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    ran = lockledger(*command[3:])
    assert (ran.code, ran.out) == (2, "")
    assert "name a file with --output, or redirect" in ran.err


def test_names_are_columns_more(ledger: LockLedger, lockledger: Any) -> None:
    Path("host_of_export.py").write_text("def names(c, ids): return {'run:1': 'Ana'}")
    ran = lockledger.done("export", "audit", "--json", "--names", "host_of_export:names")
    taken, taken_over = read("jsonl", ran.out.encode(), NO_COLUMNS)[:2]
    assert (taken["holder_name"], taken["actor_name"]) == ("Ana", "Ana")
    assert (taken_over["previous_holder_name"], taken_over["holder_name"]) == ("Ana", None)


def test_an_interrupt_leaves_no_file(ledger: LockLedger, lockledger: Any) -> None:
    Path("host_of_interrupt.py").write_text("def names(c, ids): raise KeyboardInterrupt")
    ran = lockledger("export", "audit", "--output", "x.csv", "--names", "host_of_interrupt:names")
    assert ran.code == 130
    assert [each.name for each in Path().iterdir() if each.suffix not in (".py", "")] == []


def test_what_cannot_be_is_bad_input(
    ledger: LockLedger, lockledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, said in (
        (
            ["holds", "--actor", "boss", "--extensions"],
            "--actor and --extensions: only for the audit",
        ),
        (["audit", "--action", "Taken"], "use one of LockTaken"),
        (["audit", "--since", "2026-01-01"], "has no time zone"),
        (["events"], "'events' is not one of"),
        (["audit", "--format", "xlsx"], "'xlsx' is not one of"),
        (["audit", "--output", "nowhere/x.csv"], "No such file or directory"),
    ):
        ran = lockledger("export", *arguments)
        assert (ran.code, ran.out) == (2, ""), arguments
        assert said in ran.err
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    ran = lockledger("export", "audit", "--output", "x.parquet")
    assert (ran.code, ran.out) == (2, "")
    assert "pip install 'lockledger[parquet]'" in ran.err
    assert not Path("x.parquet").exists()


def test_progress_is_drawn_on_a_terminal_unless_the_rows_go_there(
    ledger: LockLedger, lockledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(export, "_SECONDS_BETWEEN_DRAWINGS", 0)
    assert "\r" not in lockledger.done("export", "audit").err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "\r6 rows  " in lockledger.done("export", "audit").err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\r" not in lockledger.done("export", "audit").err
    assert "\r6 rows  " in lockledger.done("export", "audit", "--output", "x.csv").err
