"""Files that commands write are there as a whole or not at all, and errors call them what the user called them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.databases import Database


@pytest.fixture
def cli(lockledger: Any, sqlite_database: Database) -> Any:
    lockledger.on(sqlite_database.url)
    lockledger.done("take", "k", "run:1")
    return lockledger


@pytest.mark.parametrize("command", [("checkpoint",), ("export", "audit", "--output")])
def test_a_folder_that_is_missing(cli: Any, command: tuple[str, ...]) -> None:
    ran = cli(*command, "missing/kept.json")
    assert ran.code == 2
    assert "missing/kept.json: No such file or directory" in ran.err
    assert ".part" not in ran.err


def test_a_checkpoint_leaves_a_file_alone_and_nothing_beside_its_own(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.chdir(folder)
    cli.done("checkpoint", "kept.json")
    first = Path("kept.json").read_text()
    ran = cli("checkpoint", "kept.json")
    assert ran.code == 2
    assert "kept.json is there already" in ran.err
    assert Path("kept.json").read_text() == first
    assert [each.name for each in folder.iterdir()] == ["kept.json"]
