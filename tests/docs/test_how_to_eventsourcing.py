"""The how-to's examples, run as they stand."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import pytest

from support.databases import Database

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "eventsourcing.md"
URL = "sqlite:///lockledger.db"


def test_the_examples_run_from_top_to_bottom(
    empty_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PERSISTENCE_MODULE", "LOCKLEDGER_URL"):
        monkeypatch.setenv(name, "to be set by the example, and taken back after it")
    examples = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert URL in examples[0]
    names: dict[str, Any] = {"__name__": "how_to"}

    for example in examples:
        exec(compile(example.replace(URL, empty_database.url), PAGE.name, "exec"), names)

    assert capsys.readouterr().out == "rolled back with everything else\n"
    names.clear()
    gc.collect()
