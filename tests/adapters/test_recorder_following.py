"""Following a ledger with the `eventsourcing` library: notifications, subscriptions, tracking and projections."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from functools import singledispatchmethod
from threading import Event, Thread
from uuid import UUID, uuid5

import pytest
import sqlalchemy.exc
from eventsourcing.application import AggregateNotFoundError, Application, ProcessingEvent
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import (
    IntegrityError,
    InternalError,
    Notification,
    Tracking,
    WaitInterruptedError,
)
from eventsourcing.projection import (
    EventSourcedProjection,
    EventSourcedProjectionRunner,
    Projection,
    ProjectionRunner,
)
from sqlalchemy import text

from lockledger import LockEvent, LockLedger, LockReleased, LockTaken, LockTakenOver
from lockledger.eventsourcing import (
    OwnTransactions,
    SQLAlchemyProcessRecorder,
    SQLAlchemyTrackingRecorder,
)
from support.databases import Database
from support.recorders import TOPIC, events, new_stream
from support.recorders import event as foreign

Recorder = SQLAlchemyProcessRecorder
PATIENCE = 20.0


# Notifications.


@pytest.fixture
def six(recorder: Recorder) -> Recorder:
    """A ledger with six events, at positions 1 to 6, of three topics in turn."""
    stream = new_stream()
    recorder.insert_events(
        [foreign(stream, version, topic=f"topic{version % 3}") for version in range(6)]
    )
    return recorder


def ids(notifications: object) -> list[int]:
    assert isinstance(notifications, list)
    return [each.id for each in notifications]


def test_notifications_are_bounded_on_both_sides(six: Recorder) -> None:
    select = six.select_notifications

    assert ids(select(None, 10)) == [1, 2, 3, 4, 5, 6]
    assert ids(select(0, 10)) == [1, 2, 3, 4, 5, 6]
    assert ids(select(3, 10)) == [3, 4, 5, 6]
    assert ids(select(3, 10, inclusive_of_start=False)) == [4, 5, 6]
    assert ids(select(2, 10, 4)) == [2, 3, 4]
    assert ids(select(2, 2, 4)) == [2, 3]
    assert ids(select(4, 10, 2)) == []
    assert ids(select(6, 10, inclusive_of_start=False)) == []
    assert ids(select(7, 10)) == []
    assert ids(select(10**12, 10)) == []
    assert ids(select(None, 0)) == []


def test_notifications_are_chosen_by_topic(six: Recorder) -> None:
    select = six.select_notifications

    assert ids(select(None, 10, topics=["topic1"])) == [2, 5]
    assert ids(select(None, 10, topics=("topic0", "topic2"))) == [1, 3, 4, 6]
    assert ids(select(3, 1, topics=["topic1"])) == [5]
    assert ids(select(2, 10, 4, topics=["topic1"], inclusive_of_start=False)) == []
    assert ids(select(None, 10, topics=["Topic1"])) == []


def test_an_empty_ledger_has_no_newest_notification(recorder: Recorder) -> None:
    assert recorder.max_notification_id() is None
    assert ids(recorder.select_notifications(None, 10)) == []


# Subscriptions.


class Listener(Thread):
    """Collects what a subscription yields, until it ends."""

    def __init__(self, recorder: Recorder, gt: int | None = None, topics: tuple[str, ...] = ()):
        super().__init__()
        self.subscription = recorder.subscribe(gt, topics)
        self.heard: list[Notification] = []
        self.start()

    def run(self) -> None:
        with self.subscription as subscription:
            self.heard.extend(subscription)

    def wait_for(self, many: int) -> list[int]:
        deadline = time.monotonic() + PATIENCE
        while len(self.heard) < many:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return [each.id for each in self.heard]

    def stop(self) -> None:
        self.subscription.stop()
        self.join(PATIENCE)
        assert not self.is_alive()


def test_a_subscription_yields_what_is_there_and_what_comes(six: Recorder) -> None:
    everything, rest, chosen = Listener(six), Listener(six, 4), Listener(six, 2, ("topic1", TOPIC))
    assert everything.wait_for(6) == [1, 2, 3, 4, 5, 6]
    assert rest.wait_for(2) == [5, 6]
    assert chosen.wait_for(1) == [5]

    six.insert_events(events(new_stream(), 1))

    assert everything.wait_for(7)[-1] == 7
    assert rest.wait_for(3) == [5, 6, 7]
    assert chosen.wait_for(2) == [5, 7]
    for listener in (everything, rest, chosen):
        listener.stop()


def test_stopping_ends_a_subscription_that_waits_at_once(recorder: Recorder) -> None:
    recorder.poll_seconds = 60
    listener = Listener(recorder)
    time.sleep(0.1)

    started = time.monotonic()
    listener.stop()

    assert time.monotonic() - started < 50
    assert listener.heard == []
    with pytest.raises(StopIteration):
        next(listener.subscription)


def test_a_subscription_that_is_stopped_midway_yields_no_more(six: Recorder) -> None:
    with six.subscribe() as subscription:
        assert next(subscription).id == 1
        subscription.stop()
        assert list(subscription) == []


def test_a_subscription_goes_on_where_an_error_left_it(six: Recorder) -> None:
    class Unlucky(SQLAlchemyProcessRecorder):
        failures = 1

        def _page(self, *args: object, **options: object) -> object:  # type: ignore[override]
            if self.failures and args[0] == 6:
                self.failures -= 1
                raise IntegrityError("the network is down")
            return super()._page(*args, **options)  # type: ignore[arg-type]

    unlucky = Unlucky(six._transactions)
    with unlucky.subscribe() as subscription:
        assert [next(subscription).id for _ in range(6)] == [1, 2, 3, 4, 5, 6]
        six.insert_events(events(new_stream(), 1))
        with pytest.raises(IntegrityError):
            next(subscription)
        assert next(subscription).id == 7


# Tracking.


def test_consumers_of_one_application_are_told_apart(transactions: OwnTransactions) -> None:
    names = ("", "emails", "a:b", "a", "%3A")
    views = [SQLAlchemyTrackingRecorder(transactions, consumer=name) for name in names]
    for number, view in enumerate(views, 1):
        view.insert_tracking(Tracking("b:c", number))
        view.insert_tracking(Tracking("c", 10 * number))

    for number, view in enumerate(views, 1):
        assert view.max_tracking_id("b:c") == number
        assert view.max_tracking_id("c") == 10 * number


def test_ledgers_track_apart(recorder: Recorder, database: Database) -> None:
    other = OwnTransactions(database.url, name="other")
    recorder.insert_tracking(Tracking("orders", 5))

    assert SQLAlchemyProcessRecorder(other).max_tracking_id("orders") is None
    SQLAlchemyProcessRecorder(other).insert_tracking(Tracking("orders", 1))
    assert recorder.max_tracking_id("orders") == 5
    other.close()


def test_waiting_ends_when_the_position_is_reached_or_interrupted(recorder: Recorder) -> None:
    waiting = Thread(target=recorder.wait, args=("orders", 5, PATIENCE))
    waiting.start()
    recorder.insert_tracking(Tracking("orders", 7))
    waiting.join(PATIENCE)
    assert not waiting.is_alive()

    interrupt = Event()
    interrupt.set()
    with pytest.raises(WaitInterruptedError):
        recorder.wait("orders", 8, interrupt=interrupt)
    with pytest.raises(TimeoutError):
        recorder.wait("orders", 8, timeout=0.05)


class HoldCounts(SQLAlchemyTrackingRecorder):
    """A view: how often each holder got a lock, in a table of its own, in the transaction of the tracking."""

    def count(self, holder: str, tracking: Tracking) -> None:
        with self.processing(tracking) as connection:
            connection.execute(text("INSERT INTO counts VALUES (:holder, 1)"), {"holder": holder})
            if holder == "run:bad":
                raise ValueError("no such run")

    def counts(self) -> dict[str, int]:
        with self.connection() as connection:
            found = connection.execute(text("SELECT holder, sum(n) FROM counts GROUP BY holder"))
            return {holder: int(n) for holder, n in found}


@pytest.fixture
def env(database: Database) -> Iterator[dict[str, str]]:
    """The environment of applications and projections on the database, with the view's table made."""
    with database.engine().begin() as connection:
        connection.exec_driver_sql("CREATE TABLE counts (holder TEXT, n INTEGER)")
    yield {
        "PERSISTENCE_MODULE": "lockledger.eventsourcing",
        "LOCKLEDGER_URL": database.url,
        "COUNTS_LOCKLEDGER_NAME": "counts",
    }
    gc.collect()
    assert database.logged_errors() == []


def test_a_view_and_its_tracking_commit_together(
    env: dict[str, str], transactions: OwnTransactions
) -> None:
    view = HoldCounts(transactions)
    view.count("run:1", Tracking("Locks", 3))

    with pytest.raises(ValueError, match="no such run"):
        view.count("run:bad", Tracking("Locks", 4))
    for position in (2, 3):
        with pytest.raises(IntegrityError, match="has been recorded already"):
            view.count("run:1", Tracking("Locks", position))

    assert view.counts() == {"run:1": 1}
    assert view.max_tracking_id("Locks") == 3


class Careless(SQLAlchemyTrackingRecorder):
    """A view whose table refuses a count of nothing."""

    def fill(self, tracking: Tracking, *, catches: bool) -> None:
        with self.processing(tracking) as connection:
            try:
                connection.execute(text("INSERT INTO strict VALUES (NULL)"))
            except sqlalchemy.exc.IntegrityError:
                if not catches:
                    raise


def test_an_error_of_the_views_is_no_position_that_has_been_recorded(database: Database) -> None:
    with database.engine().begin() as connection:
        connection.exec_driver_sql("CREATE TABLE strict (n INTEGER NOT NULL)")
    transactions = OwnTransactions(database.url)
    view = Careless(transactions)

    with pytest.raises(sqlalchemy.exc.IntegrityError):
        view.fill(Tracking("Locks", 3), catches=False)
    assert view.max_tracking_id("Locks") is None
    if database.dialect == "postgresql":
        with pytest.raises(InternalError, match="current transaction is aborted"):
            view.fill(Tracking("Locks", 3), catches=True)
        assert view.max_tracking_id("Locks") is None
    else:
        view.fill(Tracking("Locks", 3), catches=True)
        assert view.max_tracking_id("Locks") == 3
    view.insert_tracking(Tracking("Locks", 4))
    transactions.close()


# Projections.


class Locks(Application[UUID]):
    """Whose events are followed: the locks of the ledger."""


class HoldCounting(Projection[HoldCounts]):
    topics = (LockTaken.TOPIC, LockTakenOver.TOPIC)

    @singledispatchmethod
    def process_event(self, domain_event: LockEvent, tracking: Tracking) -> None:
        self.view.count(domain_event.holder, tracking)


def position_of_newest(ledger: LockLedger) -> int:
    return list(ledger.events())[-1].position


def test_a_projection_follows_locks_that_change_through_the_verbs(
    env: dict[str, str], database: Database
) -> None:
    with LockLedger(database.url) as ledger:
        ledger.take("round:1", "run:1")
        with ProjectionRunner(
            application_class=Locks, projection_class=HoldCounting, view_class=HoldCounts, env=env
        ) as runner:
            runner.wait(position_of_newest(ledger), timeout=PATIENCE)
            assert runner.view.counts() == {"run:1": 1}

            ledger.take("round:2", "run:1", ttl=60)
            ledger.extend("round:2", "run:1", 120)
            ledger.take("round:1", "run:2", takeover_reason="urgent")
            last = position_of_newest(ledger)
            ledger.release("round:2", "run:1")
            runner.wait(last, timeout=PATIENCE)

            assert runner.view.counts() == {"run:1": 2, "run:2": 1}

        ledger.take("round:3", "run:3")
        with ProjectionRunner(
            application_class=Locks, projection_class=HoldCounting, view_class=HoldCounts, env=env
        ) as runner:
            runner.wait(position_of_newest(ledger), timeout=PATIENCE)

            assert runner.view.counts() == {"run:1": 2, "run:2": 1, "run:3": 1}


def test_an_error_of_a_projection_ends_its_runner(env: dict[str, str], database: Database) -> None:
    with LockLedger(database.url) as ledger:
        ledger.take("round:1", "run:bad")
    with ProjectionRunner(
        application_class=Locks, projection_class=HoldCounting, view_class=HoldCounts, env=env
    ) as runner:
        with pytest.raises(ValueError, match="no such run"):
            runner.run_forever(PATIENCE)
        assert runner.view.counts() == {}


class HeldKey(Aggregate):
    """An aggregate of the host's own, that counts the holds of one lock."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.holds = 0

    @staticmethod
    def create_id(key: str) -> UUID:
        return uuid5(UUID(int=0), key)

    @event("Held")
    def held(self) -> None:
        self.holds += 1


class Counts(EventSourcedProjection[UUID]):
    """Records events of its own, in a ledger of its own, with the tracking of those that led to them."""

    topics = (LockTaken.TOPIC, LockReleased.TOPIC)

    @singledispatchmethod
    def policy(self, domain_event: object, processing_event: ProcessingEvent[UUID]) -> None:
        if not isinstance(domain_event, LockTaken):
            return
        counted = self.of(domain_event.key) or HeldKey(domain_event.key)
        counted.held()
        processing_event.collect_events(counted)

    def of(self, key: str) -> HeldKey | None:
        try:
            found: HeldKey = self.repository.get(HeldKey.create_id(key))
        except AggregateNotFoundError:
            return None
        return found


def test_an_event_sourced_projection_keeps_its_own_events_in_a_ledger_of_its_own(
    env: dict[str, str], database: Database
) -> None:
    with (
        LockLedger(database.url) as ledger,
        EventSourcedProjectionRunner(
            application_class=Locks, projection_class=Counts, env=env
        ) as runner,
    ):
        for _ in range(3):
            ledger.take("round:1", "run:1")
            ledger.release("round:1", "run:1")
        ledger.take("round:2", "run:1")
        runner.wait(position_of_newest(ledger), timeout=PATIENCE)

        first, second = runner.projection.of("round:1"), runner.projection.of("round:2")
        assert first is not None
        assert second is not None
        assert (first.holds, second.holds) == (3, 1)
        assert runner.projection.of("round:3") is None
        assert {entry.key for entry in ledger.audit_trail()} == {"round:1", "round:2"}
