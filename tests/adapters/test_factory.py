"""The `eventsourcing` library's infrastructure made from environment variables, and the mapper it comes with."""

from __future__ import annotations

import base64
import gc
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest import defaultTestLoader
from uuid import UUID, uuid4

import pytest
from eventsourcing.application import Application
from eventsourcing.cipher import AESCipher
from eventsourcing.domain import Aggregate, DomainEvent
from eventsourcing.persistence import (
    Cipher,
    DataError,
    DatetimeAsISO,
    InfrastructureFactory,
    InfrastructureFactoryError,
    JSONTranscoder,
    Mapper,
    NotSupportedError,
    StoredEvent,
    UUIDAsHex,
)
from eventsourcing.tests import persistence
from eventsourcing.utils import (
    Environment,
    clear_topic_cache,
    get_topic,
    register_topic,
    resolve_topic,
)

from lockledger import LockEvent, LockLedger, LockTaken, TamperedLedger
from lockledger.domain.events import EVENTS
from lockledger.eventsourcing import (
    LockEventMapper,
    OwnTransactions,
    SQLAlchemyAggregateRecorder,
    SQLAlchemyApplicationRecorder,
    SQLAlchemyFactory,
    SQLAlchemyProcessRecorder,
    SQLAlchemyTrackingRecorder,
)
from support.databases import Database
from support.proof import prove
from support.recorders import events, new_stream
from support.stories import Story


class View(SQLAlchemyTrackingRecorder):
    """A user's view."""


class Factories(persistence.InfrastructureFactoryTestCase[SQLAlchemyFactory]):
    """The library's own case for authors of factories."""

    __test__ = False

    def expected_factory_class(self) -> type[SQLAlchemyFactory]:
        return SQLAlchemyFactory

    def expected_aggregate_recorder_class(self) -> type[SQLAlchemyAggregateRecorder]:
        return SQLAlchemyAggregateRecorder

    def expected_application_recorder_class(self) -> type[SQLAlchemyApplicationRecorder]:
        return SQLAlchemyApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[SQLAlchemyTrackingRecorder]:
        return SQLAlchemyTrackingRecorder

    def tracking_recorder_subclass(self) -> type[SQLAlchemyTrackingRecorder]:
        return View

    def expected_process_recorder_class(self) -> type[SQLAlchemyProcessRecorder]:
        return SQLAlchemyProcessRecorder


@pytest.fixture
def env(database: Database) -> Iterator[dict[str, str]]:
    yield {"PERSISTENCE_MODULE": "lockledger.eventsourcing", "LOCKLEDGER_URL": database.url}
    gc.collect()


@pytest.mark.parametrize("method", defaultTestLoader.getTestCaseNames(Factories))
def test_the_factory_passes_the_librarys_case(method: str, env: dict[str, str]) -> None:
    case: Any = Factories(method)
    case.env = Environment(env=env)
    case.setUp()
    try:
        getattr(case, method)()
    finally:
        case.tearDown()


# The environment.


@pytest.mark.parametrize(
    "module",
    [
        "lockledger.eventsourcing",
        "lockledger.eventsourcing:SQLAlchemyFactory",
        "lockledger.adapters.factory",
    ],
)
def test_a_module_or_class_may_be_named(module: str, env: dict[str, str]) -> None:
    with InfrastructureFactory.construct({**env, "PERSISTENCE_MODULE": module}) as factory:
        assert type(factory) is SQLAlchemyFactory
        factory.close()


def test_an_applications_own_variables_come_first(env: dict[str, str], database: Database) -> None:
    class Orders(Application[UUID]):
        env = {"LOCKLEDGER_NAME": "elsewhere"}  # noqa: RUF012

    aggregate = Aggregate()
    with Orders({**env, "ORDERS_LOCKLEDGER_NAME": "orders"}) as app:
        app.save(aggregate)

    for name, there in (("orders", True), ("elsewhere", False), ("default", False)):
        with Application[UUID]({**env, "LOCKLEDGER_NAME": name}) as another:
            assert (aggregate.id in another.repository) is there


def test_a_schema_may_be_named(env: dict[str, str], postgres_database: Database) -> None:
    env = {**env, "LOCKLEDGER_URL": postgres_database.url, "LOCKLEDGER_SCHEMA": "tenant_7"}
    with LockLedger(postgres_database.url, schema="tenant_7") as ledger:
        ledger.migrate()
        ledger.take("round:5", "run:1")

        with Application[UUID](env) as app:
            app.save(Aggregate())
            assert len(app.recorder.select_notifications(None, 10)) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"LOCKLEDGER_URL": ""}, "set ORDERS_LOCKLEDGER_URL, LOCKLEDGER_URL to a URL"),
        ({"LOCKLEDGER_URL": "mysql://host/db"}, "PostgreSQL through psycopg"),
        ({"LOCKLEDGER_URL": "no url"}, "cannot be read; write postgresql"),
        ({"LOCKLEDGER_NAME": " orders"}, "surrounded by white space"),
        ({"LOCKLEDGER_SCHEMA": 'a"b'}, "schema"),
    ],
)
def test_what_is_wrong_with_the_environment_is_said(
    wrong: dict[str, str], message: str, env: dict[str, str]
) -> None:
    with pytest.raises(OSError, match=message):
        SQLAlchemyFactory(Environment("orders", {**env, **wrong}))


def test_tables_are_made_only_when_asked_for(empty_database: Database) -> None:
    env = {
        "PERSISTENCE_MODULE": "lockledger.eventsourcing",
        "LOCKLEDGER_URL": empty_database.url,
        "CREATE_TABLE": "yes",
    }
    for _ in range(2):
        with Application[UUID](env) as app:
            app.save(Aggregate())
    with LockLedger(empty_database.url) as ledger:
        ledger.take("round:5", "run:1")


def test_a_ledger_in_memory_needs_no_file() -> None:
    env = {
        "PERSISTENCE_MODULE": "lockledger.eventsourcing",
        "LOCKLEDGER_URL": "sqlite://",
        "CREATE_TABLE": "yes",
    }
    aggregate = Aggregate()
    with Application[UUID](env) as app:
        app.save(aggregate)
        assert aggregate.id in app.repository


def test_there_are_no_snapshots(env: dict[str, str]) -> None:
    with pytest.raises(NotSupportedError, match="newest event is its snapshot"):
        Application[UUID]({**env, "IS_SNAPSHOTTING_ENABLED": "yes"})


class Mine(SQLAlchemyProcessRecorder):
    """A user's recorder, fit for every purpose."""


@pytest.mark.parametrize(
    ("variable", "make"),
    [
        ("APPLICATION_RECORDER_TOPIC", "application_recorder"),
        ("TRACKING_RECORDER_TOPIC", "tracking_recorder"),
        ("PROCESS_RECORDER_TOPIC", "process_recorder"),
    ],
)
def test_a_users_own_recorder_may_be_named(variable: str, make: str, env: dict[str, str]) -> None:
    factory = SQLAlchemyFactory({**env, variable: get_topic(Mine)})
    assert type(getattr(factory, make)()) is Mine
    factory.close()

    factory = SQLAlchemyFactory({**env, variable: get_topic(JSONTranscoder)})
    with pytest.raises(InfrastructureFactoryError, match=f"^{variable}=.* is no SQLAlchemy"):
        getattr(factory, make)()
    factory.close()


def test_recorders_that_are_forgotten_close_their_connections(env: dict[str, str]) -> None:
    recorder: Any = SQLAlchemyFactory(env).application_recorder()
    recorder.max_notification_id()
    pool = recorder._transactions._source.engine.pool
    assert pool.checkedin() == 1

    del recorder
    gc.collect()

    assert pool.checkedin() == 0


def test_importing_lockledger_does_not_import_eventsourcing() -> None:
    code = """
import sys, lockledger
print(any(name.partition(".")[0] == "eventsourcing" for name in sys.modules))
import lockledger.eventsourcing
print("eventsourcing.persistence" in sys.modules, "eventsourcing.postgres" in sys.modules)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert answer.stdout.split() == ["False", "True", "False"], answer.stderr


# The mapper.


def mapper(**options: Any) -> LockEventMapper[UUID]:
    made: LockEventMapper[UUID] = LockEventMapper(JSONTranscoder(), **options)
    return made


def taken() -> LockEvent:
    story = Story()
    story.take("run:1", ttl=60, metadata={"größe": [1, 2.5, None]})
    return story.events[0]


def told() -> list[LockEvent]:
    """One event of each kind."""
    story = Story()
    story.take("run:1", ttl=10)
    story.extend("run:1", 20, now=5)
    story.take("run:2", now=30)
    story.take("run:3", now=31, takeover_reason="urgent")
    story.release("run:3", now=32)
    assert set(story.actions) == {kind.__name__ for kind in EVENTS.values()}
    return story.events


def test_every_lock_event_comes_back_as_it_was_under_a_stable_name() -> None:
    for each in told():
        stored = mapper().to_stored_event(each)

        assert stored.topic == f"lockledger.{each.action}"
        assert stored.state.startswith(b'{"class_version":1,')
        assert mapper().to_domain_event(stored) == each


def test_lock_events_are_validated_when_they_are_read() -> None:
    stored = mapper().to_stored_event(taken())
    damaged = StoredEvent(
        stored.originator_id,
        stored.originator_version,
        stored.topic,
        stored.state.replace(b'"token":1', b'"token":"one"'),
    )

    with pytest.raises(TamperedLedger, match=r"no readable lockledger\.LockTaken"):
        mapper().to_domain_event(damaged)


def test_the_librarys_topics_name_our_events() -> None:
    for topic, kind in EVENTS.items():
        assert get_topic(kind) == topic
        assert resolve_topic(topic) is kind


def test_lock_events_are_read_whatever_became_of_the_librarys_topics() -> None:
    stored = mapper().to_stored_event(taken())
    clear_topic_cache()
    try:
        assert mapper().to_domain_event(stored) == taken()
    finally:
        for topic, kind in EVENTS.items():
            register_topic(topic, kind)


def test_others_events_are_left_to_the_stock_mapper() -> None:
    placed = DomainEvent(uuid4(), 1, datetime(2026, 3, 2, tzinfo=UTC))
    transcoder = JSONTranscoder()
    for transcoding in (UUIDAsHex(), DatetimeAsISO()):
        transcoder.register(transcoding)
    ours: LockEventMapper[UUID] = LockEventMapper(transcoder)
    stock: Mapper[UUID] = Mapper(transcoder)

    assert ours.to_stored_event(placed) == stock.to_stored_event(placed)
    assert ours.to_domain_event(ours.to_stored_event(placed)) == placed


def test_a_users_own_mapper_may_be_named(env: dict[str, str]) -> None:
    factory = SQLAlchemyFactory({**env, "MAPPER_TOPIC": get_topic(Mapper)})

    assert type(factory.mapper()) is Mapper
    assert type(factory.mapper(mapper_class=LockEventMapper)) is LockEventMapper
    factory.close()


class TextCipher(Cipher):
    """Makes text, so that it can be stored."""

    def __init__(self, environment: Environment) -> None:
        """Needs no key."""

    def encrypt(self, plaintext: bytes) -> bytes:
        return base64.b64encode(plaintext[::-1])

    def decrypt(self, ciphertext: bytes) -> bytes:
        return base64.b64decode(ciphertext)[::-1]


def test_lock_events_are_not_encrypted_but_read_beside_those_that_are(
    env: dict[str, str], database: Database
) -> None:
    secret = {**env, "CIPHER_TOPIC": get_topic(TextCipher)}
    with LockLedger(database.url) as ledger, Application[UUID](secret) as app:
        ledger.take("round:5", "run:1")
        aggregate = Aggregate()
        app.save(aggregate)
        assert aggregate.id in app.repository

        with pytest.raises(NotSupportedError, match="plain text, which the ledger has to read"):
            app.save(taken())

        kinds = [
            type(app.mapper.to_domain_event(each))
            for each in app.recorder.select_notifications(None, 10)
        ]
        assert kinds == [LockTaken, Aggregate.Created]
    prove(database.engine())


@pytest.mark.parametrize(
    "secret",
    [
        {"COMPRESSOR_TOPIC": "zlib"},
        {"CIPHER_TOPIC": get_topic(AESCipher), "CIPHER_KEY": AESCipher.create_key(16)},
    ],
    ids=["compressor", "cipher"],
)
def test_a_cipher_or_compressor_that_makes_bytes_is_refused_when_it_is_used(
    secret: dict[str, str], env: dict[str, str], database: Database
) -> None:
    with Application[UUID]({**env, **secret}) as app:
        with pytest.raises(DataError, match="is not UTF-8 without NUL"):
            app.save(Aggregate())
        with pytest.raises(NotSupportedError):
            app.save(taken())
        assert app.recorder.max_notification_id() is None


def test_recorders_may_be_made_on_a_hosts_engine(database: Database) -> None:
    transactions = OwnTransactions(database.engine())
    recorder = SQLAlchemyApplicationRecorder(transactions)

    assert recorder.insert_events(events(new_stream(), 1)) == [1]
    transactions.close()
    with database.engine().connect() as connection:
        assert recorder.bound_to(connection).insert_events(events(new_stream(), 1)) == [2]
        connection.rollback()
