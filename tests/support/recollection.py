"""What a fold over all events remembers of the past: every answer by going through everything, as slowly as that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from lockledger import Hold
from support.fold import HOLD, Folded, Row
from support.proof import END, prove


@dataclass(frozen=True)
class Wanted:
    """Which holds are asked for, by the arguments of the verbs."""

    key: str | None = None
    key_prefix: str | None = None
    under: str | None = None
    holder: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def selects(self, hold: Row) -> bool:
        key = hold["key"]
        return (
            self.key in (None, key)
            and (self.key_prefix is None or key.startswith(self.key_prefix))
            and (self.under is None or key == self.under or key.startswith(f"{self.under}:"))
            and self.holder in (None, hold["holder"])
        )

    def arguments(self) -> dict[str, Any]:
        """The same for a verb."""
        return {name: value for name, value in vars(self).items() if value is not None}


class Recollection:
    """The past of one ledger."""

    def __init__(self, engine: Engine, ledger: str = "default") -> None:
        self.locks = {lock.key: lock for lock in prove(engine) if lock.ledger == ledger}

    def holder_at(self, key: str, when: datetime) -> Row | None:
        """The state after the last event not later than `when`, with expiry at its instant."""
        after: Row | None = None
        for entry in self.locks[key].trail if key in self.locks else []:
            if entry["recorded_at"] <= when:
                after = entry["after"]
        if after is None or (after["expires_at"] is not None and after["expires_at"] <= when):
            return None
        return after

    def holders_at(self, when: datetime, wanted: Wanted) -> list[Row]:
        """The same for every lock, by key."""
        found = (self.holder_at(key, when) for key in sorted(self.locks))
        return [hold for hold in found if hold is not None and wanted.selects(hold)]

    def holds(self, wanted: Wanted, now: datetime) -> list[Row]:
        """Every hold that was live at an instant of the period, by key, then token."""
        return [
            hold
            for key in sorted(self.locks)
            for hold in self._all_holds(self.locks[key], now)
            if wanted.selects(hold) and self._in_period(self.locks[key], hold, wanted, now)
        ]

    def instants(self) -> set[datetime]:
        """When anything happened, was to happen, or was written down."""
        found: set[datetime] = set()
        for lock in self.locks.values():
            for entry in lock.trail:
                found |= {entry["recorded_at"], entry["occurred_at"]}
                found |= {(entry["after"] or {}).get("expires_at") or entry["recorded_at"]}
        return found

    def _all_holds(self, lock: Folded, now: datetime) -> Iterator[Row]:
        for hold in lock.ended:
            yield {name: hold[name] for name in (*HOLD, *END)}
        if lock.hold is None:
            return
        over = lock.hold["expires_at"]
        if over is not None and over <= self._now(lock, now):
            yield {**lock.hold, **dict.fromkeys(END), "ended_at": over, "ended_by": "expiry"}
        else:
            yield {**lock.hold, **dict.fromkeys(END)}

    def _in_period(self, lock: Folded, hold: Row, wanted: Wanted, now: datetime) -> bool:
        """By what "live at an instant of [since, until)" says: the last instant of a live hold is the lock's now."""
        since, until = wanted.since, wanted.until
        begun, ended = hold["taken_at"], hold["ended_at"]
        first = begun if since is None else max(begun, since)
        if until is not None and first >= until:
            return False
        if ended is None:
            return bool(first <= self._now(lock, now))
        return bool(first < ended or (begun == ended and first == begun))

    def _now(self, lock: Folded, now: datetime) -> datetime:
        return now if lock.changed_at is None else max(now, lock.changed_at)


def facts(hold: Hold | None) -> Row | None:
    """A hold as it was at an instant, when it had no end."""
    if hold is None:
        return None
    told = hold.model_dump()
    assert [told.pop(name) for name in END] == [None] * len(END)
    return told
