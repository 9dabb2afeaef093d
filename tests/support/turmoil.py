"""A story at random on few locks: every kind of change, many in one instant, some at the very instant of an expiry."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from lockledger import LockLedger, LockLedgerError
from support.ledgers import SettableClock

KEYS = (
    "round:5",
    "round:5:band:2",
    "round:5:band:2:x",
    "round:50",
    "round:5-",
    "roundabout",
    "ü:😀",
)
HOLDERS = ("run:1", "run:2", "run:22", "user:ü")
_MICROSECOND = timedelta(microseconds=1)


def tell(
    ledger: LockLedger,
    clock: SettableClock,
    rng: random.Random,
    *,
    steps: int,
    steady: bool = False,
) -> None:
    """That many calls; some are refused, some change nothing. Unless `steady`, the clock is set back now and then."""
    expiries = [clock.now]
    for _ in range(steps):
        before = clock.now
        _pass_time(clock, rng, expiries)
        if steady:
            clock.now = max(clock.now, before)
        try:
            grant = _call(ledger, rng)
        except LockLedgerError:
            continue
        expires_at = getattr(grant, "expires_at", None)
        if expires_at is not None:
            expiries.append(expires_at)


def _pass_time(clock: SettableClock, rng: random.Random, expiries: list[Any]) -> None:
    chance = rng.random()
    if chance < 0.4:
        return
    if chance < 0.5:
        clock.now += _MICROSECOND
    elif chance < 0.7:
        near = rng.choice(expiries[-4:]) + rng.choice(
            (-_MICROSECOND, 0 * _MICROSECOND, _MICROSECOND)
        )
        clock.now = max(clock.now, near)
    elif chance < 0.73:
        clock.now -= timedelta(seconds=rng.choice((1, 30)))
    else:
        clock.now += timedelta(seconds=rng.choice((1, 3, 10, 60)))


def _call(ledger: LockLedger, rng: random.Random) -> object:
    key, holder = rng.choice(KEYS), rng.choice(HOLDERS)
    ttl = rng.choice((None, 0.000001, 5, 10, 60))
    chance = rng.random()
    if chance < 0.3:
        return ledger.take(key, holder, ttl=ttl, metadata={"n": rng.random()})
    if chance < 0.45:
        return ledger.take(key, holder, ttl=ttl, takeover_reason="urgent", actor="user:9")
    if chance < 0.5:
        return ledger.take(key, holder, ttl=ttl, if_mine="replace")
    if chance < 0.7:
        return ledger.extend(key, holder, rng.choice((5, 20, 300)))
    if chance < 0.9:
        return ledger.release(key, holder, reason="done")
    if chance < 0.96:
        return ledger.force_release(key, actor="user:9", reason="holiday")
    return ledger.expire_due(3)
