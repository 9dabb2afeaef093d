"""Lock events that an application of `eventsourcing` saves: the same rows as a verb writes, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from eventsourcing.application import AggregateNotFoundError, Application
from eventsourcing.persistence import DataError, IntegrityError, Mapper, StoredEvent

from lockledger import Lock, LockedByOther, LockEvent, LockLedger, LockTaken
from lockledger.adapters.encoding import encode
from lockledger.domain.keys import lock_id
from lockledger.eventsourcing import OwnTransactions, SQLAlchemyProcessRecorder
from support.databases import Database, Kind, Servers
from support.ledgers import SettableClock
from support.proof import count_rows, prove
from support.recorders import event, events, new_stream
from support.stories import Story, at

Recorder = SQLAlchemyProcessRecorder


class Locks(Application[UUID]):
    """An application whose aggregates are locks."""

    def lock(self, lock_id: UUID) -> Lock:
        return self.repository.get(lock_id, projector_func=Lock.project)


def locks(database: Database, **env: str) -> Locks:
    return Locks(
        env={
            "PERSISTENCE_MODULE": "lockledger.eventsourcing",
            "LOCKLEDGER_URL": database.url,
            **env,
        }
    )


@pytest.fixture
def app(database: Database) -> Iterator[Locks]:
    with locks(database) as app:
        yield app
    prove(database.engine())
    assert database.logged_errors() == []


@pytest.fixture
def second_database(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> Iterator[Database]:
    """Another database of the same kind as the test's own."""
    kind: Kind = request.node.callspec.params["database"]
    folder = tmp_path / "second"
    folder.mkdir()
    with servers.database(kind, folder) as database:
        yield database


def everything_happens(ledger: LockLedger, clock: SettableClock) -> None:
    for key in ("round:5", "größe:ﬁ", "round:5:band:2"):
        ledger.take(key, "run:1", ttl=60, metadata={"request": "r1", "n": [1.5, None]})
        clock.forward(30)
        ledger.extend(key, "run:1", 90, actor="user:1")
        clock.forward(100)
        ledger.take(key, "run:2", ttl=600, actor="user:2")
        ledger.take(key, "run:3", takeover_reason="Übernahme\njetzt", metadata={"request": "r3"})
        ledger.take(key, "run:3", if_mine="replace")
        clock.forward(1)
        ledger.release(key, "run:3", reason="done")
        ledger.take(key, "run:4")
        ledger.force_release(key, actor="user:9", reason="holiday")
    ledger.take("round:6", "run:5", ttl=10)


TABLES = ("events", "current_holders", "audit_trail", "holds")


def contents(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """All rows, as the driver gives them."""
    with database.engine().connect() as connection:
        return {
            table: sorted(
                (
                    tuple(row)
                    for row in connection.exec_driver_sql(f"SELECT * FROM lockledger_{table}")
                ),
                key=str,
            )
            for table in TABLES
        }


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_saved_events_leave_the_rows_that_verbs_leave(
    database: Database, second_database: Database, at_once: int
) -> None:
    clock = SettableClock()
    with LockLedger(second_database.url, clock=clock) as ledger:
        everything_happens(ledger, clock)
        happened = [recorded.event for recorded in ledger.events()]

    with locks(database) as app:
        for start in range(0, len(happened), at_once):
            app.save(*happened[start : start + at_once])

    assert len(happened) == 28
    assert contents(database) == contents(second_database)
    prove(database.engine())


def test_a_lock_is_rebuilt_from_its_events(app: Locks, database: Database) -> None:
    story = Story()
    story.take("run:1", ttl=10)
    story.take("run:2", now=11)

    recordings = app.save(*story.events)

    assert [each.notification.id for each in recordings] == [1, 2, 3]
    assert [each.notification.topic for each in recordings] == [
        "lockledger.LockTaken",
        "lockledger.LockExpired",
        "lockledger.LockTaken",
    ]
    assert app.lock(story.lock.id) == story.lock
    early: Lock = app.repository.get(story.lock.id, version=1, projector_func=Lock.project)
    assert early.version == 1
    assert early.hold is not None
    assert early.hold.holder == "run:1"
    with pytest.raises(AggregateNotFoundError):
        app.lock(new_stream())


def test_verbs_and_an_application_go_on_from_each_other(app: Locks, database: Database) -> None:
    story = Story()
    story.take("run:1")
    app.save(*story.events)

    with LockLedger(database.url) as ledger:
        with pytest.raises(LockedByOther):
            ledger.take(story.lock.key, "run:2")
        ledger.take(story.lock.key, "run:2", takeover_reason="urgent")
        lock = app.lock(story.lock.id)
        assert lock.version == 2
        story.lock = lock
        story.events.clear()
        story.release("run:2", now=10**9)
        app.save(*story.events)

        assert not ledger.is_locked(story.lock.key)
        history = ledger.history(story.lock.key)
        assert [entry.action for entry in history] == [
            "LockTaken",
            "LockTakenOver",
            "LockReleased",
        ]


def test_of_a_save_and_a_take_at_the_same_moment_one_wins(app: Locks, database: Database) -> None:
    with LockLedger(database.url) as ledger, ThreadPoolExecutor(2) as pool:
        for number in range(15):
            key = f"round:{number}"
            lock = Lock(lock_id(ledger.name, key), key)
            story = Story()
            story.lock = lock
            story.take("run:saved")

            def save(story: Story = story) -> bool:
                try:
                    app.save(*story.events)
                except IntegrityError:
                    return False
                return True

            def take(key: str = key) -> bool:
                return ledger.try_take(key, "run:taken") is not None

            saved, taken = pool.submit(save), pool.submit(take)

            assert [saved.result(), taken.result()].count(True) == 1
            hold = ledger.holder_of(key)
            assert hold is not None
            assert hold.holder == ("run:saved" if saved.result() else "run:taken")


# Refusals.


def refused(
    app: Locks, database: Database, kind: type[Exception], call: Callable[[], object]
) -> str:
    """The message of a refusal that left nothing."""
    before = count_rows(database.engine())
    with pytest.raises(kind) as refusal:
        call()
    assert count_rows(database.engine()) == before
    return str(refusal.value)


def taken(**facts: Any) -> LockEvent:
    story = Story()
    story.take("run:1", ttl=60)
    return story.events[0].model_copy(update=facts)


def test_an_event_of_a_lock_that_has_another_id_is_refused(app: Locks, database: Database) -> None:
    wrong = taken(originator_id=UUID(int=5))

    message = refused(app, database, DataError, partial(app.save, wrong))

    assert message == (
        f"the lock 'round:5' of ledger 'default' has the id {taken().originator_id}, not {UUID(int=5)}"
    )


def test_an_event_of_another_ledgers_lock_is_refused(database: Database) -> None:
    with locks(database, LOCKLEDGER_NAME="other") as app:
        message = refused(app, database, DataError, partial(app.save, taken()))

    assert message.startswith("the lock 'round:5' of ledger 'other' has the id ")


def test_a_take_of_a_held_lock_is_refused(app: Locks, database: Database) -> None:
    app.save(taken())
    again = taken(originator_version=2, token=2, holder="run:2", timestamp=at(1), taken_at=at(1))

    message = refused(app, database, DataError, partial(app.save, again))

    assert message == (
        "LockTaken cannot be version 2 of 'round:5': the lock's hold is not as it says"
    )


def test_a_decision_on_an_old_version_is_a_conflict(app: Locks, database: Database) -> None:
    story = Story()
    story.take("run:1")
    app.save(*story.events)
    story.release("run:1")
    app.save(story.events[-1])

    for stale in story.events:
        message = refused(app, database, IntegrityError, partial(app.save, stale))

        assert "is at version 2" in message


def test_a_lock_begins_at_version_1(app: Locks, database: Database) -> None:
    early = taken(originator_version=0, token=0)

    assert "the lock is at version 0" in refused(app, database, DataError, partial(app.save, early))


def test_facts_that_no_verb_takes_are_refused(app: Locks, database: Database) -> None:
    for facts, fault in (
        ({"holder": " run:1"}, "surrounded by white space"),
        ({"actor": "a\x07"}, "control character"),
        ({"metadata": {"x": "y" * 9000}}, "at most 8192 are allowed"),
        ({"expires_at": at(0)}, "has run out already"),
    ):
        message = refused(app, database, DataError, partial(app.save, taken(**facts)))

        assert fault in message


def test_a_locks_stream_takes_no_other_events(
    app: Locks, recorder: Recorder, database: Database
) -> None:
    lock, other = taken(), new_stream()
    app.save(lock)
    recorder.insert_events(events(other, 1))
    as_lock = stored(lock, other, 2)

    for given in (
        [event(lock.originator_id, 2)],
        [as_lock],
        [stored(taken(key="k"), other, 2), event(other, 3)],
    ):
        refused(app, database, DataError, partial(recorder.insert_events, given))


def stored(lock_event: LockEvent, stream: UUID, version: int) -> StoredEvent:
    topic, state = encode(lock_event)
    return StoredEvent(stream, version, topic, state.encode())


@pytest.mark.parametrize("state", [b"{}", b"[]", b"taken", b'{"class_version":1}'])
def test_a_state_that_is_no_lock_event_is_refused(
    app: Locks, recorder: Recorder, database: Database, state: bytes
) -> None:
    handed = StoredEvent(taken().originator_id, 1, LockTaken.TOPIC, state)

    message = refused(app, database, DataError, partial(recorder.insert_events, [handed]))

    assert "is no lockledger.LockTaken as the ledger stores it" in message


def test_the_stock_mapper_cannot_write_lock_events(app: Locks, database: Database) -> None:
    stock: Mapper[UUID] = Mapper(app.construct_transcoder())
    handed = stock.to_stored_event(taken())

    assert handed.topic == "lockledger.LockTaken"
    refused(app, database, DataError, partial(app.recorder.insert_events, [handed]))


def test_a_state_is_kept_exactly_as_it_was_handed_over(
    app: Locks, recorder: Recorder, database: Database
) -> None:
    lock = taken()
    topic, state = encode(lock)
    spaced = state.replace(",", ", ").encode()

    recorder.insert_events([StoredEvent(lock.originator_id, 1, topic, spaced)])

    assert recorder.select_events(lock.originator_id)[0].state == spaced
    assert app.lock(lock.originator_id).version == 1


# Guards.


def test_a_saved_end_waits_for_a_guard_and_a_saved_extension_does_not(
    postgres_database: Database,
) -> None:
    impatient = postgres_database.engine(connect_args={"options": "-c lock_timeout=300"})
    own = OwnTransactions(impatient)
    recorder = SQLAlchemyProcessRecorder(own)
    story = Story()
    story.take("run:1", ttl=10**9)
    mapper = locks(postgres_database).mapper
    recorder.insert_events([mapper.to_stored_event(each) for each in story.events])
    with LockLedger(postgres_database.url) as ledger:
        with postgres_database.engine().begin() as connection:
            ledger.using(connection).guard(story.lock.key, "run:1")

            story.extend("run:1", 2 * 10**9, now=1)
            recorder.insert_events([mapper.to_stored_event(story.events[-1])])
            story.release("run:1", now=2)
            release = mapper.to_stored_event(story.events[-1])
            with pytest.raises(Exception, match="lock timeout"):
                recorder.insert_events([release])

        recorder.insert_events([release])
        assert not ledger.is_locked(story.lock.key)
    prove(postgres_database.engine())
