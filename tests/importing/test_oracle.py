"""Whatever happened in a ledger: told as a table of holds and imported into another, the holds are the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import Column, DateTime, Integer, MetaData, Table, Text, insert

from lockledger import Hold, LocksWithHistory
from support.ledgers import Ledgers, SettableClock
from support.turmoil import tell

COLUMNS = ("key", "holder", "taken_at", "expires_at", "taken_over_from")
TABLE = Table(
    "past",
    MetaData(),
    Column("id", Integer, primary_key=True),
    *(Column(name, Text) for name in ("key", "holder", "taken_over_from", "reason")),
    *(Column(name, Text) for name in ("ended_by", "end_reason")),
    *(Column(name, DateTime(timezone=True)) for name in ("taken_at", "expires_at", "ended_at")),
)
PAST = LocksWithHistory(
    table="past",
    **{name: name for name in COLUMNS},
    ended_at="ended_at",
    reason="reason",
    ended_by="ended_by",
    end_reason="end_reason",
    timezone="UTC",
)


def row(number: int, hold: Hold) -> dict[str, Any]:
    ran_out = hold.ended_by == "expiry"
    return {
        "id": number,
        **{name: getattr(hold, name) for name in COLUMNS},
        "reason": hold.takeover_reason,
        "ended_at": None if ran_out else hold.ended_at,
        "ended_by": hold.ended_by_actor,
        "end_reason": hold.end_reason,
    }


def facts(hold: Hold) -> Hold:
    """What a table of holds can say; tokens count extensions too, and a release may have been forced."""
    ended_by = "release" if hold.ended_by == "forced" else hold.ended_by
    return hold.model_copy(update={"token": 0, "metadata": {}, "ended_by": ended_by})


@pytest.mark.parametrize("seed", range(2))
def test_the_holds_are_the_same(ledgers: Ledgers, clock: SettableClock, seed: int) -> None:
    ledger = ledgers.open(clock=clock)
    tell(ledger, clock, random.Random(seed), steps=250)
    clock.forward(100)
    there = list(ledger.holds(limit=1000))
    assert len(there) > 40
    engine = ledgers.database.engine()
    TABLE.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(TABLE), [row(*each) for each in enumerate(there, 1)])
    other = ledgers.open(clock=clock, name="other")
    report = other.import_locks(PAST)
    assert report.ok, report.refused
    assert list(map(facts, other.holds(limit=1000))) == list(map(facts, there))
    assert other.verify().ok
    assert other.import_locks(PAST).unchanged == report.locks
