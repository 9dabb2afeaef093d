"""The log of a help desk, 2010 to 2014: who had which ticket, against a fold over all events."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from support.crowd import record
from support.helpdesk import EVENTS, LOG, lives
from support.ledgers import Ledgers, SettableClock
from support.recollection import Recollection, Wanted, facts

pytestmark = pytest.mark.skipif(
    not LOG.exists(),
    reason="the log is not part of the project; it lies beside the checkout or nowhere",
)


def test_who_had_which_ticket_is_what_the_events_say(ledgers: Ledgers) -> None:
    assert record(ledgers.database.engine(), lives()) == EVENTS
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
