"""The demonstration, and what the example log must say: one office day, told by the audit trail and drawn."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lockledger.cli.command_log import CommandLog

ROOT = Path(__file__).parents[2]
LOG = ROOT / "docs" / "examples" / "office-day.jsonl"
TOLD = Path(__file__).with_name("office-day.txt")


def told(part: str) -> str:
    """What a command of the demonstration shows."""
    for section in TOLD.read_text(encoding="utf-8").split("\n$ lockledger ")[1:]:
        command, _, shown = section.partition("\n")
        if command.startswith(part):
            return shown.rstrip("\n") + "\n"
    raise LookupError(part)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")
def test_make_demo_shows_holders_audit_trail_and_timeline(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    # What `ready` sets up is what these tests run in.
    command = ["make", "-o", "ready", "demo", f"DEMO={demo}", f"BIN={Path(sys.executable).parent}"]
    for _ in range(2):  # each time from a fresh file
        ran = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            # Not as a part of the make that runs these tests.
            env={name: value for name, value in os.environ.items() if "MAKE" not in name}
            | {"PYTHONIOENCODING": "utf-8"},
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.replace(str(demo), ".demo") == TOLD.read_text(encoding="utf-8")
        assert ran.stderr.startswith("lockledger: 27 commands in ")


def test_the_example_says_the_same_on_every_database(cli: Any) -> None:
    assert cli("apply", str(LOG)).out == told("apply")
    assert cli("holders").out == told("holders")
    assert cli("audit", "--extensions").out == told("audit")
    assert cli("timeline").out == told("timeline")


def test_the_example_is_a_whole_day_of_every_kind_of_event() -> None:
    with LOG.open("rb") as file:
        lines = list(CommandLog(file, LOG.name).lines())
    assert {line.do for line in lines} == {"take", "extend", "release", "force_release"}
    assert {line.at.date() for line in lines} == {datetime(2024, 5, 14, tzinfo=UTC).date()}
    assert all(
        f"{event} " in TOLD.read_text()
        for event in ("LockTakenOver", "LockExpired", "LockExtended", "refused")
    )
