"""Rebuilds in processes of their own, to be killed."""

from __future__ import annotations

import random
import time

from lockledger import LockLedger
from support.processes import PATIENCE, processes


def rebuild_and_be_killed(url: str, chance: random.Random, within: float) -> bool:
    """Begins a rebuild, and kills its process at a random moment; whether it was still at work then."""
    context = processes()
    ready = context.Event()
    process = context.Process(target=_rebuild, args=(url, ready))
    process.start()
    if not ready.wait(PATIENCE):
        raise AssertionError("the process did not begin")
    time.sleep(chance.random() * within)
    killed = process.is_alive()
    process.kill()
    process.join()
    return killed


def _rebuild(url: str, ready: object) -> None:
    with LockLedger(url) as ledger:
        ledger.is_locked("warm")
        ready.set()  # type: ignore[attr-defined]
        ledger.rebuild()
