"""The domain serves the `eventsourcing` library as aggregate and events, and does not import it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest
from eventsourcing.application import (
    AggregateNotFoundError,
    Application,
    ProcessingEvent,
    ProjectorFunction,
)
from eventsourcing.domain import DomainEventProtocol, ImmutableAggregateProtocol
from eventsourcing.persistence import IntegrityError, Mapper, StoredEvent

from lockledger.domain.events import EVENTS, LockEvent
from lockledger.domain.lock import Lock, evolve
from support.stories import ID, Story

PROJECT: ProjectorFunction[Lock, LockEvent] = Lock.project
"""To a type checker the aggregate's fold is what `projector_func` takes."""


class PydanticMapper(Mapper[UUID]):
    """Keeps events as their JSON; the stock mapper cannot rebuild pydantic's objects."""

    def to_stored_event(self, domain_event: DomainEventProtocol[UUID]) -> StoredEvent:
        assert isinstance(domain_event, LockEvent)
        return StoredEvent(
            domain_event.originator_id,
            domain_event.originator_version,
            domain_event.TOPIC,
            domain_event.model_dump_json().encode(),
        )

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        return EVENTS[stored_event.topic].model_validate_json(stored_event.state)


class Locks(Application[UUID]):
    """An application of the library, in memory."""

    def construct_mapper(self) -> Mapper[UUID]:
        return PydanticMapper(self.construct_transcoder())


def told() -> Story:
    story = Story()
    story.take("run:1", ttl=10)
    story.extend("run:1", 20, now=5)
    story.take("run:2", now=30)
    story.take("run:3", now=31, takeover_reason="urgent")
    story.release("run:3", now=32)
    return story


def test_events_are_domain_events_of_the_library() -> None:
    story = told()
    processing = ProcessingEvent[UUID]()

    processing.collect_events(*story.events)

    assert set(story.actions) == {kind.__name__ for kind in EVENTS.values()}
    for event in story.events:
        assert isinstance(event, DomainEventProtocol)
    assert processing.events == story.events
    assert processing.aggregates == {}


def test_a_lock_is_an_aggregate_of_the_library() -> None:
    aggregate: ImmutableAggregateProtocol[UUID] = told().lock

    assert (aggregate.id, aggregate.version) == (ID, 6)


@pytest.mark.parametrize("cache", ["", "10"], ids=["without cache", "with cache"])
def test_an_application_saves_events_and_rebuilds_the_lock(cache: str) -> None:
    story = told()
    app = Locks(env={"AGGREGATE_CACHE_MAXSIZE": cache} if cache else {})

    for number, event in enumerate(story.events, 1):
        app.save(event)

        lock = app.repository.get(ID, projector_func=Lock.project)
        assert lock == evolve(event)
        assert lock.version == number
    early: Lock = app.repository.get(ID, version=2, projector_func=Lock.project)
    assert early == evolve(story.events[1])


def test_an_application_refuses_a_version_twice_and_knows_what_it_does_not_have() -> None:
    story = told()
    app = Locks()

    with pytest.raises(AggregateNotFoundError):
        app.repository.get(ID, projector_func=Lock.project)
    app.save(*story.events)

    with pytest.raises(IntegrityError):
        app.save(story.events[-1])


def test_the_domain_imports_nothing_but_pydantic() -> None:
    """A bare package stands in for the front door, which imports the whole house."""
    program = """
import importlib, importlib.util, pkgutil, sys, types

front_door = types.ModuleType("lockledger")
front_door.__path__ = list(importlib.util.find_spec("lockledger").submodule_search_locations)
sys.modules["lockledger"] = front_door

import lockledger.domain
names = [module.name for module in pkgutil.iter_modules(lockledger.domain.__path__)]
for name in names:
    importlib.import_module(f"lockledger.domain.{name}")
print(len(names), *sorted(
    {"eventsourcing", "sqlalchemy", "psycopg", "alembic", "typer", "rich"} & set(sys.modules)
))
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    ).stdout.split()

    assert int(answer[0]) >= 9
    assert answer[1:] == []
