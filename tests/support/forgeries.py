"""A ledger with every kind of event, each way of changing it behind its back, and what has to be found then."""

from __future__ import annotations

from lockledger import LockLedger
from support.databases import Database
from support.ledgers import SettableClock
from support.tampering import tamper

EVENTS, TRAIL = "lockledger_events", "lockledger_audit_trail"
HEADS, HOLDS = "lockledger_current_holders", "lockledger_holds"
OF_K = "WHERE lock_id = :k"
LATER = "'2096-11-30T09:03:22.000000+00:00'"
Found = tuple[str, str | None, int | None]


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


def live(ledger: LockLedger, clock: SettableClock) -> None:
    """What happens, the locks taking turns so that their positions alternate."""
    ledger.take("k", "run:1", ttl=60, metadata={"request": "ü"})
    ledger.take("other", "run:1")
    ledger.extend("k", "run:1", 3600)
    ledger.take("free", "run:7")
    ledger.take("k", "run:2", ttl=60, takeover_reason="urgent", actor="user:9")
    ledger.release("other", "run:1", reason="done")
    clock.forward(60)
    ledger.take("k", "run:3", metadata={"n": 1.50})
    ledger.force_release("k", actor="user:9", reason="holiday")
    ledger.take("other", "run:2", ttl=7200)
    ledger.release("free", "run:7")
    ledger.take("k", "run:4", ttl=7200)
