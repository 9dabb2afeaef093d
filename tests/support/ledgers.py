"""Ledgers as the tests open them: on a clock that a test sets, closed at its end, and then proven from outside.

The fixtures are for a `conftest.py` to import.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from lockledger import LockLedger
from support.databases import Database
from support.proof import count_rows, prove
from support.stories import T0, at

Rows = dict[str, int]


class SettableClock:
    """A clock that stands where it is put, in seconds since T0."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> datetime:
        return self.now

    def set(self, seconds: float) -> None:
        self.now = at(seconds)

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Ledgers:
    """Opens ledgers on one database, and knows what must be true of it at the end.

    `may_log_errors`: the test makes PostgreSQL itself complain; otherwise its log must stay clean.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.may_log_errors = False
        self.schemas: set[str | None] = {None}
        self._opened: list[LockLedger] = []

    def open(self, **options: Any) -> LockLedger:
        """A ledger on the database's URL, unless `url_or_engine` says otherwise."""
        ledger = LockLedger(options.pop("url_or_engine", self.database.url), **options)
        self.schemas.add(options.get("schema"))
        self._opened.append(ledger)
        return ledger

    def rows(self) -> Rows:
        """How many rows each table has."""
        return count_rows(self.database.engine())

    def close(self) -> None:
        for ledger in self._opened:
            ledger.close()

    def prove(self) -> None:
        """All tables of all schemas agree with a fold over the events."""
        for schema in self.schemas:
            prove(self.database.engine(), schema=schema)


@contextmanager
def proven(database: Database) -> Iterator[Ledgers]:
    """Ledgers on a database whose tables must agree with its events when the test has ended."""
    opened = Ledgers(database)
    try:
        yield opened
    finally:
        opened.close()
    opened.prove()
    if not opened.may_log_errors:
        assert database.logged_errors() == []


@contextmanager
def unchanged(ledgers: Ledgers) -> Iterator[None]:
    """Inside, no table gains or loses a row."""
    before = ledgers.rows()
    yield
    assert ledgers.rows() == before


@pytest.fixture
def clock() -> SettableClock:
    """The clock of `ledger`."""
    return SettableClock()


@pytest.fixture
def ledgers(database: Database) -> Iterator[Ledgers]:
    """Ledgers on each kind of database in turn."""
    with proven(database) as opened:
        yield opened


@pytest.fixture
def ledger(ledgers: Ledgers, clock: SettableClock) -> LockLedger:
    """A ledger on each kind of database in turn, on the settable clock."""
    return ledgers.open(clock=clock)


@pytest.fixture
def postgres_ledgers(postgres_database: Database) -> Iterator[Ledgers]:
    """Ledgers on each PostgreSQL server in turn."""
    with proven(postgres_database) as opened:
        yield opened


@pytest.fixture
def sqlite_ledgers(sqlite_database: Database) -> Iterator[Ledgers]:
    """Ledgers on SQLite."""
    with proven(sqlite_database) as opened:
        yield opened
