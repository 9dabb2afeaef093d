"""The ledger that a program opens: the verbs, each in a transaction of its own."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic
from traceback import clear_frames
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from lockledger.adapters.engines import Source, checked_busy_timeout
from lockledger.adapters.failures import is_lost_connection
from lockledger.bound import BoundLedger
from lockledger.commands import Clearance, Command, Performed
from lockledger.domain.errors import OutcomeUnknown
from lockledger.domain.holds import Grant, RecordedEvent
from lockledger.domain.keys import new_holder
from lockledger.domain.lock import IfMine
from lockledger.domain.policy import Clock, Names, Policy
from lockledger.domain.ttl import Ttl
from lockledger.door import Metadata
from lockledger.exporting import ExportingVerbs
from lockledger.holding import (
    Held,
    after_body,
    beating,
    checked_heartbeat,
    holding,
    margin,
    may_remain,
)
from lockledger.importing import ImportingVerbs
from lockledger.proving import ProvingVerbs
from lockledger.queries import checked_position, checked_text
from lockledger.subscription import PAGE, Subscription, poll_seconds, read_settled
from lockledger.verbs import Verbs
from lockledger.waiting import Patience, Wish, checked_wait, wait_for
from lockledger.workings import Workings

T = TypeVar("T")

BATCH = 100
"""Keys in one transaction of a verb for many locks."""


class LockLedger(Verbs, ProvingVerbs, ImportingVerbs, ExportingVerbs):
    """A ledger of business locks on PostgreSQL or SQLite; threads may share it.

    `url_or_engine`: a database URL (`postgresql+psycopg://…`, `sqlite:///file.db`), for which the ledger opens and
    owns an engine, or an engine of the host's, which is used as it is and never closed. `name`: several ledgers may
    share the tables; each sees only its own locks. `schema`: PostgreSQL only, `public` by default. `scopes`: a hold
    covers every key under its own, for all ledgers that share this name. `clock` replaces the database's clock: a
    callable that returns an aware datetime, asked at each decision. `policy` and `names`: the host's say (see `Policy`)
    and its display names. `busy_timeout`: seconds a write waits for SQLite's write lock.

    Every verb is one transaction. On PostgreSQL a take makes two round trips, locks no row but its own lock's, and
    never an entire table. Call `migrate()` once before the first use; until then verbs raise `SchemaMismatch`.
    """

    def __init__(
        self,
        url_or_engine: str | URL | Engine,
        *,
        name: str = "default",
        schema: str | None = None,
        scopes: bool = False,
        clock: Clock | None = None,
        policy: Policy[Connection] | None = None,
        names: Names[Connection] | None = None,
        busy_timeout: float | timedelta = 30,
    ) -> None:
        source = Source(url_or_engine, busy_timeout=checked_busy_timeout(busy_timeout))
        self._set_up(
            source, name=name, schema=schema, scopes=scopes, clock=clock, policy=policy, names=names
        )

    @classmethod
    def over(
        cls,
        source: Source,
        *,
        name: str = "default",
        schema: str | None = None,
        scopes: bool = False,
        clock: Clock | None = None,
        policy: Policy[Connection] | None = None,
        names: Names[Connection] | None = None,
    ) -> Self:
        """A ledger over a source of connections that has been made already."""
        ledger = cls.__new__(cls)
        ledger._set_up(
            source, name=name, schema=schema, scopes=scopes, clock=clock, policy=policy, names=names
        )
        return ledger

    def _set_up(
        self,
        source: Source,
        *,
        name: str,
        schema: str | None,
        scopes: bool,
        clock: Clock | None,
        policy: Policy[Connection] | None,
        names: Names[Connection] | None,
    ) -> None:
        self._source = source
        self._workings = Workings(
            source.dialect,
            name=name,
            schema=schema,
            scopes=scopes,
            clock=clock,
            policy=policy,
            names=names,
        )
        self._queries = self._workings.queries
        self._past = self._workings.past
        self._door = self._workings.door()
        self._closed = False

    @property
    def name(self) -> str:
        """The ledger's name."""
        return self._workings.name

    @property
    def workings(self) -> Workings:
        """What the ledger is made of, for code of this package that is given a connection. `RuntimeError` when closed."""
        self._refuse_when_closed()
        return self._workings

    @property
    def schema(self) -> str | None:
        """The PostgreSQL schema that holds the ledger's tables, as it was given."""
        return self._workings.schema

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives back what the ledger itself opened. A closed ledger raises `RuntimeError`."""
        self._closed = True
        self._source.close()

    def migrate(self) -> None:
        """Brings the schema up to date, from nothing or from any released version; safe to call twice and at once.

        Raises `SchemaMismatch` when the schema is newer than this library.
        """
        # Alembic takes a tenth of a second to import, and nothing else needs it.
        from lockledger.adapters.migration import migrate

        self._refuse_when_closed()
        self._source.create_missing_file()
        migrate(self._source.engine, schema=self._workings.schema)

    def perform(self, command: Command[T]) -> Performed[T]:
        """Carries out a checked command in a transaction of its own, and tells what was recorded for it."""
        with self._connection() as connection:
            return self._workings.perform_alone(connection, command)

    def _wait(self, command: Command[Grant], seconds: float) -> Performed[Grant]:
        wish = Wish(command)
        try:
            return self._wait_for(wish.command, Patience(seconds))
        except BaseException as failure:
            if not isinstance(failure, Exception):
                self._take_back(wish, failure)
            raise

    def _take_back(self, wish: Wish, failure: BaseException) -> None:
        """Ends the hold that a call may have begun which was broken off by this failure."""
        command = wish.taken_back(self._door)
        if command is None or wish.proposed is None:
            return
        clear_frames(failure.__traceback__)  # a cursor left in one would keep SQLite's write lock
        try:
            self.perform(command)
        except Exception as another:  # noqa: BLE001 - what broke the call off is the news
            failure.add_note(f"{may_remain(wish.proposed)}: {another}")

    def _wait_for(self, command: Command[T], patience: Patience) -> Performed[T]:
        return wait_for(command, self._attempt, patience, self._source.sleep, self._workings.now)

    def _attempt(self, command: Command[T], patience: Patience) -> Performed[T] | None:
        patience.asked_at = monotonic()
        with self._connection(busy_timeout=patience.left.total_seconds()) as connection:
            return self._workings.commands.attempt(connection, command, lambda: patience.left)

    def _ask(self, question: Callable[[Connection], T]) -> T:
        with self._connection() as connection:
            return question(connection)

    def _clear(self, clearance: Clearance) -> int:
        ended = 0
        for keys in self._selected(clearance, BATCH):
            if keys:
                with self._transaction() as connection:
                    ended += self._workings.groups.clear(connection, clearance, keys)
        return ended

    def _take_all(self, commands: Sequence[Command[Grant]]) -> dict[str, Grant]:
        with self._connection() as connection:
            return self._workings.take_all_alone(connection, commands).outcome

    def _expire_due(self, limit: int) -> int:
        recorded = 0
        keys = self._ask(lambda connection: self._queries.due(connection, limit))
        for start in range(0, len(keys), BATCH):
            with self._transaction() as connection:
                due = map(self._door.expire, keys[start : start + BATCH])
                recorded += self._workings.groups.expire(connection, due)
        return recorded

    @property
    def _alone(self) -> bool:
        return True

    def using(
        self,
        session_or_connection: Session | scoped_session[Any] | Connection,
        *,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> BoundLedger:
        """The verbs inside the caller's open transaction, with `actor` and `metadata` for those that name none.

        Each verb refuses an AUTOCOMMIT connection, a wrongly configured SQLite one (`ValueError`), and one without the
        schema (`SchemaMismatch`).
        """
        workings = self.workings
        return BoundLedger(
            workings, session_or_connection, workings.door(actor=actor, metadata=metadata)
        )

    @holding
    @contextmanager
    def hold(
        self,
        key: str,
        holder: str | None = None,
        *,
        ttl: Ttl = None,
        heartbeat: float | timedelta | None = None,
        if_mine: IfMine = "refuse",
        takeover_reason: str | None = None,
        expected_token: int | None = None,
        wait: float | timedelta | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Iterator[Held]:
        """Holds the lock for the length of a `with` block, and releases what it began on every way out.

        `holder`: a new unique one by default. `heartbeat`: seconds between extensions by the ttl, in a thread of its
        own; at most a third of the ttl (`ValueError`). They stop on release, on error and when the interpreter ends,
        never take a lost hold back, and outlive short outages. `Held.check()` tells at once when the hold is lost.
        The other arguments are those of `take`. A hold that was the holder's already (`if_mine="return"` or
        `"extend"`) is used and left in place.

        A hold lost meanwhile is a `HoldLost` at the end when the body succeeded, else a note on the body's exception.
        """
        beats = checked_heartbeat(heartbeat, ttl)
        holder = new_holder() if holder is None else holder
        hold = self.begin_hold(
            key,
            holder,
            wait=wait,
            ttl=ttl,
            takeover_reason=takeover_reason,
            if_mine=if_mine,
            expected_token=expected_token,
            actor=actor,
            metadata=metadata,
        )
        again = partial(self.extend, key, holder, ttl, actor=actor, metadata=metadata)
        end = partial(self.end_hold, hold.grant, actor=actor, metadata=metadata)
        try:
            with beating(hold, partial(again, token=hold.grant.token), beats):
                yield hold
        except BaseException as body:
            after_body(hold, end, body)
            raise
        after_body(hold, end, None)

    def begin_hold(
        self, key: str, holder: str, *, wait: float | timedelta | None, **wish: Any
    ) -> Held:
        """Takes for a `with` block, and measures from before the question that was granted.

        When it is broken off, or nobody knows whether the lock was granted, what it may have begun is ended.
        """
        wished = Wish(self._door.take(key, holder, **wish, verb="hold"))
        patience = Patience(0.0 if wait is None else checked_wait(wait))
        granted = False
        try:
            performed = (
                self.perform(wished.command)
                if wait is None
                else self._wait_for(wished.command, patience)
            )
            granted = True
            return self._held(performed.outcome, patience.asked_at)
        except BaseException as failure:
            if granted or isinstance(failure, OutcomeUnknown) or not isinstance(failure, Exception):
                self._take_back(wished, failure)
            raise

    def _held(self, grant: Grant, asked_at: float) -> Held:
        if grant.expires_at is None:
            return Held(grant, asked_at, None)
        lasts = (grant.expires_at - grant.taken_at).total_seconds()
        if not grant.created or monotonic() - asked_at > margin(lasts):
            # Found in place, or long in coming: what is left of it, the ledger's clock tells.
            asked_at = monotonic()
            lasts = (grant.expires_at - self._ask(self._workings.clock)).total_seconds()
        return Held(grant, asked_at, lasts)

    def end_hold(self, grant: Grant, *, actor: str | None, metadata: Metadata) -> None:
        """Releases the hold that a grant began, or looks whether the one it found is still there: `HoldLost` if not.

        Asks once more, on another connection, when the connection is lost: with a token, repeating is safe.
        """
        key, holder, token = grant.key, grant.holder, grant.token
        end: Command[Any] = (
            self._door.release(key, holder, token=token, actor=actor, metadata=metadata)
            if grant.created
            else self._door.guard(key, holder, token=token)
        )
        try:
            self.perform(end)
        except (DBAPIError, OutcomeUnknown) as failure:
            if not is_lost_connection(failure):
                raise
            self.perform(end)

    def events(self, after: int = 0) -> Iterator[RecordedEvent]:
        """The events after a position, in position order, up to what is settled; none is skipped.

        It may lag behind the oldest open transaction that changed a lock of this ledger. Holds no connection between
        pages.
        """
        return read_settled(self.next_page, checked_position(after))

    def subscribe(
        self,
        *,
        after: int | Literal["now"] = 0,
        key_prefix: str | None = None,
        poll: float | timedelta = 0.25,
    ) -> Subscription:
        """As `events`, but goes on waiting for new ones, until it is closed; use it as a context manager.

        `after="now"` begins with what settles from now on. `poll`: seconds between two looks when nothing is new, more
        than 0. Each event comes once and in order, also while slow transactions commit and roll back around it.
        """
        prefix, seconds = checked_text(key_prefix, "key_prefix"), poll_seconds(poll)
        start = self.settled_position() if after == "now" else checked_position(after)
        return Subscription(self.next_page, after=start, key_prefix=prefix, poll=seconds)

    def display_names(self, ids: Collection[str]) -> Mapping[str, str | None]:
        """The host's names of holders and actors as they are now; `None` for those it does not know."""
        with self._connection() as connection:
            return self._workings.display_names(connection, ids)

    def next_page(self, after: int) -> tuple[list[RecordedEvent], int]:
        """The next settled events after a position, and the position up to which none is left to read."""
        with self._connection() as connection:
            return self._workings.store.settled_page(connection, after, PAGE)

    def settled_position(self) -> int:
        """The position of the newest event before which none can appear any more, 0 when there is none."""
        with self._connection() as connection:
            return self._workings.store.newest_settled(connection)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._connection() as connection, self._workings.store.transaction(connection):
            yield connection

    @contextmanager
    def _connection(self, *, busy_timeout: float | None = None) -> Iterator[Connection]:
        self._refuse_when_closed()
        with self._source.connect(busy_timeout=busy_timeout) as connection:
            self._workings.check(connection)
            yield connection

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise RuntimeError(f"the ledger {self.name!r} is closed; open a new LockLedger")
