"""Several transactions at once: real processes and threads on real databases.

`LOCKLEDGER_SOAK=10` makes the rounds of these tests ten times longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hosts import Host, host_on
from support.ledgers import Ledgers, ledgers, postgres_ledgers, sqlite_ledgers
from support.processes import SOAK

__all__ = ["ledgers", "postgres_ledgers", "sqlite_ledgers"]


@pytest.fixture
def host(ledgers: Ledgers) -> Iterator[Host]:
    """A host on each kind of database in turn."""
    with host_on(ledgers) as host:
        yield host


@pytest.fixture
def postgres_host(postgres_ledgers: Ledgers) -> Iterator[Host]:
    """A host on each PostgreSQL server in turn."""
    with host_on(postgres_ledgers) as host:
        yield host


@pytest.fixture
def sqlite_host(sqlite_ledgers: Ledgers) -> Iterator[Host]:
    """A host on SQLite, with a rightly configured engine."""
    with host_on(sqlite_ledgers) as host:
        yield host


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longer rounds may take longer."""
    for item in items:
        if SOAK > 1 and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(120 * SOAK))
