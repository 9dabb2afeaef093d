"""How a lock may stand at second 100, when `run:1` comes; told to a ledger through its public verbs.

Each begins with a hold of `run:0`, token 1, that was released, so that tokens of the past exist everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lockledger import AuditEntry, Hold, LockLedger
from support.ledgers import SettableClock

Situation = Callable[["Told"], object]


@dataclass
class Told:
    """One lock of a ledger, its clock in seconds since T0, and how it stood when the story was told."""

    ledger: LockLedger
    clock: SettableClock
    key: str
    live: Hold | None = None
    trail: list[AuditEntry] = field(default_factory=list)

    def at(self, seconds: float) -> LockLedger:
        """The ledger, at that second."""
        self.clock.set(seconds)
        return self.ledger

    @property
    def version(self) -> int:
        """The lock's version then."""
        return self.trail[-1].version

    def live_now(self) -> Hold | None:
        return self.ledger.holder_of(self.key)

    def trail_now(self) -> list[AuditEntry]:
        """All entries of the lock, extensions too."""
        return list(self.ledger.history(self.key, extensions=True))

    def recorded(self) -> list[AuditEntry]:
        """The entries since the story was told; those of before must still be the same."""
        trail = self.trail_now()
        assert trail[: self.version] == self.trail
        return trail[self.version :]

    def has_not_changed(self) -> bool:
        return self.live_now() == self.live and self.trail_now() == self.trail


def _released(told: Told) -> None:
    """Nothing more has happened."""


def _released_by_me(told: Told) -> None:
    told.at(0).take(told.key, "run:1")
    told.at(1).release(told.key, "run:1")


def _forced_free(told: Told) -> None:
    told.at(0).take(told.key, "run:2")
    told.at(1).force_release(told.key, actor="user:9", reason="holiday")


def _ran_out_and_recorded(told: Told) -> None:
    told.at(0).take(told.key, "run:2", ttl=50)
    told.at(60).take(told.key, "run:3")
    told.at(61).release(told.key, "run:3")


def _mine_by_takeover(told: Told) -> None:
    told.at(0).take(told.key, "run:2")
    told.at(1).take(told.key, "run:1", takeover_reason="urgent", ttl=200)


def _taken_over_from_me(told: Told) -> None:
    told.at(0).take(told.key, "run:1")
    told.at(1).take(told.key, "run:2", takeover_reason="urgent")


def _extended(told: Told) -> None:
    told.at(0).take(told.key, "run:1", ttl=50)
    told.at(1).extend(told.key, "run:1", 200)


def _taken(holder: str, ttl: float | None = None) -> Situation:
    return lambda told: told.at(0).take(told.key, holder, ttl=ttl)


FREE: dict[str, Situation] = {
    "released": _released,
    "released by me": _released_by_me,
    "forced free": _forced_free,
    "mine, run out unrecorded": _taken("run:1", 50),
    "another's, run out unrecorded": _taken("run:2", 50),
    "mine, runs out at this very instant": _taken("run:1", 100),
    "another's, runs out at this very instant": _taken("run:2", 100),
    "another's, run out and recorded": _ran_out_and_recorded,
}
MINE: dict[str, Situation] = {
    "mine": _taken("run:1", 200),
    "mine without expiry": _taken("run:1"),
    "mine for one more microsecond": _taken("run:1", 100.000001),
    "mine by takeover": _mine_by_takeover,
    "mine, extended": _extended,
}
ANOTHERS: dict[str, Situation] = {
    "another's": _taken("run:2", 200),
    "another's without expiry": _taken("run:2"),
    "another's for one more microsecond": _taken("run:2", 100.000001),
    "another's, taken over from me": _taken_over_from_me,
}
SITUATIONS = {**FREE, **MINE, **ANOTHERS}
RUN_OUT_UNRECORDED = {
    "mine, run out unrecorded",
    "another's, run out unrecorded",
    "mine, runs out at this very instant",
    "another's, runs out at this very instant",
}


def told(ledger: LockLedger, clock: SettableClock, key: str, situation: str) -> Told:
    """The lock as it stands at second 100 in that situation."""
    lock = Told(ledger, clock, key)
    lock.at(-10).take(key, "run:0")
    lock.at(-5).release(key, "run:0")
    SITUATIONS[situation](lock)
    clock.set(100)
    lock.live, lock.trail = lock.live_now(), lock.trail_now()
    return lock
