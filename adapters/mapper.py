"""Lock events as the `eventsourcing` library stores and rebuilds them; other events are left to its own mapper.

The stock mapper cannot rebuild pydantic's objects, whose initialiser it bypasses.
"""

from typing import Any

from eventsourcing.domain import DomainEventProtocol, TAggregateID
from eventsourcing.persistence import Mapper, NotSupportedError, StoredEvent
from eventsourcing.utils import register_topic

from lockledger.adapters.encoding import decode, encode
from lockledger.adapters.incoming import stream_id
from lockledger.domain.events import EVENTS, LockEvent

for _topic, _kind in EVENTS.items():
    register_topic(_topic, _kind)


class LockEventMapper(Mapper[TAggregateID]):
    """Writes lock events as the ledger does, validates them when it reads them, and upcasts older formats.

    Lock events are never encrypted or compressed, since the ledger has to read them: with a cipher or compressor they
    are refused when they are saved, and read all the same.
    """

    def to_stored_event(self, domain_event: DomainEventProtocol[TAggregateID]) -> StoredEvent:
        """The event as it is stored. Raises `NotSupportedError` for a lock event where a cipher or compressor is set."""
        event: object = domain_event
        if not isinstance(event, LockEvent):
            return super().to_stored_event(domain_event)
        if self.cipher or self.compressor:
            raise NotSupportedError(
                f"{event.TOPIC} is stored as plain text, which the ledger has to read:"
                " save it where neither cipher nor compressor is set, or take the lock with a LockLedger"
            )
        topic, state = encode(event)
        return StoredEvent(event.originator_id, event.originator_version, topic, state.encode())

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        """The event that was stored, in the format of today.

        Raises `EventFormatMismatch` for a lock event in a format of a later release, `TamperedLedger` for one that no
        release wrote.
        """
        if stored_event.topic not in EVENTS:
            return super().to_domain_event(stored_event)
        return decode(
            stream_id(stored_event.originator_id),
            stored_event.originator_version,
            stored_event.topic,
            stored_event.state.decode(),
        )
