"""The auditors' how-to, run as it stands."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "prove-it.md"


def test_the_examples_run_from_top_to_bottom(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "how_to"}
    for example in re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        exec(compile(example, PAGE.name, "exec"), names)
    assert capsys.readouterr().out == (
        "2 events proven, up to position 2\n"
        "checkpoint: position 1: expected the 2 events that were at positions 1 to 2, found 0 events\n"
    )
    names["ledger"].close()
    names.clear()
    gc.collect()
