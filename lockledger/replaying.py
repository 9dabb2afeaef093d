"""A host's own projection: its rows are made from all events so far, and kept up from then on."""

from abc import abstractmethod
from collections.abc import Sequence
from time import monotonic
from typing import Final, Protocol

from sqlalchemy import Connection, func, select

from lockledger.adapters.failures import translated
from lockledger.adapters.identifiers import POSTGRESQL, qualified
from lockledger.adapters.schema import CONSUMER_POSITIONS
from lockledger.adapters.statements import ask, run
from lockledger.adapters.store import EventStore
from lockledger.domain.errors import ConcurrencyConflict, shown
from lockledger.domain.holds import RecordedEvent
from lockledger.domain.keys import SEPARATOR, fault_of
from lockledger.verification import Advance, OnAdvance

EVENTS_AT_ONCE: Final = 500
"""Events in one transaction."""

MAX_NAME_LENGTH: Final = 100


class Projection(Protocol):
    """A host's own read model: events in, rows out.

    `name` is what its position is kept under: 1 to 100 characters without `:`, one for each ledger. Both methods write
    on the connection they are given, in the open transaction, and neither begin nor end one.
    """

    @property
    def name(self) -> str:
        """What its position is kept under."""

    @abstractmethod
    def apply(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        """Writes what the events mean. In a replay they come in position order, each once."""

    @abstractmethod
    def reset(self, connection: Connection) -> None:
        """Removes all its rows: it begins again."""


def replay(
    connection: Connection,
    store: EventStore,
    projection: Projection,
    *,
    restart: bool,
    told: OnAdvance,
) -> int:
    """Brings a projection up to what is settled, on a connection in AUTOCOMMIT; see `LockLedger.replay`."""
    missing = [each for each in ("name", "apply", "reset") if not hasattr(projection, each)]
    if missing:
        raise TypeError(
            f"a projection has name, apply and reset; {shown(projection)} has no {', '.join(missing)}"
        )
    place = _Place(store, checked_name(projection.name))
    began, done = monotonic(), 0
    with translated():
        if restart:
            with store.transaction(connection):
                if not place.move(connection, place.read(connection), 0):
                    raise ConcurrencyConflict("the projection was replayed at the same time")
                projection.reset(connection)
        position = place.read(connection)
        after = position or 0
        total = 0 if told is None else place.ahead(connection, after)
        while True:
            events, reached = store.settled_page(connection, after, EVENTS_AT_ONCE)
            if reached == after:
                return after
            with store.transaction(connection):
                moved = place.move(connection, position, reached)
                if moved and events:
                    projection.apply(connection, events)
            # Where another process has moved it, that one has applied the events.
            position = reached if moved else place.read(connection)
            after = position or 0
            done += len(events)
            if told is not None:
                told(Advance(done, max(total, done), monotonic() - began))


class _Place:
    """How far a projection has come; it moves only from where it was seen, so no event is applied twice."""

    def __init__(self, store: EventStore, name: str) -> None:
        self._events = store.tables.events
        self._values = {"ledger": store.ledger, "name": name}
        table = qualified(CONSUMER_POSITIONS, store.dialect, store.schema)
        values = tuple(
            f"%({each})s" if store.dialect == POSTGRESQL else f":{each}"
            for each in ("ledger", "name", "to", "seen")
        )
        ledger, consumer, to, seen = values
        mine = f"ledger = {ledger} AND consumer = {consumer}"
        self._read = f"SELECT position FROM {table} WHERE {mine}"
        self._begin = (
            f"INSERT INTO {table} (ledger, consumer, position) VALUES ({ledger}, {consumer}, {to})"
            " ON CONFLICT DO NOTHING"
        )
        self._move = f"UPDATE {table} SET position = {to} WHERE {mine} AND position = {seen}"

    def read(self, connection: Connection) -> int | None:
        """The position, `None` before the first move."""
        found: int | None = run(connection, self._read, self._values).scalar()
        return found

    def move(self, connection: Connection, seen: int | None, to: int) -> bool:
        """Moves it in the open transaction, and keeps others from moving it until that ends; `False`: they were first."""
        values = {**self._values, "to": to, "seen": seen}
        sql = self._begin if seen is None else self._move
        return run(connection, sql, values).rowcount == 1

    def ahead(self, connection: Connection, after: int) -> int:
        """How many events come after a position."""
        c = self._events.c
        count = select(func.count()).where(c.ledger == self._values["ledger"], c.position > after)
        return int(ask(connection, count).scalar_one())


def checked_name(name: str) -> str:
    """A projection's name. Raises `ValueError` or `TypeError`."""
    if not isinstance(name, str):
        raise TypeError(f"a projection's name must be a str, not {shown(name)}")
    fault = fault_of(name, MAX_NAME_LENGTH)
    if fault is None and SEPARATOR in name:
        fault = f"holds {SEPARATOR!r}, by which other consumers are told apart"
    if fault is not None:
        raise ValueError(f"the projection's name {shown(name)} {fault}")
    return name
