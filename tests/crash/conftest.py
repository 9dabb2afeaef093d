"""Crashes: of processes, at each of their steps, and of the database server."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.ledgers import ledgers, postgres_ledgers, sqlite_ledgers
from support.processes import SOAK

__all__ = ["ledgers", "postgres_ledgers", "sqlite_ledgers"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longer rounds may take longer."""
    for item in items:
        if SOAK > 1 and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(120 * SOAK))
