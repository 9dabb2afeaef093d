"""The log of a help desk, 2010 to 2014: who had which ticket, against a fold over all events."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockledger.domain.events import LockEvent
from lockledger.domain.keys import lock_id
from lockledger.domain.lock import Call, Decision, Lock, Take, evolve
from support.crowd import record
from support.ledgers import Ledgers, SettableClock
from support.recollection import Recollection, Wanted, facts

LOG = Path(__file__).parents[3] / "shared" / "data" / "helpdesk.jsonl.gz"
pytestmark = pytest.mark.skipif(
    not LOG.exists(),
    reason="the log is not part of the project; it lies beside the checkout or nowhere",
)


def lives() -> Iterator[list[LockEvent]]:
    """What the rules make of each ticket's commands."""
    commands: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with gzip.open(LOG, "rt") as lines:
        for line in lines:
            command = json.loads(line)
            commands[command["key"]].append(command)
    for key, of_ticket in commands.items():
        lock, events = Lock(lock_id("default", key), key), list[LockEvent]()
        for command in of_ticket:
            for event in _decided(lock, command).events:
                events.append(event)
                lock = evolve(event)
        yield events


def _decided(lock: Lock, command: dict[str, Any]) -> Decision[Any]:
    now, who = lock.now(datetime.fromisoformat(command["at"])), command["holder"]
    call, reason = Call(who, {}), command.get("reason")
    if command["do"] == "take":
        return lock.take(Take(who, call, None, reason), now)
    if command["do"] == "release":
        return lock.release(who, None, reason, call, now, lambda _: None)
    return lock.force_release(None, command["reason"], call, now)


def test_who_had_which_ticket_is_what_the_events_say(ledgers: Ledgers) -> None:
    assert record(ledgers.database.engine(), lives()) == 4583 + 4091 + 4560
    past, clock, rng = Recollection(ledgers.database.engine()), SettableClock(), random.Random(5)
    clock.now = max(past.instants())
    ledger = ledgers.open(clock=clock)

    microsecond = timedelta(microseconds=1)
    for key in rng.sample(sorted(past.locks), 700):
        for entry in rng.sample(past.locks[key].trail, 1):
            for when in (entry["occurred_at"] - microsecond, entry["occurred_at"]):
                assert facts(ledger.holder_at(key, when)) == past.holder_at(key, when), (key, when)

    instants = rng.sample(sorted(past.instants()), 12)
    for when in instants:
        pages = _pages(lambda after, when=when: ledger.holders_at(when, after=after, limit=500))
        assert [facts(hold) for hold in pages] == past.holders_at(when, Wanted())
        pages = _pages(
            lambda after, when=when: ledger.holders_at(when, holder="agent:2", after=after)
        )
        assert [facts(hold) for hold in pages] == past.holders_at(when, Wanted(holder="agent:2"))

    questions = [Wanted(), Wanted(holder="agent:22"), Wanted(key_prefix="ticket:29")]
    questions += [Wanted(since=when, until=when + timedelta(days=31)) for when in instants]
    for wanted in questions:
        pages = _pages(
            lambda after, wanted=wanted: ledger.holds(**wanted.arguments(), after=after, limit=700)
        )
        assert [hold.model_dump() for hold in pages] == past.holds(wanted, clock.now), wanted


def _pages(ask: Any) -> Iterator[Any]:
    after = None
    while True:
        page = ask(after)
        yield from page
        after = page.next_after
        if after is None:
            return
