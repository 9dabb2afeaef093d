"""How the rows of a lock table are read so that nothing that stands in them is an error before it is asked for.

SQLite keeps anything in any column, PostgreSQL has dates of no calendar of ours, and drivers make values of their own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, cast

from sqlalchemy import (
    Connection,
    Date,
    DateTime,
    Dialect,
    Row,
    Text,
    TypeDecorator,
    event,
    func,
    literal_column,
    type_coerce,
)
from sqlalchemy.types import NullType, TypeEngine

from lockledger.adapters.identifiers import POSTGRESQL, SQLITE
from lockledger.adapters.snapshots import any_text
from lockledger.domain.errors import shown

Values = Mapping[str, Any]
_PSYCOPG: Final = "psycopg"


def readable(column: Any, connection: Connection) -> Any:
    """The column as it is selected, so that nothing that stands in it is an error.

    SQLite keeps anything in any column, and PostgreSQL dates of no calendar of ours.
    """
    dialect = connection.dialect.name
    if isinstance(column.type, DateTime) and dialect == SQLITE:
        return type_coerce(column, _ReadableInstant())
    if isinstance(column.type, DateTime | Date) and dialect == POSTGRESQL:
        # in ISO 8601 whatever the session's date style
        iso = func.pg_catalog.to_json(column).op("#>>")(literal_column("'{}'::text[]"))
        instant = isinstance(column.type, DateTime)
        return type_coerce(iso, _ReadableInstant() if instant else _ReadableDate())
    return type_coerce(column, _Kept(column.type))


def values_in(row: Row[Any]) -> Values:
    """What a row has in its columns. Asked for one that cannot be read, it raises `ValueError`."""
    values = cast(Values, row._mapping)
    return _Partly(values) if any(isinstance(each, _Unreadable) for each in row) else values


def forgiving_driver(connection: Connection) -> AbstractContextManager[None]:
    """What is read meanwhile keeps what the driver cannot read."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == SQLITE and driver.text_factory is str:
        return any_text(connection)
    if connection.dialect.driver == _PSYCOPG:
        return _forgiving_psycopg(connection)
    return nullcontext()


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands where a value could not be read."""

    found: str
    why: str


class _Partly(Mapping[str, Any]):
    """A row some of whose values cannot be read."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def __getitem__(self, column: str) -> Any:
        value = self._values[column]
        if not isinstance(value, _Unreadable):
            return value
        raise ValueError(f"column {column}: {value.found} cannot be read: {value.why}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class _ReadableInstant(TypeDecorator[Any]):
    """An instant as text, or whatever else stands in its column."""

    impl = Text
    cache_ok = True
    _parse: Callable[[str], date] = datetime.fromisoformat

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        try:
            return self._parse(value)
        except (TypeError, ValueError):
            return value


class _ReadableDate(_ReadableInstant):
    """A date as text, or whatever else stands in its column."""

    cache_ok = True
    _parse = date.fromisoformat


class _Kept(TypeDecorator[Any]):
    """Values of a column's own type; one that the type cannot make is kept as unreadable."""

    impl = NullType
    cache_ok = False

    def __init__(self, own: TypeEngine[Any]) -> None:
        super().__init__()
        self._own = own

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return self._own

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        process = self.impl_instance.result_processor(dialect, coltype)
        return None if process is None else _keeping(process, lambda value: value)


def _keeping(read: Callable[[Any], Any], plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Reads, and keeps what is wrong where that fails; `plain` is what stood there."""

    def kept(value: Any) -> Any:
        if isinstance(value, _Unreadable):
            return value
        try:
            return read(value)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the row's fault
            return _Unreadable(shown(plain(value)), f"{type(error).__name__}: {error}")

    return kept


@contextmanager
def _forgiving_psycopg(connection: Connection) -> Iterator[None]:
    """It makes values of its own, of dates and ranges and JSON, while it fetches them."""
    event.listen(connection, "before_cursor_execute", _forgiving)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", _forgiving)


def _forgiving(_connection: Connection, cursor: Any, *_statement: Any) -> None:
    """Lets a cursor of psycopg read as before, but keep what cannot be read."""
    from psycopg.abc import AdaptContext, Buffer
    from psycopg.adapt import Loader
    from psycopg.pq import Format

    cursor = getattr(cursor, "_cursor", cursor)  # that of asyncio is in one of SQLAlchemy's
    plain = cursor.connection.adapters

    class Forgiving(Loader):
        def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            # In the connection's context: what is in an array or a range fails the whole of it.
            loader = plain.get_loader(oid, Format.TEXT)(oid, cursor.connection)
            self._read = _keeping(loader.load, _decoded)

        def load(self, data: Buffer) -> Any:
            return self._read(data)

    for known in plain.types:
        for oid in (known.oid, known.array_oid):
            if oid and plain.get_loader(oid, Format.TEXT):
                cursor.adapters.register_loader(oid, Forgiving)


def _decoded(data: Any) -> str:
    return bytes(data).decode("utf-8", "replace")
