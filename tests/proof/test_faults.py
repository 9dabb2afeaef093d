"""Whatever is changed behind the ledger's back is found, once, and named by its kind and place."""

from __future__ import annotations

import json

import pytest

from lockledger import Fault, LockLedger
from lockledger.domain.keys import lock_id
from support.databases import Database
from support.forgeries import (
    EVENT_EDITS,
    EVENTS,
    EXTRA_ROWS,
    HEADS,
    HOLDS,
    OF_K,
    ROW_EDITS,
    TRAIL,
    Found,
    apply,
    edited,
)
from support.tampering import tamper


def found(ledger: LockLedger) -> list[Found]:
    """Kind, key and version of each fault."""
    verification = ledger.verify()
    assert verification.fault_count == len(verification.faults)
    assert verification.ok == (not verification.faults)
    return [(fault.kind, fault.key, fault.version) for fault in verification.faults]


@pytest.mark.parametrize("edit", EVENT_EDITS)
def test_a_changed_event(database: Database, ledger: LockLedger, edit: str) -> None:
    statements, expected = EVENT_EDITS[edit]
    apply(database, *statements)
    assert sorted(found(ledger), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("edit", ROW_EDITS)
def test_a_changed_row_of_a_projection(database: Database, ledger: LockLedger, edit: str) -> None:
    statement, expected = ROW_EDITS[edit]
    apply(database, statement)
    others = [("audit_extra", "k", 9)] if edit == "audit version" else []
    assert found(ledger) == [expected, *others]


@pytest.mark.parametrize("row", EXTRA_ROWS)
def test_a_row_that_follows_from_no_event(database: Database, ledger: LockLedger, row: str) -> None:
    statement, expected = EXTRA_ROWS[row]
    apply(database, statement)
    assert found(ledger) == [expected]


def test_positions_that_do_not_follow_versions(database: Database, ledger: LockLedger) -> None:
    """Versions 3 and 5 change places, in their own table and in the audit trail."""
    moved = f"{OF_K} AND version IN (3, 5)"
    changes = ("position = 1013 - position", "position = position - 1000")
    apply(
        database,
        *(f"UPDATE {table} SET {each} {moved}" for each in changes for table in (EVENTS, TRAIL)),
    )
    assert found(ledger) == [("position", "k", 4), ("position", "k", 5)]


def test_two_events_at_one_position(postgres_database: Database) -> None:
    with LockLedger(postgres_database.url) as ledger:
        ledger.take("k", "run:1")
        ledger.take("other", "run:1")
        apply(
            postgres_database,
            f"UPDATE {EVENTS} SET position = 2 {OF_K}",
            f"UPDATE {TRAIL} SET position = 2 {OF_K}",
        )
        (fault,) = ledger.verify().faults
    assert (fault.kind, fault.position, fault.found) == ("position", 2, "2 events")


def test_a_position_that_was_never_given(database: Database, ledger: LockLedger) -> None:
    apply(
        database,
        edited(EVENTS, "position = 1000", 7),
        edited(TRAIL, "position = 1000", 7),
        *(
            ["UPDATE sqlite_sequence SET seq = 11 WHERE name = 'lockledger_events'"]
            if database.dialect == "sqlite"
            else []
        ),
    )
    assert found(ledger) == [("position", "k", 7)]


def test_a_fault_names_everything(database: Database, ledger: LockLedger) -> None:
    apply(database, edited(TRAIL, "holder = 'run:9'", 3))
    (fault,) = ledger.verify().faults
    assert fault == Fault(
        kind="audit_different",
        key="k",
        lock_id=lock_id("default", "k"),
        version=3,
        position=5,
        expected="holder='run:2'",
        found="holder='run:9'",
    )
    assert str(fault) == (
        "audit_different: 'k', version 3, position 5: expected holder='run:2', found holder='run:9'"
    )


def test_what_no_driver_reads_is_only_different(
    postgres_database: Database,
) -> None:
    with LockLedger(postgres_database.url) as ledger:
        ledger.take("k", "run:1", ttl=60)
        for instant in ("infinity", "20000-01-01", "0044-03-15 BC"):
            apply(postgres_database, f"UPDATE {HEADS} SET expires_at = '{instant}' {OF_K}")
            assert found(ledger) == [("head_different", "k", 1)]


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ("state = CAST(x'ff00fe' AS TEXT)", {"event_hash"}),
        ("state = x'ff'", {"event_hash"}),
        ("state = 5", {"event_hash"}),
        ("hash = 'text'", {"event_hash"}),
        ("topic = x'00'", {"event_hash"}),
        ("lock_id = 'no id'", {"event_missing", "row_unreadable"}),
        ("lock_id = x'00'", {"event_missing", "row_unreadable"}),
        ("lock_id = upper(lock_id)", {"event_missing", "row_unreadable"}),
        ("version = 'three'", {"event_missing", "row_unreadable"}),
    ],
)
def test_what_only_sqlite_keeps(sqlite_database: Database, change: str, kinds: set[str]) -> None:
    with LockLedger(sqlite_database.url) as ledger:
        for _ in range(3):
            ledger.take("k", "run:1", if_mine="replace")
        ledger.release("k", "run:1")
        apply(sqlite_database, edited(EVENTS, change, 2))
        assert {kind for kind, _, _ in found(ledger)} == kinds


def test_more_than_a_thousand_faults_are_counted(database: Database) -> None:
    with LockLedger(database.url) as ledger:
        ledger.take_all([f"k:{number}" for number in range(1200)], "run:1")
        tamper(database, f"UPDATE {HEADS} SET holder = 'x'")
        verification = ledger.verify()
    assert verification.by_kind == {"head_different": 1200}
    assert (verification.fault_count, len(verification.faults)) == (1200, 1000)
    assert not verification.ok


@pytest.mark.parametrize(
    ("there", "instead"), [("0", "false"), ("1", "true"), ("1", "1.0"), ("0.0", "-0.0")]
)
@pytest.mark.parametrize(
    ("table", "column", "kind"),
    [
        (TRAIL, "metadata", "audit_different"),
        (TRAIL, "after", "audit_different"),
        (HOLDS, "metadata", "hold_different"),
        (HEADS, "metadata", "head_different"),
    ],
)
def test_what_python_calls_equal_is_another_value(
    database: Database, table: str, column: str, kind: str, there: str, instead: str
) -> None:
    with LockLedger(database.url) as ledger:
        for key in ("ended", "held"):
            ledger.take(key, "run:1", metadata={"deep": [{"approved": json.loads(there)}]})
        ledger.release("ended", "run:1")
        right = f'"approved":{there}'
        new = f"replace(CAST({column} AS text), '{right}', '{right[: -len(there)]}{instead}')"
        cast = f"({new})::json" if database.dialect == "postgresql" else new
        tamper(database, f"UPDATE {table} SET {column} = {cast} WHERE {column} IS NOT NULL")
        assert {fault.kind for fault in ledger.verify().faults} == {kind}
        assert ledger.rebuild().corrected
        assert ledger.verify().ok


def test_json_written_in_another_way_is_the_same(database: Database) -> None:
    with LockLedger(database.url) as ledger:
        ledger.take("k", "run:1", metadata={"a": 1, "b": [True, "ü", 0.5]})
        other = r'{"b": [true, "\u00fc", 5e-1], "a": 1}'
        tamper(database, f"UPDATE {TRAIL} SET metadata = '{other}'")
        assert ledger.verify().ok
