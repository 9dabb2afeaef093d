"""Another transaction that stands in the way of the ledger's, on a connection below SQLAlchemy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import uuid5

import psycopg

from support.databases import Database
from support.fold import IDS


@contextmanager
def in_the_way(database: Database, *keys: str, ledger: str = "default") -> Iterator[None]:
    """Keeps every append to these locks waiting until the end of the block, and changes nothing.

    On PostgreSQL their head rows are locked, on SQLite the whole file.
    """
    if database.path is not None:
        file = sqlite3.connect(database.path, isolation_level=None)
        file.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            file.execute("ROLLBACK")
            file.close()
        return
    assert database.server is not None
    with psycopg.connect(database.server.dsn(database.name)) as connection:
        locked = connection.execute(
            "SELECT FROM public.lockledger_current_holders WHERE lock_id = ANY(%s) FOR UPDATE",
            ([uuid5(uuid5(IDS, ledger), key) for key in keys],),
        ).rowcount
        assert locked == len(keys), "a lock that was never taken has no row to lock"
        yield
        connection.rollback()


def clock_of(database: Database) -> datetime:
    """What time it is by the clock that the ledger goes by."""
    if database.server is None:
        return datetime.now(UTC)
    with database.server.connect(database.name) as connection:
        found = connection.execute("SELECT clock_timestamp()").fetchone()
    assert found is not None
    now: datetime = found[0]
    return now.astimezone(UTC)
