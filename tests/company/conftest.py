"""Time and company: heartbeats, expiry, waiting, many locks, scopes, on every database and in both colours.

`LOCKLEDGER_SOAK=10` makes the rounds of these tests ten times more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockledger import LockLedger
from support.colours import Loop, running_loop
from support.company import COLOURS, Company
from support.hosts import Host, host_on
from support.ledgers import (
    Ledgers,
    SettableClock,
    clock,
    ledgers,
    postgres_ledgers,
    sqlite_ledgers,
)

__all__ = ["clock", "ledgers", "postgres_ledgers", "sqlite_ledgers"]


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    """An event loop for the async ledgers."""
    with running_loop() as loop:
        yield loop


@pytest.fixture(params=COLOURS)
def company(request: pytest.FixtureRequest, ledgers: Ledgers, loop: Loop) -> Iterator[Company]:
    """Ledgers of each colour, on each kind of database."""
    company = Company(ledgers, loop, request.param)
    yield company
    company.close()


@pytest.fixture(params=COLOURS)
def postgres_company(
    request: pytest.FixtureRequest, postgres_ledgers: Ledgers, loop: Loop
) -> Iterator[Company]:
    """Ledgers of each colour on each PostgreSQL server."""
    company = Company(postgres_ledgers, loop, request.param)
    yield company
    company.close()


@pytest.fixture
def ledger(company: Company) -> LockLedger:
    """A ledger of each colour on each kind of database, by the database's clock."""
    return company.open()


@pytest.fixture
def timed(company: Company, clock: SettableClock) -> LockLedger:
    """A ledger of each colour on each kind of database, on the settable clock."""
    return company.open(clock=clock)


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
