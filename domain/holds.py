"""Holds as users see them: plain frozen values that cross threads, processes and JSON.

Their `metadata` is a plain dict, so they have no hash, and changing it changes that value only, never the ledger. In a
set, or as a key, use `(key, token)`, which names a hold of a ledger for ever.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, overload

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from lockledger.domain.events import LockEvent

T = TypeVar("T")
C = TypeVar("C")


def plain_utc(instant: datetime) -> datetime:
    """The same instant as a plain `datetime` in UTC. Raises `ValueError` when it has no time zone."""
    if instant.tzinfo is UTC and type(instant) is datetime:
        return instant
    if instant.utcoffset() is None:
        raise ValueError(
            f"the instant {instant.isoformat()} has no time zone; give it one, datetime.now(UTC)"
        )
    utc = instant.astimezone(UTC)
    return utc if type(utc) is datetime else datetime.combine(utc.date(), utc.time(), UTC)


Instant = Annotated[AwareDatetime, AfterValidator(plain_utc)]
Metadata = dict[str, Any]
Facts = dict[str, Any]
"""What is true of a hold, in the order of its model."""
EndedBy = Literal["release", "forced", "takeover", "expiry"]


class HoldFacts(BaseModel):
    """What is true of a hold from its beginning to its end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    holder: str
    token: int
    taken_at: Instant
    expires_at: Instant | None = None
    taken_over_from: str | None = None
    takeover_reason: str | None = None
    metadata: Metadata = Field(default_factory=dict)

    def is_live(self, now: datetime) -> bool:
        """Whether the hold has not run out at `now`: holds are half-open, at equality it is over."""
        return self.expires_at is None or now < self.expires_at


class Hold(HoldFacts):
    """One unbroken period in which one holder holds the lock; the last four facts are null until it has ended."""

    ended_at: Instant | None = None
    ended_by: EndedBy | None = None
    end_reason: str | None = None
    ended_by_actor: str | None = None

    @classmethod
    def trusted(cls, facts: Facts) -> "Hold":
        """A hold of these facts, which are valid; those not given are null.

        As `model_construct`, at a third of its cost: each event that is read or written makes two or three.
        """
        hold = cls.__new__(cls)
        put = object.__setattr__
        put(hold, "__dict__", {**_BLANK, **facts})
        put(hold, "__pydantic_fields_set__", set(facts))
        put(hold, "__pydantic_extra__", None)
        put(hold, "__pydantic_private__", None)
        return hold

    def ended(self, at: datetime, by: EndedBy, *, actor: str | None, reason: str | None) -> "Hold":
        """The same hold with its end."""
        return self.trusted({**self.__dict__, **end(at, by, actor=actor, reason=reason)})

    def grant(self, *, created: bool) -> "Grant":
        """The live hold as an answer to who asked for it; `created` tells whether that call began it."""
        return Grant.model_construct(
            **{name: getattr(self, name) for name in HoldFacts.model_fields}, created=created
        )


def end(at: datetime, by: EndedBy, *, actor: str | None, reason: str | None) -> Facts:
    """The facts of a hold's end."""
    return {"ended_at": at, "ended_by": by, "end_reason": reason, "ended_by_actor": actor}


_BLANK = dict.fromkeys(Hold.model_fields)
"""Every fact, in the order of the model, which is that of its JSON."""


class Grant(HoldFacts):
    """A live hold as its holder gets it. `token` fences off whoever held before; `created`: this call began the hold."""

    created: bool


class AuditEntry(BaseModel):
    """One event as a person reads it.

    `holder` and `token` are those of the hold that the event begins, extends or ends. `before` and `after` are the live
    hold's facts on either side of the event. `occurred_at` and `recorded_at` differ only for an expiry.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    position: int
    key: str
    version: int
    action: str
    actor: str | None
    holder: str
    previous_holder: str | None
    token: int
    occurred_at: Instant
    recorded_at: Instant
    reason: str | None
    before: Hold | None
    after: Hold | None
    metadata: Metadata
    event_hash: str


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event and its place in the whole ledger; positions grow, may have gaps, and are never reordered."""

    position: int
    event: "LockEvent"


class Page(Sequence[T], Generic[T, C]):
    """A fully loaded part of an answer. Pass `next_after` as `after` to go on; it is `None` at the end."""

    __slots__ = ("_items", "next_after")

    def __init__(self, items: Sequence[T], next_after: C | None = None) -> None:
        self._items = tuple(items)
        self.next_after = next_after

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Page):
            return NotImplemented
        return self._items == other._items and bool(self.next_after == other.next_after)

    __hash__ = None  # type: ignore[assignment]  # its items hold dicts

    def __repr__(self) -> str:
        return f"Page({list(self._items)!r}, next_after={self.next_after!r})"
