"""The fold over a lock's stored events, written from the contract's words on events, and using nothing of the library.

It applies what each event *changes*, and holds every fact that the event carries along against what the events before
it have made of the lock: so it also proves that the newest event alone rebuilds the lock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid5

Row = dict[str, Any]
Change = tuple[Row | None, Row | None]
"""The hold that an event ends, with its end, and the one that has not ended after it."""

IDS = UUID("5f0c3a4e-8f0e-5d0b-9a3c-6c6f636b6c64")
"""The name space of lock ids; other ids would be other locks."""

HOLD = (
    "key",
    "holder",
    "token",
    "taken_at",
    "expires_at",
    "taken_over_from",
    "takeover_reason",
    "metadata",
)


@dataclass
class Folded:
    """One lock as its events tell it: the hold that has not ended, all that have, and an audit entry for each event."""

    ledger: str
    lock_id: UUID
    key: str
    version: int = 0
    hold: Row | None = None
    changed_at: datetime | None = None
    hash: bytes = bytes(32)
    ended: list[Row] = field(default_factory=list)
    trail: list[Row] = field(default_factory=list)


def is_instant(name: str) -> bool:
    """Whether a fact or column of that name is an instant."""
    return name.endswith("_at") or name == "timestamp"


def with_instants(facts: Row) -> Row:
    """Facts read from JSON, with their instants as datetimes."""
    return {
        name: datetime.fromisoformat(value) if value and is_instant(name) else value
        for name, value in facts.items()
    }


def folded(lock_id: UUID, events: list[Row]) -> Folded:
    """One lock, from its rows of the events table in version order; `AssertionError` when they do not fit together."""
    ledger = events[0]["ledger"]
    key = json.loads(events[0]["state"])["key"]
    assert lock_id == uuid5(uuid5(IDS, ledger), key), f"{key!r} of {ledger!r} has the id {lock_id}"
    lock = Folded(ledger, lock_id, key)
    for number, row in enumerate(events, start=1):
        assert row["version"] == number, (
            f"{key!r} goes from version {number - 1} to {row['version']}"
        )
        assert row["ledger"] == ledger, (
            f"version {number} of {key!r} is in ledger {row['ledger']!r}"
        )
        _apply(lock, row)
    return lock


def _apply(lock: Folded, row: Row) -> None:
    event = with_instants(json.loads(row["state"]))
    lock.version = row["version"]
    where = f"version {lock.version} of {lock.key!r}, a {row['topic']}"
    says = (UUID(event["originator_id"]), event["originator_version"], event["key"])
    same(f"who says {where}", says, (lock.lock_id, lock.version, lock.key))
    lock.hash = _hash(lock, row)
    assert row["hash"] == lock.hash, f"the chain of hashes breaks at {where}"
    assert lock.changed_at is None or event["timestamp"] >= lock.changed_at, f"{where} goes back"

    before = lock.hold
    ended, lock.hold = _CHANGES[row["topic"]](before, event, where)
    same(f"what {where} carries", _carried(event), lock.hold or before)
    lock.changed_at = event["timestamp"]
    if ended is not None:
        lock.ended.append({"ledger": lock.ledger, "lock_id": lock.lock_id, **ended})
    lock.trail.append(_entry(lock, row, event, before))


def _taken(before: Row | None, event: Row, where: str) -> Change:
    assert before is None, f"{where}, but the lock is held already"
    return None, _begun(event, None)


def _taken_over(before: Row | None, event: Row, where: str) -> Change:
    old = _live(before, event, where)
    assert event["reason"] or event["holder"] == old["holder"], f"{where} without a reason"
    previous = {name: old[name] for name in HOLD if name != "key"}
    same(where, with_instants(event["previous"]), previous)
    ended = _with_end(old, event["timestamp"], "takeover", event["reason"], event["actor"])
    return ended, _begun(event, old)


def _extended(before: Row | None, event: Row, where: str) -> Change:
    old = _live(before, event, where)
    same(where, event["previous_expires_at"], old["expires_at"])
    assert event["expires_at"] > old["expires_at"], f"{where} does not extend"
    return None, {**old, "expires_at": event["expires_at"]}


def _released(before: Row | None, event: Row, where: str) -> Change:
    old = _live(before, event, where)
    how = "forced" if event["forced"] else "release"
    return _with_end(old, event["timestamp"], how, event["reason"], event["actor"]), None


def _expired(before: Row | None, event: Row, where: str) -> Change:
    assert before is not None, f"{where}, but nobody held the lock"
    same(where, event["expired_at"], before["expires_at"])
    assert event["expired_at"] <= event["timestamp"], f"{where} before its time"
    assert event["actor"] is None, f"{where} by {event['actor']!r}"
    return _with_end(before, event["expired_at"], "expiry", None, None), None


_CHANGES = {
    "lockledger.LockTaken": _taken,
    "lockledger.LockTakenOver": _taken_over,
    "lockledger.LockExtended": _extended,
    "lockledger.LockReleased": _released,
    "lockledger.LockExpired": _expired,
}


def _live(hold: Row | None, event: Row, where: str) -> Row:
    assert hold is not None, f"{where}, but nobody held the lock"
    now = event["timestamp"]
    assert hold["expires_at"] is None or now < hold["expires_at"], f"{where}, but it had run out"
    return hold


def _carried(event: Row) -> Row:
    return {name: event["hold_metadata" if name == "metadata" else name] for name in HOLD}


def _begun(event: Row, before: Row | None) -> Row:
    return {
        "key": event["key"],
        "holder": event["holder"],
        "token": event["originator_version"],
        "taken_at": event["timestamp"],
        "expires_at": event["expires_at"],
        "taken_over_from": before and before["holder"],
        "takeover_reason": before and event["reason"],
        "metadata": event["metadata"],
    }


def _with_end(hold: Row, at: datetime, by: str, reason: str | None, actor: str | None) -> Row:
    return {**hold, "ended_at": at, "ended_by": by, "end_reason": reason, "ended_by_actor": actor}


def _entry(lock: Folded, row: Row, event: Row, before: Row | None) -> Row:
    """The audit entry that belongs to an event which has just been applied."""
    about = lock.hold or before
    assert about is not None
    action = row["topic"].removeprefix("lockledger.")
    return {
        "ledger": lock.ledger,
        "lock_id": lock.lock_id,
        "version": lock.version,
        "position": row["position"],
        "key": lock.key,
        "action": action,
        "actor": event["actor"],
        "holder": about["holder"],
        "previous_holder": before["holder"] if before and action == "LockTakenOver" else None,
        "token": about["token"],
        "occurred_at": event["expired_at"] if action == "LockExpired" else event["timestamp"],
        "recorded_at": event["timestamp"],
        "reason": event.get("reason"),
        "before": before,
        "after": lock.hold,
        "metadata": event["metadata"],
        "event_hash": lock.hash,
    }


def _hash(lock: Folded, row: Row) -> bytes:
    """The hash that must stand beside an event, `lock.hash` being that of the event before."""
    hashed = b"lockledger.event.v1" + lock.hash + lock.lock_id.bytes
    hashed += int(row["version"]).to_bytes(8, "big")
    for text in (row["ledger"], row["topic"], row["state"]):
        hashed += len(text.encode()).to_bytes(8, "big") + text.encode()
    return sha256(hashed).digest()


def same(what: str, found: Any, expected: Any) -> None:
    """Raise `AssertionError` with what differs, unless both are equal and of one type."""
    if found == expected and type(found) is type(expected):
        return
    if isinstance(found, dict) and isinstance(expected, dict):
        names = sorted({*found, *expected})
        found = {
            name: found.get(name, "nothing")
            for name in names
            if found.get(name, "nothing") != expected.get(name, "nothing")
        }
        expected = {name: expected.get(name, "nothing") for name in found}
    raise AssertionError(f"{what}: {found} was found, {expected} follows from the events")
