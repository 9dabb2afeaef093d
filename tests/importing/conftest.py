"""Lock tables of another system, beside a ledger that is to have their past."""

from __future__ import annotations

import pytest

from support.databases import Database
from support.ledgers import (
    SettableClock,
    clock,
    ledger,
    ledgers,
    postgres_ledgers,
    sqlite_ledgers,
)
from support.old_system import OldSystem

__all__ = ["clock", "ledger", "ledgers", "postgres_ledgers", "sqlite_ledgers"]

NOW = 100_000
"""What time the ledger's clock shows, in seconds since T0; the tables' rows are from before."""


@pytest.fixture
def old(database: Database, clock: SettableClock) -> OldSystem:
    """The system before, and the ledger's clock at `NOW`."""
    clock.set(NOW)
    return OldSystem(database)
