"""A whole life of one lock, for tests of what must not matter to it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockledger import LockedByOther, LockLedger

LIFE = ["LockTaken", "LockExtended", "LockTakenOver", "LockReleased"]


def live_a_life(ledger: LockLedger, key: str = "k") -> list[str]:
    """Everything a ledger does, on one lock; gives what was recorded."""
    grant = ledger.take(key, "run:1", ttl=3600)
    extended = ledger.extend(key, "run:1", timedelta(hours=2))
    assert extended.expires_at is not None
    assert extended.expires_at - grant.taken_at >= timedelta(hours=2)
    with pytest.raises(LockedByOther):
        ledger.take(key, "run:2")
    taken_over = ledger.take(key, "run:2", takeover_reason="urgent", metadata={"n": 1.5})
    assert ledger.holder_of(key) == ledger.current_holders(under=key)[0]
    assert taken_over.taken_at.utcoffset() == timedelta(0)
    assert ledger.release(key, "run:2", token=taken_over.token)
    assert ledger.force_release(key, actor="user:9", reason="sure") is None
    entries = ledger.history(key, extensions=True)
    assert {entry.occurred_at.utcoffset() for entry in entries} == {timedelta(0)}
    assert [each.event.action for each in ledger.events() if each.event.key == key] == [
        entry.action for entry in entries
    ]
    return [entry.action for entry in entries]
