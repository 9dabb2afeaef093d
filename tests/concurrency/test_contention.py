"""Eight processes on one lock and on many: one holder at any time, no gap in versions, no error seen by anyone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

import pytest

from support.contention import Report, begin_together, do_anything, work_alone
from support.fold import Folded
from support.ledgers import Ledgers
from support.processes import all_at_once, processes, rounds
from support.proof import prove

PROCESSES = 8


def turns(ledgers: Ledgers, on_postgres: int, on_sqlite: int) -> int:
    """SQLite lets one writer in at a time, and each waits for the disk."""
    return rounds(on_postgres if ledgers.database.dialect == "postgresql" else on_sqlite)


def nothing_was_wrong(ledgers: Ledgers, reports: list[Report]) -> list[Folded]:
    """Each grant that a call gave is one in the events, given once; and nobody saw or logged an error.

    That versions have no gaps, tokens grow, and no two holds of a lock overlap, `prove` asserts.
    """
    assert list(chain.from_iterable(report.faults for report in reports)) == []
    locks = prove(ledgers.database.engine())
    given = Counter(chain.from_iterable(report.grants for report in reports))
    assert given == Counter(begun(locks))
    assert max(given.values()) == 1
    assert ledgers.database.logged_errors() == []
    return locks


def begun(locks: Iterable[Folded]) -> Iterable[tuple[str, int]]:
    """Key and token of every hold, as the events tell."""
    for lock in locks:
        holds = [*lock.ended, lock.hold] if lock.hold else lock.ended
        yield from ((lock.key, hold["token"]) for hold in holds)


@pytest.mark.parametrize("keys", [1, 24])
def test_processes_that_take_and_release_are_alone_with_their_lock(
    ledgers: Ledgers, keys: int
) -> None:
    names = [f"key:{number}" for number in range(keys)]
    slots = processes().RawArray("q", keys + PROCESSES)
    given = [
        (ledgers.database.url, number, names, turns(ledgers, 150, 40))
        for number in range(PROCESSES)
    ]
    reports = all_at_once(work_alone, given, slots)
    outcomes = sum((report.outcomes for report in reports), Counter[str]())
    assert outcomes["granted"] > PROCESSES
    assert keys > 1 or outcomes["refused"] > PROCESSES
    locks = nothing_was_wrong(ledgers, reports)
    assert sum(len(lock.ended) for lock in locks) == outcomes["granted"]


def test_processes_that_take_a_new_lock_at_the_same_instant_give_one_grant(
    ledgers: Ledgers,
) -> None:
    names = [f"new:{number}" for number in range(turns(ledgers, 250, 40))]
    given = [(ledgers.database.url, number, names) for number in range(PROCESSES)]
    reports = all_at_once(begin_together, given)
    locks = nothing_was_wrong(ledgers, reports)
    assert [(lock.key, lock.version) for lock in sorted(locks, key=lambda lock: lock.key)] == [
        (name, 1) for name in sorted(names)
    ]


@pytest.mark.parametrize("keys", [1, 5])
def test_processes_that_do_anything_leave_one_history(ledgers: Ledgers, keys: int) -> None:
    names = [f"key:{number}" for number in range(keys)]
    given = [
        (ledgers.database.url, number, names, turns(ledgers, 120, 30))
        for number in range(PROCESSES)
    ]
    reports = all_at_once(do_anything, given)
    nothing_was_wrong(ledgers, reports)
    outcomes = sum((report.outcomes for report in reports), Counter[str]())
    assert outcomes["takeover"] > 0
