"""The how-to pages about time and company, run as they stand."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from support.databases import Database
from support.documents import DOCS, run
from support.proof import prove

URL = "sqlite:///lockledger.db"
SAID = {
    "ttl": ["0 seconds", "-1 seconds", "nan seconds", "timedelta(0)", "days=36526", "2020-01-01"],
    "heartbeats": [
        "takeover by run:42: run 41 hangs",
        "token 6 came after token 8",
        "expiry, now held by run:42",
    ],
    "waiting": ["run:41 has it until 20"],
    "scopes": ["'round:5:band:2' cannot be taken", "'round' cannot", "['round:5', 'round:6']"],
}


@pytest.mark.parametrize("page", SAID)
def test_the_examples_run_from_top_to_bottom(
    empty_database: Database, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    names = run(DOCS / "how-to" / f"{page}.md", instead={URL: empty_database.url})
    lines = capsys.readouterr().out.splitlines()
    names["ledger"].close()
    if "engine" in names:
        names["engine"].dispose()
    names.clear()
    gc.collect()

    assert len(lines) == len(SAID[page])
    for line, said in zip(lines, SAID[page], strict=True):
        assert said in line, line
    prove(empty_database.engine())
    assert empty_database.logged_errors() == []


def test_every_page_is_linked_from_the_front_page() -> None:
    front = (DOCS.parent / "README.md").read_text("utf-8")
    for page in SAID:
        assert f"docs/how-to/{page}.md" in front
        assert Path(DOCS, "how-to", f"{page}.md").exists()
