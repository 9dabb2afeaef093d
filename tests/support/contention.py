"""What competing processes do: take, work, extend, release, take over; and how they tell that they are alone."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lockledger import Grant, LockedByOther, LockLedger, NotHolding
from support.processes import PATIENCE

SHIFT = 0.002
"""Seconds of work under a lock, at most."""


@dataclass
class Report:
    """What one process saw. `grants`: key and token of every hold that its calls began."""

    outcomes: Counter[str] = field(default_factory=Counter)
    grants: list[tuple[str, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def work_alone(
    url: str, number: int, keys: list[str], turns: int, barrier: Any, slots: Any
) -> Report:
    """Takes and releases without takeovers. Inside, the lock's slot of shared memory must be nobody else's.

    For a single lock it goes on until the processes, who count in the slots behind it, have met each other.
    """
    chance, report, holder = random.Random(number), Report(), f"run:{number}"
    with LockLedger(url) as ledger:
        ledger.holder_of("warm")
        barrier.wait()
        ends = time.monotonic() + PATIENCE / 2
        while turns > 0 or (len(keys) == 1 and not _met(slots) and time.monotonic() < ends):
            turns -= 1
            place = chance.randrange(len(keys))
            grant = ledger.try_take(keys[place], holder)
            report.outcomes["refused" if grant is None else "granted"] += 1
            if grant is None:
                slots[len(keys) + number] += 1
                continue
            report.grants.append((grant.key, grant.token))
            _inside(ledger, grant, number + 1, place, slots, chance, report)
    return report


def _met(slots: Any) -> bool:
    """Whether they have been refused more often than there are processes."""
    return int(sum(slots[1:])) > len(slots) - 1


def _inside(
    ledger: LockLedger,
    grant: Grant,
    me: int,
    place: int,
    slots: Any,
    chance: random.Random,
    report: Report,
) -> None:
    found, slots[place] = slots[place], me
    if found:
        report.faults.append(f"{grant.key}: granted to {me} while {found} held it")
    time.sleep(chance.random() * SHIFT)
    held = ledger.holder_of(grant.key)
    if slots[place] != me or held is None or held.token != grant.token:
        report.faults.append(f"{grant.key}: {slots[place]} came in while {me} held it: {held}")
    slots[place] = 0
    if not ledger.release(grant.key, grant.holder, token=grant.token):
        report.faults.append(f"{grant.key}: {me} held it, and could not release it")


def begin_together(url: str, number: int, keys: list[str], barrier: Any) -> Report:
    """Takes locks that were never taken, each at the same instant as all others."""
    report = Report()
    with LockLedger(url) as ledger:
        ledger.holder_of("warm")
        for key in keys:
            barrier.wait()
            grant = ledger.try_take(key, f"run:{number}")
            if grant is not None:
                report.grants.append((key, grant.token))
    return report


def do_anything(url: str, number: int, keys: list[str], turns: int, barrier: Any) -> Report:
    """Every writing verb in any order, with holds that run out, takeovers and forced releases."""
    chance, report, holder = random.Random(number), Report(), f"run:{number}"
    with LockLedger(url) as ledger:
        ledger.holder_of("warm")
        barrier.wait()
        for _ in range(turns):
            key = chance.choice(keys)
            verb = chance.choice(
                ("take", "take", "takeover", "extend", "release", "replace", "force")
            )
            try:
                outcome = _do(ledger, verb, key, holder, chance)
            except (LockedByOther, NotHolding) as refused:
                report.outcomes[type(refused).__name__] += 1
                continue
            report.outcomes[verb] += 1
            if isinstance(outcome, Grant) and outcome.created:
                report.grants.append((key, outcome.token))
    return report


def _do(ledger: LockLedger, verb: str, key: str, holder: str, chance: random.Random) -> object:
    ttl = chance.choice((None, 0.001, 0.01, 5))
    if verb == "take":
        return ledger.take(key, holder, ttl=ttl)
    if verb == "takeover":
        return ledger.take(key, holder, ttl=ttl, takeover_reason="my turn")
    if verb == "replace":
        return ledger.take(key, holder, ttl=ttl, if_mine="replace")
    if verb == "extend":
        return ledger.extend(key, holder, ttl or 1)
    if verb == "release":
        return ledger.release(key, holder)
    return ledger.force_release(key, actor=holder, reason="order")
