"""One stream of events, followed from its first: versions without gaps, the hash chain, positions, and the rules.

What an event says is believed only when its hash is right. An event that is missing or wrong is one fault, and the next
one is judged by itself: what it is chained to may be known from the audit trail.
"""

from typing import Any, Final
from uuid import UUID

from lockledger.adapters.encoding import FIRST, decode, event_hash
from lockledger.domain.errors import EventFormatMismatch, TamperedLedger, shown
from lockledger.domain.events import EVENTS, LockEvent
from lockledger.domain.faults import Fault, FaultKind
from lockledger.domain.keys import lock_id
from lockledger.domain.lock import Lock, evolve
from lockledger.domain.succession import misfit

OURS: Final = "lockledger."


class Chain:
    """Where one stream stands after the events it has been shown, which come in version order."""

    def __init__(
        self,
        ledger: str,
        stream: UUID,
        *,
        key: str | None,
        last_position: int | None,
        rules: bool,
    ) -> None:
        self.stream = stream
        self.key = key
        """What the lock is called: by other tables, until an event that can be believed says it."""
        self.foreign: bool | None = None
        """Whether it is a stream of events that is no lock; `None` before its first event."""
        self.version = 0
        self.gap: range = range(0)
        """The versions that are not there right before the event shown last."""
        self.event: LockEvent | None = None
        """The event shown last, if it can be believed."""
        self.position: Any = 0
        self.misplaced = False
        """Whether the event shown last has a position that cannot be its own."""
        self.ended_token = 0
        """The token of the hold that ended last, as far as the projections were compared."""
        self.faulty = False
        """Whether any event was missing or not to be believed."""
        self._ledger = ledger
        self._rules = rules
        self._last_position = last_position
        self._previous: tuple[bytes, ...] = (FIRST,)
        self._lock: Lock | None = None
        self._proven: str | None = None

    def skip_to(self, version: int) -> Fault:
        """The fault that the events before this version are not there; it is shown next."""
        return self._gap(self.version + 1, version - 1, f"version {version}")

    def follow(
        self, version: Any, position: Any, topic: Any, state: Any, stored_hash: Any
    ) -> list[Fault]:
        """What is wrong with the event after those shown. Raises `EventFormatMismatch` for one of a later release."""
        self.event = None
        if self.foreign is None:
            self.foreign = not str(topic).startswith(OURS)
        self.version = max(self.version, version)
        right = self._chained(version, topic, state, stored_hash)
        if right is not None:
            return [self._wrong("event_hash", version, position, right, _hex(stored_hash))]
        if self.foreign:
            return self._of_no_lock(version, position, topic)
        if topic not in EVENTS:
            expected, found = "an event of a lock", shown(topic)
            return [self._wrong("event_foreign", version, position, expected, found)]
        return self._believed(version, position, topic, state)

    def witnessed(self, event_hash: Any) -> None:
        """What the audit trail says is the hash of the event that is missing or wrong right before the next one."""
        self._previous = (*self._previous, event_hash)

    def ends_at(self, version: int) -> Fault:
        """Other tables tell of events up to this version, which are not there."""
        missing = self._gap(self.version + 1, version, "nothing")
        self.version = version
        return missing

    def _gap(self, first: int, last: int, found: str) -> Fault:
        self.gap = range(first, last + 1)
        self.faulty = True
        self._lock, self._previous = None, ()
        which = f"version {first}" if first == last else f"versions {first} to {last}"
        return self._fault("event_missing", first, None, which, found)

    def _chained(self, version: Any, topic: Any, state: Any, stored: Any) -> str | None:
        """The hash that the event should have, `None` when it has it, or when nobody knows what it is chained to."""
        if not self._previous:
            self._previous = (stored,)
            return None
        if version == 1 and not self.foreign:
            self._previous = (FIRST,)  # whatever somebody has put before it
        computed = FIRST
        for previous in self._previous:
            try:
                computed = event_hash(previous, self._ledger, self.stream, version, topic, state)
            except (AttributeError, TypeError, OverflowError, UnicodeError):
                self._previous = (stored,)
                return "a hash of text, and what it is of"
            if computed == stored:
                self._previous = (computed,)
                return None
        first = event_hash(self._previous[0], self._ledger, self.stream, version, topic, state)
        # Either the event was changed or its hash: the next one tells which of the two it is chained to.
        self._previous = (stored, first) if isinstance(stored, bytes) else (first,)
        return first.hex()

    def _of_no_lock(self, version: Any, position: Any, topic: Any) -> list[Fault]:
        faults = []
        if str(topic).startswith(OURS):
            expected, found = "no event of a lock", shown(topic)
            faults.append(self._wrong("event_foreign", version, position, expected, found))
        return faults + self._placed(version, position)

    def _believed(self, version: int, position: Any, topic: str, state: str) -> list[Fault]:
        try:
            event = decode(self.stream, version, topic, state)
        except EventFormatMismatch:
            raise
        except TamperedLedger as unreadable:
            found = str(unreadable.__cause__ or unreadable).partition("\n")[0]
            expected = f"a readable {topic}"
            return [self._wrong("event_unreadable", version, position, expected, found)]
        if event.key != self._proven:
            right = lock_id(self._ledger, event.key)
            if right != self.stream:
                expected, found = (
                    f"the stream {right} of {shown(event.key)}",
                    f"stream {self.stream}",
                )
                return [self._wrong("rule", version, position, expected, found)]
            self.key = self._proven = event.key
        self.event = event
        return self._unruly(event, position) + self._placed(version, position)

    def _unruly(self, event: LockEvent, position: Any) -> list[Fault]:
        """Whether no verb could have recorded the event after those before it."""
        if not self._rules:
            return []
        why = misfit(self._before(event), event)
        self._lock = evolve(event)
        if why is None:
            return []
        expected, found = "an event that a verb could have recorded", f"{event.action}: {why}"
        return [self._fault("rule", event.originator_version, position, expected, found)]

    def _before(self, event: LockEvent) -> Lock:
        """The lock before the event; what the event itself says of it where the one before cannot be believed."""
        if self._lock is not None:
            return self._lock
        if not self.faulty:
            return Lock(self.stream, event.key)
        return Lock(self.stream, event.key, event.originator_version - 1, event.before())

    def _placed(self, version: int, position: Any) -> list[Fault]:
        if not isinstance(position, int) or position <= self.position:
            expected = f"a position after {self.position}"
        elif self._last_position is not None and position > self._last_position:
            expected = f"a position up to {self._last_position}, the last that was given"
        else:
            self.misplaced, self.position = False, position
            return []
        self.misplaced = True
        return [self._fault("position", version, position, expected, shown(position))]

    def _wrong(
        self, kind: FaultKind, version: Any, position: Any, expected: str, found: str
    ) -> Fault:
        """A fault of an event that is not to be believed."""
        self.faulty = True
        self._lock = None
        return self._fault(kind, version, position, expected, found)

    def _fault(
        self, kind: FaultKind, version: Any, position: Any, expected: str, found: str
    ) -> Fault:
        return Fault(
            kind=kind,
            key=self.key,
            lock_id=self.stream,
            version=version,
            position=position if isinstance(position, int) else None,
            expected=expected,
            found=found,
        )


def _hex(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else shown(value)
