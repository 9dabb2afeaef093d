"""The event store on PostgreSQL: its sequence, its statements, and servers that it cannot work on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError

from lockledger import LockLedger, SchemaMismatch, TamperedLedger
from support.databases import POSTGRES_KINDS, Database, Servers
from support.hosts import Host, host_on
from support.ledgers import Ledgers, postgres_ledgers
from support.postgres import EmbeddedPostgres
from support.proof import count_rows
from support.roles import role_of

__all__ = ["postgres_ledgers"]


@pytest.fixture
def host(postgres_ledgers: Ledgers) -> Iterator[Host]:
    """A host on each PostgreSQL server in turn."""
    with host_on(postgres_ledgers) as host:
        yield host


def keys(ledger: LockLedger) -> list[str]:
    return [recorded.event.key for recorded in ledger.events()]


# How often the server is asked.


def asked_for(engine: Engine, call: Any) -> list[str]:
    """The first words of what a call asks of the server, commits included."""
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(" ".join(statement.split()[:2]))

    def commits(_connection: Any) -> None:
        asked.append("COMMIT")

    event.listen(engine, "before_cursor_execute", note)
    event.listen(engine, "commit", commits)
    try:
        call()
    finally:
        event.remove(engine, "before_cursor_execute", note)
        event.remove(engine, "commit", commits)
    return asked


LOOK, APPEND = "SELECT clock_timestamp()", "WITH head"


@pytest.mark.usefixtures("unhurried")
def test_a_change_is_one_look_and_one_append_and_a_refusal_one_look(host: Host) -> None:
    engine = host.database.engine()
    other = host.ledgers.open(url_or_engine=engine)
    ledger = host.ledgers.open(url_or_engine=engine)
    other.holder_of("k")
    ledger.holder_of("k")
    first = asked_for(engine, lambda: ledger.take("k", "ann", ttl=60))
    assert first == [LOOK, APPEND]
    once_more = {
        "extension": lambda: other.extend("k", "ann", 120),
        "takeover": lambda: ledger.take("k", "ben", takeover_reason="urgent"),
        "release": lambda: other.release("k", "ben"),
        "take": lambda: ledger.take("k", "ann", ttl=60),
        "forced release": lambda: other.force_release("k", actor="root", reason="order"),
    }
    for name, call in once_more.items():
        assert asked_for(engine, call) == [LOOK, APPEND], name
    ledger.take("k", "ann")
    assert asked_for(engine, lambda: ledger.take("k", "ann")) == [LOOK]
    assert asked_for(engine, lambda: ledger.try_take("k", "ben")) == [LOOK]
    assert asked_for(engine, lambda: ledger.holder_of("k")) == [LOOK]


@pytest.mark.usefixtures("unhurried")
def test_who_goes_on_with_a_hold_that_its_ledger_changed_last_does_not_look(host: Host) -> None:
    engine = host.database.engine()
    ledger = host.ledgers.open(url_or_engine=engine)
    token = ledger.take("k", "ann", ttl=60).token
    time.sleep(0.3)  # longer than any decision is good for: its clock has to go on
    assert asked_for(engine, lambda: ledger.extend("k", "ann", 120)) == [APPEND]
    assert asked_for(engine, lambda: ledger.release("k", "ann", token=token)) == [APPEND]
    assert asked_for(engine, lambda: ledger.take("k", "ann", ttl=60)) == [LOOK, APPEND]
    assert asked_for(engine, lambda: ledger.extend("k", "ann", 1)) == [LOOK]


@pytest.mark.usefixtures("unhurried")
def test_a_hold_that_covers_others_begins_with_a_look(host: Host) -> None:
    engine = host.database.engine()
    ledger = host.ledgers.open(url_or_engine=engine, scopes=True)
    for _ in range(5):
        ledger.take("k", "ann", if_mine="replace")
    asked = asked_for(engine, lambda: ledger.take("k", "ann", if_mine="replace"))
    assert asked[:2] == [LOOK, "BEGIN ISOLATION"]
    assert asked_for(engine, lambda: ledger.release("k", "ann")) == [APPEND]


@pytest.mark.usefixtures("unhurried")
def test_whose_lock_it_was_for_four_changes_in_a_row_does_not_look_to_take_it(host: Host) -> None:
    engine = host.database.engine()
    ledger, other = (host.ledgers.open(url_or_engine=engine) for _ in range(2))
    ledger.holder_of("k")
    for asked in ([LOOK, APPEND], [LOOK, APPEND], [APPEND], [APPEND]):
        assert asked_for(engine, lambda: ledger.take("k", "ann")) == asked
        ledger.release("k", "ann")
    other.take("k", "ben")
    assert asked_for(engine, lambda: ledger.try_take("k", "ann")) == [APPEND, LOOK]
    assert asked_for(engine, lambda: ledger.try_take("k", "ann")) == [LOOK]
    other.release("k", "ben")
    assert asked_for(engine, lambda: ledger.take("k", "ann")) == [LOOK, APPEND]


@pytest.mark.usefixtures("unhurried")
def test_a_change_in_a_callers_transaction_has_a_savepoint_and_a_refusal_has_none(
    host: Host,
) -> None:
    with host.engine.connect() as connection:
        bound = host.ledger.using(connection)
        bound.holder_of("k")
        taken = asked_for(host.engine, lambda: bound.take("k", "ann"))
        assert taken == [LOOK, "SAVEPOINT lockledger_append", APPEND, "RELEASE SAVEPOINT"]
        assert asked_for(host.engine, lambda: bound.try_take("k", "ben")) == [LOOK]
        connection.rollback()


def test_a_subscriber_with_nothing_new_asks_once(host: Host) -> None:
    engine = host.database.engine()
    ledger = host.ledgers.open(url_or_engine=engine)
    ledger.take("k", "ann")
    assert keys(ledger) == ["k"]
    assert len(asked_for(engine, lambda: list(ledger.events(1)))) == 1


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("threshold", "prepared"), [(None, 0), (0, 2), (5, 2)])
def test_the_driver_may_prepare_statements_or_not(
    host: Host, threshold: int | None, prepared: int
) -> None:
    """Behind PgBouncer in transaction mode a host turns it off."""
    engine = host.database.engine(connect_args={"prepare_threshold": threshold}, pool_size=1)
    ledger, other = (host.ledgers.open(url_or_engine=engine) for _ in range(2))
    for turn in range(8):
        host.ledger.take("k", f"run:{turn}:other", ttl=60)
        ledger.take("k", f"run:{turn}", ttl=60, takeover_reason="urgent")
        other.release("k", f"run:{turn}")
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT statement FROM pg_prepared_statements")
        appends = [statement for (statement,) in found if "WITH head" in statement]
    assert len(appends) == prepared


def test_a_call_of_any_age_of_transaction_is_judged_by_the_clock_and_not_by_its_beginning(
    host: Host,
) -> None:
    with host.engine.connect() as connection:
        began = connection.exec_driver_sql("SELECT now()").scalar_one()
        connection.exec_driver_sql("SELECT pg_sleep(0.3)")
        grant = host.ledger.using(connection).take("k", "ann", ttl=60)
        assert grant.taken_at >= began + timedelta(seconds=0.3)
        connection.commit()


# Servers that it cannot work on.


def test_a_standby_is_not_read_by_position_and_changes_nothing(
    durable_server: EmbeddedPostgres, durable_database: Database
) -> None:
    with LockLedger(durable_database.url) as ledger:
        ledger.take("k", "ann")
    durable_database.close()
    durable_server.become_standby()
    with LockLedger(durable_database.url) as ledger:
        assert ledger.holder_of("k") is not None
        assert len(ledger.history("k")) == 1
        with pytest.raises(ValueError, match="this server is a standby"):
            keys(ledger)
        with pytest.raises(DBAPIError, match="read-only transaction"):
            ledger.release("k", "ann")


# A sequence that says nothing.


def test_a_sequence_that_was_never_advanced_is_an_error_and_not_position_0(host: Host) -> None:
    host.ledger.take("k", "ann")
    with host.engine.begin() as connection:
        connection.exec_driver_sql("SELECT setval('lockledger_position', 0, false)")
    before = count_rows(host.engine)
    host.ledgers.may_log_errors = True
    with pytest.raises(TamperedLedger, match="position sequence was never advanced"):
        keys(host.ledger)
    with pytest.raises(TamperedLedger), host.ledger.subscribe() as subscription:
        next(subscription)
    for key in ("k", "new"):
        with pytest.raises(IntegrityError, match="position"):
            host.ledger.take(key, "ann", if_mine="replace")
    assert count_rows(host.engine) == before


def test_a_role_that_may_not_use_the_sequence_reads_and_writes_nothing_by_position(
    host: Host,
) -> None:
    host.ledgers.may_log_errors = True
    host.ledger.take("k", "ann")
    with role_of(host.database) as role, ExitStack() as stack:
        admin = stack.enter_context(host.database.server.connect(host.database.name))  # type: ignore[union-attr]
        admin.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}")
        engine = host.database.engine(connect_args={"options": f"-c role={role}"})
        ledger = host.ledgers.open(url_or_engine=engine)
        with pytest.raises(ProgrammingError, match="permission denied for sequence"):
            keys(ledger)
        # A position that is null, or on an older server a privilege that is missing.
        with pytest.raises((IntegrityError, ProgrammingError), match="position"):
            ledger.release("k", "ann")
        admin.execute(f"GRANT USAGE ON SEQUENCE lockledger_position TO {role}")
        assert keys(ledger) == ["k"]
        assert ledger.release("k", "ann")
        engine.dispose()


@pytest.mark.parametrize("kind", POSTGRES_KINDS)
def test_a_schema_that_was_never_migrated_is_named(
    servers: Servers, kind: Any, tmp_path: Any
) -> None:
    with servers.database(kind, tmp_path, migrated=False) as database:
        ledger = LockLedger(database.url)
        with pytest.raises(SchemaMismatch):
            keys(ledger)
        assert database.logged_errors() == []
        ledger.close()
