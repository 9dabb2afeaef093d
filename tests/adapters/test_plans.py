"""How the databases go about the hot statements: by index, and no more expensive for a lock with ten thousand events.

PostgreSQL explains each statement as it runs it, with a plan for any values and with one for just these. The cost is
counted in pages, on SQLite in steps of its machine.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from lockledger import LockLedger
from lockledger.domain.events import LockEvent
from support.crowd import life, record
from support.databases import KINDS, Database, Kind, Servers

EVENTS_OF_BUSY, LOCKS, EVENTS_OF_EACH = 10_000, 1_500, 4
EXPLAINING = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "client_min_messages": "log",
}
Ask = Callable[[LockLedger], Any]

ASKED: dict[str, Ask] = {
    "holder_of": lambda ledger: ledger.holder_of("busy"),
    "refused or unchanged take": lambda ledger: ledger.try_take("group:1:lock:3", "run:9"),
    "current_holders": lambda ledger: ledger.current_holders(limit=20),
    "current_holders, a later page": lambda ledger: ledger.current_holders(
        after="group:5", limit=20
    ),
    "current_holders of a holder": lambda ledger: ledger.current_holders(holder="run:7"),
    "current_holders of a prefix": lambda ledger: ledger.current_holders(key_prefix="group:1"),
    "current_holders of a tree": lambda ledger: ledger.current_holders(under="group:1"),
    "history": lambda ledger: ledger.history("busy", limit=20),
    "history, a later page": lambda ledger: ledger.history("busy", after=5_000, limit=20),
    "audit_trail": lambda ledger: ledger.audit_trail(limit=20),
    "audit_trail, a later page": lambda ledger: ledger.audit_trail(after=9_000, limit=20),
    "audit_trail of a holder": lambda ledger: ledger.audit_trail(holder="run:7", limit=20),
    "audit_trail of an actor": lambda ledger: ledger.audit_trail(actor="run:7", limit=20),
    "settled events": lambda ledger: ledger.next_page(9_000),
    "the newest settled event": lambda ledger: ledger.settled_position(),
}
CHANGES: dict[str, Callable[[LockLedger, str], Any]] = {
    "take": lambda ledger, key: ledger.take(key, "run:new", takeover_reason="urgent", ttl=600),
    "extension": lambda ledger, key: ledger.extend(key, "run:new", 1200),
    "release": lambda ledger, key: ledger.release(key, "run:new"),
    "repeated release": lambda ledger, key: ledger.release(
        key, "run:new", token=ledger.history(key, limit=1000)[-1].token
    ),
}
"""One after the other they leave the lock free."""


@dataclass
class Watched:
    """A large ledger, and what its database says of each statement that it runs."""

    database: Database
    ledger: LockLedger
    engine: Engine
    plans: list[str] = field(default_factory=list)
    steps: int = 0

    def plans_of(self, call: Callable[[], Any]) -> list[str]:
        self.plans.clear()
        call()
        return list(self.plans)

    def cost_of(self, call: Callable[[], Any]) -> int:
        """Pages that PostgreSQL touches, or steps that SQLite takes, in a second run of the same statements."""
        self.steps = 0
        plans = self.plans_of(call)
        if self.database.dialect == "sqlite":
            return self.steps
        return sum(pages_of(plan) for plan in plans)


def pages_of(plan: str) -> int:
    """The pages of a whole plan stand at its root, the first line about buffers."""
    found = re.search(r"Buffers: shared (?:hit=(\d+))?\s?(?:read=(\d+))?", plan)
    return 0 if found is None else sum(int(number or 0) for number in found.groups())


@contextmanager
def watching_postgres(watched: Watched) -> Iterator[None]:
    def on_connect(connection: Any, _record: Any) -> None:
        connection.add_notice_handler(
            lambda notice: watched.plans.append(notice.message_primary or "")
        )

    event.listen(watched.engine, "connect", on_connect)
    yield


@contextmanager
def watching_sqlite(watched: Watched) -> Iterator[None]:
    """Asks for the plan before each statement, and counts the steps of the machine."""

    def on_connect(connection: Any, _record: Any) -> None:
        def step() -> None:
            watched.steps += 1

        connection.set_progress_handler(step, 1)

    def before(_connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if not statement.lstrip().startswith(("SELECT", "INSERT", "UPDATE")):
            return
        steps = watched.steps
        explaining = cursor.connection.cursor()
        explaining.execute(f"EXPLAIN QUERY PLAN {statement}", values)
        lines = [row[-1] for row in explaining.fetchall()]
        watched.plans.append("\n".join([statement, *lines]))
        watched.steps = steps

    event.listen(watched.engine, "connect", on_connect)
    # The ledger works on a host's SQLite engine without its listeners.
    event.listen(Engine, "before_cursor_execute", before)
    yield
    event.remove(Engine, "before_cursor_execute", before)


KINDS_AND_PLANS = [
    (kind, mode)
    for kind in KINDS
    for mode in (["any"] if kind == "sqlite" else ["force_generic_plan", "force_custom_plan"])
]


@pytest.fixture(scope="module", params=KINDS_AND_PLANS, ids="-".join)
def watched(
    request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    with watching(request.param, servers, tmp_path_factory.mktemp("plans"), lives()) as watched:
        yield watched


@contextmanager
def watching(
    kind_and_plans: tuple[Kind, str],
    servers: Servers,
    folder: Path,
    recorded: Iterator[Iterator[LockEvent]],
) -> Iterator[Watched]:
    kind, mode = kind_and_plans
    with servers.database(kind, folder) as database:
        record(database.engine(), recorded)
        if kind == "sqlite":
            engine = database.engine(pool_size=1)
        else:
            settings = {**EXPLAINING, "plan_cache_mode": mode}
            options = " ".join(f"-c {name}={value}" for name, value in settings.items())
            arguments = {"options": options, "prepare_threshold": 0}
            engine = database.engine(connect_args=arguments, pool_size=1)
        watched = Watched(database, LockLedger(engine), engine)
        with (watching_sqlite if kind == "sqlite" else watching_postgres)(watched):
            watched.ledger.holder_of("warm")
            yield watched
        engine.dispose()


def lives() -> Iterator[Iterator[LockEvent]]:
    """One lock with most of the events, and a crowd in which every second lock is held."""
    rng = random.Random(5)

    def anybody(rng: random.Random) -> str:
        return f"run:{rng.randrange(100)}"

    yield life("busy", EVENTS_OF_BUSY, rng, anybody)
    for number in range(LOCKS):
        key = f"group:{number % 9}:lock:{number}"
        yield life(key, 1 if number % 2 else EVENTS_OF_EACH, rng, anybody)


def is_by_index(plan: str) -> bool:
    """Whether no table of the ledger is read from one end to the other, and nothing large is sorted."""
    return not re.search(r"Seq Scan on lockledger_|SCAN (lockledger_|h\b)", plan)


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_what_is_asked_often_is_read_by_index(watched: Watched, ask: Ask) -> None:
    plans = watched.plans_of(lambda: ask(watched.ledger))
    assert plans
    for plan in plans:
        assert is_by_index(plan), plan


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_a_page_is_not_sorted_out_of_all_that_there_is(watched: Watched, ask: Ask) -> None:
    """Rows come out of the index in order, so that a page costs a page."""
    for plan in watched.plans_of(lambda: ask(watched.ledger)):
        sorted_rows = [int(rows) for rows in re.findall(r"Sort .*?rows=(\d+)\.?\d* loops", plan)]
        assert not [rows for rows in sorted_rows if rows > 100], plan


@pytest.fixture(scope="module", params=KINDS_AND_PLANS, ids="-".join)
def dominated(
    request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """A ledger of which nearly all is one lock, whose entries come after those of all others."""

    def lives() -> Iterator[Iterator[LockEvent]]:
        rng = random.Random(6)
        for number in range(300):
            yield life(f"lock:{number}", 1, rng, lambda _: "run:1")
        yield life("busy", 6_000, rng, lambda _: "run:1")

    with watching(request.param, servers, tmp_path_factory.mktemp("plans"), lives()) as watched:
        yield watched


@pytest.mark.parametrize("key", ["busy", "lock:7"])
def test_a_history_passes_over_no_entry_of_another_lock(dominated: Watched, key: str) -> None:
    asked: tuple[Ask, ...] = (
        lambda ledger: ledger.history(key, limit=20),
        lambda ledger: ledger.history(key, extensions=True, limit=20),
        lambda ledger: ledger.history(key, after=2_000, limit=20),
        lambda ledger: ledger.audit_trail(key=key, action="LockReleased", limit=20),
    )
    for ask in asked:
        (plan,) = dominated.plans_of(lambda ask=ask: ask(dominated.ledger))  # type: ignore[misc]
        assert "lockledger_audit_trail_by_key" in plan, plan


def test_the_look_before_each_decision_is_one_index_lookup_for_the_event_and_one_for_the_head(
    watched: Watched,
) -> None:
    (plan,) = watched.plans_of(lambda: watched.ledger.holder_of("busy"))
    if watched.database.dialect == "sqlite":
        assert re.search(r"SEARCH lockledger_events USING INDEX \w+ \(lock_id=\?\)", plan)
        assert re.search(r"SEARCH h USING INDEX \w+ \(lock_id=\?\)", plan)
        assert "TEMP B-TREE" not in plan
    else:
        assert "Index Scan Backward using lockledger_events_pkey" in plan
        assert re.search(r"lockledger_events newest.*rows=1(\.00)? loops=1\)", plan)
        assert re.search(r"Index Scan using lockledger_current_holders_(pkey|token) on", plan)
        assert pages_of(plan) <= 10


def test_a_call_costs_no_more_on_a_lock_with_ten_thousand_events(watched: Watched) -> None:
    """Run twice each: the first time statements are prepared, and pages are read that stay in memory."""
    ledger = watched.ledger
    costs: dict[str, dict[str, int]] = {}
    for key in ("quiet", "busy", "quiet", "busy"):
        ledger.try_take(key, "run:new", takeover_reason="first")
        costs[key] = {
            name: watched.cost_of(lambda call=call, key=key: call(ledger, key))  # type: ignore[misc]
            for name, call in CHANGES.items()
            if name != "repeated release"
        }
    for name, quiet in costs["quiet"].items():
        assert quiet > 0
        # An index with ten thousand entries of one lock may be a page deeper for it.
        assert costs["busy"][name] <= 1.5 * quiet + 12, (name, costs)


def test_an_ended_hold_is_one_lookup_however_many_there_were(watched: Watched) -> None:
    ledger = watched.ledger
    token = ledger.take("busy", "run:ended", takeover_reason="for a moment").token
    ledger.release("busy", "run:ended", token=token)
    plans = watched.plans_of(lambda: ledger.release("busy", "run:ended", token=token))
    assert len(plans) == 2
    for plan in plans:
        assert is_by_index(plan), plan
    key = (
        "sqlite_autoindex_lockledger_holds_1" if watched.database.path else "lockledger_holds_pkey"
    )
    assert key in plans[1]
