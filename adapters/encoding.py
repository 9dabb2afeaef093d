"""Events as they are stored: topic, JSON text and a hash that chains each event of a lock to the one before it."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from lockledger.domain.errors import EventFormatMismatch, TamperedLedger
from lockledger.domain.events import EVENTS, LockEvent

FIRST = bytes(32)
"""Stands for the previous hash of a lock's first event."""

_DOMAIN = b"lockledger.event.v1"
_UNREADABLE = (ValueError, KeyError, AttributeError, TypeError, RecursionError)
"""What reading JSON raises that nobody of ours wrote; the last for brackets without end."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as the events table keeps it. The hash covers exactly this text, never JSON written again."""

    lock_id: UUID
    version: int
    topic: str
    state: str
    hash: bytes


def event_hash(
    previous: bytes, ledger: str, lock_id: UUID, version: int, topic: str, state: str
) -> bytes:
    """SHA-256 over a fixed prefix, the previous event's hash, the lock's id, the version, ledger, topic and state.

    The version takes 8 bytes, big-endian; each text stands in UTF-8 behind its length in bytes as 8 bytes.
    """
    hashed = [_DOMAIN, previous, lock_id.bytes, version.to_bytes(8, "big")]
    for text in (ledger, topic, state):
        encoded = text.encode()
        hashed += (len(encoded).to_bytes(8, "big"), encoded)
    return sha256(b"".join(hashed)).digest()


def encode(event: LockEvent) -> tuple[str, str]:
    """Topic and state. The state begins with the version of the event's format."""
    return event.TOPIC, f'{{"class_version":{event.class_version},{event.model_dump_json()[1:]}'


def chain(ledger: str, previous: bytes, events: Iterable[LockEvent]) -> Iterator[StoredEvent]:
    """The events of one lock, encoded and chained to the hash of the event before them."""
    encoded = ((each.originator_id, each.originator_version, *encode(each)) for each in events)
    return chain_encoded(ledger, previous, encoded)


def chain_encoded(
    ledger: str, previous: bytes, events: Iterable[tuple[UUID, int, str, str]]
) -> Iterator[StoredEvent]:
    """Events of one stream that are encoded already: stream, version, topic and state, stored exactly so."""
    for stream, version, topic, state in events:
        previous = event_hash(previous, ledger, stream, version, topic, state)
        yield StoredEvent(stream, version, topic, state, previous)


def decode(lock_id: UUID, version: int, topic: str, state: str) -> LockEvent:
    """The event that was stored, brought up to the format of today.

    Raises `EventFormatMismatch` for a format this library does not know yet, `TamperedLedger` for a state that no
    release ever wrote, or that belongs to another lock or version than its row.
    """
    kind = EVENTS[topic]
    current = f'{{"class_version":{kind.class_version},'
    try:
        if state.startswith(current):
            event = kind.model_validate_json("{" + state[len(current) :])
        else:
            event = kind.model_validate(_upcast(kind, json.loads(state)))
    except (ValidationError, *_UNREADABLE) as fault:
        raise TamperedLedger(
            None, f"version {version} of lock {lock_id} is no readable {topic}"
        ) from fault
    if event.originator_id != lock_id or event.originator_version != version:
        raise TamperedLedger(
            event.key,
            f"version {version} of lock {lock_id} holds an event of version {event.originator_version}"
            f" of lock {event.originator_id}",
        )
    return event


def _upcast(kind: type[LockEvent], state: dict[str, Any]) -> dict[str, Any]:
    """Walks the state up through `upcast_v1_v2` and so on, which each event class has for its older formats."""
    found = state.pop("class_version")
    if type(found) is not int:
        raise TypeError(f"the format {found!r} is no number")
    if found > kind.class_version:
        raise EventFormatMismatch(kind.TOPIC, found, kind.class_version)
    if found < 1:
        raise ValueError(f"there is no format {found}")
    for version in range(found, kind.class_version):
        getattr(kind, f"upcast_v{version}_v{version + 1}")(state)
    return state
