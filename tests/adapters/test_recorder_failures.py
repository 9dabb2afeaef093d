"""What goes wrong around a recorder, in the words that users of the `eventsourcing` library know."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from eventsourcing.persistence import (
    ConnectionUnavailableError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy import Engine, QueuePool
from sqlalchemy.exc import DBAPIError

from lockledger import OutcomeUnknown, SchemaMismatch, TamperedLedger
from lockledger.eventsourcing import OwnTransactions, SQLAlchemyProcessRecorder
from support.databases import Database
from support.recorders import event, events, new_stream, who_waits
from support.rows import tables

Recorder = SQLAlchemyProcessRecorder


def test_without_tables_the_remedy_is_named(empty_database: Database) -> None:
    if empty_database.dialect == "sqlite":
        empty_database.engine().connect().close()
    transactions = OwnTransactions(empty_database.url)
    recorder = SQLAlchemyProcessRecorder(transactions)

    with pytest.raises(ProgrammingError, match="lockledger migrate") as refusal:
        recorder.insert_events([event(new_stream())])

    assert isinstance(refusal.value.__cause__, SchemaMismatch)
    transactions.migrate()
    assert recorder.insert_events([event(new_stream())]) == [1]
    transactions.close()
    assert empty_database.logged_errors() == []


def test_a_recorder_whose_connections_are_closed_says_so(
    recorder: Recorder, transactions: OwnTransactions
) -> None:
    transactions.close()
    transactions.close()

    with pytest.raises(InterfaceError, match="closed"):
        recorder.insert_events([event(new_stream())])
    with pytest.raises(InterfaceError, match="closed"):
        recorder.max_notification_id()


def test_a_writer_that_waits_too_long_is_told_that_nothing_was_changed(
    database: Database,
) -> None:
    stream = new_stream()
    transactions = OwnTransactions(impatient(database), busy_timeout=0.2)
    recorder = SQLAlchemyProcessRecorder(transactions)
    with database.engine().connect() as connection:
        recorder.bound_to(connection).insert_events(events(stream, 1))

        with pytest.raises(OperationalError, match="nothing was changed"):
            recorder.insert_events(events(stream, 1))
        connection.rollback()
    assert recorder.select_events(stream) == []
    transactions.close()


def impatient(database: Database) -> Engine:
    """A host's engine, whose sessions wait 0.2 seconds for a lock."""
    if database.dialect == "sqlite":
        return database.engine()
    return database.engine(connect_args={"options": "-c lock_timeout=200"})


def test_tampering_is_named_and_nothing_is_added_to_it(
    recorder: Recorder, database: Database
) -> None:
    stream, ended = new_stream(), new_stream()
    recorder.insert_events([event(stream), event(ended)])
    engine = database.engine()
    with engine.begin() as connection:
        heads = tables(connection).current_holders
        connection.execute(heads.update().where(heads.c.lock_id == stream).values(version=7))
        connection.execute(heads.delete().where(heads.c.lock_id == ended))

    for each, version in ((stream, 2), (stream, 8), (ended, 1), (ended, 2)):
        with pytest.raises(InternalError, match="lockledger doctor") as found:
            recorder.insert_events(events(each, version))
        assert isinstance(found.value.__cause__, TamperedLedger)

    with engine.begin() as connection:  # as it was, for the proof at the end
        connection.execute(heads.update().where(heads.c.lock_id == stream).values(version=1))
        connection.execute(heads.insert().values(lock_id=ended, ledger="default", version=1))


def test_a_database_error_of_another_kind_keeps_its_kind(database: Database) -> None:
    kind = ProgrammingError if database.dialect == "postgresql" else OperationalError
    transactions = OwnTransactions(database.url)
    recorder = SQLAlchemyProcessRecorder(transactions)
    recorder.insert_events([event(new_stream())])
    with database.engine().begin() as connection:
        connection.exec_driver_sql("ALTER TABLE lockledger_events RENAME TO lost")

    with pytest.raises(kind, match="lockledger_events") as refusal:
        recorder.insert_events([event(new_stream())])

    assert isinstance(refusal.value.__cause__, DBAPIError)
    transactions.close()


def test_a_pool_without_a_connection_left_is_an_operational_error(database: Database) -> None:
    engine = database.engine(poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.05)
    recorder = SQLAlchemyProcessRecorder(OwnTransactions(engine))
    with engine.connect(), pytest.raises(ConnectionUnavailableError):
        recorder.insert_events([event(new_stream())])

    assert recorder.insert_events([event(new_stream())]) == [1]


def test_an_unknown_outcome_is_reported_as_such_and_nothing_is_tried_again(
    postgres_database: Database,
) -> None:
    stream, server = new_stream(), postgres_database.server
    assert server is not None
    transactions = OwnTransactions(postgres_database.url)
    recorder = SQLAlchemyProcessRecorder(transactions)
    recorder.insert_events(events(new_stream(), 1))
    with postgres_database.engine().connect() as connection, ThreadPoolExecutor(1) as pool:
        recorder.bound_to(connection).insert_events(events(stream, 1))
        waiting = pool.submit(recorder.insert_events, events(stream, 1))
        with server.connect() as killer:
            killer.execute("SELECT pg_terminate_backend(%s)", (who_waits(postgres_database),))

        with pytest.raises(OperationalError, match="may or may not") as outcome:
            waiting.result(timeout=60)

        connection.rollback()
    assert isinstance(outcome.value.__cause__, OutcomeUnknown)
    assert recorder.select_events(stream) == []
    transactions.close()
