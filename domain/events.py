"""The five events. Each carries all that the lock's state after it depends on: the newest one alone rebuilds the lock.

Each also carries what was before it, so that its audit entry needs no other event.
"""

from typing import ClassVar, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from lockledger.domain.holds import EndedBy, Facts, Hold, Instant, Metadata, end


class PreviousHold(BaseModel):
    """The hold that a takeover ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    holder: str
    token: int
    taken_at: Instant
    expires_at: Instant | None = None
    taken_over_from: str | None = None
    takeover_reason: str | None = None
    metadata: Metadata = Field(default_factory=dict)


class LockEvent(BaseModel):
    """What all events say: which lock, which version, recorded when, about which hold, by whom.

    `timestamp` is when it was recorded. `metadata` is of the call that recorded it, `hold_metadata` of the call that
    began the hold. `class_version` is the version of the event's stored format.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    TOPIC: ClassVar[str]
    class_version: ClassVar[int] = 1

    originator_id: UUID
    originator_version: int
    timestamp: Instant
    key: str
    holder: str
    token: int
    taken_at: Instant
    expires_at: Instant | None = None
    taken_over_from: str | None = None
    takeover_reason: str | None = None
    hold_metadata: Metadata = Field(default_factory=dict)
    actor: str | None
    metadata: Metadata = Field(default_factory=dict)

    @property
    def action(self) -> str:
        """The event's name, as audit trail, command line and JSON show it."""
        return type(self).__name__

    @property
    def occurred_at(self) -> Instant:
        """When it happened; differs from `timestamp`, when it was recorded, only for an expiry."""
        return self.timestamp

    @property
    def why(self) -> str | None:
        """The reason that was given for this very change."""
        return None

    def hold(self) -> Hold:
        """The hold that the event begins, extends or ends, without its end."""
        return Hold.trusted(self.facts())

    def before(self) -> Hold | None:
        """The live hold before the event."""
        return _hold(self.facts_before())

    def after(self) -> Hold | None:
        """The live hold after the event."""
        return _hold(self.facts_after())

    def ended_hold(self) -> Hold | None:
        """The hold that ended with this event, with its end."""
        return _hold(self.facts_ended())

    def facts(self) -> Facts:
        """What `hold` is made of; facts alone are enough for a row, at a fraction of the cost."""
        return {
            "key": self.key,
            "holder": self.holder,
            "token": self.token,
            "taken_at": self.taken_at,
            "expires_at": self.expires_at,
            "taken_over_from": self.taken_over_from,
            "takeover_reason": self.takeover_reason,
            "metadata": self.hold_metadata,
        }

    def facts_before(self) -> Facts | None:
        """What `before` is made of."""
        raise TypeError(f"{type(self).__name__} is no event of a lock by itself")

    def facts_after(self) -> Facts | None:
        """What `after` is made of."""
        raise TypeError(f"{type(self).__name__} is no event of a lock by itself")

    def facts_ended(self) -> Facts | None:
        """What `ended_hold` is made of."""
        return None


def _hold(facts: Facts | None) -> Hold | None:
    return None if facts is None else Hold.trusted(facts)


class LockTaken(LockEvent):
    """A hold begins on a free lock."""

    TOPIC = "lockledger.LockTaken"

    def facts_before(self) -> None:
        return None

    def facts_after(self) -> Facts:
        return self.facts()


class LockTakenOver(LockEvent):
    """A hold ends and another begins, for a reason; from itself when a holder fences off its own ghost."""

    TOPIC = "lockledger.LockTakenOver"

    reason: str | None = None
    previous: PreviousHold

    @property
    def why(self) -> str | None:
        return self.reason

    def facts_before(self) -> Facts:
        return {"key": self.key, **self.previous.__dict__}

    def facts_after(self) -> Facts:
        return self.facts()

    def facts_ended(self) -> Facts:
        over = end(self.timestamp, "takeover", actor=self.actor, reason=self.reason)
        return self.facts_before() | over


class LockExtended(LockEvent):
    """A hold's expiry moved to a later instant."""

    TOPIC = "lockledger.LockExtended"

    previous_expires_at: Instant

    def facts_before(self) -> Facts:
        return self.facts() | {"expires_at": self.previous_expires_at}

    def facts_after(self) -> Facts:
        return self.facts()


class LockReleased(LockEvent):
    """A hold ends because its holder, or with `forced` somebody with the right to, ended it."""

    TOPIC = "lockledger.LockReleased"

    forced: bool = False
    reason: str | None = None

    @property
    def why(self) -> str | None:
        return self.reason

    def facts_before(self) -> Facts:
        return self.facts()

    def facts_after(self) -> None:
        return None

    def facts_ended(self) -> Facts:
        by: EndedBy = "forced" if self.forced else "release"
        return self.facts() | end(self.timestamp, by, actor=self.actor, reason=self.reason)


class LockExpired(LockEvent):
    """A hold had run out at `expired_at`; a take or a sweep recorded it at `timestamp`. Nobody acts in it."""

    TOPIC = "lockledger.LockExpired"

    actor: None = None
    expired_at: Instant
    recorded_during: Literal["take", "sweep"]

    @property
    def occurred_at(self) -> Instant:
        return self.expired_at

    def facts_before(self) -> Facts:
        return self.facts()

    def facts_after(self) -> None:
        return None

    def facts_ended(self) -> Facts:
        return self.facts() | end(self.expired_at, "expiry", actor=None, reason=None)


EVENTS: dict[str, type[LockEvent]] = {
    kind.TOPIC: kind for kind in (LockTaken, LockTakenOver, LockExtended, LockReleased, LockExpired)
}
"""The events by their stored names."""
