"""Recorders of the `eventsourcing` library over a ledger's event store, on PostgreSQL and on SQLite.

They keep what the stock recorders promise, with three differences. A version must follow the one before it: the head
row is compared and swapped, where the stock ones only refuse a version twice. Nothing is retried. And positions of two
transactions may interleave: no reader skips one, as nothing beyond the settled position is shown.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Self
from uuid import UUID

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    IntegrityError,
    Notification,
    PersistenceError,
    ProcessRecorder,
    ProgrammingError,
    Recorder,
    StoredEvent,
    Tracking,
    TrackingRecorder,
)
from sqlalchemy import Connection, select, text
from sqlalchemy.orm import Session

from lockledger.adapters.identifiers import qualified
from lockledger.adapters.incoming import Incoming, stream_id
from lockledger.adapters.persistence import persistence_errors
from lockledger.adapters.polling import Page, PollingSubscription
from lockledger.adapters.schema import CONSUMER_POSITIONS
from lockledger.adapters.statements import ask
from lockledger.adapters.transactions import JoinedTransaction, Transactions

FEW = 8
"""So many events of one stream are one statement; more streams or events take a few."""


class SQLAlchemyRecorder(Recorder):
    """Works in transactions of its own, or bound to a caller's."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def bound_to(self, host: Session | Connection) -> Self:
        """The same recorder inside the caller's open transaction, which it neither begins, commits nor rolls back.

        Each insert has a savepoint of its own, so that an error leaves the transaction healthy. `select_events` sees
        what the transaction wrote; notifications cannot be read there.
        """
        bound = copy(self)
        with persistence_errors():
            bound._transactions = JoinedTransaction(host, self._transactions.store)
        return bound

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for reading, where each statement is its own transaction; the caller's, in a bound recorder."""
        with persistence_errors(), self._transactions.connection() as connection:
            yield connection


class SQLAlchemyAggregateRecorder(SQLAlchemyRecorder, AggregateRecorder):
    """Records events, and reads those of one stream."""

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Records the events, all or none, in as many streams as they name.

        In each stream versions must go on by one from its newest event, and begin at 0 or 1. `connection=`, a
        session or connection of SQLAlchemy: inside its open transaction.

        Raises `IntegrityError` when somebody else was there first, or the originator id is another ledger's;
        `DataError` for an event that cannot be stored; `OperationalError`, and when its cause is `OutcomeUnknown`, the
        events may have been recorded.
        """
        self._record(stored_events, **kwargs)
        return None

    def _record(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        connection: Session | Connection | None = None,
        tracking: Tracking | None = None,
    ) -> list[int]:
        if connection is not None:
            return self.bound_to(connection)._record(stored_events, tracking=tracking)
        with persistence_errors():
            incoming = Incoming(self._transactions.store, stored_events)
            if not stored_events and tracking is None:
                return []
            with self._transactions.connection() as open_connection:
                return self._write(open_connection, incoming, tracking)

    def _write(
        self, connection: Connection, incoming: Incoming, tracking: Tracking | None
    ) -> list[int]:
        store = self._transactions.store
        tails = store.tails(connection, incoming.streams)
        appends, events = incoming.appends(tails)
        one_append = len(appends) == 1 and len(events) <= FEW
        with self._transactions.change(connection, alone=one_append and tracking is None):
            if tracking is not None:
                self._track(connection, tracking)
            if one_append:
                appended = store.append(connection, appends[0])
                positions = None if appended is None else list(appended.positions)
            else:
                positions = store.append_all(connection, appends, events)
            if positions is None:
                raise IntegrityError(
                    "another transaction has recorded events in"
                    f" {'the stream' if len(appends) == 1 else 'one of the streams'} meanwhile;"
                    " read again and decide anew"
                )
        return positions

    def _track(self, connection: Connection, tracking: Tracking) -> None:
        raise ProgrammingError(
            f"{type(self).__name__} cannot record {tracking}; use a process recorder"
        )

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """The events of one stream of this ledger, in version order."""
        store, stream = self._transactions.store, stream_id(originator_id)
        c = store.tables.events.c
        query = select(c.version, c.topic, c.state)
        query = query.where(c.lock_id == stream, c.ledger == store.ledger)
        if gt is not None:
            query = query.where(c.version > gt)
        if lte is not None:
            query = query.where(c.version <= lte)
        query = query.order_by(c.version.desc() if desc else c.version).limit(limit)
        with self.connection() as connection:
            rows = ask(connection, query).all()
        return [
            StoredEvent(stream, version, topic, state.encode()) for version, topic, state in rows
        ]


class SQLAlchemyApplicationRecorder(SQLAlchemyAggregateRecorder, ApplicationRecorder):
    """Records events, and reads those of the whole ledger by position, never beyond the settled one."""

    poll_seconds = 0.25
    """How long a subscription waits when nothing is new."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:
        """As `SQLAlchemyAggregateRecorder.insert_events`; gives the events' positions, in the order given."""
        return self._record(stored_events, **kwargs)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """The settled events of the ledger from `start`, up to and with `stop`, in position order, at most `limit`.

        It may lag behind the oldest open transaction that changes a stream of this ledger, and so skips nothing.
        """
        after = 0 if start is None else start - inclusive_of_start
        return self._page(after, limit, stop, topics).notifications

    def max_notification_id(self) -> int | None:
        """The position of the ledger's newest settled event, `None` when there is none."""
        with persistence_errors(), self._transactions.settled_connection() as connection:
            return self._transactions.store.newest_settled(connection) or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> PollingSubscription:
        """Yields the events after position `gt` as they settle, and waits for more; stop it, or use it as context."""
        return PollingSubscription(self, self._page, gt, topics, poll_seconds=self.poll_seconds)

    def _page(
        self, after: int, limit: int, stop: int | None = None, topics: Sequence[str] = ()
    ) -> Page:
        store = self._transactions.store
        c = store.tables.events.c
        with persistence_errors(), self._transactions.settled_connection() as connection:
            # With topics the cursor must pass events that are not asked for, and never a position without an event.
            upto = (
                store.newest_settled(connection)
                if topics
                else store.settled(connection, beyond=after)
            )
            upto = upto if stop is None else min(upto, stop)
            if upto <= after:
                return Page([], after)
            query = select(c.position, c.lock_id, c.version, c.topic, c.state)
            query = query.where(c.ledger == store.ledger, c.position > after, c.position <= upto)
            if topics:
                query = query.where(c.topic.in_(topics))
            rows = ask(connection, query.order_by(c.position).limit(limit)).all()
        found = [
            Notification(stream, version, topic, state.encode(), position)
            for position, stream, version, topic, state in rows
        ]
        if topics and len(found) < limit:
            return Page(found, upto)
        return Page(found, found[-1].id if found else after)


class SQLAlchemyTrackingRecorder(SQLAlchemyRecorder, TrackingRecorder):
    """Keeps how far a consumer has come in an application's events, with what it made of them.

    `consumer` tells several consumers of one application apart; the factory gives the name of its environment, which is
    that of the projection.
    """

    def __init__(self, transactions: Transactions, *, consumer: str = "") -> None:
        super().__init__(transactions)
        self._consumer = consumer.replace("%", "%25").replace(":", "%3A")

    @contextmanager
    def processing(self, tracking: Tracking) -> Iterator[Connection]:
        """A transaction for what an event means to a view: the tracking is recorded first, and commits with the rest.

        Raises `IntegrityError` when this position, or a later one, has been recorded already. An error of the view's
        passes as itself. One that the view catches itself loses PostgreSQL's transaction: `InternalError`.
        """
        own: BaseException | None = None
        try:
            with (
                self.connection() as connection,
                self._transactions.change(connection, alone=False),
            ):
                self._track(connection, tracking)
                try:
                    yield connection
                except BaseException as error:
                    own = error
                    raise
        except PersistenceError as told:
            # In the words of `eventsourcing` it could pass for a position that has been recorded already.
            if own is None or told.__cause__ is not own:
                raise
            raise own from own.__cause__

    def insert_tracking(self, tracking: Tracking) -> None:
        """Records how far the consumer has come; `IntegrityError` when it has come as far or farther already."""
        with self.processing(tracking):
            pass

    def max_tracking_id(self, application_name: str) -> int | None:
        """How far the consumer has come in this application's events, `None` at the beginning."""
        store = self._transactions.store
        c = store.tables.consumer_positions.c
        consumer = self._name(application_name)
        query = select(c.position).where(c.ledger == store.ledger, c.consumer == consumer)
        with self.connection() as connection:
            found: int | None = ask(connection, query).scalar()
        return found

    def _track(self, connection: Connection, tracking: Tracking) -> None:
        store = self._transactions.store
        table = qualified(CONSUMER_POSITIONS, store.dialect, store.schema)
        consumer = self._name(tracking.application_name)
        forward = text(_MOVE_FORWARD.format(table=table)).bindparams(
            ledger=store.ledger, consumer=consumer, position=tracking.notification_id
        )
        moved = ask(connection, forward)
        if moved.rowcount != 1:
            raise IntegrityError(f"{tracking} or a later one has been recorded already")

    def _name(self, application_name: str) -> str:
        return f"{self._consumer}:{application_name}"


_MOVE_FORWARD = """
INSERT INTO {table} AS known (ledger, consumer, position) VALUES (:ledger, :consumer, :position)
ON CONFLICT (ledger, consumer) DO UPDATE SET position = excluded.position WHERE known.position < excluded.position
"""


class SQLAlchemyProcessRecorder(
    SQLAlchemyTrackingRecorder, SQLAlchemyApplicationRecorder, ProcessRecorder
):
    """Records events together with the tracking of the event that led to them: `insert_events(…, tracking=…)`."""
