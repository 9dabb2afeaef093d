"""Events of others in a ledger: which are recorded, in which order, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import UUID

import pytest
from eventsourcing.persistence import (
    DataError,
    IntegrityError,
    ProgrammingError,
    StoredEvent,
    Tracking,
)

from lockledger import LockLedger
from lockledger.adapters.postgres_bulk import CHUNK
from lockledger.adapters.recorder import FEW
from lockledger.eventsourcing import (
    OwnTransactions,
    SQLAlchemyApplicationRecorder,
    SQLAlchemyProcessRecorder,
)
from support.databases import Database
from support.proof import count_rows
from support.recorders import TOPIC, event, events, new_stream

Recorder = SQLAlchemyProcessRecorder


def refused(
    recorder: Recorder, database: Database, kind: type[Exception], *given: StoredEvent
) -> str:
    """The message of a refusal that left nothing."""
    engine = database.engine()
    before = count_rows(engine)
    with pytest.raises(kind) as refusal:
        recorder.insert_events(given)
    assert count_rows(engine) == before
    return str(refusal.value)


# Versions.


@pytest.mark.parametrize("first", [0, 1])
def test_versions_begin_at_0_or_1_and_go_on_by_one(recorder: Recorder, first: int) -> None:
    stream = new_stream()

    recorder.insert_events(events(stream, first))
    recorder.insert_events(events(stream, first + 1, first + 2))
    recorder.insert_events(events(stream, first + 3))

    found = [each.originator_version for each in recorder.select_events(stream)]
    assert found == [first, first + 1, first + 2, first + 3]


@pytest.mark.parametrize("versions", [[2], [6], [1, 3], [2, 1], [1, 1], [0, 2]])
def test_a_stream_has_no_gaps(recorder: Recorder, database: Database, versions: list[int]) -> None:
    refused(recorder, database, IntegrityError, *events(new_stream(), *versions))


def test_a_conflict_says_where_the_stream_is(recorder: Recorder, database: Database) -> None:
    stream = new_stream()
    recorder.insert_events(events(stream, 1, 2))

    for version in (0, 1, 2, 4):
        message = refused(recorder, database, IntegrityError, event(stream, version))

        assert message == (
            f"stream {stream} is at version 2, so version {version} is not its next; read it again and decide anew"
        )
    message = refused(recorder, database, IntegrityError, event(UUID(int=7), 5))
    assert message.startswith(f"stream {UUID(int=7)} has no events, so version 5 is not its next")


@pytest.mark.parametrize("first", [0, 1])
def test_of_writers_of_one_version_one_wins(recorder: Recorder, first: int) -> None:
    stream, writers = new_stream(), 4
    for version in range(first, first + 5):
        start = Barrier(writers)

        def write(number: int, version: int = version, start: Barrier = start) -> bool:
            start.wait()
            try:
                recorder.insert_events([event(stream, version, state=str(number).encode())])
            except IntegrityError:
                return False
            return True

        with ThreadPoolExecutor(writers) as pool:
            won = list(pool.map(write, range(writers)))

        assert sum(won) == 1
        assert recorder.select_events(stream)[-1].state == str(won.index(True)).encode()


# Many at once.


def test_positions_follow_the_order_in_which_events_were_given(recorder: Recorder) -> None:
    one, two, three = (new_stream() for _ in range(3))
    given = [event(three), event(one), event(three, 2), event(two), event(one, 2), event(three, 3)]

    positions = recorder.insert_events(given)

    assert positions == [1, 2, 3, 4, 5, 6]
    shown = recorder.select_notifications(None, 10)
    assert [(each.id, each.originator_id, each.originator_version) for each in shown] == [
        (number, each.originator_id, each.originator_version)
        for number, each in enumerate(given, 1)
    ]


def test_a_call_records_all_of_its_streams_or_none(recorder: Recorder, database: Database) -> None:
    one, two, three = (new_stream() for _ in range(3))
    recorder.insert_events(events(two, 1))

    refused(recorder, database, IntegrityError, event(one), event(two), event(three))

    assert recorder.insert_events([event(one), event(two, 2), event(three)]) == [2, 3, 4]


def test_calls_that_name_streams_in_different_orders_do_not_deadlock(recorder: Recorder) -> None:
    streams, writers = [new_stream() for _ in range(5)], 4
    recorder.insert_events([event(stream) for stream in streams])
    start = Barrier(writers)

    def write(number: int) -> int:
        start.wait()
        recorded = 0
        for _ in range(15):
            order = streams if number % 2 else streams[::-1]
            newest = {each: recorder.select_events(each, desc=True, limit=1)[0] for each in order}
            try:
                recorder.insert_events(
                    [event(each, newest[each].originator_version + 1) for each in order]
                )
                recorded += 1
            except IntegrityError:
                continue
        return recorded

    with ThreadPoolExecutor(writers) as pool:
        recorded = sum(pool.map(write, range(writers)))

    assert recorded > 0
    for stream in streams:
        assert len(recorder.select_events(stream)) == recorded + 1


@pytest.mark.parametrize("many", [FEW, FEW + 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
def test_any_number_of_events_of_one_stream(recorder: Recorder, many: int) -> None:
    stream = new_stream()

    first = recorder.insert_events(events(stream, *range(many)))
    second = recorder.insert_events(events(stream, *range(many, 2 * many)))

    assert [*first, *second] == list(range(1, 2 * many + 1))
    found = [each.originator_version for each in recorder.select_events(stream)]
    assert found == list(range(2 * many))


def test_any_number_of_streams(recorder: Recorder) -> None:
    streams = [new_stream() for _ in range(2 * CHUNK + 7)][::-1]

    for version in (1, 2, 3):
        positions = recorder.insert_events([event(stream, version) for stream in streams])

        last = version * len(streams)
        assert positions == list(range(last - len(streams) + 1, last + 1))
    last_stream = recorder.select_events(streams[-1])
    assert [each.originator_version for each in last_stream] == [1, 2, 3]


def test_nothing_to_record_is_recorded_as_nothing(recorder: Recorder, database: Database) -> None:
    before = count_rows(database.engine())

    assert recorder.insert_events([]) == []

    assert count_rows(database.engine()) == before


# What can be stored.


def test_topics_and_states_come_back_as_they_were(recorder: Recorder) -> None:
    stream = new_stream()
    given = [
        event(stream, 1, topic="größe: Ärger 🔒", state="{ \"a\" : 'ﬁ\u2028é' }\n".encode()),
        event(stream, 2, state=b""),
        event(stream, 3, state=b"no JSON"),
        event(stream, 4, state=b"x" * 1_000_000),
    ]

    recorder.insert_events(given)

    assert recorder.select_events(stream) == given
    shown = recorder.select_notifications(None, 10)
    assert [(each.topic, each.state) for each in shown] == [
        (each.topic, each.state) for each in given
    ]


@pytest.mark.parametrize("state", [b"\xff\xfe", b"a\0b", b"\xed\xa0\x80", bytes(range(256))])
def test_a_state_that_is_no_text_is_refused(
    recorder: Recorder, database: Database, state: bytes
) -> None:
    stream = new_stream()

    message = refused(recorder, database, DataError, event(stream), event(stream, 2, state=state))

    assert message == (
        f"stream {stream}: the state of {TOPIC}, version 2, is not UTF-8 without NUL; the ledger keeps text:"
        " use a transcoder that makes text, and no cipher or compressor that makes bytes"
    )


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "is empty or not printable"),
        ("a\0b", "is empty or not printable"),
        ("a\ud800", "is empty or not printable"),
        ("lockledger.LockMoved", "this release knows no lockledger.LockMoved; upgrade lockledger"),
    ],
)
def test_a_topic_that_cannot_be_kept_is_refused(
    recorder: Recorder, database: Database, topic: str, reason: str
) -> None:
    assert reason in refused(recorder, database, DataError, event(new_stream(), topic=topic))


@pytest.mark.parametrize("version", [-1, 2**63])
def test_a_version_outside_the_range_is_refused(
    recorder: Recorder, database: Database, version: int
) -> None:
    message = refused(recorder, database, DataError, event(new_stream(), version))

    assert f"version {version}; versions begin at 0 or 1" in message


def test_an_originator_id_is_a_uuid(recorder: Recorder, database: Database) -> None:
    text = StoredEvent("customer-7", 1, TOPIC, b"{}")

    message = refused(recorder, database, DataError, text)

    assert message.startswith("originator id 'customer-7': the ledger knows streams by UUID")
    with pytest.raises(DataError, match="by UUID"):
        recorder.select_events("customer-7")


def test_arguments_that_a_recorder_does_not_know_are_refused(
    recorder: Recorder, transactions: OwnTransactions, database: Database
) -> None:
    with pytest.raises(TypeError, match="retry"):
        recorder.insert_events([event(new_stream())], retry=True)
    with pytest.raises(ProgrammingError, match="use a process recorder"):
        SQLAlchemyApplicationRecorder(transactions).insert_events(
            [event(new_stream())], tracking=Tracking("orders", 1)
        )
    assert count_rows(database.engine())["events"] == 0


# Ledgers, locks and others' events side by side.


def test_a_ledger_shows_its_own_streams_only(recorder: Recorder, database: Database) -> None:
    stream, theirs = new_stream(), new_stream()
    other = OwnTransactions(database.url, name="other")
    others = SQLAlchemyProcessRecorder(other)
    others.insert_events(events(theirs, 1, 2))
    recorder.insert_events(events(stream, 1))

    assert recorder.select_events(theirs) == []
    assert [each.originator_id for each in recorder.select_notifications(None, 10)] == [stream]
    assert recorder.max_notification_id() == 3
    assert others.max_notification_id() == 2
    for version in (1, 3):
        message = refused(recorder, database, IntegrityError, event(theirs, version))
        assert message == (
            f"originator id {theirs} is in use in another ledger; an id belongs to one ledger"
        )
    other.close()


def test_others_events_are_invisible_to_the_verbs(recorder: Recorder, database: Database) -> None:
    recorder.insert_events(events(new_stream(), 0, 1, 2))
    with LockLedger(database.url) as ledger:
        ledger.take("round:5", "run:1")
        recorder.insert_events(events(new_stream(), 1))
        ledger.take("round:6", "run:1")

        assert [hold.key for hold in ledger.current_holders()] == ["round:5", "round:6"]
        assert [entry.key for entry in ledger.audit_trail()] == ["round:5", "round:6"]
        assert [(each.position, each.event.key) for each in ledger.events()] == [
            (4, "round:5"),
            (6, "round:6"),
        ]
    shown = recorder.select_notifications(None, 10)
    assert [each.topic for each in shown] == [
        *[TOPIC] * 3,
        "lockledger.LockTaken",
        TOPIC,
        "lockledger.LockTaken",
    ]
