"""The contract's tables of `take`, `release`, `extend` and forced releases once more, driven through the async verbs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from contract import test_release, test_take
from contract.test_take import Cell, Row

from lockledger import LockLedger
from support.colours import Loop, asynchronous, running_loop
from support.databases import Database
from support.ledgers import Ledgers, SettableClock, clock, ledger
from support.situations import Told, told

__all__ = ["clock", "ledger"]


class AsyncLedgers(Ledgers):
    """Opens async ledgers, which look like sync ones to who tells the stories."""

    def __init__(self, database: Database, loop: Loop) -> None:
        super().__init__(database)
        self._loop = loop

    def open(self, **options: Any) -> LockLedger:
        opened = asynchronous(
            self._loop, options.pop("url_or_engine", self.database.url), **options
        )
        self._opened.append(opened)
        return opened


@pytest.fixture
def ledgers(database: Database) -> Iterator[Ledgers]:
    """Async ledgers on each kind of database in turn, proven at the end like all others."""
    with running_loop() as loop:
        opened = AsyncLedgers(database, loop)
        yield opened
        opened.close()
    opened.prove()
    assert database.logged_errors() == []


@pytest.fixture
def each(ledger: LockLedger, clock: SettableClock) -> Row:
    """Walks some cells of a row of the table: all of them are walked through the sync verbs, whose code this is too."""

    def walk(row: list[Cell]) -> Iterator[tuple[Cell, Told]]:
        for number, cell in enumerate(row[::7]):
            lock = told(ledger, clock, f"cell:{number} {cell}"[:255], cell.situation)
            yield cell, lock

    return walk


# The stories, which find the fixtures of this module.
globals().update(
    {
        name: story
        for module in (test_take, test_release)
        for name, story in vars(module).items()
        if name.startswith("test_") or name == "tell"
    }
)
