"""Hosts: programs with tables of their own that take the ledger into their transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockledger import LockLedger
from support.colours import running_loop
from support.hosts import Host, host_on
from support.ledgers import Ledgers, ledgers, postgres_ledgers, sqlite_ledgers
from support.ways import WAYS, Way, async_engine

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


@pytest.fixture
def ledger(host: Host) -> LockLedger:
    """The ledger of `host`."""
    return host.ledger


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}, {'async' if way[1] else 'sync'}")
def way(request: pytest.FixtureRequest, host: Host) -> Iterator[Way]:
    """Each way of calling the verbs in turn, on `host`."""
    where, asynchronous = request.param
    engine = async_engine(host.database)
    with running_loop() as loop:
        yield Way(host, loop, where, asynchronous, engine)
        loop.run(engine.dispose())
