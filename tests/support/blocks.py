"""Blocks that hold a lock, and what they leave in its history."""

from __future__ import annotations

from lockledger import LockLedger


class Trouble(Exception):
    """What goes wrong in a body."""


def actions(ledger: LockLedger, key: str) -> list[str]:
    return [entry.action for entry in ledger.history(key)]


def was_released_once(ledger: LockLedger, key: str = "k") -> bool:
    return not ledger.is_locked(key) and actions(ledger, key) == ["LockTaken", "LockReleased"]
