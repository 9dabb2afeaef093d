"""The command line as a user runs it: arguments in, exit code and two streams out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockledger.cli.program import run
from support.databases import Database
from support.ledgers import Ledgers, proven


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value on standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON values on standard output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    """Runs commands in this process, on one database."""

    def __init__(self, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capture = capture
        self._patch = patch

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> Ran:
        if stdin is not None:
            given = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)))
            self._patch.setattr(sys, "stdin", given)
        self._capture.readouterr()
        code = run(list(arguments))
        printed = self._capture.readouterr()
        return Ran(code, printed.out, printed.err)

    def on(self, url: str) -> None:
        """From now on the database is this one."""
        self._patch.setenv("LOCKLEDGER_DATABASE", url)

    def done(self, *arguments: str) -> Ran:
        """A command that has to succeed."""
        ran = self(*arguments)
        assert ran.code == 0, ran
        return ran


@pytest.fixture
def lockledger(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandLine:
    """The command line in a folder of its own, with nothing of the developer's environment."""
    for name in ("LOCKLEDGER_DATABASE", "LOCKLEDGER_NAMES"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    # A main thread that a busy machine keeps waiting must not end the process, which is the tests' own.
    monkeypatch.setattr("lockledger.cli.interrupts.GRACE_SECONDS", 300.0)
    return CommandLine(capsys, monkeypatch)


@pytest.fixture
def ledgers(database: Database) -> Iterator[Ledgers]:
    """The test's database, whose tables must agree with its events when the test has ended."""
    with proven(database) as opened:
        yield opened


@pytest.fixture
def cli(lockledger: CommandLine, ledgers: Ledgers) -> CommandLine:
    """The command line on a migrated database of each kind."""
    lockledger.on(ledgers.database.url)
    return lockledger


@pytest.fixture
def process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line in a process of its own."""

    def started(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        environment |= options.pop("env", {})
        command = [sys.executable, "-m", "lockledger", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, **options)

    return started
