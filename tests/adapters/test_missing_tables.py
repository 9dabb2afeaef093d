"""Tables that go while a ledger is open, which has seen them: somebody put another file or an empty database there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from lockledger import LockLedger, Policy
from support.colours import asynchronous, running_loop
from support.databases import Database
from support.verbs import BOUND, GUARD, MANY, READING, WRITING

AT_ONCE: dict[str, Callable[[Any], object]] = {
    "take that waits": lambda ledger: ledger.take("k", "run:2", wait=5),
    "events": lambda ledger: list(ledger.events()),
    "settled_position": lambda ledger: ledger.settled_position(),
    "verify": lambda ledger: ledger.verify(),
    "rebuild": lambda ledger: ledger.rebuild(),
    "checkpoint": lambda ledger: ledger.checkpoint(),
}
NAMES = "display_names"
"""It asks the host alone."""
ALONE = {
    name: verb for name, verb in {**WRITING, **MANY, **READING, **AT_ONCE}.items() if name != NAMES
}
INSIDE = {name: verb for name, verb in {**BOUND, **GUARD}.items() if name != NAMES}


def drop_tables(database: Database) -> None:
    """As whoever puts an empty database in its place; the ledger's connections stay."""
    with database.engine().begin() as connection:
        if database.dialect == "postgresql":
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
            return
        for view in inspect(connection).get_view_names():
            connection.exec_driver_sql(f"DROP VIEW {view}")
        for table in inspect(connection).get_table_names():
            connection.exec_driver_sql(f"DROP TABLE {table}")


@contextmanager
def missing_tables() -> Iterator[None]:
    """The database's own error (S48), with one note of what to do."""
    with pytest.raises(DBAPIError, match="lockledger_") as error:
        yield
    (note,) = error.value.__notes__
    assert "has gone since this ledger looked" in note
    assert "`lockledger doctor`" in note


@pytest.mark.parametrize("verb", ALONE)
def test_a_verb_says_what_to_do_and_goes_on_once_they_are_there(
    empty_database: Database, verb: str
) -> None:
    with LockLedger(empty_database.engine()) as ledger:
        ledger.migrate()
        ledger.take("k", "run:1", ttl=600)
        drop_tables(empty_database)
        with missing_tables():
            ALONE[verb](ledger)
        ledger.migrate()
        assert ledger.take("k", "run:2").token == 1


@pytest.mark.parametrize("verb", INSIDE)
def test_so_does_a_verb_in_a_transaction(empty_database: Database, verb: str) -> None:
    engine = empty_database.engine()
    with LockLedger(engine) as ledger:
        ledger.migrate()
        ledger.take("k", "run:1", ttl=600)
        drop_tables(empty_database)
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
            with missing_tables():
                INSIDE[verb](ledger.using(connection))


def test_so_does_an_async_ledger(empty_database: Database) -> None:
    with running_loop() as loop, asynchronous(loop, empty_database.url) as ledger:
        ledger.migrate()
        ledger.take("k", "run:1", ttl=600)
        drop_tables(empty_database)
        for verb in (WRITING["release"], READING["holder_of"], READING["audit_trail"]):
            with missing_tables():
                verb(ledger)


class OfAHost(Policy[Connection]):
    """Reads a table of the host's."""

    def lock_subject(self, connection: Connection, key: str) -> None:
        connection.exec_driver_sql("SELECT * FROM app_lockledger_events")


def test_a_table_of_the_hosts_that_is_missing_is_the_hosts_affair(empty_database: Database) -> None:
    with LockLedger(empty_database.engine(), policy=OfAHost()) as ledger:
        ledger.migrate()
        with pytest.raises(DBAPIError, match="app_lockledger_events") as error:
            ledger.take("k", "run:1")
        assert not hasattr(error.value, "__notes__")
