"""A host's own projection: each event once, in order, whoever replays and however often it breaks off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, insert, select

from lockledger import Advance, LockLedger, Projection, RecordedEvent
from lockledger.replaying import EVENTS_AT_ONCE
from support.colours import asynchronous, running_loop
from support.crowd import life, record
from support.databases import Database

metadata = MetaData()
seen = Table(
    "host_seen",
    metadata,
    Column("position", BigInteger, primary_key=True),
    Column("key", String(255), nullable=False),
    Column("version", BigInteger, nullable=False),
)


class Seen(Projection):
    """Writes down every event; breaks at the position that it is told."""

    def __init__(self, name: str = "seen", breaks_at: int | None = None) -> None:
        self._name = name
        self.breaks_at = breaks_at
        self.calls = 0

    @property
    def name(self) -> str:
        return self._name

    def apply(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        self.calls += 1
        for each in events:
            if each.position == self.breaks_at:
                raise LookupError("broken")
            values = {
                "position": each.position,
                "key": each.event.key,
                "version": each.event.originator_version,
            }
            connection.execute(insert(seen).values(values))

    def reset(self, connection: Connection) -> None:
        connection.execute(seen.delete())


@pytest.fixture
def events(database: Database) -> int:
    """How many events there are: more than two transactions of a replay take."""
    metadata.create_all(database.engine())
    chance = random.Random(4)
    lives = (life(f"k:{number}", 40, chance, lambda _: "run:1") for number in range(30))
    return record(database.engine(), lives)


def positions(database: Database) -> list[int]:
    with database.engine().connect() as connection:
        return list(connection.execute(select(seen.c.position).order_by(seen.c.position)).scalars())


def test_everything_once_and_then_what_is_new(database: Database, events: int) -> None:
    projection, told = Seen(), list[Advance]()
    with LockLedger(database.url) as ledger:
        assert ledger.replay(projection, progress=told.append) == events
        assert positions(database) == list(range(1, events + 1))
        assert projection.calls == len(told) == -(-events // EVENTS_AT_ONCE)
        assert (told[-1].done, told[-1].total) == (events, events)
        assert ledger.replay(projection) == events
        ledger.take("new", "run:1")
        assert ledger.replay(projection) == events + 1
    assert positions(database) == list(range(1, events + 2))
    assert projection.calls == len(told) + 1


def test_what_breaks_off_takes_its_events_back(database: Database, events: int) -> None:
    projection = Seen(breaks_at=EVENTS_AT_ONCE + 7)
    with LockLedger(database.url) as ledger:
        with pytest.raises(LookupError, match="broken"):
            ledger.replay(projection)
        assert positions(database) == list(range(1, EVENTS_AT_ONCE + 1))
        projection.breaks_at = None
        assert ledger.replay(projection) == events
    assert positions(database) == list(range(1, events + 1))


def test_again_from_the_first(database: Database, events: int) -> None:
    with LockLedger(database.url) as ledger:
        assert ledger.replay(Seen(), restart=True) == events
        assert ledger.replay(Seen(), restart=True) == events
        with pytest.raises(LookupError):
            ledger.replay(Seen(breaks_at=3), restart=True)
        assert positions(database) == []
        assert ledger.replay(Seen()) == events
    assert positions(database) == list(range(1, events + 1))


def test_several_at_once(database: Database, events: int) -> None:
    with LockLedger(database.url) as ledger, ThreadPoolExecutor(4) as threads:
        running = [threads.submit(ledger.replay, Seen()) for _ in range(4)]
        assert {each.result() for each in running} == {events}
    assert positions(database) == list(range(1, events + 1))


def test_each_name_and_each_ledger_has_its_place(database: Database, events: int) -> None:
    with LockLedger(database.url) as ledger, LockLedger(database.url, name="other") as other:
        assert other.replay(Seen()) == 0
        assert ledger.replay(Seen()) == events
        with database.engine().begin() as connection:
            connection.execute(seen.delete())
        assert ledger.replay(Seen("another")) == events
        assert ledger.replay(Seen()) == events
    assert len(positions(database)) == events


def test_awaited(database: Database, events: int) -> None:
    with running_loop() as loop:
        ledger = asynchronous(loop, database.url)
        assert ledger.replay(Seen()) == events
        ledger.close()
    assert positions(database) == list(range(1, events + 1))


@pytest.mark.parametrize("name", ["", "a:b", "x" * 101, " a", "a\n"])
def test_a_bad_name_is_refused(database: Database, name: str) -> None:
    with LockLedger(database.url) as ledger:
        with pytest.raises(ValueError, match="the projection's name"):
            ledger.replay(Seen(name))
        wrong: Any = 5
        with pytest.raises(TypeError, match="must be a str"):
            ledger.replay(Seen(wrong))
        with pytest.raises(
            TypeError, match=r"has name, apply and reset; 5 has no name, apply, reset"
        ):
            ledger.replay(wrong)
