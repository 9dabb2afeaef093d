"""A ledger with every kind of event in it, for tests that prove it, change it and repair it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockledger import LockLedger
from support.databases import Database
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


def live(ledger: LockLedger, clock: SettableClock) -> None:
    """What happens, the locks taking turns so that their positions alternate."""
    ledger.take("k", "run:1", ttl=60, metadata={"request": "ü"})
    ledger.take("other", "run:1")
    ledger.extend("k", "run:1", 3600)
    ledger.take("free", "run:7")
    ledger.take("k", "run:2", ttl=60, takeover_reason="urgent", actor="user:9")
    ledger.release("other", "run:1", reason="done")
    clock.forward(60)
    ledger.take("k", "run:3", metadata={"n": 1.50})
    ledger.force_release("k", actor="user:9", reason="holiday")
    ledger.take("other", "run:2", ttl=7200)
    ledger.release("free", "run:7")
    ledger.take("k", "run:4", ttl=7200)
