"""Following a ledger while slow transactions commit and roll back: every committed event once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from support.hosts import Host
from support.processes import PATIENCE, all_at_once, rounds
from support.readers import POLL, Naive, Resumer, Subscriber
from support.writers import Place, Written, write

WRITERS = 6


@contextmanager
def writing(host: Host, turns: int, keys: int = 12) -> Iterator[list[Written]]:
    """What the writers wrote, filled at the end of the block, which runs beside them."""
    names = [f"key:{number:02}" for number in range(keys)]
    given = [(host.database.url, number, names, turns) for number in range(WRITERS)]
    running = host.meanwhile(lambda: all_at_once(write, given))
    written: list[Written] = []
    yield written
    written += running.result(timeout=PATIENCE)


def stored(host: Host) -> list[Place]:
    """All committed events in position order."""
    with host.database.engine().connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT e.position, a.key, e.version FROM lockledger_events e JOIN lockledger_audit_trail a"
            " ON a.lock_id = e.lock_id AND a.version = e.version ORDER BY e.position"
        )
        return [(position, key, version) for position, key, version in rows]


def test_every_committed_event_comes_once_and_in_order(host: Host) -> None:
    ledger = host.ledgers.open()
    with Subscriber(ledger) as early, Resumer(ledger) as resumer:
        with writing(host, rounds(60 if host.postgres else 25)) as written:
            pass
        committed = sorted(chain.from_iterable(each.committed for each in written))
        taken_back = set(chain.from_iterable(each.taken_back for each in written))
        assert stored(host) == committed
        last = committed[-1][0]
        assert early.wait_for(last) == committed
        assert resumer.wait_for(last) == committed
    assert taken_back, "nothing was rolled back, so the test shows less than it should"
    late = [recorded.position for recorded in host.ledgers.open().events()]
    assert late == [position for position, _, _ in committed]


def test_a_late_commit_is_missed_by_a_naive_reader_and_by_no_subscriber(
    postgres_host: Host,
) -> None:
    """The same load with a reader by position alone, so that it is seen what the fence is for."""
    ledger = postgres_host.ledgers.open()
    with (
        Subscriber(ledger) as early,
        Resumer(ledger) as resumer,
        Naive(postgres_host.database.engine()) as naive,
        writing(postgres_host, rounds(40)) as written,
    ):
        naive.wait_for(1)
        with postgres_host.engine.connect() as connection:
            bound = postgres_host.ledger.using(connection)
            bound.take("late", "ann")
            (entry,) = bound.history("late")
            position = entry.position
            postgres_host.ledger.take(
                "later", "ann"
            )  # whether or not the writers are still at work
            naive.wait_for(position + 1)
            connection.commit()
    events = stored(postgres_host)
    assert (position, "late", 1) in events
    last = events[-1][0]
    assert early.wait_for(last) == events
    assert resumer.wait_for(last) == events
    missed = {place[0] for place in events} - {place[0] for place in naive.wait_for(last)}
    assert position in missed
    assert len(list(chain.from_iterable(each.committed for each in written))) == len(events) - 2


def test_a_subscriber_that_begins_now_sees_what_comes_and_nothing_before(host: Host) -> None:
    ledger = host.ledgers.open()
    ledger.take("before", "ann")
    with ledger.subscribe(after="now", poll=POLL) as subscription:
        ledger.take("after", "ann")
        assert next(subscription).event.key == "after"
