"""Stored events: what they look like, that old ones still decode, and the hash that chains them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest
from eventsourcing.persistence import StoredEvent as Handed
from sqlalchemy import Connection

from lockledger import EventFormatMismatch, LockLedger, SchemaMismatch, TamperedLedger
from lockledger.adapters.encoding import chain, decode, encode, event_hash
from lockledger.domain.events import EVENTS, LockEvent, LockTaken
from lockledger.eventsourcing import (
    LockEventMapper,
    OwnTransactions,
    SQLAlchemyAggregateRecorder,
)
from support.databases import Database
from support.stories import Story

GOLDEN = Path(__file__).parent / "golden"
LOCK = UUID("601a885d-268a-5d26-acac-4f2414275175")
REQUEST = {"request": "r1", "größe": [1, 2.5, None, True]}
HOLD = {
    "key": "round:5:band:2",
    "holder": "run:42",
    "token": 1,
    "taken_at": datetime(2026, 3, 2, 9, 0, 0, 123456, UTC),
    "taken_over_from": None,
    "takeover_reason": None,
    "hold_metadata": REQUEST,
}
TAKEN_OVER = {
    "key": "round:5:band:2",
    "holder": "user:9",
    "token": 5,
    "taken_at": datetime(2026, 3, 2, 9, 1, 41, 123456, UTC),
    "expires_at": None,
    "taken_over_from": "run:43",
    "takeover_reason": 'Urgent: "Ärger"\nsee #12',
    "hold_metadata": {},
}
# What the events of format 1 say, by the file that holds the state as a release wrote it.
FORMAT_1: dict[str, tuple[int, dict[str, Any]]] = {
    "LockTaken": (
        1,
        {
            **HOLD,
            "timestamp": HOLD["taken_at"],
            "expires_at": datetime(2026, 3, 2, 9, 1, 0, 123456, UTC),
            "actor": "user:7",
            "metadata": REQUEST,
        },
    ),
    "LockExtended": (
        2,
        {
            **HOLD,
            "timestamp": datetime(2026, 3, 2, 9, 0, 30, 123456, UTC),
            "expires_at": datetime(2026, 3, 2, 9, 1, 30, 123456, UTC),
            "previous_expires_at": datetime(2026, 3, 2, 9, 1, 0, 123456, UTC),
            "actor": "run:42",
            "metadata": {},
        },
    ),
    "LockExpired": (
        3,
        {
            **HOLD,
            "timestamp": datetime(2026, 3, 2, 9, 1, 40, 123456, UTC),
            "expires_at": datetime(2026, 3, 2, 9, 1, 30, 123456, UTC),
            "expired_at": datetime(2026, 3, 2, 9, 1, 30, 123456, UTC),
            "recorded_during": "take",
            "actor": None,
            "metadata": {"request": "r2"},
        },
    ),
    "LockTakenOver": (
        5,
        {
            **TAKEN_OVER,
            "timestamp": TAKEN_OVER["taken_at"],
            "actor": "user:9",
            "metadata": {},
            "reason": TAKEN_OVER["takeover_reason"],
            "previous": {
                "holder": "run:43",
                "token": 4,
                "taken_at": datetime(2026, 3, 2, 9, 1, 40, 123456, UTC),
                "expires_at": datetime(2026, 3, 2, 9, 2, 40, 123456, UTC),
                "taken_over_from": None,
                "takeover_reason": None,
                "metadata": {"request": "r2"},
            },
        },
    ),
    "LockReleased": (
        6,
        {
            **TAKEN_OVER,
            "timestamp": datetime(2026, 3, 2, 9, 1, 42, 1, UTC),
            "actor": "user:1",
            "metadata": {"request": "r3"},
            "forced": True,
            "reason": "holiday",
        },
    ),
}


def golden(name: str, number: int = 1) -> str:
    return (GOLDEN / f"{name}.{number}.json").read_text(encoding="utf-8").rstrip("\n")


def test_every_event_has_a_stored_state_in_each_format_that_was_ever_released() -> None:
    expected = {
        f"{name}.{number}.json"
        for name, kind in ((kind.__name__, kind) for kind in EVENTS.values())
        for number in range(1, kind.class_version + 1)
    }

    assert {path.name for path in GOLDEN.iterdir()} == expected
    assert set(FORMAT_1) == {kind.__name__ for kind in EVENTS.values()}


@pytest.mark.parametrize("name", FORMAT_1)
def test_a_stored_state_of_format_1_still_decodes(name: str) -> None:
    version, says = FORMAT_1[name]

    event = decode(LOCK, version, f"lockledger.{name}", golden(name))

    assert type(event).__name__ == name
    assert event.model_dump() == {"originator_id": LOCK, "originator_version": version, **says}


@pytest.mark.parametrize("name", FORMAT_1)
def test_an_event_is_stored_as_it_was_in_its_formats_first_release(name: str) -> None:
    version, says = FORMAT_1[name]
    kind = EVENTS[f"lockledger.{name}"]

    topic, state = encode(kind(originator_id=LOCK, originator_version=version, **says))

    assert topic == f"lockledger.{name}"
    assert state == golden(name, kind.class_version)


class LockTakenOf2(LockTaken):
    """As a later release might have it: who acts has a name that says more."""

    class_version: ClassVar[int] = 2
    on_behalf_of: str

    @staticmethod
    def upcast_v1_v2(state: dict[str, Any]) -> None:
        state["on_behalf_of"] = state["actor"]


class LockTakenOf3(LockTakenOf2):
    """And the release after that one."""

    class_version: ClassVar[int] = 3
    urgent: bool

    @staticmethod
    def upcast_v2_v3(state: dict[str, Any]) -> None:
        state["urgent"] = state["on_behalf_of"].startswith("user:")


def test_an_older_format_is_upcast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVENTS, LockTaken.TOPIC, LockTakenOf2)

    event = decode(LOCK, 1, LockTaken.TOPIC, golden("LockTaken"))

    assert isinstance(event, LockTakenOf2)
    assert (event.on_behalf_of, event.holder) == ("user:7", "run:42")


def test_formats_are_upcast_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVENTS, LockTaken.TOPIC, LockTakenOf3)

    event = decode(LOCK, 1, LockTaken.TOPIC, golden("LockTaken"))

    assert isinstance(event, LockTakenOf3)
    assert (event.urgent, event.on_behalf_of) == (True, "user:7")
    _, of_3 = encode(event)
    assert of_3.startswith('{"class_version":3,')
    assert decode(LOCK, 1, LockTaken.TOPIC, of_3) == event
    of_2 = of_3.replace('"class_version":3', '"class_version":2').replace(',"urgent":true', "")
    assert decode(LOCK, 1, LockTaken.TOPIC, of_2) == event


def test_the_mapper_of_eventsourcing_upcasts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVENTS, LockTaken.TOPIC, LockTakenOf2)
    mapper: LockEventMapper[UUID] = LockEventMapper(transcoder=None)  # type: ignore[arg-type]
    stored = Handed(LOCK, 1, LockTaken.TOPIC, golden("LockTaken").encode())

    event = mapper.to_domain_event(stored)

    assert isinstance(event, LockTakenOf2)
    assert mapper.to_domain_event(mapper.to_stored_event(event)) == event


def test_a_format_of_a_later_release_is_refused_with_the_remedy() -> None:
    later = golden("LockTaken").replace('"class_version":1', '"class_version":2')

    with pytest.raises(EventFormatMismatch) as refusal:
        decode(LOCK, 1, LockTaken.TOPIC, later)

    assert isinstance(refusal.value, SchemaMismatch)
    assert str(refusal.value) == (
        "a stored lockledger.LockTaken has format version 2, this library reads up to 1; upgrade lockledger here"
    )


TAKEN = golden("LockTaken")
DAMAGED = {
    "not JSON": TAKEN[:-1],
    "no object": f"[{TAKEN}]",
    "a text": '"taken"',
    "no format": TAKEN.replace('"class_version":1,', ""),
    "format 0": TAKEN.replace('"class_version":1', '"class_version":0'),
    "a format that is no number": TAKEN.replace('"class_version":1', '"class_version":"one"'),
    "a fact too many": TAKEN.replace('"token":1', '"token":1,"colour":"red"'),
    "a fact too few": TAKEN.replace('"holder":"run:42",', ""),
    "a naive instant": TAKEN.replace("09:01:00.123456Z", "09:01:00.123456"),
    "another's version": TAKEN.replace('"originator_version":1', '"originator_version":2'),
    "another lock": TAKEN.replace("601a885d", "701a885d"),
}


@pytest.mark.parametrize("state", DAMAGED.values(), ids=DAMAGED)
def test_a_state_that_no_release_wrote_is_named_tampered(state: str) -> None:
    assert state != TAKEN
    with pytest.raises(TamperedLedger, match=str(LOCK)):
        decode(LOCK, 1, LockTaken.TOPIC, state)


# The chain, computed from the words of its description, with nothing of the library.


def behind_its_length(text: str) -> bytes:
    encoded = text.encode("utf-8")
    return len(encoded).to_bytes(8, byteorder="big") + encoded


def recomputed(
    previous: bytes, ledger: str, lock: UUID, version: int, topic: str, state: str
) -> bytes:
    parts = [
        b"lockledger.event.v1",
        previous,
        lock.bytes,
        version.to_bytes(8, byteorder="big"),
        behind_its_length(ledger),
        behind_its_length(topic),
        behind_its_length(state),
    ]
    return sha256(b"".join(parts)).digest()


def rows(connection: Connection) -> Iterator[tuple[UUID, int, str, str, str, bytes]]:
    found = connection.exec_driver_sql(
        "SELECT lock_id, version, ledger, topic, state, hash FROM lockledger_events ORDER BY lock_id, version"
    )
    for lock, version, ledger, topic, state, stored in found:
        yield UUID(str(lock)), version, ledger, topic, state, bytes(stored)


def prove_chains(database: Database) -> dict[UUID, list[str]]:
    """The topics of each stream, once every hash in the database has been recomputed."""
    chains: dict[UUID, list[str]] = {}
    previous = bytes(32)
    with database.engine().connect() as connection:
        for lock, version, ledger, topic, state, stored in rows(connection):
            if lock not in chains:
                previous = bytes(32)
            assert stored == recomputed(previous, ledger, lock, version, topic, state)
            previous = stored
            chains.setdefault(lock, []).append(topic)
    return chains


def test_every_hash_chains_the_stored_bytes_to_the_event_before(database: Database) -> None:
    with LockLedger(database.url) as ledger, LockLedger(database.url, name="Zürich 🔒") as other:
        for each in (ledger, other):
            each.take("größe:ﬁ", "run:1", ttl=3600, metadata={"why": "Ärger \u2028 😀"})
            each.extend("größe:ﬁ", "run:1", 7200)
            each.take("größe:ﬁ", "run:2", takeover_reason="Übernahme\n\tjetzt")
            each.release("größe:ﬁ", "run:2", reason="fertig")
            each.take("round:5", "run:1")
        lock = ledger.take("round:6", "run:1")
    own = OwnTransactions(database.url)
    foreign = SQLAlchemyAggregateRecorder(own)
    stream = UUID(int=lock.token)
    for first in (0, 2):
        foreign.insert_events(
            [
                Handed(stream, version, "orders:Order.Placed", f'{{ "größe" :{version} }}'.encode())
                for version in (first, first + 1)
            ]
        )
    own.close()

    chains = prove_chains(database)

    assert len(chains) == 6
    assert sorted(len(topics) for topics in chains.values()) == [1, 1, 1, 4, 4, 4]
    assert chains[stream] == ["orders:Order.Placed"] * 4


def test_the_audit_trail_shows_the_events_hash(database: Database) -> None:
    with LockLedger(database.url) as ledger:
        ledger.take("round:5", "run:1")
        ledger.release("round:5", "run:1")
        shown = [entry.event_hash for entry in ledger.history("round:5")]

    with database.engine().connect() as connection:
        assert shown == [row[-1].hex() for row in rows(connection)]


def test_a_hash_covers_each_fact_and_where_it_ends() -> None:
    facts: dict[str, Any] = {
        "previous": bytes(32),
        "ledger": "default",
        "lock_id": LOCK,
        "version": 1,
        "topic": LockTaken.TOPIC,
        "state": TAKEN,
    }
    changes: dict[str, Any] = {
        "previous": bytes(31) + b"\1",
        "ledger": "Default",
        "lock_id": UUID(int=LOCK.int + 1),
        "version": 2,
        "topic": "lockledger.LockExtended",
        "state": TAKEN + " ",
    }

    hashes = {event_hash(**facts)}
    for name, other in changes.items():
        hashes.add(event_hash(**facts | {name: other}))
    hashes.add(event_hash(**facts | {"ledger": "defaultlock", "topic": "ledger.LockTaken"}))

    assert len(hashes) == len(changes) + 2
    assert event_hash(**facts) == recomputed(*facts.values())
    assert event_hash(**facts).hex() == (
        "1c50cc198374ae64a98c565eb7ed403e544a56b4deb2d10ed02c84042dfaa972"
    )


def test_events_of_one_append_are_chained_to_each_other() -> None:
    story = Story()
    story.take("run:1", ttl=10)
    story.take("run:2", now=11)
    events: list[LockEvent] = story.events

    stored = list(chain("default", bytes(32), events))

    assert [each.version for each in stored] == [1, 2, 3]
    previous = bytes(32)
    for each in stored:
        assert json.loads(each.state)["class_version"] == 1
        previous = recomputed(
            previous, "default", each.lock_id, each.version, each.topic, each.state
        )
        assert each.hash == previous
