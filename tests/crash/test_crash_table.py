"""The table of crashes in the reference, walked: every operation killed between any two of its writes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from lockledger import LockLedger
from support.crash_table import documented, operations_documented, shown, walk
from support.crashes import OPERATIONS, Place, Site
from support.databases import Kind, Servers

NAMES: dict[Kind, str] = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


class Sites:
    """Sites on one database for all, or each on one of its own, where every key is the same each time."""

    def __init__(self, servers: Servers, kind: Kind, folder: Path, fresh: str) -> None:
        self._servers, self._kind, self._folder, self._fresh = servers, kind, folder, fresh
        self._stack = ExitStack()
        self._shared: Site | None = None

    def __enter__(self) -> Sites:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def site(self, mark: str) -> Site:
        folder = self._folder / mark
        folder.mkdir()
        if self._shared is None or self._fresh:
            self._shared = self._opened(folder)
        site = self._shared
        return replace(site, place=Place(site.place.url, "k" if self._fresh else mark, folder))

    def _opened(self, folder: Path) -> Site:
        database = self._stack.enter_context(
            self._servers.database(self._kind, folder, migrated=self._fresh != "empty")
        )
        ledger = self._stack.enter_context(LockLedger(database.url))
        return Site(Place(database.url, "", folder), ledger, database, database.engine())


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (name, kind)
        for name, operation in OPERATIONS.items()
        for kind in (["sqlite"] if operation.writes_a_file else NAMES)
    ],
)
def test_what_a_process_leaves_that_is_killed_at_any_write(
    servers: Servers, tmp_path: Path, operation: str, kind: Kind
) -> None:
    with Sites(servers, kind, tmp_path, OPERATIONS[operation].fresh) as sites:
        found = walk(operation, sites.site)
    where = "file" if OPERATIONS[operation].writes_a_file else NAMES[kind]
    assert found == documented(operation, where), "\n" + shown(where, found)


def test_the_table_tells_of_nothing_else() -> None:
    assert set(operations_documented()) == set(OPERATIONS)
