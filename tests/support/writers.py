"""Writers whose transactions take their time, and sometimes come to nothing."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.exc import DBAPIError

from lockledger import (
    LockedByOther,
    LockLedger,
    LockLedgerError,
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


@dataclass
class Acknowledged:
    """What one process was told that it has, until it lost the server; and the error that told it so."""

    grants: list[tuple[str, int]] = field(default_factory=list)
    lost_by: str = ""


def take_over_until_lost(url: str, number: int, keys: list[str], barrier: Any) -> Acknowledged:
    """Takes one lock after the other over, alone and in transactions of a host, until the server is gone."""
    chance, told = random.Random(number), Acknowledged()
    engine = create_engine(url)
    ledger = LockLedger(engine)
    ledger.holder_of("warm")
    barrier.wait()
    while not told.lost_by:
        key = chance.choice(keys)
        try:
            if chance.random() < 0.5:
                grant = ledger.take(
                    key, f"run:{number}", takeover_reason="my turn", if_mine="replace"
                )
            else:
                with engine.begin() as connection:
                    grant = ledger.using(connection).take(
                        key, f"run:{number}", takeover_reason="my turn", if_mine="replace"
                    )
        except (DBAPIError, LockLedgerError) as error:
            told.lost_by = type(error).__name__
        else:
            told.grants.append((key, grant.token))
    engine.dispose()
    return told


def take_over_and_tell(url: str, number: int, keys: list[str], pipe: Any) -> None:
    """Takes one lock after the other over, and tells of each grant, until it is killed."""
    chance = random.Random(number)
    with LockLedger(url) as ledger:
        while True:
            key = chance.choice(keys)
            grant = ledger.take(key, f"run:{number}", takeover_reason="my turn", if_mine="replace")
            pipe.send((key, grant.token))


def take_over_patiently(url: str, number: int, turns: int, barrier: Any) -> float:
    """Takes one lock over as fast as it can; gives the longest time that a call took, in seconds."""
    longest = 0.0
    with LockLedger(url) as ledger:
        ledger.holder_of("warm")
        barrier.wait()
        for _ in range(turns):
            began = time.monotonic()
            ledger.take("k", f"run:{number}", takeover_reason="my turn", if_mine="replace")
            longest = max(longest, time.monotonic() - began)
    return longest


def take_with_little_room(url: str, barrier: Any) -> str:
    """Takes a lock over while no file may grow any more; gives the name of the error."""
    barrier.wait()
    with LockLedger(url) as ledger:
        ledger.holder_of("k")
        log = Path(f"{make_url(url).database}-wal")
        # Beyond it a write fails as an input or output error, and not as a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, resource.RLIM_INFINITY))
        try:
            ledger.take("k", "ben", takeover_reason="urgent", metadata={"note": "x" * 8000})
        except (DBAPIError, LockLedgerError) as error:
            return type(error).__name__
        return "granted"
