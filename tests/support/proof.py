"""A proof from outside: every table, read by plain SQL, against a fold over the stored events."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine

from support.fold import HOLD, Folded, Row, folded, is_instant, same, with_instants

END = ("ended_at", "ended_by", "end_reason", "ended_by_actor")
TABLES = {
    "events": ("ledger", "lock_id", "version", "position", "topic", "state", "hash"),
    "current_holders": ("ledger", "lock_id", "version", *HOLD, "changed_at"),
    "holds": ("ledger", "lock_id", *HOLD, *END),
    "audit_trail": (
        *("ledger", "lock_id", "version", "position", "key", "action", "actor", "holder"),
        *("previous_holder", "token", "occurred_at", "recorded_at", "reason", "before", "after"),
        *("metadata", "event_hash"),
    ),
    "all_holds": ("ledger", "lock_id", "token"),
}
JSON = {"metadata", "before", "after"}


def prove(engine: Engine, *, schema: str | None = None) -> list[Folded]:
    """All locks of all ledgers in the schema, once everything about them has been proven; `AssertionError` otherwise."""
    with engine.connect() as connection:
        tables = _tables(connection, schema)
    streams: dict[UUID, list[Row]] = defaultdict(list)
    for event in sorted(tables["events"], key=lambda row: int(row["version"])):
        streams[event["lock_id"]].append(event)
    _positions_are_in_order(streams)
    ours = {
        lock_id: events
        for lock_id, events in streams.items()
        if events[0]["topic"].startswith("lockledger.")
    }
    locks = [folded(lock_id, events) for lock_id, events in ours.items()]
    _current_holders_agree(tables["current_holders"], locks, streams)
    _same_rows("audit_trail", tables["audit_trail"], [row for lock in locks for row in lock.trail])
    _same_rows("holds", tables["holds"], [row for lock in locks for row in lock.ended])
    _one_holder_at_a_time(
        tables["holds"] + [row for row in tables["current_holders"] if row["holder"]]
    )
    _every_hold_is_in_the_view(tables["all_holds"], locks)
    return locks


def count_rows(engine: Engine, *, schema: str | None = None) -> dict[str, int]:
    """How many rows each table has."""
    with engine.connect() as connection:
        return {name: len(rows) for name, rows in _tables(connection, schema).items()}


# Reading.


def _tables(connection: Connection, schema: str | None) -> dict[str, list[Row]]:
    """All tables in one snapshot."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    else:
        connection.exec_driver_sql("BEGIN")
    qualifier = f'"{schema or "public"}".' if connection.dialect.name == "postgresql" else ""
    tables = {name: _rows(connection, qualifier, name) for name in TABLES}
    connection.exec_driver_sql("ROLLBACK")
    return tables


def _rows(connection: Connection, qualifier: str, table: str) -> list[Row]:
    columns = TABLES[table]
    selected = ", ".join(_selected(connection.dialect.name, name) for name in columns)
    found = connection.exec_driver_sql(f"SELECT {selected} FROM {qualifier}lockledger_{table}")
    return [
        {name: _plain(name, value) for name, value in zip(columns, row, strict=True)}
        for row in found
    ]


def _selected(dialect: str, name: str) -> str:
    """A column as text where a driver, or its settings, might have a say in what it becomes."""
    if dialect == "sqlite":
        return f'"{name}"'
    if is_instant(name):
        return f"""to_char("{name}" AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')"""
    return f'"{name}"::text' if name in JSON or name == "lock_id" else f'"{name}"'


def _plain(name: str, value: Any) -> Any:
    if value is None:
        return None
    if is_instant(name):
        return datetime.fromisoformat(value)
    if name in ("before", "after"):
        return with_instants(json.loads(value))
    if name in JSON:
        return json.loads(value)
    if name == "lock_id":
        return UUID(value)
    return bytes(value) if name.endswith("hash") else value


# Comparing.


def _positions_are_in_order(streams: dict[UUID, list[Row]]) -> None:
    every = [event["position"] for events in streams.values() for event in events]
    assert len(every) == len(set(every)), "two events have one position"
    assert min(every, default=1) >= 1, "a position is not above 0"
    for lock_id, events in streams.items():
        positions = [event["position"] for event in events]
        assert positions == sorted(positions), f"positions of {lock_id} do not follow its versions"


def _current_holders_agree(
    rows: list[Row], locks: list[Folded], streams: dict[UUID, list[Row]]
) -> None:
    expected = [
        {
            "ledger": lock.ledger,
            "lock_id": lock.lock_id,
            "version": lock.version,
            **(lock.hold or {**dict.fromkeys(HOLD), "key": lock.key}),
            "changed_at": lock.changed_at,
        }
        for lock in locks
    ]
    known = {lock.lock_id for lock in locks}
    foreign = [row for row in rows if row["lock_id"] not in known]
    for row in foreign:
        events = streams.get(row["lock_id"])
        assert events, f"a head row without any event: {row}"
        assert row["key"] is row["holder"] is row["token"] is row["changed_at"] is None, row
        assert row["version"] == events[-1]["version"], row
    _same_rows("current_holders", [row for row in rows if row["lock_id"] in known], expected)


def _one_holder_at_a_time(holds: list[Row]) -> None:
    """From the read models alone: within a lock, a hold begins when, or after, the one before it has ended."""
    by_lock: dict[UUID, list[Row]] = defaultdict(list)
    for hold in holds:
        by_lock[hold["lock_id"]].append(hold)
    for held in by_lock.values():
        held.sort(key=lambda hold: int(hold["token"]))
        for earlier, later in pairwise(held):
            assert earlier["token"] < later["token"], f"one token twice: {earlier} and {later}"
            assert earlier.get("ended_at"), f"not ended, but another follows: {earlier}"
            assert earlier["ended_at"] <= later["taken_at"], f"both live: {earlier} and {later}"
        for hold in held:
            over = hold.get("ended_at")
            assert over is None or hold["taken_at"] <= over, f"ended before it began: {hold}"
            assert hold["expires_at"] is None or hold["expires_at"] > hold["taken_at"], hold
            assert hold["expires_at"] is None or over is None or over <= hold["expires_at"], hold


def _every_hold_is_in_the_view(rows: list[Row], locks: list[Folded]) -> None:
    expected = {(lock.lock_id, hold["token"]) for lock in locks for hold in lock.ended}
    expected |= {(lock.lock_id, lock.hold["token"]) for lock in locks if lock.hold}
    found = [(row["lock_id"], row["token"]) for row in rows]
    assert len(found) == len(set(found)), "the view of all holds shows one twice"
    assert set(found) == expected, "the view of all holds shows others than the events tell of"


def _same_rows(table: str, found: list[Row], expected: list[Row]) -> None:
    number = "version" if "version" in TABLES[table] else "token"

    def by_key(row: Row) -> tuple[str, int]:
        return str(row["lock_id"]), int(row[number])

    found, expected = sorted(found, key=by_key), sorted(expected, key=by_key)
    same(f"the keys of {table}", [by_key(row) for row in found], [by_key(row) for row in expected])
    for one, other in zip(found, expected, strict=True):
        same(f"{table}, {other['key']!r} {number} {other[number]}", one, other)
