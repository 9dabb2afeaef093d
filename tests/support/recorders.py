"""Recorders of the `eventsourcing` library on a test's database, and events for them that are no lock's.

The fixtures are for a `conftest.py` to import.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from uuid import UUID

import pytest
from eventsourcing.persistence import StoredEvent

from lockledger.eventsourcing import OwnTransactions, SQLAlchemyProcessRecorder
from support.databases import Database
from support.proof import prove

TOPIC = "orders:Order.Placed"
_streams = count(1)


def new_stream() -> UUID:
    """An id that no other stream of the test has; a later one sorts after an earlier one."""
    return UUID(int=next(_streams) << 64)


def event(
    stream: UUID, version: int = 1, *, topic: str = TOPIC, state: bytes = b'{"total":1}'
) -> StoredEvent:
    """An event that is no lock's."""
    return StoredEvent(stream, version, topic, state)


def events(stream: UUID, *versions: int) -> list[StoredEvent]:
    """Events of one stream with these versions."""
    return [event(stream, version) for version in versions]


@pytest.fixture
def transactions(database: Database) -> Iterator[OwnTransactions]:
    """A recorder's own connections; at the end, all tables must agree with the events, and the server's log be clean."""
    transactions = OwnTransactions(database.url)
    yield transactions
    transactions.close()
    prove(database.engine())
    assert database.logged_errors() == []


@pytest.fixture
def recorder(transactions: OwnTransactions) -> SQLAlchemyProcessRecorder:
    """A recorder that does all that recorders do."""
    return SQLAlchemyProcessRecorder(transactions)


def who_waits(database: Database) -> int:
    """The server's process that waits for a lock, as soon as there is one."""
    assert database.server is not None
    waiting = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    with database.server.connect() as connection:
        for _ in range(12_000):
            found = connection.execute(waiting, (database.name,)).fetchone()
            if found is not None:
                return int(found[0])
            connection.execute("SELECT pg_sleep(0.005)")
    raise AssertionError("nobody waits")
