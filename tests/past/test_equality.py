"""Whatever happened: the answers about the past are those of a fold over all events, at every instant."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from lockledger import Hold, LockLedger, Page
from support.ledgers import Ledgers, SettableClock
from support.recollection import Recollection, Wanted, facts
from support.turmoil import HOLDERS, KEYS, tell

MICROSECOND = timedelta(microseconds=1)
SEEDS = range(3)


class Told:
    """A story at random, told to a ledger, and what a fold remembers of it."""

    def __init__(self, ledgers: Ledgers, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = SettableClock()
        self.ledger = ledgers.open(clock=self.clock)
        # Another ledger in the same tables must not show through.
        tell(ledgers.open(name="other", clock=SettableClock()), SettableClock(), self.rng, steps=20)
        tell(self.ledger, self.clock, self.rng, steps=350)
        self.past = Recollection(ledgers.database.engine())
        self.begin = min(self.past.instants())
        self.now = max(self.clock.now, *self.past.instants())

    def instants(self) -> list[datetime]:
        """Instants at which something happened, those right before and after, and some at random."""
        exact = self.past.instants()
        beside = {each + step for each in exact for step in (-MICROSECOND, MICROSECOND)}
        length = (self.now - self.begin) // MICROSECOND
        random_ones = {
            self.begin + self.rng.randrange(length) * MICROSECOND for _ in range(len(exact))
        }
        return sorted(each for each in exact | beside | random_ones if each <= self.now)

    def wanted(self, instants: list[datetime], *, period: bool = True) -> Wanted:
        """A question at random."""
        rng = self.rng
        since, until = sorted(rng.choices(instants, k=2))
        return Wanted(
            key=rng.choice((None, None, *KEYS)) if period else None,
            key_prefix=rng.choice((None, None, None, "", "round:5", "r", "ü", "zzz")),
            under=rng.choice((None, None, None, "round:5", "round:5:band:2", "round", "ü")),
            holder=rng.choice((None, None, *HOLDERS)),
            since=rng.choice((None, since)) if period else None,
            until=rng.choice((None, until)) if period else None,
        )


@pytest.fixture(params=SEEDS)
def told(ledgers: Ledgers, request: pytest.FixtureRequest) -> Told:
    """A story on each kind of database; all of its locks have come to rest when it is asked for."""
    return Told(ledgers, request.param)


def all_pages(ask: Callable[..., Page[Hold, str]], limit: int, **wanted: Any) -> list[Hold]:
    """Every hold of an answer, page by page."""
    found: list[Hold] = []
    after: str | None = None
    while True:
        page = ask(**wanted, after=after, limit=limit)
        assert len(page) <= limit
        found += page
        after = page.next_after
        if after is None:
            return found
        assert len(page) == limit


def test_who_held_it_at_every_instant_is_what_the_events_say(told: Told) -> None:
    told.clock.now = told.now
    instants = told.instants()
    asked = [(key, when) for when in instants for key in KEYS]
    for key, when in told.rng.sample(asked, min(len(asked), 2500)):
        found = facts(told.ledger.holder_at(key, when))
        assert found == told.past.holder_at(key, when), f"{key} at {when}"


def test_who_held_what_at_an_instant_is_what_the_events_say(told: Told) -> None:
    told.clock.now = told.now
    instants = told.instants()
    for when in told.rng.sample(instants, min(len(instants), 300)):
        wanted, limit = told.wanted(instants, period=False), told.rng.choice((1, 2, 3, 100))
        found = all_pages(told.ledger.holders_at, limit, when=when, **wanted.arguments())
        expected = told.past.holders_at(when, wanted)
        assert [facts(hold) for hold in found] == expected, f"{wanted} at {when}"


def test_every_hold_of_a_period_is_told_once_and_in_order(told: Told) -> None:
    instants = told.instants()
    # Also before all have come to rest, at an instant when some are live and some have run out unrecorded.
    for now in (told.clock.now, told.now):
        told.clock.now = now
        for _ in range(200):
            wanted, limit = told.wanted(instants), told.rng.choice((1, 2, 7, 1000))
            found = all_pages(told.ledger.holds, limit, **wanted.arguments())
            expected = told.past.holds(wanted, now)
            assert [hold.model_dump() for hold in found] == expected, f"{wanted} now {now}"


def test_today_agrees_with_what_is_asked_for_now(ledgers: Ledgers) -> None:
    clock = SettableClock()
    ledger: LockLedger = ledgers.open(clock=clock)
    rng = random.Random(11)
    for _ in range(30):
        tell(ledger, clock, rng, steps=5, steady=True)
        live = ledger.current_holders()
        assert ledger.holders_at(clock.now) == live
        for key in KEYS:
            assert ledger.holder_at(key, clock.now) == ledger.holder_of(key)
        assert [hold for hold in ledger.holds() if hold.ended_at is None] == list(live)
