"""The report that is committed says what the figures beside it say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmarks.report import written

from support.documents import DOCS

DRAWN = DOCS / "benchmarks"


def test_the_report_is_made_of_the_figures_beside_it(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(DOCS / "benchmarks.md", tmp_path)
    parts = json.loads((DRAWN / "figures.json").read_text())["parts"]
    for part in parts.values():
        for row in part["rows"]:
            assert all(row[name] for name in ("rates", "ms") if name in row)

    written(parts, tmp_path)

    assert (tmp_path / "benchmarks.md").read_text() == (DOCS / "benchmarks.md").read_text()
    drawn = {path.name: path.read_text() for path in (tmp_path / "benchmarks").glob("*.svg")}
    assert drawn == {path.name: path.read_text() for path in DRAWN.glob("*.svg")}
    assert len(drawn) == 7
