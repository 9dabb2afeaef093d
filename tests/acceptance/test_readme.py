"""The README's example, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.databases import Database

README = Path(__file__).parents[2] / "README.md"
URL = "sqlite:///locks.db"


def example() -> str:
    (found,) = re.findall(
        r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return str(found)


def run(source: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the example prints, without the instants."""
    exec(compile(source, README.name, "exec"), {"__name__": "readme"})
    said = capsys.readouterr().out
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00:00", "THEN", said).splitlines()


SAID = [
    "held by run:41 until THEN",
    "takeover by run:42: run 41 hangs",
    "THEN LockTaken run:41 None",
    "THEN LockTakenOver run:42 run 41 hangs",
    "THEN LockReleased run:42 None",
]


def test_the_example_runs_in_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run(example(), capsys) == SAID
    assert (tmp_path / "locks.db").exists()


def test_the_example_runs_on_every_database(
    empty_database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    source = example()
    assert URL in source

    assert run(source.replace(URL, empty_database.url), capsys) == SAID


def test_the_example_has_about_twenty_lines() -> None:
    lines = [line for line in example().splitlines() if line.strip()]

    assert 18 <= len(lines) <= 22
