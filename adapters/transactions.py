"""Where a recorder works: in transactions of its own, or inside the one that the caller has open."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from weakref import finalize

from eventsourcing.persistence import InterfaceError, NotSupportedError
from sqlalchemy import URL, Connection, Engine
from sqlalchemy.orm import Session

from lockledger.adapters.engines import Source, checked_busy_timeout
from lockledger.adapters.failures import translated
from lockledger.adapters.migration import migrate
from lockledger.adapters.schema import check_schema
from lockledger.adapters.sessions import begin_to_write, joined
from lockledger.adapters.store import EventStore
from lockledger.adapters.stores import store_on


class Transactions(ABC):
    """Gives connections to one ledger's store, and the transaction that a change is made in."""

    def __init__(self, store: EventStore) -> None:
        self.store = store

    @abstractmethod
    def connection(self) -> AbstractContextManager[Connection]:
        """A connection for one call."""

    @abstractmethod
    def settled_connection(self) -> AbstractContextManager[Connection]:
        """A connection outside any transaction, for reading by position."""

    @abstractmethod
    def change(self, connection: Connection, *, alone: bool) -> AbstractContextManager[None]:
        """What is written inside is kept or taken back together. `alone`: it is one append and nothing else."""


class OwnTransactions(Transactions):
    """Each call on a connection of its own, and each change in a transaction of its own.

    `url_or_engine`, `name`, `schema` and `busy_timeout` are those of `LockLedger`. An engine made here is disposed of
    with `close()`, or when the last recorder is gone.
    """

    def __init__(
        self,
        url_or_engine: str | URL | Engine,
        *,
        name: str = "default",
        schema: str | None = None,
        busy_timeout: float | timedelta = 30,
    ) -> None:
        source = Source(url_or_engine, busy_timeout=checked_busy_timeout(busy_timeout))
        super().__init__(store_on(source.dialect, name, schema))
        self._source = source
        self._schema_is_right = False
        # `eventsourcing` drops factories without closing them. Not at exit: a forked child would close its parent's.
        self._closing = finalize(self, source.close)
        self._closing.atexit = False

    def migrate(self) -> None:
        """As `LockLedger.migrate`."""
        self._source.create_missing_file()
        with self._source.turn():
            migrate(self._source.engine, schema=self.store.schema)

    def close(self) -> None:
        """Gives back what was opened here; a recorder that is used afterwards raises `InterfaceError`."""
        self._closing()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        if not self._closing.alive:
            raise InterfaceError("the recorder's connections are closed; construct another one")
        with self._source.connect() as connection:
            if not self._schema_is_right:
                check_schema(connection, self.store.schema)
                self._schema_is_right = True
            yield connection

    settled_connection = connection

    def change(self, connection: Connection, *, alone: bool) -> AbstractContextManager[None]:
        if alone and not self.store.excludes_writers:
            return translated(commits=True)
        return self.store.transaction(connection)


class JoinedTransaction(Transactions):
    """The caller's open transaction: nothing here begins, commits or rolls it back; each change has a savepoint."""

    def __init__(self, host: Session | Connection, store: EventStore) -> None:
        super().__init__(store)
        self._host = host
        self._schema_is_right = False
        joined(host, store.dialect)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        connection = joined(self._host, self.store.dialect)
        if not self._schema_is_right:
            check_schema(connection, self.store.schema)
            self._schema_is_right = True
        yield connection

    def settled_connection(self) -> AbstractContextManager[Connection]:
        raise NotSupportedError(
            "notifications are not read in a caller's transaction, whose snapshot may be older than the ledger:"
            " a reader would skip what it cannot see; ask the recorder that is not bound to it"
        )

    @contextmanager
    def change(self, connection: Connection, *, alone: bool) -> Iterator[None]:
        begin_to_write(connection)
        with self.store.savepoint(connection):
            yield
