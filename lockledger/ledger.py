"""The ledger that a program opens: the verbs, each in a transaction of its own."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from lockledger.adapters.engines import Source, checked_busy_timeout
from lockledger.blocks import HoldingVerbs
from lockledger.bound import BoundLedger
from lockledger.domain.errors import shown
from lockledger.domain.holds import Grant, RecordedEvent
from lockledger.domain.policy import Clock, Names, Policy
from lockledger.door import Metadata
from lockledger.exporting import ExportingVerbs
from lockledger.groups import swept
from lockledger.importing import ImportingVerbs
from lockledger.proving import ProvingVerbs
from lockledger.queries import checked_position, checked_text
from lockledger.subscription import PAGE, Subscription, poll_seconds, read_settled
from lockledger.waiting import Rest
from lockledger.wishes import Clearance, Command, Performed
from lockledger.workings import Workings

T = TypeVar("T")

BATCH = 100
"""Keys in one transaction of a verb for many locks."""


class LockLedger(HoldingVerbs, ProvingVerbs, ImportingVerbs, ExportingVerbs):
    """A ledger of business locks on PostgreSQL or SQLite; threads may share it.

    `url_or_engine`: a database URL (`postgresql+psycopg://…`, `sqlite:///file.db`), for which the ledger opens and
    owns an engine, or an engine of the host's, which is used as it is and never closed. `name`: several ledgers may
    share the tables; each sees only its own locks. `schema`: PostgreSQL only, `public` by default. `scopes`: a hold
    covers every key under its own, for all ledgers that share this name. `clock` replaces the database's clock: a
    callable that returns an aware datetime, asked at each decision. `policy` and `names`: the host's say (see `Policy`)
    and its display names. `busy_timeout`: seconds a write waits for SQLite's write lock. `listen`: PostgreSQL only; one
    connection and thread more, by which who waits is woken when another that listens releases (see `how-to/waiting`).

    Every verb is one transaction. On PostgreSQL a take makes two round trips, and going on with a hold that this ledger
    was the last to change makes one; no row is locked but the lock's own, and never an entire table. Call `migrate()`
    once before the first use; until then verbs raise `SchemaMismatch`.
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
        listen: bool = False,
    ) -> None:
        source = Source(url_or_engine, busy_timeout=checked_busy_timeout(busy_timeout))
        self._set_up(
            source,
            name=name,
            schema=schema,
            scopes=scopes,
            clock=clock,
            policy=policy,
            names=names,
            listen=listen,
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
        listen: bool = False,
    ) -> Self:
        """A ledger over a source of connections that has been made already."""
        ledger = cls.__new__(cls)
        ledger._set_up(
            source,
            name=name,
            schema=schema,
            scopes=scopes,
            clock=clock,
            policy=policy,
            names=names,
            listen=listen,
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
        listen: bool,
    ) -> None:
        if not isinstance(listen, bool):
            raise TypeError(f"listen={shown(listen)}: give True or False")
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
        self._rest = Rest(source, self._workings.store, listen=listen)
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

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ledger cannot be pickled, since its connections are this process's: open another one there, from its URL"
        )

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
        self._rest.close()
        self._source.close()

    def migrate(self) -> None:
        """Brings the schema up to date, from nothing or from any released version; safe to call twice and at once.

        Raises `SchemaMismatch` when the schema is newer than this library.
        """
        # Alembic takes a tenth of a second to import, and nothing else needs it.
        from lockledger.adapters.migration import migrate

        self._refuse_when_closed()
        self._source.create_missing_file()
        with self._source.turn():
            migrate(self._source.engine, schema=self._workings.schema)

    def perform(self, command: Command[T]) -> Performed[T]:
        """Carries out a checked command in a transaction of its own, and tells what was recorded for it."""
        with self._connection() as connection:
            performed = self._workings.perform_alone(connection, command)
        self._rest.ended(performed.events)
        return performed

    def _ask(self, question: Callable[[Connection], T]) -> T:
        with self._connection() as connection:
            return question(connection)

    def _clear(self, clearance: Clearance) -> int:
        ended = 0
        for keys in self._selected(clearance, BATCH):
            if keys:
                with self._transaction() as connection:
                    ended += self._workings.groups.clear(connection, clearance, keys)
                self._rest.cleared(keys)
        return ended

    def _take_all(self, commands: Sequence[Command[Grant]]) -> dict[str, Grant]:
        with self._connection() as connection:
            return self._workings.take_all_alone(connection, commands).outcome

    def _expire_due(self, limit: int, expire: Callable[[str], Command[bool]]) -> int:
        def due(wanted: int, passed: int) -> list[str]:
            return self._ask(lambda connection: self._queries.due(connection, wanted, passed))

        def ended(keys: list[str]) -> int:
            recorded = 0
            for start in range(0, len(keys), BATCH):
                with self._transaction() as connection:
                    commands = map(expire, keys[start : start + BATCH])
                    recorded += self._workings.groups.expire(connection, commands)
            return recorded

        return swept(limit, due, ended)

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
