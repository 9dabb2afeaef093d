"""Positions of two transactions may interleave, and no reader skips one.

`eventsourcing` has a case that wants them never to interleave. It guards readers that go by position alone: such a
reader passes the position of a transaction that has not committed yet. Ours never gets there, as nothing beyond the
settled position is shown; so no writer has to wait for another.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random
from threading import Thread
from time import sleep
from typing import Any
from uuid import UUID

import pytest
from eventsourcing.persistence import Notification, OperationalError
from sqlalchemy import Connection

from lockledger.eventsourcing import OwnTransactions, SQLAlchemyProcessRecorder
from support.databases import Database
from support.recorders import event, events, new_stream

Recorder = SQLAlchemyProcessRecorder


class Reader:
    """Follows the ledger as a consumer does: from the last position that it has seen."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.seen: list[int] = []

    def look(self, limit: int = 100) -> list[int]:
        """The positions that are new to it."""
        found = self._recorder.select_notifications(
            self.seen[-1] if self.seen else None, limit, inclusive_of_start=not self.seen
        )
        self.seen += [each.id for each in found]
        return [each.id for each in found]


@pytest.fixture
def stack() -> Any:
    with ExitStack() as stack:
        yield stack


def two_transactions(database: Database, stack: ExitStack) -> list[Connection]:
    engine = database.engine()
    return [stack.enter_context(engine.connect()) for _ in range(2)]


def test_interleaved_positions_are_read_once_and_in_order(
    postgres_database: Database, stack: ExitStack
) -> None:
    transactions = OwnTransactions(postgres_database.url)
    recorder = Recorder(transactions)
    one, two = two_transactions(postgres_database, stack)
    first, second, third = (new_stream() for _ in range(3))
    reader = Reader(recorder)
    recorder.insert_events(events(new_stream(), 1))
    assert reader.look() == [1]

    assert recorder.bound_to(one).insert_events(events(first, 1)) == [2]
    assert recorder.bound_to(two).insert_events(events(second, 1)) == [3]
    assert recorder.bound_to(one).insert_events(events(first, 2)) == [4]
    assert recorder.insert_events(events(third, 1)) == [5]
    assert recorder.bound_to(two).insert_events(events(second, 2)) == [6]
    assert reader.look() == []
    assert recorder.max_notification_id() == 1

    two.commit()
    assert reader.look() == []
    one.commit()

    assert reader.look() == [2, 3, 4, 5, 6]
    shown = recorder.select_notifications(2, 10)
    assert [each.originator_id for each in shown] == [first, second, first, third, second]
    assert recorder.max_notification_id() == 6
    transactions.close()


def test_what_a_rolled_back_transaction_had_leaves_a_gap_that_stops_nobody(
    postgres_database: Database, stack: ExitStack
) -> None:
    transactions = OwnTransactions(postgres_database.url)
    recorder = Recorder(transactions)
    one, two = two_transactions(postgres_database, stack)
    reader = Reader(recorder)
    recorder.bound_to(one).insert_events(events(new_stream(), 1))
    recorder.bound_to(two).insert_events(events(new_stream(), 1, 2))
    recorder.bound_to(one).insert_events(events(new_stream(), 1))

    two.rollback()
    assert reader.look() == []
    one.commit()

    assert reader.look() == [1, 4]
    assert recorder.insert_events(events(new_stream(), 1)) == [5]
    assert reader.look() == [5]
    transactions.close()


def test_another_ledgers_open_transaction_holds_no_reader_back(
    postgres_database: Database, stack: ExitStack
) -> None:
    transactions = OwnTransactions(postgres_database.url)
    other = OwnTransactions(postgres_database.url, name="other")
    one, _ = two_transactions(postgres_database, stack)
    Recorder(other).bound_to(one).insert_events(events(new_stream(), 1))

    Recorder(transactions).insert_events(events(new_stream(), 1))

    assert Reader(Recorder(transactions)).look() == [2]
    one.rollback()
    other.close()
    transactions.close()


def test_on_sqlite_one_transaction_writes_at_a_time(
    sqlite_database: Database, stack: ExitStack
) -> None:
    transactions = OwnTransactions(sqlite_database.engine(), busy_timeout=0.1)
    recorder = Recorder(transactions)
    one, _ = two_transactions(sqlite_database, stack)
    reader = Reader(recorder)
    recorder.bound_to(one).insert_events(events(new_stream(), 1, 2))

    with pytest.raises(OperationalError, match="busy timeout"):
        recorder.insert_events(events(new_stream(), 1))
    assert reader.look() == []
    one.commit()

    assert recorder.insert_events(events(new_stream(), 1)) == [3]
    assert reader.look() == [1, 2, 3]


WRITERS, CHANGES = 6, 12


def test_followers_miss_nothing_while_slow_transactions_commit_and_roll_back(
    recorder: Recorder, database: Database
) -> None:
    followed: list[Notification] = []
    subscription = recorder.subscribe()
    follower = Thread(target=lambda: followed.extend(subscription))
    follower.start()
    engine = database.engine(pool_size=WRITERS, connect_args=patience(database))

    def write(number: int) -> list[tuple[UUID, int]]:
        random, committed = Random(number), list[tuple[UUID, int]]()
        for _ in range(CHANGES):
            streams = [new_stream() for _ in range(3)]
            with engine.connect() as connection:
                bound = recorder.bound_to(connection)
                for version in (1, 2):
                    bound.insert_events([event(each, version) for each in streams])
                    sleep(random.random() / 100)
                if random.random() < 0.7:
                    connection.commit()
                    committed += [(each, version) for each in streams for version in (1, 2)]
        return committed

    with ThreadPoolExecutor(WRITERS) as pool:
        committed = [each for one in pool.map(write, range(WRITERS)) for each in one]
    newest = recorder.max_notification_id()
    while newest is not None and not (followed and followed[-1].id >= newest):
        sleep(0.01)
    subscription.stop()
    follower.join()

    positions = [each.id for each in followed]
    assert positions == sorted(set(positions))
    assert sorted((each.originator_id, each.originator_version) for each in followed) == sorted(
        committed
    )


def patience(database: Database) -> dict[str, Any]:
    return {"timeout": 60} if database.dialect == "sqlite" else {}
