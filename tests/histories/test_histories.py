"""A few faults on each kind of database; `make histories` makes a thousand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from histories.run import judge
from support.databases import Database, migrate, sqlite_file


@pytest.fixture(params=["sqlite", "postgresql"])
def lasting_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database that a test may lose and find again."""
    if request.param == "postgresql":
        yield request.getfixturevalue("durable_database")
        return
    with sqlite_file(tmp_path / "lockledger.db") as database:
        migrate(database)
        yield database


def test_what_callers_were_told_is_one_history_under_faults(
    lasting_database: Database, tmp_path: Path
) -> None:
    diaries = tmp_path / "diaries"
    diaries.mkdir()
    verdict = judge(lasting_database, diaries, seed=11, faults=25, workers=5)
    assert verdict.wrong == []
    assert sum(verdict.faults.values()) == 25
    assert verdict.told["granted"] > 0
    assert verdict.told["failed"] > 0
