"""Events of somebody who can make hashes, and makes every projection fit: the rules still find what no verb would do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lockledger import (
    EventFormatMismatch,
    LockEvent,
    LockExpired,
    LockLedger,
    LockReleased,
    LockTaken,
    LockTakenOver,
)
from lockledger.adapters.encoding import encode, event_hash
from lockledger.domain.events import PreviousHold
from lockledger.domain.keys import lock_id
from support.databases import Database
from support.tampering import tamper

SECOND = timedelta(seconds=1)


def newest(ledger: LockLedger, key: str) -> LockEvent:
    """The lock's newest event."""
    return [each.event for each in ledger.events() if each.event.key == key][-1]


def forge(database: Database, key: str, topic: str, state: str, version: int | None = None) -> None:
    """Appends an event to a lock's stream, chained as it must be."""
    stream, postgres = lock_id("default", key), database.dialect == "postgresql"
    value = f"'{stream if postgres else stream.hex}'"
    with database.engine().connect() as connection:
        newest_one = connection.exec_driver_sql(
            f"SELECT version, hash FROM lockledger_events WHERE lock_id = {value} ORDER BY version DESC LIMIT 1"
        ).first()
        last, previous = newest_one or (0, bytes(32))
        position = connection.exec_driver_sql(
            "SELECT max(position) FROM lockledger_events"
        ).scalar_one()
        connection.rollback()
    version = last + 1 if version is None else version
    forged = event_hash(bytes(previous), "default", stream, version, topic, state)
    literal = f"'\\x{forged.hex()}'::bytea" if postgres else f"x'{forged.hex()}'"
    place = "nextval('lockledger_position')" if postgres else str(position + 1)
    quoted = state.replace("'", "''")
    tamper(
        database,
        "INSERT INTO lockledger_events (lock_id, version, position, ledger, topic, state, hash)"
        f" VALUES ({value}, {version}, {place}, 'default', '{topic}', '{quoted}', {literal})",
    )


def facts(event: LockEvent, **changes: Any) -> dict[str, Any]:
    """What an event that follows this one would carry of its hold."""
    names = ("originator_id", "key", "holder", "token", "taken_at", "expires_at", "hold_metadata")
    of_hold = {name: getattr(event, name) for name in names}
    following = {
        "originator_version": event.originator_version + 1,
        "timestamp": event.timestamp + SECOND,
        "actor": event.holder,
    }
    return {**of_hold, **following, **changes}


def previous(event: LockEvent) -> PreviousHold:
    return PreviousHold(**{name: getattr(event.hold(), name) for name in PreviousHold.model_fields})


def begun(event: LockEvent, **changes: Any) -> dict[str, Any]:
    """What an event that begins another hold after this one would carry."""
    at, version = event.timestamp + SECOND, event.originator_version + 1
    return facts(event, holder="run:5", token=version, taken_at=at, **changes)


def over(event: LockEvent, **changes: Any) -> dict[str, Any]:
    taken_over = {
        "taken_over_from": event.holder,
        "takeover_reason": "mine",
        "reason": "mine",
        "previous": previous(event),
    }
    return {**begun(event), **taken_over, **changes}


# `k` is held at version 7, until two hours after it was taken; `free` was released.
FORGERIES: dict[str, tuple[str, Callable[[LockEvent], LockEvent], str]] = {
    "a second begin": (
        "k",
        lambda last: LockTaken(**begun(last)),
        "the lock's hold is not as it says",
    ),
    "an end without a begin": (
        "free",
        lambda last: LockReleased(**facts(last)),
        "the lock is not held",
    ),
    "a token that does not grow": (
        "k",
        lambda last: LockTakenOver(**over(last, token=7)),
        "a hold's token is the version",
    ),
    "a time that goes back": (
        "k",
        lambda last: LockReleased(**facts(last, timestamp=last.timestamp - SECOND)),
        "it is earlier than the lock's newest event",
    ),
    "a takeover without a reason": (
        "k",
        lambda last: LockTakenOver(**over(last, reason=None, takeover_reason=None)),
        "without a reason",
    ),
    "an expiry before its time": (
        "k",
        lambda last: LockExpired(
            **facts(last, actor=None, expired_at=last.expires_at, recorded_during="sweep")
        ),
        "the hold has not run out",
    ),
    "an end after the expiry": (
        "k",
        lambda last: LockReleased(**facts(last, timestamp=last.timestamp + 9000 * SECOND)),
        "the hold has run out",
    ),
    "an end of another hold": (
        "k",
        lambda last: LockReleased(**facts(last, holder="run:9")),
        "the lock's hold is not as it says",
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_no_verb_could_have_recorded(
    database: Database, ledger: LockLedger, forgery: str
) -> None:
    key, make, why = FORGERIES[forgery]
    event = make(newest(ledger, key))
    forge(database, key, *encode(event))
    assert ledger.rebuild().ok, "the projections do not fit the forgery"
    (fault,) = ledger.verify().faults
    assert (fault.kind, fault.key, fault.version) == ("rule", key, event.originator_version)
    assert why in fault.found
    assert fault.found.startswith(event.action)


def test_another_locks_event(database: Database, ledger: LockLedger) -> None:
    event = LockReleased(**facts(newest(ledger, "k"), key="other"))
    forge(database, "k", *encode(event))
    (fault,) = ledger.verify().faults
    assert (fault.kind, fault.key, fault.version) == ("rule", "k", 8)
    assert str(lock_id("default", "other")) in fault.expected


UNREADABLE = {
    "no JSON": ("lockledger.LockTaken", "taken", "event_unreadable"),
    "nothing in it": ("lockledger.LockTaken", "{}", "event_unreadable"),
    "of no release": ("lockledger.LockTaken", '{"class_version":0}', "event_unreadable"),
    "of an unknown kind": ("lockledger.LockPainted", "{}", "event_foreign"),
    "of something else": ("elsewhere.Happened", "{}", "event_foreign"),
}


@pytest.mark.parametrize("forgery", UNREADABLE)
def test_what_is_no_event_of_a_lock(database: Database, ledger: LockLedger, forgery: str) -> None:
    topic, state, kind = UNREADABLE[forgery]
    forge(database, "k", topic, state)
    (fault,) = ledger.verify().faults
    assert (fault.kind, fault.key, fault.version) == (kind, "k", 8)
    done = ledger.rebuild()
    assert (done.by_kind, done.inserted, done.corrected) == ({kind: 1}, 0, 0)


def test_a_lock_event_in_a_stream_of_something_else(database: Database, ledger: LockLedger) -> None:
    """The first event says what a stream is of. The forger makes the first one, of a lock that has no other."""
    ledger.take("lone", "run:1")
    taken = newest(ledger, "lone")
    tables = ("events", "audit_trail", "current_holders")
    tamper(
        database,
        *(f"DELETE FROM lockledger_{each} WHERE lock_id = :lone" for each in tables),
        lone="lone",
    )
    forge(database, "lone", "elsewhere.Happened", "{}", version=1)
    forge(database, "lone", *encode(taken), version=2)
    (fault,) = [each for each in ledger.verify().faults if each.kind != "head_missing"]
    assert (fault.kind, fault.version) == ("event_foreign", 2)


def test_an_event_of_a_later_release_stops_it(database: Database, ledger: LockLedger) -> None:
    topic, state = encode(LockReleased(**facts(newest(ledger, "k"))))
    forge(database, "k", topic, state.replace('"class_version":1', '"class_version":9'))
    with pytest.raises(EventFormatMismatch, match="upgrade lockledger"):
        ledger.verify()
    assert ledger.is_locked("other")
