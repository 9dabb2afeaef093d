"""What the application's role can do to history, alone and with our own functions, and what its owner still can."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from lockledger import LockLedger, TamperedLedger
from lockledger.adapters.encoding import FIRST, encode, event_hash
from lockledger.domain.events import LockTaken
from lockledger.domain.keys import lock_id
from support.databases import Database
from support.roles import application_of
from support.stories import T0
from support.tampering import tamper


@pytest.fixture
def application(postgres_database: Database) -> Iterator[Engine]:
    """An engine of a role with the documented grants."""
    with application_of(postgres_database) as engine:
        yield engine


@pytest.fixture
def owner(postgres_database: Database) -> Iterator[LockLedger]:
    """A ledger of the tables' owner, in which `k` has a history."""
    with LockLedger(postgres_database.url) as ledger:
        ledger.take("k", "run:1")
        ledger.take("k", "run:2", takeover_reason="why")
        ledger.release("k", "run:2")
        yield ledger


NEVER = (
    "SELECT lockledger_refuse_change()",
    "CREATE TRIGGER mine BEFORE INSERT ON lockledger_events FOR EACH ROW EXECUTE FUNCTION lockledger_refuse_change()",
    "CREATE RULE mine AS ON INSERT TO lockledger_events DO INSTEAD NOTHING",
    "CREATE INDEX mine ON lockledger_events (ledger)",
    "CREATE OR REPLACE FUNCTION lockledger_refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "ALTER FUNCTION lockledger_refuse_change() RENAME TO mine",
    "CREATE OR REPLACE VIEW lockledger_live_holders AS SELECT 1",
    "ALTER TABLE lockledger_events OWNER TO CURRENT_USER",
    "ALTER TABLE lockledger_events RENAME TO mine",
    "ALTER TABLE lockledger_events ADD COLUMN mine int",
    "ALTER TABLE lockledger_events ENABLE ROW LEVEL SECURITY",
    "LOCK TABLE lockledger_events IN ACCESS EXCLUSIVE MODE",
    "ALTER SEQUENCE lockledger_position RESTART",
    "MERGE INTO lockledger_events e USING (VALUES (1)) AS v (n) ON true WHEN MATCHED THEN DELETE",
    "INSERT INTO lockledger_holds SELECT * FROM lockledger_holds ON CONFLICT (lock_id, token) DO UPDATE SET holder = 'x'",
)


def test_the_application_has_no_way_around_the_triggers(
    application: Engine, owner: LockLedger
) -> None:
    with application.connect() as connection:
        for statement in NEVER:
            # No trigger's function can be called by itself: that alone is no matter of privileges.
            with pytest.raises((ProgrammingError, DBAPIError)) as refused:
                connection.exec_driver_sql(statement)
            assert getattr(refused.value.orig, "sqlstate", None) in ("42501", "0A000"), statement
            connection.rollback()
    assert owner.verify().ok


def test_no_function_of_ours_changes_history_for_the_application(
    application: Engine, owner: LockLedger, postgres_database: Database
) -> None:
    tamper(
        postgres_database,
        "UPDATE lockledger_audit_trail SET reason = 'another' WHERE lock_id = :k AND version = 2",
        k="k",
    )
    with LockLedger(application) as ledger:
        done = ledger.rebuild()
        assert (done.ok, done.needs_owner, done.corrected) == (False, True, 0)
        assert ledger.history("k")[1].reason == "another"
        assert [fault.kind for fault in ledger.verify().faults] == ["audit_different"]
    owner.rebuild()
    assert owner.verify().ok


def forged(connection: Connection, key: str, version: int, position: int, previous: bytes) -> None:
    """An event that is rightly chained, at a place of somebody's choosing, with nothing else."""
    stream = lock_id("default", key)
    event = LockTaken(
        originator_id=stream,
        originator_version=version,
        timestamp=T0,
        actor="run:9",
        key=key,
        holder="run:9",
        token=version,
        taken_at=T0,
        expires_at=None,
        taken_over_from=None,
        takeover_reason=None,
        hold_metadata={},
        metadata={},
    )
    topic, state = encode(event)
    values = {
        "lock": stream,
        "version": version,
        "position": position,
        "topic": topic,
        "state": state,
        "hash": event_hash(previous, "default", stream, version, topic, state),
    }
    connection.execute(
        text(
            "INSERT INTO lockledger_events (lock_id, version, position, ledger, topic, state, hash)"
            " VALUES (:lock, :version, :position, 'default', :topic, :state, :hash)"
        ),
        values,
    )


def test_an_event_that_the_application_puts_into_the_past_is_found(
    application: Engine, owner: LockLedger
) -> None:
    """It may insert, since it has to; where it inserts is up to it."""
    with application.connect() as connection:
        connection.exec_driver_sql("SELECT nextval('lockledger_position')")
    owner.take("l", "run:1")
    kept = owner.checkpoint()
    with application.begin() as connection:
        forged(connection, "forged", 1, kept.position - 1, FIRST)
    kinds = set(owner.verify().by_kind)
    assert {"head_missing", "audit_missing"} <= kinds
    assert "checkpoint" in owner.verify(checkpoint=kept).by_kind


def test_a_current_holder_that_the_application_changes_is_not_believed(
    application: Engine, owner: LockLedger
) -> None:
    with application.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE lockledger_current_holders SET holder = 'run:9', token = 9"
        )
    with pytest.raises(TamperedLedger):
        owner.take("k", "run:9")
    assert set(owner.verify().by_kind) == {"head_different"}


def test_what_the_owner_removes_without_a_trace_only_a_checkpoint_shows(
    postgres_database: Database, owner: LockLedger
) -> None:
    kept = owner.checkpoint()
    tamper(
        postgres_database,
        *(
            f"DELETE FROM lockledger_{table} WHERE lock_id = :k"
            for table in ("events", "audit_trail", "holds", "current_holders")
        ),
        k="k",
    )
    assert owner.verify().ok
    [fault] = owner.verify(checkpoint=kept).faults
    assert fault.kind == "checkpoint"
