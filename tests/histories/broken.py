"""A ledger in memory, sound or broken in one way, to show that the checker tells them apart."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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


class MemoryLedger:
    """One lock: reads, waits a little, and appends if nothing was appended since; else it begins again."""

    def __init__(self, fault: Fault | None, rng: random.Random) -> None:
        self.events: list[Recorded] = []
        self._fault = fault
        self._rng = rng
        self._writing = threading.Lock()
        self._old_clock = datetime.now(UTC)
        self._old_newest: Recorded | None = None

    def take(self, call: Call, holder: str, ttl: timedelta) -> Answer:
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
            if self._append([*events, begun]):
                return Answer("granted", holder, begun.token, begun.expires_at, created=True)

    def release(self, call: Call, holder: str) -> Answer:
        """As the contract's `release`, without a token."""
        while True:
            version, newest, now = self._read()
            if newest is None or not self._is_live(newest, now):
                return Answer("free")
            if newest.holder != holder and not self._breaks("release without owner check"):
                return Answer("held", newest.holder, newest.token, newest.expires_at)
            event = _next(newest, version + 1, "LockReleased", now, call)
            if self._append([event]):
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
        now = self._old_clock if self._breaks("stale clock") else datetime.now(UTC)
        if self._rng.random() < 0.1:
            self._old_clock = now
        return (
            newest.version if newest else 0,
            newest,
            max(now, newest.timestamp) if newest else now,
        )

    def _append(self, events: list[Recorded]) -> bool:
        time.sleep(self._rng.random() * 0.0005)
        with self._writing:
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
    fault: Fault | None, seed: int, *, workers: int = 4, turns: int = 150
) -> tuple[list[Call], list[Recorded]]:
    """What some threads were told that shared one lock, and its events."""
    ledger = MemoryLedger(fault, random.Random(seed))

    def work(number: int) -> list[Call]:
        rng, holder, calls = random.Random(f"{seed} {number}"), f"run:{number}", list[Call]()
        for turn in range(turns):
            verb = rng.choice(("take", "take", "release", "holder_of"))
            call = Call(
                f"{number}-{turn}", verb, ["key"], holder, time.monotonic(), datetime.now(UTC)
            )
            if verb == "take":
                answer = ledger.take(call, holder, rng.choice((timedelta(milliseconds=2), LONG)))
            elif verb == "release":
                answer = ledger.release(call, holder)
            else:
                answer = ledger.holder_of()
            call.ended, call.answered_at = time.monotonic(), datetime.now(UTC)
            call.answers = {"key": answer}
            calls.append(call)
        return calls

    with ThreadPoolExecutor(workers) as threads:
        told = list(threads.map(work, range(workers)))
    return [call for calls in told for call in calls], ledger.events
