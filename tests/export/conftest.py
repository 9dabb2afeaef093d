"""Ledgers whose past is exported, on SQLite and on one PostgreSQL: what differs between servers is tested elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.databases import POSTGRES_KINDS, Database, Servers
from support.ledgers import clock, ledger, ledgers

__all__ = ["clock", "ledger", "ledgers"]


@pytest.fixture(params=["sqlite", POSTGRES_KINDS[0]])
def database(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> Iterator[Database]:
    """A migrated database of each of the two kinds in turn."""
    with servers.database(request.param, tmp_path) as database:
        yield database
