"""A lock whose head row and events disagree is a `TamperedLedger` at once: no loop, no second version 1, nothing written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import LockLedger, TamperedLedger
from lockledger.domain.keys import lock_id
from support.databases import Database
from support.proof import TABLES
from support.verbs import BOUND, READING, WRITING, Verb

HEADS, EVENTS = "lockledger_current_holders", "lockledger_events"
AUDIT, HOLDS = "lockledger_audit_trail", "lockledger_holds"
OTHER_STATE = f"(SELECT state FROM {EVENTS} WHERE lock_id = :other)"

HEAD_EDITS = {
    "a later version": "version = 7",
    "an earlier version": "version = 1",
    "no version yet": "version = 0",
    "another holder": "holder = 'run:2'",
    "no holder": "holder = NULL",
    "another token": "token = 2",
    "no token": "token = NULL",
    "another key": "key = 'other'",
    "no key": "key = NULL",
    "a later expiry": "expires_at = '2096-11-30T09:03:22.000000+00:00'",
    "no expiry": "expires_at = NULL",
    "another ledger": "ledger = 'other'",
}
UNREADABLE_EXPIRIES = {
    "postgresql": ("infinity", "-infinity", "20000-01-01", "0044-03-15 BC"),
    "sqlite": ("tomorrow", "2096-11-30T09:03:22", "", "2096-13-30T09:03:22.000000+00:00"),
}
STATE_EDITS = {
    "no JSON": "state = 'taken'",
    "no object": "state = '[]'",
    "nothing in it": "state = '{}'",
    "a fact missing": "state = replace(state, '\"holder\"', '\"keeper\"')",
    "a fact too many": 'state = replace(state, \'"holder"\', \'"by":1,"holder"\')',
    "an instant without a zone": "state = replace(state, 'Z\"', '\"')",
    "another holder": "state = replace(state, 'run:1', 'run:2')",
    "another key": "state = replace(state, '\"k\"', '\"q\"')",
    "another version": "state = replace(state, '\"originator_version\":2', '\"originator_version\":3')",
    "another lock's": f"state = {OTHER_STATE}",
    "a foreign topic": "topic = 'elsewhere.Happened'",
    "another kind of event": "topic = 'lockledger.LockReleased'",
}
VERBS: dict[str, Verb] = {
    **{name: WRITING[name] for name in WRITING if name != "release_all"},
    "take by another": lambda ledger: ledger.take("k", "run:9"),
    "takeover": lambda ledger: ledger.take("k", "run:9", takeover_reason="urgent"),
    "replacing take": lambda ledger: ledger.take("k", "run:1", if_mine="replace"),
    "release by token": lambda ledger: ledger.release("k", "run:1", token=1),
    "extension by token": lambda ledger: ledger.extend("k", "run:1", 60, token=1),
    "holder_of": READING["holder_of"],
    "is_locked": READING["is_locked"],
}
LISTS = ("current_holders", "holds", "history", "audit_trail", "take_all", "release_all")


@pytest.fixture
def ledger(database: Database) -> Iterator[LockLedger]:
    """A ledger in which `k` is held, at version 2, and `sound` as well."""
    with LockLedger(database.url) as ledger:
        ledger.take("sound", "run:1", ttl=3600)
        ledger.take("k", "run:1", ttl=3600)
        ledger.extend("k", "run:1", 7200)
        yield ledger


def tamper(database: Database, *statements: str) -> None:
    """What the owner of the tables can do to them, with the triggers out of the way."""
    ids = {"k": lock_id("default", "k"), "other": lock_id("default", "sound")}
    with database.engine().begin() as connection:
        disarm(connection)
        for statement in statements:
            filled = statement
            for name, stream in ids.items():
                value = str(stream) if database.dialect == "postgresql" else stream.hex
                filled = filled.replace(f":{name}", f"'{value}'")
            # No parameters, so that colons and percent signs are what they are.
            connection.connection.cursor().execute(filled)


def disarm(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        for table in (EVENTS, AUDIT, HOLDS):
            connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
        return
    triggers = connection.exec_driver_sql(
        "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN (?, ?, ?)",
        (EVENTS, AUDIT, HOLDS),
    ).scalars()
    for trigger in triggers.all():
        connection.exec_driver_sql(f"DROP TRIGGER {trigger}")


def rows(database: Database) -> dict[str, int]:
    """How many rows each table has, whatever is in them."""
    with database.engine().connect() as connection:
        return {
            name: connection.exec_driver_sql(f"SELECT count(*) FROM lockledger_{name}").scalar_one()
            for name in TABLES
        }


def every_verb_refuses(database: Database, ledger: LockLedger) -> None:
    """Alone and in a caller's transaction: `TamperedLedger` with the key, at once, and not a row more or less."""
    before, began = rows(database), time.monotonic()
    with database.engine().connect() as connection:
        for call in VERBS.values():
            for where in (ledger, ledger.using(connection)):
                with pytest.raises(TamperedLedger) as found:
                    call(where)
                assert found.value.key == "k"
        connection.commit()
    assert time.monotonic() - began < 60
    assert rows(database) == before
    assert database.logged_errors() == []
    assert ledger.release("sound", "run:1"), "a sound lock suffers with it"


@pytest.mark.parametrize("edit", HEAD_EDITS.values(), ids=HEAD_EDITS)
def test_an_edited_head_row(database: Database, ledger: LockLedger, edit: str) -> None:
    tamper(database, f"UPDATE {HEADS} SET {edit} WHERE lock_id = :k")
    every_verb_refuses(database, ledger)


@pytest.mark.parametrize("number", range(4))
def test_an_expiry_in_the_head_row_that_cannot_be_read(
    database: Database, ledger: LockLedger, number: int
) -> None:
    expiry = UNREADABLE_EXPIRIES[database.dialect][number]
    tamper(database, f"UPDATE {HEADS} SET expires_at = '{expiry}' WHERE lock_id = :k")
    every_verb_refuses(database, ledger)
    _every_list_refuses_or_does_without(database, ledger)


def _every_list_refuses_or_does_without(database: Database, ledger: LockLedger) -> None:
    """Some of these values are long past in the order of their database, and so no hold's that is looked for."""
    for name in LISTS:
        with database.engine().connect() as connection, suppress(TamperedLedger):
            BOUND[name](ledger.using(connection))
        with suppress(TamperedLedger):
            BOUND[name](ledger)
    assert database.logged_errors() == []


def test_a_row_of_any_table_that_cannot_be_read_is_no_raw_error(
    database: Database, ledger: LockLedger
) -> None:
    ledger.release("sound", "run:1")
    unreadable = UNREADABLE_EXPIRIES[database.dialect][0]
    tamper(
        database,
        f"UPDATE {HEADS} SET expires_at = '{unreadable}'",
        f"UPDATE {HOLDS} SET ended_at = '{unreadable}'",
        f"UPDATE {AUDIT} SET recorded_at = '{unreadable}'",
    )
    before = rows(database)
    for name in LISTS:
        with database.engine().connect() as connection:
            for where in (ledger, ledger.using(connection)):
                with pytest.raises(TamperedLedger, match="a value that cannot be read|head row"):
                    BOUND[name](where)
    with pytest.raises(TamperedLedger):
        ledger.holder_at("k", datetime.now(UTC))
    with pytest.raises(TamperedLedger):
        ledger.release("sound", "run:1", token=1)
    assert rows(database) == before


@pytest.mark.parametrize("column", ["before", "after", "metadata", "reason"])
def test_bytes_that_are_no_text_are_no_raw_error(sqlite_database: Database, column: str) -> None:
    with LockLedger(sqlite_database.url) as ledger:
        ledger.take("k", "run:1")
        tamper(sqlite_database, f"UPDATE {AUDIT} SET {column} = CAST(x'ff' AS TEXT)")
        for verb in ("history", "audit_trail"):
            with pytest.raises(TamperedLedger, match="a value that cannot be read"):
                BOUND[verb](ledger)
        assert ledger.verify().by_kind == {"audit_different": 1}


def test_a_removed_head_row(database: Database, ledger: LockLedger) -> None:
    tamper(database, f"DELETE FROM {HEADS} WHERE lock_id = :k")
    every_verb_refuses(database, ledger)


def test_a_removed_newest_event(database: Database, ledger: LockLedger) -> None:
    tamper(database, f"DELETE FROM {EVENTS} WHERE lock_id = :k AND version = 2")
    every_verb_refuses(database, ledger)


def test_a_removed_first_event_of_a_lock_without_others(
    database: Database, ledger: LockLedger
) -> None:
    tamper(database, f"DELETE FROM {EVENTS} WHERE lock_id = :k")
    every_verb_refuses(database, ledger)


@pytest.mark.parametrize("edit", STATE_EDITS.values(), ids=STATE_EDITS)
def test_an_edited_newest_event(database: Database, ledger: LockLedger, edit: str) -> None:
    tamper(database, f"UPDATE {EVENTS} SET {edit} WHERE lock_id = :k AND version = 2")
    every_verb_refuses(database, ledger)


def test_a_released_lock_whose_head_row_was_removed_does_not_begin_again(
    database: Database, ledger: LockLedger
) -> None:
    ledger.release("k", "run:1")
    tamper(database, f"DELETE FROM {HEADS} WHERE lock_id = :k")
    with pytest.raises(TamperedLedger, match="its head row is missing"):
        ledger.take("k", "run:1")


def test_a_stream_without_a_trace_begins_again_only_as_far_as_its_audit_trail_lets_it(
    database: Database, ledger: LockLedger
) -> None:
    """Events and head row both gone: no verb can tell, but the audit trail's key refuses a second version 1."""
    tamper(
        database,
        f"DELETE FROM {HEADS} WHERE lock_id = :k",
        f"DELETE FROM {EVENTS} WHERE lock_id = :k",
    )
    before = rows(database)
    with pytest.raises(Exception, match=r"lockledger_audit_trail") as refused:
        ledger.take("k", "run:9")
    assert type(refused.value).__name__ == "IntegrityError"
    assert rows(database) == before


def test_the_message_says_what_was_found_and_what_to_do(
    database: Database, ledger: LockLedger
) -> None:
    tamper(database, f"UPDATE {HEADS} SET holder = 'run:2', token = 5 WHERE lock_id = :k")
    with pytest.raises(TamperedLedger) as found:
        ledger.take("k", "run:9")
    assert str(found.value) == (
        "'k': its head row differs in holder, token, its newest event is version 2; nothing was changed:"
        " run `lockledger doctor` and `lockledger verify`, and look into the database's logs"
    )


def test_a_head_row_that_agrees_again_is_sound_again(
    database: Database, ledger: LockLedger
) -> None:
    tamper(database, f"UPDATE {HEADS} SET version = 3 WHERE lock_id = :k")
    with pytest.raises(TamperedLedger):
        ledger.release("k", "run:1")
    tamper(database, f"UPDATE {HEADS} SET version = 2 WHERE lock_id = :k")
    assert ledger.release("k", "run:1")


def test_an_open_tampering_is_waited_for_and_then_found(
    postgres_database: Database,
) -> None:
    """The row is edited between the look and the append: that is no lost race to be tried for ever."""
    with LockLedger(postgres_database.url) as ledger:
        ledger.take("k", "run:1")
        engine = postgres_database.engine()
        outcomes: list[Any] = []
        with engine.connect() as connection:
            connection.exec_driver_sql(f"UPDATE {HEADS} SET version = 40")

            def call() -> None:
                try:
                    outcomes.append(ledger.release("k", "run:1"))
                except TamperedLedger as found:
                    outcomes.append(found)

            thread = Thread(target=call)
            thread.start()
            time.sleep(0.3)
            connection.commit()
            thread.join(timeout=60)
        assert not thread.is_alive()
        assert isinstance(outcomes[0], TamperedLedger)
