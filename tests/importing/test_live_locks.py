"""A table of the locks that are held now."""

from __future__ import annotations

import pytest

from lockledger import LockLedger
from lockledger.domain.errors import LockedByOther
from support.old_system import OldSystem
from support.stories import at


def test_each_row_is_a_hold_since_it_was_taken(ledger: LockLedger, old: OldSystem) -> None:
    old.lock("round:5", "run:42", 10)
    old.lock("round:6", "run:43", 20, 200_000)
    old.lock("round:7", "run:44", 30, 90_000)

    report = ledger.import_locks(old.live)

    assert (report.rows, report.locks, report.events, report.unchanged) == (3, 3, 4, 0)
    assert report.ok
    assert report.source == "run_lock"
    held = ledger.current_holders()
    assert [(hold.key, hold.holder, hold.taken_at, hold.expires_at) for hold in held] == [
        ("round:5", "run:42", at(10), None),
        ("round:6", "run:43", at(20), at(200_000)),
    ]
    mark = {"source": "run_lock", "row": "round:5", "when": at(100_000).isoformat()}
    assert held[0].metadata == {"lockledger_import": mark}
    ran_out = ledger.holds(key="round:7")[0]
    assert (ran_out.ended_by, ran_out.ended_at) == ("expiry", at(90_000))
    trail = ledger.audit_trail()
    assert [(entry.action, entry.occurred_at, entry.actor) for entry in trail] == [
        ("LockTaken", at(10), "run:42"),
        ("LockTaken", at(20), "run:43"),
        ("LockTaken", at(30), "run:44"),
        ("LockExpired", at(90_000), None),
    ]
    assert ledger.holder_at("round:7", at(89_999)) is not None
    assert ledger.holder_at("round:5", at(9)) is None
    assert ledger.verify().ok
    assert ledger.take("round:7", "run:50").token == 3
    with pytest.raises(LockedByOther):
        ledger.take("round:5", "run:50")
