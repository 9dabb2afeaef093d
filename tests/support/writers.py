"""Writers whose transactions take their time, and sometimes come to nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, create_engine

from lockledger import (
    LockedByOther,
    LockLedger,
    NotHolding,
    Policy,
    RecordedEvent,
    configure_sqlite,
)

SLOW = 0.03
"""Seconds for which a transaction stays open, at most."""
Place = tuple[int, str, int]
"""Position, key and version of an event."""


@dataclass
class Recorded(Policy[Connection]):
    """Remembers what was appended, until it is known what became of it."""

    pending: list[Place] = field(default_factory=list)

    def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        self.pending += [
            (each.position, each.event.key, each.event.originator_version) for each in events
        ]

    def take(self) -> list[Place]:
        """What was appended since the last time."""
        taken, self.pending = self.pending, []
        return taken


@dataclass
class Written:
    """What one process knows to be committed, and to be rolled back."""

    committed: list[Place] = field(default_factory=list)
    taken_back: list[Place] = field(default_factory=list)


def write(url: str, number: int, keys: list[str], turns: int, barrier: Any) -> Written:
    """Transactions of a host with some verbs each, in key order; a third is slow, a quarter is rolled back."""
    chance, written, policy = random.Random(number), Written(), Recorded()
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        configure_sqlite(engine)
    with LockLedger(engine, policy=policy) as ledger:
        ledger.holder_of("warm")
        barrier.wait()
        for turn in range(turns):
            if turn % 4 == 0:
                _change(ledger, chance.choice(keys), number, chance)
                written.committed += policy.take()
                continue
            with engine.connect() as connection:
                for key in sorted(chance.sample(keys, chance.randint(1, 3))):
                    _change(ledger.using(connection), key, number, chance)
                    if chance.random() < 0.3:
                        time.sleep(chance.random() * SLOW)
                if chance.random() < 0.25:
                    connection.rollback()
                    written.taken_back += policy.take()
                else:
                    connection.commit()
                    written.committed += policy.take()
    engine.dispose()
    return written


def _change(ledger: Any, key: str, number: int, chance: random.Random) -> None:
    try:
        if chance.random() < 0.3:
            ledger.release(key, f"run:{number}")
        else:
            reason = "my turn" if chance.random() < 0.5 else None
            ledger.take(key, f"run:{number}", takeover_reason=reason)
    except (LockedByOther, NotHolding):
        pass
