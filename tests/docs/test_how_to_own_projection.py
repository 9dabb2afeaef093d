"""The host authors' how-to, run as it stands."""

from __future__ import annotations

import gc
from pathlib import Path

from sqlalchemy import Engine

from support.databases import Database
from support.documents import DOCS, run
from support.proof import prove


def test_the_examples_run_from_top_to_bottom(empty_database: Database, tmp_path: Path) -> None:
    url = "sqlite:///lockledger.db"
    names = run(DOCS / "how-to" / "own-projection.md", instead={url: empty_database.url})
    engine: Engine = names["engine"]
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT key, version, holds, takeovers FROM takeovers")
        assert [tuple(row) for row in rows] == [("version:7", 4, 3, 1)]
    engine.dispose()
    names.clear()
    gc.collect()
    prove(empty_database.engine())
