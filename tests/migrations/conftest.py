"""Databases of one kind without a schema, for what only that kind has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.databases import POSTGRES_KINDS, Database, Servers


@pytest.fixture(params=POSTGRES_KINDS)
def empty_postgres_database(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> Iterator[Database]:
    """A database on each PostgreSQL server in turn, without a schema."""
    with servers.database(request.param, tmp_path, migrated=False) as database:
        yield database


@pytest.fixture
def empty_sqlite_database(servers: Servers, tmp_path: Path) -> Iterator[Database]:
    """A SQLite database without a file yet."""
    with servers.database("sqlite", tmp_path, migrated=False) as database:
        yield database
