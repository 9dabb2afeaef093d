"""Nothing of the host's is disturbed: its objects, its options, its settings, its ways of making sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, event, inspect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.orm.session import JoinTransactionMode

from lockledger import LockedByOther, LockLedgerError
from support.hosts import Document, Host
from support.verbs import BOUND


@pytest.fixture
def session(host: Host) -> Iterator[Session]:
    """A session that has loaded document 1."""
    with host.session() as session:
        host.write(session, 1, "as it was")
        session.commit()
        yield session


@pytest.mark.parametrize("verb", BOUND)
def test_no_verb_touches_the_hosts_objects(host: Host, session: Session, verb: str) -> None:
    host.ledger.take("k", "run:1")
    loaded = session.get_one(Document, 1)
    changed = session.get_one(Document, 1)
    changed.body = "changed, not flushed"
    pending = Document(id=2, body=None)
    session.add(pending)
    heard: list[str] = []
    for name in ("before_flush", "after_flush", "before_commit", "after_rollback"):
        event.listen(session, name, lambda *_, name=name: heard.append(name))

    BOUND[verb](host.ledger.using(session))

    assert heard == []
    assert list(session.new) == [pending]
    assert list(session.dirty) == [changed]
    assert inspect(pending).pending
    assert inspect(loaded).persistent
    assert not inspect(loaded).expired_attributes
    assert loaded.body == "changed, not flushed"
    with pytest.raises(IntegrityError):
        session.flush()
    if host.postgres:
        host.ledgers.may_log_errors = True


def test_a_refusal_does_not_touch_them_either(host: Host, session: Session) -> None:
    host.ledger.take("k", "run:2")
    changed = session.get_one(Document, 1)
    changed.body = "changed"
    session.add(Document(id=2, body="new"))

    with pytest.raises(LockedByOther):
        host.ledger.using(session).take("k", "run:1")

    assert len(session.new) == len(session.dirty) == 1
    session.commit()
    assert host.documents() == {1: "changed", 2: "new"}


def test_an_object_loaded_before_is_not_loaded_again(host: Host, session: Session) -> None:
    document = session.get_one(Document, 1)
    session.expunge(document)
    mine = session.get_one(Document, 1)
    with host.session() as other, other.begin():
        if host.postgres:
            other.connection().exec_driver_sql("UPDATE host_document SET body = 'by another'")

    for call in BOUND.values():
        try:
            call(host.ledger.using(session))
        except LockLedgerError:
            continue

    assert mine.body == "as it was"
    assert list(session.identity_map.keys()) == [inspect(mine).identity_key]


# Options and settings


@pytest.mark.parametrize(
    "options",
    [
        {"stream_results": True},
        {"yield_per": 7},
        {"stream_results": True, "max_row_buffer": 3},
        {"schema_translate_map": {None: "nowhere", "public": "nowhere"}},
        {"logging_token": "host"},
        {"preserve_rowcount": True},
        {"no_parameters": True},
        {"compiled_cache": None},
    ],
    ids=str,
)
def test_every_verb_works_under_the_hosts_options_and_leaves_them(
    host: Host, options: dict[str, Any]
) -> None:
    with host.engine.connect().execution_options(**options) as connection:
        before = dict(connection.get_execution_options())
        bound = host.ledger.using(connection)
        assert bound.take("k", "run:1", ttl=60).created
        for call in BOUND.values():
            try:
                call(bound)
            except LockLedgerError:
                continue
            assert dict(connection.get_execution_options()) == before
        connection.commit()

    assert len(host.ledger.history("k")) > 1


@pytest.mark.parametrize(
    "options",
    [
        {"stream_results": True},
        {"yield_per": 7},
        {"schema_translate_map": {None: "nowhere", "public": "nowhere"}},
    ],
    ids=str,
)
def test_the_verbs_alone_work_under_the_options_of_a_hosts_engine(
    host: Host, options: dict[str, Any]
) -> None:
    engine = host.database.engine(execution_options=options)
    ledger = host.ledgers.open(url_or_engine=engine)

    ledger.take("k", "run:1", ttl=60)
    assert ledger.is_locked("k")
    assert len(ledger.current_holders()) == len(ledger.audit_trail()) == len(list(ledger.events()))
    assert ledger.release_all(under="k", actor="user:9", reason="why") == 1
    with host.session() as session, session.begin():
        ledger.using(session).take("k", "run:2")
    assert engine.get_execution_options() == options


def settings(connection: Connection) -> dict[str, object]:
    """What the connection's settings are."""
    if connection.dialect.name == "postgresql":
        rows = connection.exec_driver_sql("SELECT name, setting FROM pg_settings")
        return {row.name: row.setting for row in rows}
    names = ("busy_timeout", "foreign_keys", "synchronous", "journal_mode", "query_only")
    found = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names}
    driver: Any = connection.connection.driver_connection
    return {**found, "isolation_level": driver.isolation_level, "row_factory": driver.row_factory}


def test_the_sessions_settings_are_the_same_afterwards(host: Host) -> None:
    with host.engine.connect() as connection:
        before = settings(connection)
        level = connection.get_isolation_level()
        connection.rollback()
        for call in BOUND.values():
            try:
                call(host.ledger.using(connection))
            except LockLedgerError:
                continue
        connection.commit()
        assert settings(connection) == before
        assert connection.get_isolation_level() == level
        connection.rollback()


# Ways of making sessions


def test_a_savepoint_of_the_session_works(host: Host, session: Session) -> None:
    bound = host.ledger.using(session)
    with session.begin_nested():
        session.add(Document(id=2, body="kept"))
        bound.take("kept", "run:1")
    nested = session.begin_nested()
    session.add(Document(id=3, body="lost"))
    session.flush()
    bound.take("lost", "run:1")
    nested.rollback()
    session.commit()

    assert [each.key for each in host.ledger.current_holders()] == ["kept"]
    assert set(host.documents()) == {1, 2}


@pytest.mark.parametrize("outer", ["commit", "rollback"])
@pytest.mark.parametrize("inner", ["commit", "rollback"])
def test_a_session_joined_to_a_connection_by_a_savepoint(
    host: Host, inner: str, outer: str
) -> None:
    """What a test suite of a host does, so that each test is rolled back."""
    with host.engine.connect() as connection:
        transaction = connection.begin()
        with Session(bind=connection, join_transaction_mode="create_savepoint") as session:
            session.add(Document(id=1, body="x"))
            host.ledger.using(session).take("k", "run:1")
            getattr(session, inner)()
            assert host.ledger.using(session).is_locked("k") == (inner == "commit")
            assert not host.ledger.is_locked("k")
        getattr(transaction, outer)()

    kept = inner == outer == "commit"
    assert host.ledger.is_locked("k") == kept
    assert set(host.documents()) == ({1} if kept else set())


def test_a_joined_session_goes_on_after_its_rollback(host: Host) -> None:
    with (
        host.engine.begin() as connection,
        Session(bind=connection, join_transaction_mode="create_savepoint") as session,
    ):
        bound = host.ledger.using(session)
        bound.take("a", "run:1")
        session.commit()
        bound.take("b", "run:1")
        session.rollback()
        bound.take("c", "run:1")
        session.commit()

    assert [each.key for each in host.ledger.current_holders()] == ["a", "c"]


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "control_fully"])
def test_the_other_ways_of_joining_work_too(host: Host, mode: JoinTransactionMode) -> None:
    with host.engine.connect() as connection:
        with connection.begin():
            session = Session(bind=connection, join_transaction_mode=mode)
            host.ledger.using(session).take("k", "run:1")
            session.flush()
        session.close()

    assert host.ledger.is_locked("k")


def test_a_scoped_session_is_the_session_of_whoever_asks(host: Host) -> None:
    sessions = scoped_session(sessionmaker(host.engine))
    bound = host.ledger.using(sessions)
    bound.take("k", "run:1")
    sessions().add(Document(id=1, body="x"))
    sessions.commit()
    bound.release("k", "run:1")
    sessions.rollback()
    sessions.remove()

    assert host.ledger.is_locked("k")
    assert set(host.documents()) == {1}
    sessions.remove()


def test_a_session_of_a_sessionmaker_that_begins(host: Host) -> None:
    with sessionmaker(host.engine).begin() as session:
        session.add(Document(id=1, body="x"))
        host.ledger.using(session).take("k", "run:1")

    assert host.ledger.is_locked("k")
    assert set(host.documents()) == {1}


def test_a_session_that_does_not_begin_by_itself_has_to_be_begun(host: Host) -> None:
    with host.session(autobegin=False) as session, session.begin():
        host.ledger.using(session).take("k", "run:1")
    assert host.ledger.is_locked("k")


# A server that is there already need not allow prepared transactions.
@pytest.mark.parametrize("postgres_database", ["postgres"], indirect=True)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_in_two_phases(postgres_host: Host, end: str) -> None:
    host = postgres_host
    with host.session(twophase=True) as session:
        session.add(Document(id=1, body="x"))
        host.ledger.using(session).take("k", "run:1")
        session.flush()
        session.prepare()
        assert not host.ledger.is_locked("k")
        getattr(session, end)()

    assert host.ledger.is_locked("k") == (end == "commit")


def test_what_the_host_does_when_a_commit_has_been_made_is_its_own(host: Host) -> None:
    """The documented way to act on a grant once it is no longer provisional."""
    committed: list[str] = []
    with host.engine.connect() as connection:
        event.listen(connection, "commit", lambda _: committed.append("k"))
        host.ledger.using(connection).take("k", "run:1")
        assert committed == []
        connection.commit()
    assert committed == ["k"]


def test_two_ledgers_share_one_transaction(host: Host) -> None:
    other = host.ledgers.open(name="billing")
    with host.session() as session, session.begin():
        host.ledger.using(session).take("k", "run:1")
        other.using(session).take("k", "run:2")

    ours, theirs = host.ledger.holder_of("k"), other.holder_of("k")
    assert ours is not None
    assert theirs is not None
    assert (ours.holder, theirs.holder) == ("run:1", "run:2")
