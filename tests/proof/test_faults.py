"""Whatever is changed behind the ledger's back is found, once, and named by its kind and place."""

from __future__ import annotations

import pytest

from lockledger import Fault, LockLedger
from lockledger.domain.keys import lock_id
from support.databases import Database
from support.tampering import tamper

EVENTS, TRAIL = "lockledger_events", "lockledger_audit_trail"
HEADS, HOLDS = "lockledger_current_holders", "lockledger_holds"
OF_K = "WHERE lock_id = :k"
LATER = "'2096-11-30T09:03:22.000000+00:00'"
Found = tuple[str, str | None, int | None]


def found(ledger: LockLedger) -> list[Found]:
    """Kind, key and version of each fault."""
    verification = ledger.verify()
    assert verification.fault_count == len(verification.faults)
    assert verification.ok == (not verification.faults)
    return [(fault.kind, fault.key, fault.version) for fault in verification.faults]


def edited(table: str, change: str, version: int) -> str:
    number = "token" if table == HOLDS else "version"
    return f"UPDATE {table} SET {change} {OF_K} AND {number} = {version}"


EVENT_EDITS: dict[str, tuple[list[str], list[Found]]] = {
    "state": (
        [edited(EVENTS, "state = replace(state, 'run:2', 'run:9')", 3)],
        [("event_hash", "k", 3)],
    ),
    "no state": ([edited(EVENTS, "state = ''", 3)], [("event_hash", "k", 3)]),
    "topic": ([edited(EVENTS, "topic = 'lockledger.LockTaken'", 3)], [("event_hash", "k", 3)]),
    "foreign topic": ([edited(EVENTS, "topic = 'elsewhere'", 3)], [("event_hash", "k", 3)]),
    "hash": ([edited(EVENTS, "hash = :hash", 3)], [("event_hash", "k", 3)]),
    "first hash": ([edited(EVENTS, "hash = :hash", 1)], [("event_hash", "k", 1)]),
    "newest hash": ([edited(EVENTS, "hash = :hash", 7)], [("event_hash", "k", 7)]),
    "newest state": (
        [edited(EVENTS, "state = replace(state, 'run:4', 'run:9')", 7)],
        [("event_hash", "k", 7)],
    ),
    "ledger": ([edited(EVENTS, "ledger = 'x'", 3)], [("event_missing", "k", 3)]),
    "position later": ([edited(EVENTS, "position = position + 1000", 3)], [("position", "k", 3)]),
    "version": (
        [edited(EVENTS, "version = 30", 3)],
        [("event_missing", "k", 3), ("event_missing", "k", 8), ("event_unreadable", "k", 30)],
    ),
    "deleted": ([f"DELETE FROM {EVENTS} {OF_K} AND version = 3"], [("event_missing", "k", 3)]),
    "first deleted": (
        [f"DELETE FROM {EVENTS} {OF_K} AND version = 1"],
        [("event_missing", "k", 1)],
    ),
    "some deleted": (
        [f"DELETE FROM {EVENTS} {OF_K} AND version IN (2, 3)"],
        [("event_missing", "k", 2)],
    ),
    "tail cut": ([f"DELETE FROM {EVENTS} {OF_K} AND version > 5"], [("event_missing", "k", 6)]),
    "tail and head cut": (
        [f"DELETE FROM {EVENTS} {OF_K} AND version > 5", f"DELETE FROM {HEADS} {OF_K}"],
        [("event_missing", "k", 6)],
    ),
    "tail and trail cut": (
        [f"DELETE FROM {table} {OF_K} AND version > 6" for table in (EVENTS, TRAIL)],
        [("head_different", "k", 6)],
    ),
    "stream removed": ([f"DELETE FROM {EVENTS} {OF_K}"], [("event_missing", "k", 1)]),
    "stream and head removed": (
        [f"DELETE FROM {EVENTS} {OF_K}", f"DELETE FROM {HEADS} {OF_K}"],
        [("event_missing", "k", 1)],
    ),
    "two swapped": (
        [
            edited(EVENTS, "version = 100", 2),
            edited(EVENTS, "version = 2", 3),
            edited(EVENTS, "version = 3", 100),
        ],
        [("event_hash", "k", 2), ("event_hash", "k", 3)],
    ),
    "swapped between locks": (
        [
            f"UPDATE {EVENTS} SET lock_id = :other, version = 100 {OF_K} AND version = 2",
            f"UPDATE {EVENTS} SET lock_id = :k WHERE lock_id = :other AND version = 2",
            f"UPDATE {EVENTS} SET version = 2 WHERE lock_id = :other AND version = 100",
        ],
        [("event_hash", "k", 2), ("event_hash", "other", 2)],
    ),
    "inserted": (
        [
            (
                f"INSERT INTO {EVENTS} (lock_id, version, position, ledger, topic, state, hash)"
                f" SELECT lock_id, 8, position + 1, ledger, topic, state, hash FROM {EVENTS} {OF_K} AND version = 7"
            )
        ],
        [("event_hash", "k", 8)],
    ),
    "inserted as version 0": (
        [
            (
                f"INSERT INTO {EVENTS} (lock_id, version, position, ledger, topic, state, hash)"
                f" SELECT lock_id, 0, 900, ledger, topic, state, hash FROM {EVENTS} {OF_K} AND version = 7"
            )
        ],
        [("event_hash", "k", 0)],
    ),
}

TEXT, NUMBER, INSTANT, JSON = "'x'", "99", LATER, """'{"n": 2}'"""
TRAIL_COLUMNS = {
    "key": TEXT,
    "action": TEXT,
    "actor": TEXT,
    "holder": TEXT,
    "previous_holder": "NULL",
    "token": NUMBER,
    "occurred_at": INSTANT,
    "recorded_at": INSTANT,
    "reason": "NULL",
    "before": JSON,
    "after": "NULL",
    "metadata": JSON,
    "event_hash": ":hash",
}
HOLD_COLUMNS = {
    "key": TEXT,
    "holder": TEXT,
    "taken_at": INSTANT,
    "expires_at": "NULL",
    "taken_over_from": TEXT,
    "takeover_reason": TEXT,
    "metadata": JSON,
    "ended_at": INSTANT,
    "ended_by": "'forced'",
    "end_reason": "NULL",
    "ended_by_actor": "NULL",
}
HEAD_COLUMNS = {
    "version": "6",
    "key": TEXT,
    "holder": TEXT,
    "token": "6",
    "taken_at": INSTANT,
    "expires_at": "NULL",
    "taken_over_from": TEXT,
    "takeover_reason": TEXT,
    "metadata": JSON,
    "changed_at": INSTANT,
}
ROW_EDITS: dict[str, tuple[str, Found]] = {
    **{
        f"audit {name}": (edited(TRAIL, f"{name} = {value}", 3), ("audit_different", "k", 3))
        for name, value in TRAIL_COLUMNS.items()
    },
    **{
        f"hold {name}": (edited(HOLDS, f"{name} = {value}", 1), ("hold_different", "k", 1))
        for name, value in HOLD_COLUMNS.items()
    },
    **{
        f"head {name}": (f"UPDATE {HEADS} SET {name} = {value} {OF_K}", ("head_different", "k", 7))
        for name, value in HEAD_COLUMNS.items()
    },
    "audit position": (edited(TRAIL, "position = position + 100", 3), ("position", "k", 3)),
    "audit ledger": (edited(TRAIL, "ledger = 'x'", 3), ("audit_missing", "k", 3)),
    "hold ledger": (edited(HOLDS, "ledger = 'x'", 1), ("hold_missing", "k", 1)),
    "head ledger": (f"UPDATE {HEADS} SET ledger = 'x' {OF_K}", ("head_missing", "k", 7)),
    "audit deleted": (f"DELETE FROM {TRAIL} {OF_K} AND version = 3", ("audit_missing", "k", 3)),
    "hold deleted": (f"DELETE FROM {HOLDS} {OF_K} AND token = 1", ("hold_missing", "k", 1)),
    "head deleted": (f"DELETE FROM {HEADS} {OF_K}", ("head_missing", "k", 7)),
    "audit version": (edited(TRAIL, "version = 9", 7), ("audit_missing", "k", 7)),
    "free head held": (
        f"UPDATE {HEADS} SET holder = 'run:1', token = 1 WHERE lock_id = :free",
        ("head_different", "free", 2),
    ),
}
EXTRA_ROWS: dict[str, tuple[str, Found]] = {
    "audit": (
        (
            f"INSERT INTO {TRAIL} (lock_id, version, ledger, position, key, action, holder, token, occurred_at,"
            f" recorded_at, metadata, event_hash) SELECT lock_id, 8, ledger, position + 50, key, action, holder, token,"
            f" occurred_at, recorded_at, metadata, event_hash FROM {TRAIL} {OF_K} AND version = 7"
        ),
        ("audit_extra", "k", 8),
    ),
    "hold": (
        (
            f"INSERT INTO {HOLDS} (lock_id, token, ledger, key, holder, taken_at, metadata, ended_at, ended_by)"
            f" SELECT lock_id, 2, ledger, key, holder, taken_at, metadata, ended_at, ended_by FROM {HOLDS} {OF_K} AND token = 1"
        ),
        ("hold_extra", "k", 2),
    ),
    "hold that has not ended": (
        (
            f"INSERT INTO {HOLDS} (lock_id, token, ledger, key, holder, taken_at, metadata, ended_at, ended_by)"
            f" SELECT lock_id, 7, ledger, key, holder, taken_at, metadata, ended_at, ended_by FROM {HOLDS} {OF_K} AND token = 1"
        ),
        ("hold_extra", "k", 7),
    ),
    "head": (
        (
            f"INSERT INTO {HEADS} (lock_id, ledger, version, key, changed_at)"
            f" SELECT :stranger, ledger, 1, 'stranger', changed_at FROM {HEADS} {OF_K}"
        ),
        ("head_extra", "stranger", None),
    ),
}


def apply(database: Database, *statements: str) -> None:
    wrong = "'\\x00'" if database.dialect == "postgresql" else "x'00'"
    tamper(
        database,
        *(statement.replace(":hash", wrong) for statement in statements),
        k="k",
        other="other",
        free="free",
        stranger="stranger",
    )


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
