"""The page about imports, run as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.databases import Database
from support.documents import DOCS, run
from support.old_system import OldSystem

URL = "postgresql+psycopg://localhost/host"


def test_bring_your_locks(
    empty_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    old = OldSystem(empty_database)
    old.lock("round:5", "run:42", 10)
    old.lock("round:6", "run:43", 20, 30)
    old.lock("", "run:44", 20)
    old.hold(1, 7, 1, 0, 50)
    old.hold(2, 7, 2, 50, None, taken_over_from=1, reason="1 is ill")
    names = run(
        DOCS / "how-to" / "bring-your-locks.md",
        instead={URL: empty_database.url},
        at_the_end="ledger.close(); moved.close()",
    )
    names.clear()
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == [
        "2 locks imported, 0 there already",
        "row '#3': the key '' is empty",
        "2 rows would become 2 events",
    ]
    assert last.startswith("LockTaken at 2026-03-02, imported at 20")
