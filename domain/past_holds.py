"""Holds that another system kept, told again as the events that the verbs would have recorded, each at its own time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from lockledger.domain.errors import LockLedgerError, shown
from lockledger.domain.events import LockEvent
from lockledger.domain.holds import Metadata
from lockledger.domain.lock import Call, Lock, Take, evolve
from lockledger.domain.ttl import MAX_TTL

IMPORT: Final = "lockledger_import"
"""The name under which the metadata of an imported event says where it comes from."""

RowId = int | str


@dataclass(frozen=True, slots=True)
class PastHold:
    """One hold as another system kept it. Texts and metadata are within the limits, instants in UTC.

    `ended_by` is who ended it: the holder unless given, in a takeover the new one. `reason` is why it was taken over
    from `taken_over_from`; it counts only there.
    """

    row: RowId
    holder: str
    taken_at: datetime
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    ended_by: str | None = None
    end_reason: str | None = None
    taken_over_from: str | None = None
    reason: str | None = None
    metadata: Metadata = field(default_factory=dict)

    @property
    def runs_out(self) -> bool:
        """Whether it ran, or will run, out before anybody ended it; holds are half-open."""
        return self.expires_at is not None and (
            self.ended_at is None or self.ended_at >= self.expires_at
        )

    @property
    def over_at(self) -> datetime | None:
        """When it is over, `None` when nobody knows."""
        return self.expires_at if self.runs_out else self.ended_at


class Unfit(Exception):
    """A row that cannot be told as events after those before it; nothing of its lock is imported."""

    def __init__(self, row: RowId, why: str) -> None:
        self.row, self.why = row, why
        super().__init__(f"row {shown(row)}: {why}")


def unfit(hold: PastHold, now: datetime) -> str | None:
    """What is wrong with a hold by itself at `now`, `None` when nothing is."""
    if hold.taken_at > now:
        return f"it begins at {hold.taken_at.isoformat()}, which is in the future"
    if hold.expires_at is not None and hold.expires_at <= hold.taken_at:
        return (
            f"it had run out at {hold.expires_at.isoformat()}, no later than it began"
            f" at {hold.taken_at.isoformat()}"
        )
    if hold.expires_at is not None and hold.expires_at - hold.taken_at > MAX_TTL:
        return (
            f"it was to last until {hold.expires_at.isoformat()}, more than 100 years;"
            " leave the expiry out where there is none"
        )
    if hold.ended_at is not None and hold.ended_at < hold.taken_at:
        return (
            f"it ended at {hold.ended_at.isoformat()}, before it began"
            f" at {hold.taken_at.isoformat()}"
        )
    if hold.ended_at is not None and hold.ended_at > now:
        return f"it ends at {hold.ended_at.isoformat()}, which is in the future"
    return None


def events_of(
    lock: Lock,
    holds: Sequence[PastHold],
    *,
    source: str,
    now: datetime,
    imported_at: Callable[[int], str],
) -> list[LockEvent]:
    """The events of a lock without events that had these holds, in the order in which they began.

    `imported_at` gives for a version what its metadata says of when it was imported. Raises `Unfit` at the first hold
    that overlaps the one before, or that does not follow from it as it says.
    """
    events: list[LockEvent] = []
    neighbours = zip([None, *holds[:-1]], holds, [*holds[1:], None], strict=True)
    for before, hold, following in neighbours:
        if hold.taken_over_from is not None:
            _expect_takeover(before, hold)
        elif before is not None:
            _expect_free(before, hold)
        taken_by = before.ended_by if before and hold.taken_over_from else None
        mark = {"source": source, "row": hold.row}
        when = {"when": imported_at(lock.version + 1)}
        events += _begun(lock, hold, _call(hold, taken_by, mark | when))
        lock = evolve(events[-1])
        if following is None or following.taken_over_from is None:  # else the takeover ends it
            when = {"when": imported_at(lock.version + 1)}
            events += _over(lock, hold, _call(hold, hold.ended_by, mark | when), now)
            lock = evolve(events[-1])
    return events


def _call(hold: PastHold, actor: str | None, mark: Metadata) -> Call:
    return Call(actor or hold.holder, {**hold.metadata, IMPORT: mark})


def _expect_takeover(before: PastHold | None, hold: PastHold) -> None:
    who, when = shown(hold.taken_over_from), hold.taken_at.isoformat()
    if before is None:
        raise Unfit(hold.row, f"it was taken over from {who}, of whom there is no hold before")
    if before.holder != hold.taken_over_from:
        raise Unfit(
            hold.row,
            f"it was taken over from {who}, but the hold before, row {shown(before.row)},"
            f" was of {shown(before.holder)}",
        )
    if before.over_at != hold.taken_at:
        end = "not ended" if before.over_at is None else f"ended at {before.over_at.isoformat()}"
        raise Unfit(
            hold.row,
            f"it was taken over from {who} at {when}, but that hold, row {shown(before.row)}, had"
            f" {end}; a takeover ends the one and begins the other at the same instant",
        )
    if before.runs_out:
        raise Unfit(
            hold.row,
            f"it was taken over from {who} at {when}, when that hold, row {shown(before.row)},"
            " had run out; leave taken_over_from out where the lock was free",
        )
    if hold.reason is None and hold.holder != before.holder:
        raise Unfit(hold.row, f"it was taken over from {who} without a reason; give one")


def _expect_free(before: PastHold, hold: PastHold) -> None:
    if before.over_at is None:
        raise Unfit(
            hold.row,
            f"it begins at {hold.taken_at.isoformat()}, but the hold before, row"
            f" {shown(before.row)}, has not ended",
        )
    if before.over_at > hold.taken_at:
        raise Unfit(
            hold.row,
            f"it begins at {hold.taken_at.isoformat()}, but the hold before, row"
            f" {shown(before.row)}, ended only at {before.over_at.isoformat()}",
        )


def _begun(lock: Lock, hold: PastHold, call: Call) -> Sequence[LockEvent]:
    wish = Take(
        hold.holder,
        call,
        ttl=hold.expires_at,
        takeover_reason=hold.reason,
        if_mine="replace",
    )
    try:
        return lock.take(wish, hold.taken_at).events
    except LockLedgerError as refusal:
        raise Unfit(hold.row, str(refusal)) from refusal


def _over(lock: Lock, hold: PastHold, call: Call, now: datetime) -> Sequence[LockEvent]:
    end = hold.over_at
    if end is None or end > now:
        return ()
    if hold.runs_out:
        return lock.expire(call.metadata, end).events
    return lock.release(hold.holder, None, hold.end_reason, call, end, _none_ended).events


def _none_ended(_token: int) -> None:
    """Never asked: the hold to be released is live."""
    return
