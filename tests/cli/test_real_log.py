"""A real log of a help desk, 2010 to 2014: what a correct ledger says after it, and how long it may take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.ledgers import Ledgers
from support.proof import prove

LOG = Path(__file__).parents[3] / "shared" / "data" / "helpdesk.jsonl.gz"


@pytest.mark.skipif(
    not LOG.exists(),
    reason="the log is not part of the project; it lies beside the checkout or nowhere",
)
@pytest.mark.timeout(600)
def test_the_real_log_is_applied_with_exact_counts_and_every_row_agrees_with_the_events(
    cli: Any, ledgers: Ledgers
) -> None:
    ran = cli("apply", str(LOG), "--json")
    assert ran.code == 0, ran.err
    assert ran.json == {
        "LockTaken": 4583,
        "LockTakenOver": 4091,
        "LockReleased": 4560,
        "LockExpired": 0,
        "LockExtended": 0,
        "unchanged": 8114,
        "refused": 0,
    }
    held = cli("holders", "--json").lines
    assert len(held) == 23
    assert len(cli("audit", "--json").lines) == 4583 + 4091 + 4560

    # The proof folds all events of each lock, holds each event alone against that fold, and every row against both.
    locks = prove(ledgers.database.engine())
    still_held = {lock.key: lock.hold["holder"] for lock in locks if lock.hold is not None}
    assert still_held == {each["key"]: each["holder"] for each in held}
