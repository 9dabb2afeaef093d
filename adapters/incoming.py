"""Events that `eventsourcing` hands over to be recorded: checked, sorted by stream, and made into appends.

A stream holds the events of a lock, or events of others. Those of a lock are written exactly as a verb writes them,
with audit entries and ended holds, and must be what a verb could have recorded; of others only the events are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from eventsourcing import persistence
from eventsourcing.persistence import DataError, IntegrityError

from lockledger.adapters.encoding import FIRST, StoredEvent, chain_encoded, decode
from lockledger.adapters.store import Append, EventStore, Tail
from lockledger.domain.errors import TamperedLedger, shown
from lockledger.domain.events import EVENTS, LockEvent
from lockledger.domain.lock import evolve
from lockledger.domain.succession import misfit
from lockledger.projections import current_holders

OURS = "lockledger."
_BEYOND_VERSIONS = 2**63


class Given(NamedTuple):
    """An event as it was handed over, once it is known that it can be stored."""

    stream: UUID
    version: int
    topic: str
    state: str


@dataclass(slots=True)
class Stream:
    """The events of one call that go to one stream, in version order; `lock_events` are the same, if it is a lock."""

    id: UUID
    given: list[Given] = field(default_factory=list)
    lock_events: list[LockEvent] = field(default_factory=list)

    @property
    def expected(self) -> int:
        """The version that the stream must be at before."""
        return self.given[0].version - 1


class Incoming:
    """What one call hands over.

    Raises `DataError` for an event that cannot be stored here, `IntegrityError` when it conflicts with what is stored.
    """

    def __init__(self, store: EventStore, events: Sequence[persistence.StoredEvent]) -> None:
        self._store = store
        self._streams: dict[UUID, Stream] = {}
        self._order: list[tuple[UUID, int]] = []
        for event in events:
            given = _checked(event)
            self._order.append((given.stream, given.version))
            self._add(given)

    @property
    def streams(self) -> list[UUID]:
        """Where the events go, in the order of ids."""
        return sorted(self._streams)

    def appends(self, tails: Mapping[UUID, Tail]) -> tuple[list[Append], list[StoredEvent]]:
        """What has to be written to each stream, by id, and all events in the order in which they were given."""
        appends = [self._append(self._streams[each], tails[each]) for each in self.streams]
        stored = {
            (event.lock_id, event.version): event for each in appends for event in each.events
        }
        return appends, [stored[place] for place in self._order]

    def _add(self, given: Given) -> None:
        stream = self._streams.setdefault(given.stream, Stream(given.stream))
        if stream.given and given.version != stream.given[-1].version + 1:
            raise IntegrityError(
                f"stream {given.stream}: version {given.version} comes after version"
                f" {stream.given[-1].version} in one call; versions follow each other by one"
            )
        stream.given.append(given)
        if given.topic in EVENTS:
            stream.lock_events.append(self._lock_event(given))
        if len(stream.lock_events) not in (0, len(stream.given)):
            raise DataError(f"stream {given.stream}: {_MIXED}")

    def _lock_event(self, given: Given) -> LockEvent:
        try:
            event = decode(*given)
        except TamperedLedger as fault:
            raise DataError(
                f"version {given.version} of stream {given.stream} is no {given.topic} as the ledger stores it;"
                " let lockledger's mapper write lock events"
            ) from fault
        right = self._store.lock_id(event.key)
        if right != given.stream:
            raise DataError(
                f"the lock {shown(event.key)} of ledger {shown(self._store.ledger)} has the id {right},"
                f" not {given.stream}"
            )
        return event

    def _append(self, stream: Stream, tail: Tail) -> Append:
        _, newest, head = tail
        found = None if head is None else head["version"]
        if head is not None and head["ledger"] != self._store.ledger:
            raise IntegrityError(
                f"originator id {stream.id} is in use in another ledger; an id belongs to one ledger"
            )
        if found not in ((None, 0) if newest is None else (newest[0],)):
            raise TamperedLedger(
                None, f"the head row of stream {stream.id} is not at its newest event's version"
            )
        if newest is not None and (newest[1] in EVENTS) != bool(stream.lock_events):
            raise DataError(f"stream {stream.id}: {_MIXED}")
        if stream.expected not in ((-1, 0) if newest is None else (found,)):
            there = "has no events" if newest is None else f"is at version {found}"
            raise IntegrityError(
                f"stream {stream.id} {there}, so version {stream.expected + 1} is not its next;"
                " read it again and decide anew"
            )
        if stream.lock_events:
            return self._lock_append(stream, tail)
        previous = FIRST if newest is None else newest[3]
        last = stream.given[-1].version
        head = current_holders.foreign_row(self._store.ledger, stream.id, last)
        return Append(stream.id, stream.expected, self._chained(previous, stream), head)

    def _lock_append(self, stream: Stream, tail: Tail) -> Append:
        newest = self._store.newest_of(stream.lock_events[0].key, tail)
        lock = newest.lock
        for event in stream.lock_events:
            if fault := misfit(lock, event):
                raise DataError(
                    f"{event.action} cannot be version {event.originator_version} of {shown(event.key)}: {fault}"
                )
            lock = evolve(event)
        stored = self._chained(newest.hash, stream)
        return self._store.recording_stored(stream.expected, stream.lock_events, stored)

    def _chained(self, previous: bytes, stream: Stream) -> list[StoredEvent]:
        return list(chain_encoded(self._store.ledger, bytes(previous), stream.given))


_MIXED = "a lock's events and others' do not go into one stream"


def stream_id(originator_id: UUID | str) -> UUID:
    """The originator's id, which is a UUID here; `DataError` for a text."""
    if not isinstance(originator_id, UUID):
        raise DataError(
            f"originator id {shown(originator_id)}: the ledger knows streams by UUID; make one, uuid5(…, name), of a name"
        )
    return originator_id


def _checked(event: persistence.StoredEvent) -> Given:
    stream, version, topic = (
        stream_id(event.originator_id),
        event.originator_version,
        event.topic,
    )
    if not 0 <= version < _BEYOND_VERSIONS:
        raise DataError(f"stream {stream}: version {shown(version)}; versions begin at 0 or 1")
    if not topic or not topic.isprintable():
        raise DataError(f"stream {stream}: the topic {shown(topic)} is empty or not printable")
    if topic.startswith(OURS) and topic not in EVENTS:
        raise DataError(f"this release knows no {topic}; upgrade lockledger here")
    try:
        state = bytes(event.state).decode()
    except UnicodeDecodeError:
        state = "\0"
    if "\0" in state:
        raise DataError(
            f"stream {stream}: the state of {topic}, version {version}, is not UTF-8 without NUL; the ledger keeps text:"
            " use a transcoder that makes text, and no cipher or compressor that makes bytes"
        )
    return Given(stream, version, topic, state)
