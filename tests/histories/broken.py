"""A ledger in memory, sound or broken in one way, to show that the checker tells them apart."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal

from histories.calls import Answer, Call, Recorded, Told

Fault = Literal[
    "no compare-and-swap",
    "stale clock",
    "release without owner check",
    "lost event",
    "double grant",
    "stale read",
    "recorded twice",
    "recorded though it failed",
]
LONG = timedelta(hours=1)
Answering = Generator[None, None, Answer]
"""A call under way, which stops where others may come between."""


class Clock:
    """The only one there is, so that a seed says everything about a run."""

    def __init__(self) -> None:
        self.monotonic = 0.0

    def now(self) -> datetime:
        """By the wall."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.monotonic)


class MemoryLedger:
    """One lock: reads, waits a little, and appends if nothing was appended since; else it begins again."""

    def __init__(self, fault: Fault | None, rng: random.Random, clock: Clock) -> None:
        self.events: list[Recorded] = []
        self._fault = fault
        self._rng = rng
        self._clock = clock
        self._old_clock = clock.now()
        self._old_newest: Recorded | None = None

    def take(self, call: Call, holder: str, ttl: timedelta) -> Answering:
        """As the contract's `take`, without reasons."""
        while True:
            version, newest, now = self._read()
            if newest is not None and self._is_live(newest, now):
                if newest.holder != holder and self._breaks("double grant"):
                    return Answer("granted", holder, newest.token, newest.expires_at, created=True)
                told: Told = "granted" if newest.holder == holder else "held"
                return Answer(told, newest.holder, newest.token, newest.expires_at)
            events = []
            if newest is not None and newest.action not in ("LockReleased", "LockExpired"):
                events.append(_next(newest, version + 1, "LockExpired", now, call))
                version += 1
            begun = Recorded(
                call.keys[0],
                version + 1,
                "LockTaken",
                holder,
                version + 1,
                now,
                now + ttl,
                now,
                call.id,
            )
            if (yield from self._append([*events, begun])):
                return Answer("granted", holder, begun.token, begun.expires_at, created=True)

    def release(self, call: Call, holder: str) -> Answering:
        """As the contract's `release`, without a token."""
        while True:
            version, newest, now = self._read()
            if newest is None or not self._is_live(newest, now):
                return Answer("free")
            if newest.holder != holder and not self._breaks("release without owner check"):
                return Answer("held", newest.holder, newest.token, newest.expires_at)
            event = _next(newest, version + 1, "LockReleased", now, call)
            if (yield from self._append([event])):
                if self._breaks("recorded though it failed"):
                    return Answer("failed")
                return Answer("done")

    def holder_of(self) -> Answer:
        """As the contract's `holder_of`."""
        _, newest, now = self._read(stale=True)
        if newest is None or not self._is_live(newest, now):
            return Answer("free")
        return Answer("held", newest.holder, newest.token, newest.expires_at)

    def _read(self, *, stale: bool = False) -> tuple[int, Recorded | None, datetime]:
        newest = self.events[-1] if self.events else None
        if stale and self._breaks("stale read"):
            newest = self._old_newest
        elif self._rng.random() < 0.1:
            self._old_newest = newest
        now = self._old_clock if self._breaks("stale clock") else self._clock.now()
        if self._rng.random() < 0.1:
            self._old_clock = now
        return (
            newest.version if newest else 0,
            newest,
            max(now, newest.timestamp) if newest else now,
        )

    def _append(self, events: list[Recorded]) -> Generator[None, None, bool]:
        yield
        if self._breaks("no compare-and-swap"):
            pass
        elif (self.events[-1].version if self.events else 0) != events[0].version - 1:
            return False
        if not self._breaks("lost event"):
            self.events += events
        if self._breaks("recorded twice") and events[-1].action == "LockReleased":
            self.events.append(events[-1])
        return True

    def _breaks(self, fault: Fault) -> bool:
        return self._fault == fault and self._rng.random() < 0.3

    def _is_live(self, newest: Recorded, now: datetime) -> bool:
        if newest.action in ("LockReleased", "LockExpired"):
            return False
        return newest.expires_at is None or now < newest.expires_at


def _next(newest: Recorded, version: int, action: str, now: datetime, call: Call) -> Recorded:
    return Recorded(
        newest.key,
        version,
        action,
        newest.holder,
        newest.token,
        newest.taken_at,
        newest.expires_at,
        now,
        call.id,
    )


def history(
    fault: Fault | None, seed: int, *, callers: int = 4, turns: int = 150
) -> tuple[list[Call], list[Recorded]]:
    """What some callers at once were told that shared one lock, and its events: the same for the same seed."""
    rng, clock, calls = random.Random(seed), Clock(), list[Call]()
    ledger = MemoryLedger(fault, rng, clock)
    at_work = [_turns(ledger, clock, f"{seed} {number}", turns, calls) for number in range(callers)]
    while at_work:
        caller = rng.choice(at_work)
        clock.monotonic += rng.uniform(0.00001, 0.0005)
        if next(caller, "ended") == "ended":
            at_work.remove(caller)
    return calls, ledger.events


def _turns(
    ledger: MemoryLedger, clock: Clock, name: str, turns: int, calls: list[Call]
) -> Iterator[None]:
    """One caller's calls, each written down when it is made; it stops wherever others may come between."""
    rng, holder = random.Random(name), f"run:{name}"
    for turn in range(turns):
        verb = rng.choice(("take", "take", "release", "holder_of"))
        call = Call(f"{name}-{turn}", verb, ["key"], holder, clock.monotonic, clock.now())
        calls.append(call)
        yield
        if verb == "take":
            ttl = rng.choice((timedelta(milliseconds=2), LONG))
            answer = yield from ledger.take(call, holder, ttl)
        elif verb == "release":
            answer = yield from ledger.release(call, holder)
        else:
            answer = ledger.holder_of()
        yield
        call.ended, call.answered_at = clock.monotonic, clock.now()
        call.answers = {"key": answer}
