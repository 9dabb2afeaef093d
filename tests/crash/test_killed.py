"""A process that is killed before any step of a call leaves all of the change or nothing, and no lock behind."""

from __future__ import annotations

from itertools import count

import pytest

from support.killed import CALLS, WAYS, Stopped, kill_before, wait_until_noticed
from support.ledgers import Ledgers
from support.processes import SOAK

MOST_STEPS = 40
TRIED = (
    [(call, way) for call in CALLS for way in WAYS]
    if SOAK > 1
    else [
        ("takeover", "alone"),
        ("takeover", "with a policy"),
        ("first take", "in a caller's transaction"),
        ("takeover", "in a caller's transaction"),
    ]
)


def is_committed(stopped: Stopped) -> bool:
    """Whether the step that commits had been done. Alone on PostgreSQL, the append commits by itself."""
    if any(step in ("commit", "COMMIT") for step in stopped.done):
        return True
    explicit = any(step.startswith(("BEGIN", "SAVEPOINT")) for step in stopped.done)
    return not explicit and any(step.startswith("WITH head AS") for step in stopped.done)


@pytest.mark.parametrize(("call", "way"), TRIED)
def test_a_process_killed_at_any_step_of_a_call(ledgers: Ledgers, call: str, way: str) -> None:
    ledger, database = ledgers.open(), ledgers.database
    prepare, _ = CALLS[call]
    outcomes = []
    for step in count(1):
        key = f"key:{step:02}"
        prepare(ledger, key)
        before = len(ledger.history(key, extensions=True))
        stopped = kill_before(database.url, call, key, way, step)
        wait_until_noticed(database)
        changed = len(ledger.history(key, extensions=True)) > before
        if stopped is None:
            assert changed
            break
        assert changed == is_committed(stopped), stopped
        outcomes.append(changed)
        grant = ledger.take(key, "cid", takeover_reason="after the crash")
        assert grant.holder == "cid"
    assert 3 <= len(outcomes) <= MOST_STEPS
    assert not outcomes[0]
    assert outcomes == sorted(outcomes)
