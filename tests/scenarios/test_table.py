"""The table of scenarios in the documentation and the tests name each other."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "scenarios.md"


def played() -> dict[str, set[str]]:
    """The files in which each scenario is tested."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in HERE.glob("test_*.py"):
        for name in re.findall(r"^def test_(s\d\db?)_", path.read_text("utf-8"), re.MULTILINE):
            found[name.replace("s", "S")].add(path.name)
    return dict(found)


def promised() -> dict[str, set[str]]:
    """The file that the documentation names for each scenario; none for those about other capabilities."""
    found: dict[str, set[str]] = {}
    for part in PAGE.read_text("utf-8").split("\n## ")[1:]:
        files = set(re.findall(r"tests/scenarios/(\w+\.py)", part))
        for scenario in re.findall(r"^\| (S\d\db?) \|", part, re.MULTILINE):
            assert scenario not in found
            found[scenario] = files
    return found


def test_each_scenario_is_tested_where_the_table_says() -> None:
    table = promised()

    assert len(table) == 68
    assert {scenario: files for scenario, files in table.items() if files} == played()
