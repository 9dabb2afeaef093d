"""A ledger with every kind of event in it, for tests that prove it, change it and repair it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockledger import LockLedger
from support.databases import Database
from support.forgeries import live
from support.ledgers import SettableClock, ledgers, postgres_ledgers

__all__ = ["clock", "ledger", "ledgers", "postgres_ledgers"]


@pytest.fixture
def clock() -> SettableClock:
    """The clock of `ledger`."""
    return SettableClock()


@pytest.fixture
def ledger(database: Database, clock: SettableClock) -> Iterator[LockLedger]:
    """`k` has lived through everything and is held at version 7; `other` is held at version 3, `free` was released."""
    with LockLedger(database.url, clock=clock) as ledger:
        live(ledger, clock)
        yield ledger
