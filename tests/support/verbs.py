"""Every verb that a ledger has both on its own and in a caller's transaction, as a call on the lock `k`.

On an async ledger the calls give what is to be awaited.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
Verb = Callable[[Any], Any]

WRITING: dict[str, Verb] = {
    "take": lambda ledger: ledger.take("k", "run:1"),
    "try_take": lambda ledger: ledger.try_take("k", "run:1"),
    "release": lambda ledger: ledger.release("k", "run:1"),
    "try_release": lambda ledger: ledger.try_release("k", "run:1"),
    "extend": lambda ledger: ledger.extend("k", "run:1", 60),
    "force_release": lambda ledger: ledger.force_release("k", actor="user:9", reason="why"),
}
MANY: dict[str, Verb] = {
    "take_all": lambda ledger: ledger.take_all(["k", "l"], "run:1"),
    "release_all": lambda ledger: ledger.release_all(holder="run:1", actor="user:9", reason="why"),
    "expire_due": lambda ledger: ledger.expire_due(),
}
GUARD: dict[str, Verb] = {"guard": lambda ledger: ledger.guard("k", "run:1")}
READING: dict[str, Verb] = {
    "holder_of": lambda ledger: ledger.holder_of("k"),
    "is_locked": lambda ledger: ledger.is_locked("k"),
    "current_holders": lambda ledger: ledger.current_holders(),
    "history": lambda ledger: ledger.history("k"),
    "audit_trail": lambda ledger: ledger.audit_trail(),
    "holds": lambda ledger: ledger.holds(),
    "holder_at": lambda ledger: ledger.holder_at("k", LONG_AGO),
    "holders_at": lambda ledger: ledger.holders_at(LONG_AGO),
    "display_names": lambda ledger: ledger.display_names(["run:1"]),
}
BOUND = {**WRITING, **MANY, **GUARD, **READING}
