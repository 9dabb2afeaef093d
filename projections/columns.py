"""Column types of the ledger's tables on PostgreSQL and SQLite, and conversions for driver-level code."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Dialect,
    LargeBinary,
    Text,
    TypeDecorator,
    Uuid,
    cast,
    type_coerce,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine, UserDefinedType

from lockledger.domain.keys import range_of_prefix, range_under


def instant_to_text(instant: datetime) -> str:
    """An instant as SQLite keeps it: UTC, microseconds, always 32 characters, so that order of text is order in time.

    A naive datetime is a `ValueError`.
    """
    if instant.tzinfo is not UTC:
        instant = _in_utc(instant)
    return instant.isoformat(timespec="microseconds")


def instant_from_text(text: str) -> datetime:
    """The aware UTC datetime that `instant_to_text` wrote; text without an offset is a `ValueError`."""
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo is UTC else _in_utc(instant)


def _in_utc(instant: datetime) -> datetime:
    if instant.utcoffset() is None:
        raise ValueError(
            f"{instant!r} has no time zone: give an aware datetime, such as datetime.now(UTC) or "
            f"{instant.replace(tzinfo=None)!r}.replace(tzinfo=UTC)"
        )
    return instant.astimezone(UTC)


class Instant(TypeDecorator[datetime]):
    """A moment with microseconds: TIMESTAMPTZ on PostgreSQL, fixed-width UTC text on SQLite.

    Takes aware datetimes of any offset (a naive one is a `ValueError`) and always gives aware UTC ones back,
    whatever the session's time zone and date style.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            # Not above: on SQLite nothing else loads what takes as long as a query.
            from sqlalchemy.dialects.postgresql import TIMESTAMP

            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        return _in_utc(value) if dialect.name == "postgresql" else instant_to_text(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if dialect.name != "postgresql":
            return instant_from_text(value)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else _in_utc(value)

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(_AsRead(column), self)


class _AsRead(FunctionElement[Any]):
    """An instant as it is selected: the driver reads instants with a zone in the ISO date style only."""

    inherit_cache = True


@compiles(_AsRead)
def _as_it_is(element: _AsRead, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(_AsRead, "postgresql")
def _in_utc_without_zone(element: _AsRead, compiler: Any, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)} AT TIME ZONE 'UTC')"


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_to_text(value: Any) -> str:
    """JSON as the tables keep it: compact, text not escaped; NaN and infinities are a `ValueError`."""
    return "{}" if value == {} else _ENCODER.encode(value)  # most metadata; an encoder takes longer


def json_from_text(text: str) -> Any:
    """What `json_to_text` wrote."""
    return {} if text == "{}" else json.loads(text)


class _JsonColumn(UserDefinedType[str]):
    """PostgreSQL's `json`, written and read as text."""

    cache_ok = True

    def get_col_spec(self, **kw: Any) -> str:
        return "JSON"


class Json(TypeDecorator[Any]):
    """JSON: `json` on PostgreSQL (`jsonb` would rewrite numbers), TEXT on SQLite. None is SQL NULL.

    Encoded and decoded here and not by the driver, whose JSON functions belong to the host's engine.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return _JsonColumn()
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json_to_text(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else json_from_text(value)

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(cast(column, Text()), self)


class _PostgreSQLText(Text):
    """`text`, in bound parameters too.

    SQLAlchemy says `varchar` there, and for (text, varchar) PostgreSQL has no operator of its own: one that somebody
    made in a schema on the search path would fit better, and run with the rights of whoever reads the ledger.
    """

    render_bind_cast = True

    def adapt(self, cls: Any, **kw: Any) -> Any:
        """Itself, and not the driver's type of strings."""
        return self


ExactText = Text().with_variant(_PostgreSQLText(collation="C"), "postgresql")
"""Text compared code point by code point on every database; SQLite does so by default."""

LockId = Uuid(as_uuid=True)
Count = BigInteger()
"""Versions, tokens and positions."""

Digest = LargeBinary()
"""SHA-256, 32 bytes."""


def key_conditions(
    key: ColumnElement[str], *, key_prefix: str | None, under: str | None
) -> Iterator[ColumnElement[bool]]:
    """Keys that begin with a prefix; a key and all keys under it. As ranges, so that an index serves them."""
    if key_prefix:
        first, beyond = range_of_prefix(key_prefix)
        yield key >= first
        if beyond is not None:
            yield key < beyond
    if under is not None:
        first, beyond = range_under(under)
        yield (key == under) | ((key >= first) & (key < beyond))
