"""What a look back costs: it is read by index, and does not grow with the ledger around it.

The cost is counted, not timed: pages of tables and indexes that PostgreSQL touches, steps of SQLite's machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from lockledger import LockLedger
from lockledger.domain.events import LockEvent
from support.crowd import BEGIN, END, life, record
from support.databases import KINDS, Database, Servers

MIDDLE = BEGIN + (END - BEGIN) / 2
DAY = timedelta(days=1)
Ask = Callable[[LockLedger], Any]

# One lock and one holder, whose past is the same in each ledger, and grows with none.
OF_ONE: dict[str, Ask] = {
    "holder_at": lambda ledger: ledger.holder_at("watched", MIDDLE),
    "holds of a key": lambda ledger: ledger.holds(key="watched"),
    "holds of a key in a period": lambda ledger: ledger.holds(
        key="watched", since=MIDDLE, until=MIDDLE + 30 * DAY
    ),
    "holds of a tree": lambda ledger: ledger.holds(under="watched"),
    "holds of a tree in a period": lambda ledger: ledger.holds(under="watched", since=MIDDLE),
    "holds of a prefix": lambda ledger: ledger.holds(key_prefix="watched"),
    "holds of a holder": lambda ledger: ledger.holds(holder="run:watched"),
    "holds of a holder in a period": lambda ledger: ledger.holds(
        holder="run:watched", since=MIDDLE, until=MIDDLE + 30 * DAY
    ),
    "holders_at of a holder": lambda ledger: ledger.holders_at(MIDDLE, holder="run:watched"),
    "holders_at of a tree": lambda ledger: ledger.holders_at(MIDDLE, under="watched"),
}
# A lock and a holder whose past grows with the ledger: a page of it does not cost more.
OF_A_BUSY_ONE: dict[str, Ask] = {
    "holder_at": lambda ledger: ledger.holder_at("busy", MIDDLE),
    "holder_at, early": lambda ledger: ledger.holder_at("busy", BEGIN + 30 * DAY),
    "holder_at, late": lambda ledger: ledger.holder_at("busy", END - 30 * DAY),
    "holds of a key": lambda ledger: ledger.holds(key="busy", limit=20),
    "holds of a key in a period": lambda ledger: ledger.holds(
        key="busy", since=MIDDLE, until=MIDDLE + 10 * DAY, limit=5
    ),
    "holds of a key, a later page": lambda ledger: ledger.holds(
        key="busy", limit=20, after=ledger.holds(key="busy", limit=150).next_after
    ),
    "holds of a holder": lambda ledger: ledger.holds(holder="run:busy", limit=20),
    "holds of a holder, a later page": lambda ledger: ledger.holds(
        holder="run:busy", limit=20, after=ledger.holds(holder="run:busy", limit=30).next_after
    ),
    "all holds": lambda ledger: ledger.holds(limit=20),
    "all holds, a later page": lambda ledger: ledger.holds(
        limit=20, after=ledger.holds(limit=300).next_after
    ),
}
# These go through as many holds as there are, each page at worst.
OF_ALL: dict[str, Ask] = {
    "holders_at": lambda ledger: ledger.holders_at(MIDDLE),
    "holders_at, a later page": lambda ledger: ledger.holders_at(MIDDLE, after="lock:5"),
    "holds of a period": lambda ledger: ledger.holds(since=MIDDLE, until=MIDDLE + DAY),
}


def lives(locks: int) -> Iterator[Iterator[LockEvent]]:
    """A crowd of locks around the two that are looked at."""
    rng = random.Random(3)
    holders = [f"run:{number}" for number in range(locks)]

    def anybody(rng: random.Random) -> str:
        return "run:busy" if rng.random() < 0.1 else rng.choice(holders)

    yield life("watched", 60, random.Random(1), lambda _: "run:watched")
    yield life("busy", 4 * locks, rng, anybody)
    for number in range(locks):
        yield life(f"lock:{number}", 6, rng, anybody)


@dataclass
class Crowded:
    """A ledger with many locks."""

    database: Database
    ledger: LockLedger
    engine: Engine

    def statement(self, ask: Ask, about: str = "lockledger_holds") -> tuple[str, Any]:
        """What the last question of `ask` sends to the database that is about a table or column."""
        sent: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
            if about in statement:
                sent.append((statement, values))

        event.listen(Engine, "before_cursor_execute", note)
        try:
            ask(self.ledger)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        return sent[-1]

    def plan(self, ask: Ask, about: str = "lockledger_holds") -> str:
        """How the database goes about it."""
        prefix = "EXPLAIN" if self.database.dialect == "postgresql" else "EXPLAIN QUERY PLAN"
        statement, values = self.statement(ask, about)
        with self.engine.connect() as connection:
            rows = connection.exec_driver_sql(f"{prefix} {statement}", values).all()
        return "\n".join(row[-1] for row in rows)

    def cost(self, ask: Ask, about: str = "lockledger_holds") -> int:
        """Pages that PostgreSQL touches, or steps that SQLite takes."""
        statement, values = self.statement(ask, about)
        with self.engine.connect() as connection:
            if self.database.dialect == "postgresql":
                explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
                connection.exec_driver_sql(explain, values).scalar()
                found: Any = connection.exec_driver_sql(explain, values).scalar()
                plan = found[0]["Plan"]
                return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
            steps: list[int] = []
            driver: Any = connection.connection.driver_connection
            driver.set_progress_handler(lambda: steps.append(1), 1)
            connection.exec_driver_sql(statement, values).all()
            driver.set_progress_handler(None, 0)
            return len(steps)


@pytest.fixture(scope="module", params=KINDS)
def crowded(
    request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Crowded, Crowded]]:
    """A small ledger, and one with ten times as many events, on each kind of database."""
    found: list[Crowded] = []
    folders: list[Path] = [tmp_path_factory.mktemp(name) for name in ("small", "large")]
    with (
        servers.database(request.param, folders[0]) as small,
        servers.database(request.param, folders[1]) as large,
    ):
        for database, locks in ((small, 150), (large, 1500)):
            engine = database.engine()
            record(engine, lives(locks))
            found.append(Crowded(database, LockLedger(engine), engine))
        yield found[0], found[1]


@pytest.mark.parametrize(
    "ask",
    [*OF_ONE.values(), *OF_A_BUSY_ONE.values()],
    ids=[*OF_ONE, *(f"busy: {name}" for name in OF_A_BUSY_ONE)],
)
def test_a_look_back_at_one_lock_or_holder_costs_no_more_in_a_ledger_ten_times_as_large(
    crowded: tuple[Crowded, Crowded], ask: Ask
) -> None:
    small, large = crowded
    # An index of ten times as many entries may be one page deeper.
    assert large.cost(ask) <= 1.5 * small.cost(ask) + 8


@pytest.mark.parametrize(
    "ask",
    [*OF_ONE.values(), *OF_A_BUSY_ONE.values(), *OF_ALL.values()],
    ids=[
        *OF_ONE,
        *(f"busy: {name}" for name in OF_A_BUSY_ONE),
        *(f"all: {name}" for name in OF_ALL),
    ],
)
def test_every_table_is_read_by_an_index(crowded: tuple[Crowded, Crowded], ask: Ask) -> None:
    _, large = crowded
    plan = large.plan(ask)
    assert "Seq Scan" not in plan, plan
    assert "SCAN lockledger_" not in plan, plan
    assert "lockledger_events" not in plan, plan
    assert "lockledger_holds_by_" in plan, plan


def test_the_newest_times_of_a_ledger_are_read_by_index_and_only_for_what_is_to_come(
    crowded: tuple[Crowded, Crowded],
) -> None:
    small, large = crowded

    def ask(ledger: LockLedger) -> None:
        with pytest.raises(ValueError, match="is later than now"):
            ledger.holders_at(datetime.now(UTC) + 100 * 365 * DAY)

    assert "lockledger_audit_trail_by_time" in large.plan(ask, "recorded_at")
    assert "lockledger_audit_trail_by_position" in large.plan(ask, "recorded_at")
    assert large.cost(ask, "recorded_at") <= 1.5 * small.cost(ask, "recorded_at") + 8
    with pytest.raises(IndexError):
        large.statement(OF_ALL["holders_at"], "recorded_at")


def test_a_plan_that_is_kept_for_a_list_is_one_for_its_instant(
    crowded: tuple[Crowded, Crowded],
) -> None:
    _, large = crowded
    lists = (
        *OF_ALL.values(),
        OF_ONE["holders_at of a holder"],
        OF_ONE["holds of a tree in a period"],
    )
    for ask in lists:
        statement, _ = large.statement(ask)
        assert f"'{MIDDLE.isoformat(timespec='microseconds')}'" in statement
    for name in ("holder_at", "holds of a key in a period"):
        statement, _ = large.statement(OF_ONE[name])
        assert str(MIDDLE.year) not in statement
