"""A recorder inside a caller's open transaction: what it records commits or goes with the caller's own rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from eventsourcing.application import Application, Repository
from eventsourcing.domain import Aggregate
from eventsourcing.persistence import EventStore, IntegrityError, NotSupportedError, Tracking
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from lockledger import configure_sqlite
from lockledger.eventsourcing import (
    OwnTransactions,
    SQLAlchemyApplicationRecorder,
    SQLAlchemyProcessRecorder,
)
from support.databases import Database
from support.hosts import Base, Document
from support.proof import prove
from support.recorders import event, events, new_stream, who_waits

Recorder = SQLAlchemyProcessRecorder


@pytest.fixture(params=["plain", "particular"])
def engine(request: pytest.FixtureRequest, database: Database) -> Engine:
    """A host's engine; also one with options of its own, on SQLite as the documentation says that it should be."""
    engine = database.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (number INTEGER PRIMARY KEY)")
    if request.param == "plain":
        return engine
    if database.dialect == "sqlite":
        return configure_sqlite(database.engine())
    return engine.execution_options(schema_translate_map={"public": "elsewhere"})


def order(session: Session, number: int) -> None:
    session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})


def orders(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT number FROM orders ORDER BY number")).scalars())


def versions(recorder: Recorder, stream: UUID) -> list[int]:
    return [each.originator_version for each in recorder.select_events(stream)]


@pytest.mark.parametrize("commit", [True, False])
def test_events_commit_and_roll_back_with_the_callers_rows(
    recorder: Recorder, engine: Engine, commit: bool
) -> None:
    stream = new_stream()
    with Session(engine) as session:
        order(session, 1)
        bound = recorder.bound_to(session)
        positions = bound.insert_events(events(stream, 0, 1))
        bound.insert_events(events(stream, 2))

        assert versions(bound, stream) == [0, 1, 2]
        assert versions(recorder, stream) == []
        assert positions == [1, 2]
        (session.commit if commit else session.rollback)()

    assert versions(recorder, stream) == ([0, 1, 2] if commit else [])
    assert orders(engine) == ([1] if commit else [])


def test_the_first_statement_of_a_transaction_may_be_an_insert(
    recorder: Recorder, engine: Engine
) -> None:
    stream = new_stream()
    with engine.connect() as connection:
        recorder.bound_to(connection).insert_events(events(stream, 1))
        connection.rollback()
        assert versions(recorder, stream) == []

        recorder.bound_to(connection).insert_events(events(stream, 1))
        connection.commit()

    assert versions(recorder, stream) == [1]


def test_a_conflict_leaves_the_callers_transaction_healthy(
    recorder: Recorder, engine: Engine
) -> None:
    stream, other = new_stream(), new_stream()
    recorder.insert_events(events(stream, 1))
    with Session(engine) as session:
        order(session, 1)
        bound = recorder.bound_to(session)

        for given in (events(stream, 1), [*events(other, 1), *events(stream, 3)]):
            with pytest.raises(IntegrityError):
                bound.insert_events(given)

        order(session, 2)
        bound.insert_events(events(stream, 2))
        session.commit()

    assert orders(engine) == [1, 2]
    assert versions(recorder, stream) == [1, 2]
    assert versions(recorder, other) == []


def test_a_conflict_keeps_no_row_locked(postgres_database: Database) -> None:
    stream, transactions = new_stream(), OwnTransactions(postgres_database.url)
    recorder = SQLAlchemyProcessRecorder(transactions)
    recorder.insert_events(events(stream, 1))
    impatient = OwnTransactions(patient_for(postgres_database, 200))
    with postgres_database.engine().connect() as connection:
        with pytest.raises(IntegrityError):
            recorder.bound_to(connection).insert_events(
                [*events(new_stream(), 1), *events(stream, 1)]
            )

        SQLAlchemyProcessRecorder(impatient).insert_events(events(stream, 2))

        connection.rollback()
    transactions.close()


def patient_for(database: Database, milliseconds: int) -> Engine:
    """An engine whose sessions wait only so long for a lock."""
    return database.engine(connect_args={"options": f"-c lock_timeout={milliseconds}"})


@pytest.mark.parametrize("streams", [1, 2, 20])
def test_a_conflict_that_shows_only_after_a_wait_takes_back_what_the_call_wrote(
    postgres_database: Database, streams: int
) -> None:
    transactions = OwnTransactions(postgres_database.url)
    recorder = SQLAlchemyProcessRecorder(transactions)
    impatient = SQLAlchemyProcessRecorder(OwnTransactions(patient_for(postgres_database, 2000)))
    *others, contested = (new_stream() for _ in range(streams))
    given = [event(each) for each in (*others, contested)]
    engine = postgres_database.engine()
    with engine.connect() as winner, engine.connect() as loser, ThreadPoolExecutor(1) as pool:
        recorder.bound_to(winner).insert_events(events(contested, 1))
        loser.exec_driver_sql("CREATE TABLE orders (number INTEGER)")

        waiting = pool.submit(recorder.bound_to(loser).insert_events, given)
        who_waits(postgres_database)
        winner.commit()

        with pytest.raises(IntegrityError, match="meanwhile"):
            waiting.result(timeout=60)
        for each in (*others, contested):  # no row of theirs is locked
            impatient.insert_events(events(each, len(versions(recorder, each)) + 1))
        loser.commit()

    assert orders(engine) == []
    assert [versions(recorder, each) for each in others] == [[1]] * len(others)
    assert versions(recorder, contested) == [1, 2]
    transactions.close()
    prove(engine)


def test_a_rollback_to_the_callers_savepoint_takes_events_back(
    recorder: Recorder, database: Database
) -> None:
    engine = database.engine()
    if database.dialect == "sqlite":
        configure_sqlite(engine)
    stream = new_stream()
    with engine.begin() as connection:
        bound = recorder.bound_to(connection)
        bound.insert_events(events(stream, 1))
        savepoint = connection.begin_nested()
        bound.insert_events(events(stream, 2))
        savepoint.rollback()
        assert versions(bound, stream) == [1]
        bound.insert_events(events(stream, 2))

    assert versions(recorder, stream) == [1, 2]
    assert [each.originator_version for each in recorder.select_notifications(None, 10)] == [1, 2]


def test_a_sessions_pending_objects_are_not_flushed(recorder: Recorder, engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        pending = Document(id=1, body="draft")
        session.add(pending)

        recorder.bound_to(session).insert_events(events(new_stream(), 1))

        assert pending in session.new
        session.commit()


def test_notifications_are_not_read_in_a_callers_transaction(
    recorder: Recorder, engine: Engine
) -> None:
    with engine.connect() as connection:
        bound = recorder.bound_to(connection)

        with pytest.raises(NotSupportedError, match="not bound to it"):
            bound.select_notifications(None, 10)
        with pytest.raises(NotSupportedError, match="not bound to it"):
            bound.max_notification_id()
        with bound.subscribe() as subscription, pytest.raises(NotSupportedError):
            next(subscription)


def test_tracking_commits_with_the_callers_rows(recorder: Recorder, engine: Engine) -> None:
    with Session(engine) as session:
        bound = recorder.bound_to(session)
        bound.insert_tracking(Tracking("orders", 1))
        bound.insert_events(events(new_stream(), 1), tracking=Tracking("orders", 2))
        with pytest.raises(IntegrityError):
            bound.insert_events(events(new_stream(), 1), tracking=Tracking("orders", 2))
        assert bound.max_tracking_id("orders") == 2
        session.rollback()
        assert recorder.max_tracking_id("orders") is None

        bound.insert_tracking(Tracking("orders", 1))
        session.commit()

    assert recorder.max_tracking_id("orders") == 1


def test_a_connection_that_commits_by_itself_is_refused(
    recorder: Recorder, database: Database
) -> None:
    engine = database.engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(ValueError, match="AUTOCOMMIT"):
        recorder.bound_to(connection)
    with pytest.raises(TypeError, match="Session or Connection"):
        recorder.bound_to(engine)  # type: ignore[arg-type]


def test_many_appends_in_one_transaction_take_one_advisory_lock(
    postgres_database: Database,
) -> None:
    transactions = OwnTransactions(postgres_database.url)
    recorder = SQLAlchemyProcessRecorder(transactions)
    count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    with postgres_database.engine().begin() as connection:
        bound = recorder.bound_to(connection)
        for _ in range(200):
            bound.insert_events([event(new_stream())])
        bound.insert_events([event(new_stream()) for _ in range(600)])

        assert connection.exec_driver_sql(count).scalar() == 1
        assert recorder.select_notifications(None, 10) == []

    assert recorder.max_notification_id() == 800
    transactions.close()


# An application of the library in the caller's transaction.


def application(database: Database) -> Application[UUID]:
    return Application[UUID](
        env={
            "PERSISTENCE_MODULE": "lockledger.eventsourcing",
            "LOCKLEDGER_URL": database.url,
        }
    )


def test_an_application_saves_in_the_transaction_that_it_is_given(
    database: Database, engine: Engine
) -> None:
    with application(database) as app, Session(engine) as session:
        kept, dropped = Aggregate(), Aggregate()

        app.save(kept, connection=session)
        order(session, 1)
        session.commit()
        app.save(dropped, connection=session.connection())
        session.rollback()

        assert kept.id in app.repository
        assert dropped.id not in app.repository


def test_an_application_reads_what_the_transaction_wrote_through_a_bound_recorder(
    database: Database, engine: Engine
) -> None:
    with application(database) as app, engine.connect() as connection:
        aggregate = Aggregate()
        app.save(aggregate, connection=connection)
        assert isinstance(app.recorder, SQLAlchemyApplicationRecorder)

        store = EventStore(app.mapper, app.recorder.bound_to(connection))
        repository = Repository(store)

        assert aggregate.id in repository
        assert aggregate.id not in app.repository
        connection.rollback()
