"""Statements of ours on a connection that may be a host's, whose execution options are not meant for them.

Large results by a server-side cursor would make `DECLARE CURSOR` of a savepoint, and a map of schemas would look for
the ledger where the host's tables are. Given with each statement, since a connection keeps what it is given.

On an engine of our own nobody listens and no option is set, so SQL goes to the driver's cursor without SQLAlchemy in
between, which costs a take a third of its time. Errors are the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from sqlalchemy import Connection, CursorResult, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import immutabledict

OWN: Final = "lockledger_own_engine"
"""The execution option that marks an engine of ours."""

_KEPT: Final = "lockledger_cursor"
_OURS: Final = immutabledict[str, Any](
    {"stream_results": False, "yield_per": None, "schema_translate_map": None}
)
Parameters = Mapping[str, Any] | Sequence[Any]
Row = Sequence[Any]


class Answer(Protocol):
    """What a statement gave; ask it once."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""

    @property
    def lastrowid(self) -> Any:
        """SQLite's id of the row that was inserted."""

    def all(self) -> Sequence[Row]:
        """Every row."""

    def first(self) -> Row | None:
        """The first row, if there is one."""

    def one(self) -> Row:
        """The only row."""

    def scalar(self) -> Any:
        """The first value of the first row, `None` when there is none."""

    def scalar_one(self) -> Any:
        """The first value of the only row."""

    def scalars(self) -> Iterator[Any]:
        """The first value of each row."""

    def __iter__(self) -> Iterator[Row]: ...


class _Fetched:
    """A driver's cursor as an answer."""

    __slots__ = ("_connection", "_cursor", "_parameters", "_sql", "lastrowid", "rowcount")

    def __init__(self, connection: Connection, cursor: Any, sql: str, parameters: Any) -> None:
        self._connection = connection
        self._cursor = cursor
        self._sql = sql
        self._parameters = parameters
        self.rowcount = int(cursor.rowcount)
        self.lastrowid = getattr(cursor, "lastrowid", None)
        # A cursor that stays open is reset when it is collected, which may be while its connection waits for a lock in
        # another thread: SQLite then lets the thread that collects wait too, an event loop's or that of the lock's owner.
        # Not so psycopg, which makes a description anew each time it is asked for one.
        if connection.dialect.name == "sqlite" and cursor.description is None:
            cursor.close()

    def all(self) -> Sequence[Row]:
        rows: Sequence[Row] = self._fetched(self._cursor.fetchall)
        return rows

    def first(self) -> Row | None:
        row: Row | None = self._fetched(self._cursor.fetchone)
        return row

    def _fetched(self, fetch: Callable[[], Any]) -> Any:
        try:
            found = fetch()
        except (
            self._connection.dialect.loaded_dbapi.Error
        ) as error:  # the driver may read values only now
            _close(self._cursor)
            raise _as_sqlalchemy_tells_it(
                self._connection, self._cursor, error, self._sql, self._parameters
            ) from error
        self._cursor.close()
        return found

    def one(self) -> Row:
        (row,) = self.all()
        return row

    def scalar(self) -> Any:
        row = self.first()
        return None if row is None else row[0]

    def scalar_one(self) -> Any:
        return self.one()[0]

    def scalars(self) -> Iterator[Any]:
        return (row[0] for row in self.all())

    def __iter__(self) -> Iterator[Row]:
        return iter(self.all())


class _Loaded(_Fetched):
    """An answer that is read at once, so that its cursor is free and nothing of the statement is needed any more."""

    __slots__ = ("_rows",)

    def __init__(self, cursor: Any) -> None:
        self.rowcount = cursor.rowcount
        self.lastrowid = None
        # Not `description`, which psycopg makes anew each time.
        self._rows: Sequence[Row] = cursor.fetchall() if cursor.pgresult.nfields else ()

    def all(self) -> Sequence[Row]:
        return self._rows

    def first(self) -> Row | None:
        return self._rows[0] if self._rows else None


def _close(cursor: Any) -> None:
    """Closes the cursor of a statement that failed, which is the news; the connection may be gone altogether."""
    with suppress(Exception):
        cursor.close()


def run(connection: Connection, sql: str, parameters: Any = None) -> Answer:
    """Runs SQL in the driver's own words."""
    if connection.get_execution_options().get(OWN):
        return _run_in_driver(connection, sql, parameters)
    return connection.exec_driver_sql(sql, parameters, _OURS)


def _run_in_driver(connection: Connection, sql: str, parameters: Any) -> Answer:
    cursor, lasts = _cursor(connection)
    try:
        cursor.execute(sql, parameters if parameters is not None else ())
        return _Loaded(cursor) if lasts else _Fetched(connection, cursor, sql, parameters)
    except connection.dialect.loaded_dbapi.Error as error:
        _close(cursor)
        raise _as_sqlalchemy_tells_it(connection, cursor, error, sql, parameters) from error
    except BaseException as cancellation:
        connection.invalidate(cancellation)  # nobody knows how far the driver came
        raise


def _cursor(connection: Connection) -> tuple[Any, bool]:
    """A cursor of the driver's, and whether it is kept with the driver's connection for the next statement too.

    psycopg takes as long to make a cursor as to send a statement. One is enough where each answer is read at once.
    """
    dialect = connection.dialect
    if dialect.is_async or dialect.name != "postgresql":
        return connection.connection.cursor(), False
    kept = connection.info.get(_KEPT)
    if kept is None or kept.closed:
        kept = connection.info[_KEPT] = connection.connection.cursor()
    return kept, True


def _as_sqlalchemy_tells_it(
    connection: Connection, cursor: Any, error: Exception, sql: str, parameters: Any
) -> BaseException:
    """The error that `exec_driver_sql` would have raised, with the pool told when the connection is lost."""
    dialect = connection.dialect
    lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, cursor)  # type: ignore[arg-type]
    if lost:
        connection.invalidate(error)
    return DBAPIError.instance(
        sql,
        parameters,
        error,
        dialect.loaded_dbapi.Error,
        hide_parameters=connection.engine.hide_parameters,
        connection_invalidated=lost,
        dialect=dialect,
    )


def ask(
    connection: Connection, statement: Executable, values: Mapping[str, Any] | None = None
) -> "CursorResult[*tuple[Any, ...]]":
    """Runs a statement made of SQLAlchemy's expressions, with the values of its parameters."""
    return connection.execute(statement, values, execution_options=_OURS)
