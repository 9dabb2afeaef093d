"""Sixteen workers take pairs in either order, and keys at random depths of a tree: never two live holds that overlap.

What is found is also told from outside, by the times of all holds; and the same test finds what goes wrong when the
locks on the keys above are left out.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text

from lockledger import LockedByOther, LockLedger
from lockledger.adapters.postgres import PostgresEventStore
from lockledger.domain.keys import above
from support.company import SOAK, Company, together
from support.databases import Database
from support.ledgers import Ledgers

WORKERS = 16
ROUNDS = 150 * SOAK
"""Takes that are granted, to all of them; most others are refused."""
PATIENT = 0.05


class Overlap(AssertionError):
    """Two holders at once where there may be one."""


class Watch:
    """Who holds what just now, as the workers know it; raises `Overlap` when two holders' keys cover each other."""

    def __init__(self) -> None:
        self.alarmed = False
        self._held: dict[str, str] = {}
        self._looking = threading.Lock()

    @contextmanager
    def over(self, holder: str, keys: list[str]) -> Iterator[None]:
        with self._looking:
            for key in keys:
                for other, whose in self._held.items():
                    if whose != holder and covers(key, other):
                        self.alarmed = True
                        raise Overlap(f"{key} of {holder} and {other} of {whose}")
            self._held |= dict.fromkeys(keys, holder)
        try:
            yield
        finally:
            with self._looking:
                for key in keys:
                    self._held.pop(key, None)


def covers(one: str, other: str) -> bool:
    return one == other or one in above(other) or other in above(one)


@dataclass(frozen=True)
class Period:
    key: str
    holder: str
    began: datetime
    ended: datetime


def overlaps(database: Database) -> list[tuple[Period, Period]]:
    """Pairs of holds of two holders that covered each other at one instant, by the times in the tables."""
    with database.engine().connect() as connection:
        rows = connection.execute(
            text("SELECT key, holder, taken_at, ended_at FROM lockledger_all_holds")
        ).all()
    by_key: dict[str, list[Period]] = defaultdict(list)
    for key, holder, began, ended in rows:
        by_key[key].append(Period(key, holder, instant(began), instant(ended)))
    return [
        (one, other)
        for key, periods in by_key.items()
        for one in periods
        for higher in (key, *above(key))
        for other in by_key.get(higher, ())
        if one.holder != other.holder and one.began < other.ended and other.began < one.ended
    ]


def instant(stored: Any) -> datetime:
    """SQLite keeps text."""
    if stored is None:
        return datetime.max.replace(tzinfo=UTC)
    return datetime.fromisoformat(stored) if isinstance(stored, str) else stored


Work = Callable[[LockLedger, str, random.Random], list[str]]


def crowd(ledgers: list[LockLedger], work: Work, rounds: int) -> list[int]:
    """The workers take, hold for a moment and release; how many takes were granted to each.

    They go on until so many were granted, and to more than half of the workers.
    """
    watch, granted = Watch(), [0] * WORKERS
    ends = time.monotonic() + 60 + 30 * SOAK

    def enough() -> bool:
        return sum(granted) >= rounds and sum(map(bool, granted)) > WORKERS / 2

    def run(number: int) -> int:
        ledger, holder, rng = ledgers[number % len(ledgers)], f"run:{number}", random.Random(number)
        while not enough() and not watch.alarmed:
            assert time.monotonic() < ends, "there is no progress"
            keys = work(ledger, holder, rng)
            if not keys:
                time.sleep(rng.uniform(0, 0.005))
                continue
            granted[number] += 1
            with watch.over(holder, keys):
                time.sleep(rng.uniform(0, 0.002))
            for key in keys:
                assert ledger.release(key, holder)
        return granted[number]

    answers = together([lambda number=number: run(number) for number in range(WORKERS)])  # type: ignore[misc]
    return [int(str(answer)) for answer in answers]


def take_a_pair(ledger: LockLedger, holder: str, rng: random.Random) -> list[str]:
    pair = ["a", "b"] if rng.random() < 0.5 else ["b", "a"]
    try:
        assert [grant.key for grant in ledger.take_all(pair, holder)] == pair
    except LockedByOther:
        return []
    return pair


def take_in_a_tree(ledger: LockLedger, holder: str, rng: random.Random) -> list[str]:
    """One key or two, at depths of one to four; two that cover each other, too, as they are of one holder."""
    keys = [random_key(rng)]
    way = rng.choice(("at once", "patiently", "two"))
    if way == "two":
        keys = list({*keys, random_key(rng)})
        rng.shuffle(keys)
        try:
            ledger.take_all(keys, holder, ttl=600)
        except LockedByOther:
            return []
        return keys
    wait = PATIENT if way == "patiently" else None
    return [] if ledger.try_take(keys[0], holder, ttl=600, wait=wait) is None else keys


def random_key(rng: random.Random) -> str:
    depth = rng.choice((1, 2, 3, 3, 4, 4, 4))
    return ":".join(str(rng.randrange(2)) for _ in range(depth))


def opened(company: Company, **options: Any) -> list[LockLedger]:
    return [company.open(**options) for _ in range(4)]


@pytest.mark.timeout(120 + 60 * SOAK)
def test_pairs_in_either_order_never_deadlock_and_never_overlap(company: Company) -> None:
    granted = crowd(opened(company), take_a_pair, ROUNDS)
    assert sum(map(bool, granted)) > WORKERS / 2
    assert overlaps(company.database) == []


@pytest.mark.timeout(120 + 60 * SOAK)
def test_keys_of_a_tree_never_deadlock_and_never_overlap(company: Company) -> None:
    granted = crowd(opened(company, scopes=True), take_in_a_tree, ROUNDS)
    assert sum(map(bool, granted)) > WORKERS / 2
    assert overlaps(company.database) == []


@pytest.mark.timeout(120 + 60 * SOAK)
def test_without_the_locks_on_the_keys_above_the_same_crowd_finds_overlaps(
    postgres_ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_ledgers.may_log_errors = (
        True  # whoever waits may then wait behind another's first take, and give up
    )
    monkeypatch.setattr(PostgresEventStore, "lock_scopes", lambda *_args, **_options: True)
    ledgers = [postgres_ledgers.open(scopes=True) for _ in range(4)]
    ends = time.monotonic() + 60
    found = False
    while not found:
        assert time.monotonic() < ends, "the crowd does not find what it is there to find"
        try:
            crowd(ledgers, take_in_a_tree, 150)
        except Overlap:
            found = True
        else:
            found = overlaps(postgres_ledgers.database) != []
    assert overlaps(postgres_ledgers.database) != []


@pytest.mark.timeout(120 + 60 * SOAK)
def test_pairs_in_transactions_of_hosts_that_keep_the_order_never_deadlock(
    postgres_ledgers: Ledgers,
) -> None:
    """Hosts take key after key in key order, or all at once; sweeps and ends of all of a holder's come between."""
    engine = postgres_ledgers.database.engine(pool_size=WORKERS, max_overflow=0)
    ledger = postgres_ledgers.open(scopes=True)
    keys = [f"k:{number}" for number in range(6)]

    def host(number: int) -> int:
        rng, holder, done = random.Random(number), f"run:{number}", 0
        for _ in range(ROUNDS // 10):
            mine = sorted(rng.sample(keys, 3))
            with engine.begin() as connection:
                bound = ledger.using(connection)
                try:
                    if rng.random() < 0.5:
                        bound.take_all(reversed(mine), holder, ttl=0.05)
                    else:
                        for key in mine:
                            bound.take(key, holder, ttl=0.05)
                except LockedByOther:
                    continue
                done += 1
        return done

    def others() -> int:
        for number in range(ROUNDS // 10):
            ledger.expire_due()
            ledger.release_all(holder=f"run:{number % 8}", actor="user:9", reason="why")
            ledger.release_all(under="k", actor="user:9", reason="why")
        return 1

    works: list[Callable[[], object]] = [lambda number=number: host(number) for number in range(8)]  # type: ignore[misc]
    answers = together([*works, others, others])
    assert sum(int(str(answer)) for answer in answers) > 2
    assert overlaps(postgres_ledgers.database) == []
