"""Lock tables of other systems, in two shapes: the locks held now, and holds with their history."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    MetaData,
    Table,
    create_engine,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql import FromClause

from lockledger.adapters.engines import checked_url
from lockledger.adapters.identifiers import POSTGRESQL, SQLITE
from lockledger.adapters.snapshots import snapshot
from lockledger.adapters.store import EventStore
from lockledger.domain.errors import LockLedgerError, shown
from lockledger.domain.events import LockEvent, LockExpired
from lockledger.domain.keys import check_holder, check_key
from lockledger.domain.lock import Lock
from lockledger.domain.past_holds import IMPORT, PastHold, RowId, Unfit, events_of, unfit
from lockledger.domain.reasons import check_reason
from lockledger.importing_columns import (
    Value,
    checked_zone,
    columns_of,
    instant_of,
    metadata_of,
    row_id,
    text_of,
    turn_of,
    value_of,
    why,
)
from lockledger.importing_rows import Origin, Refusal, Row, Told
from lockledger.importing_values import Values, forgiving_driver, readable, values_in
from lockledger.projections.columns import json_to_text

Database = str | URL | Engine | Connection | AsyncEngine | AsyncConnection | None
Opened = Callable[[], AbstractContextManager[Connection]]

_PAGE: Final = 1000
_UNENDED: Final = "~"
"""Sorts behind every instant."""


@dataclass(frozen=True, kw_only=True)
class _Mapped:
    """What both shapes have in common."""

    table: str | FromClause = field(kw_only=False)
    key: Value
    holder: Value
    taken_at: Value
    expires_at: Value | None = None
    metadata: Value | None = None
    row: Value | None = None
    source: str | None = None
    timezone: tzinfo | str | None = None
    schema: str | None = None

    fields: ClassVar[tuple[str, ...]] = (
        "key",
        "holder",
        "taken_at",
        "expires_at",
        "metadata",
        "row",
    )

    def __post_init__(self) -> None:
        for name in self.fields:
            value = getattr(self, name)
            if value is not None:
                columns_of(value, name)
        object.__setattr__(self, "timezone", checked_zone(self.timezone))

    @property
    def zone(self) -> tzinfo | None:
        """The time zone of instants that name none."""
        return checked_zone(self.timezone)

    @property
    def name(self) -> str:
        """What the metadata of the events calls the source."""
        if self.source is not None:
            return self.source
        return self.table if isinstance(self.table, str) else getattr(self.table, "name", "query")


@dataclass(frozen=True, kw_only=True)
class LiveLocks(_Mapped):
    """A table of locks that are held: a row for each, which is gone when the lock is released.

    `table`: its name, in `schema` if given, or a table or subquery of SQLAlchemy. The others say where in a row
    something is: a column's name, a text with columns in braces such as `"version:{version_id}"`, or a callable that is
    given the row. `row` is what the row is called in reports and metadata, the key unless given. `source` is what the
    events' metadata calls the table, its name unless given. `timezone`: of instants that name none, which are refused
    otherwise; an hour that comes twice is taken for the earlier one. `metadata`: a JSON object for the events of the row.
    """


@dataclass(frozen=True, kw_only=True)
class LocksWithHistory(_Mapped):
    """A table of holds: a row for each, which stays, and says when the hold ended.

    As `LiveLocks`, and: `ended_at`, null while it is held. `ended_by`: who ended it, the holder unless given, or who
    took it over; `end_reason`: why. `taken_over_from` and `reason`: whom a hold was taken over from, and why; the hold of the row
    before has to be that holder's and to end at the same instant. A reason without `taken_over_from` is not kept.
    """

    ended_at: Value
    row: Value | None = "id"
    ended_by: Value | None = None
    end_reason: Value | None = None
    taken_over_from: Value | None = None
    reason: Value | None = None

    fields: ClassVar[tuple[str, ...]] = (
        *_Mapped.fields,
        *("ended_at", "ended_by", "end_reason", "taken_over_from", "reason"),
    )


class TableOrigin(Origin):
    """Reads a lock table, in one statement and a page at a time."""

    events_of_a_row = 2

    def __init__(
        self, mapping: LiveLocks | LocksWithHistory, database: Database, own: Opened
    ) -> None:
        self.name = _checked_source(mapping.name)
        self._mapping = mapping
        self._database = database
        self._own = own

    def rows(self) -> Iterator[Row | Refusal]:
        with _opened(self._database, self._own) as (connection, streams):
            table = self._table(connection)
            query = select(
                *(readable(each, connection).label(each.key) for each in self._wanted(table))
            )
            options = {"stream_results": True, "yield_per": _PAGE} if streams else {}
            with forgiving_driver(connection):
                found = connection.execute(query, execution_options=options)
                try:
                    for number, row in enumerate(found, 1):
                        yield self._row(values_in(row), number)
                finally:
                    found.close()

    def told(
        self,
        store: EventStore,
        key: str,
        rows: Sequence[Row],
        there: Sequence[LockEvent],
        now: datetime,
    ) -> Told:
        holds = [_hold(row) for row in rows]
        for hold in holds:
            if fault := unfit(hold, now):
                raise Unfit(hold.row, fault)
        events = events_of(
            Lock(store.lock_id(key), key),
            holds,
            source=self.name,
            now=now,
            imported_at=_as_it_was(there, now),
        )
        # That the last hold ran out, a sweep or take of the ledger may have recorded already.
        ran_out = isinstance(events[-1], LockExpired)
        return Told(events, [event.timestamp for event in events], len(events) - ran_out)

    def _table(self, connection: Connection) -> FromClause:
        table = self._mapping.table
        if not isinstance(table, str):
            return table
        try:
            return Table(
                table,
                MetaData(),
                schema=self._mapping.schema,
                autoload_with=connection,
                resolve_fks=False,
            )
        except NoSuchTableError:
            there = inspect(connection).get_table_names(schema=self._mapping.schema)
            raise ValueError(
                f"there is no table {table!r}; there are {', '.join(sorted(there)) or 'none'}"
            ) from None

    def _wanted(self, table: FromClause) -> list[Any]:
        """The columns that are read: all of them where a callable may look at any."""
        names: dict[str, None] = {}
        every = False
        for fact in self._mapping.fields:
            value = getattr(self._mapping, fact)
            if callable(value):
                every = True
            elif value is not None:
                for name in columns_of(value, fact):
                    if name not in table.c:
                        raise ValueError(
                            f"{fact}={value!r}: {self.name} has no column {name!r}; it has"
                            f" {', '.join(table.c.keys())}"
                        )
                    names[name] = None
        return list(table.c) if every else [table.c[name] for name in names]

    def _row(self, values: Values, number: int) -> Row | Refusal:
        try:
            key = check_key(text_of(self._mapping.key, "key", values))
        except (LockLedgerError, TypeError, ValueError) as fault:
            row, _ = self._id(values, number, None)
            return Refusal(row=row, key=None, reason=why(fault))
        row, turn = self._id(values, number, key)
        try:
            facts = self._facts(values, row)
        except (LockLedgerError, TypeError, ValueError) as fault:
            return Row(key, "", "", row, "", why(fault), turn)
        taken_at = facts["taken_at"]
        ends = [facts[name] for name in ("expires_at", "ended_at") if facts.get(name) is not None]
        place = taken_at + min(ends, default=_UNENDED)
        return Row(key, place, taken_at, row, json_to_text(facts), turn=turn)

    def _id(self, values: Values, number: int, key: str | None) -> tuple[RowId, float | str | None]:
        """The row's id, and its turn among rows of the same instants: none where it has no id."""
        try:
            found = key if self._mapping.row is None else value_of(self._mapping.row, "row", values)
            row = row_id(found, number)
        except (TypeError, ValueError):
            found, row = None, row_id(None, number)
        return row, None if found is None else turn_of(row)

    def _facts(self, values: Values, row: RowId) -> dict[str, Any]:
        """What a `PastHold` is made of, as JSON can keep it."""
        mapping = self._mapping
        facts: dict[str, Any] = {"holder": check_holder(text_of(mapping.holder, "holder", values))}
        names = ["taken_at", "expires_at"]
        if isinstance(mapping, LocksWithHistory):
            names.append("ended_at")
            for name, what in (("ended_by", "actor"), ("taken_over_from", "holder")):
                who = text_of(getattr(mapping, name), name, values)
                facts[name] = None if who in (None, "") else check_holder(who, what=what)
            for name in ("end_reason", "reason"):
                facts[name] = check_reason(text_of(getattr(mapping, name), name, values))
        for name in names:
            facts[name] = instant_of(getattr(mapping, name), name, values, mapping.zone)
        if facts["taken_at"] is None:
            raise ValueError("it does not say when it was taken")
        facts["metadata"] = metadata_of(mapping.metadata, values, self.name, row)
        return facts


def _checked_source(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"source must be a str, not {shown(name)}")
    try:
        return check_holder(name)
    except LockLedgerError as fault:
        raise ValueError(f"source={shown(name)}: {fault}") from None


def _hold(row: Row) -> PastHold:
    facts = json.loads(row.text)
    for name in ("taken_at", "expires_at", "ended_at"):
        if facts.get(name) is not None:
            facts[name] = datetime.fromisoformat(facts[name])
    return PastHold(row.id, **facts)


def _as_it_was(there: Sequence[LockEvent], now: datetime) -> Callable[[int], str]:
    """When the event of a version was imported: as the ledger says it where it has it, else now."""
    known: dict[int, str] = {}
    for event in there:
        mark = event.metadata.get(IMPORT)
        when = mark.get("when") if isinstance(mark, dict) else None
        if isinstance(when, str):
            known[event.originator_version] = when
    text = now.isoformat()
    return lambda version: known.get(version, text)


@contextmanager
def _opened(database: Database, own: Opened) -> Iterator[tuple[Connection, bool]]:
    """A connection to read from, and whether rows may be fetched a page at a time."""
    if database is None:
        with own() as connection, snapshot(connection):
            yield connection, True
    elif isinstance(database, str | URL):
        engine = create_engine(_checked(database))
        try:
            with engine.connect() as connection:
                yield connection, True
        finally:
            engine.dispose()
    elif isinstance(database, Engine | AsyncEngine):
        found = database.sync_engine if isinstance(database, AsyncEngine) else database
        with found.connect() as connection:
            yield connection, not _by_itself(connection)
    elif isinstance(database, Connection):
        yield database, not _by_itself(database)
    elif isinstance(database, AsyncConnection):
        inner = cast(Connection, database.sync_connection)
        yield inner, not _by_itself(inner)
    else:
        raise TypeError(
            f"database must be a URL, an engine or a connection of SQLAlchemy, not {shown(database)}"
        )


def _checked(database: str | URL) -> URL:
    """The URL, with our driver where it is PostgreSQL or SQLite. A file that is not there is not made: `ValueError`."""
    url = make_url(database)
    backend = url.drivername.partition("+")[0]
    if backend not in (POSTGRESQL, "postgres", SQLITE):
        return url
    url = checked_url(url)
    path = url.database or ""
    if backend == SQLITE and path and not path.startswith("file:") and not Path(path).is_file():
        raise ValueError(f"there is no file {path}; name the database with the tables")
    return url


def _by_itself(connection: Connection) -> bool:
    """Whether each statement is its own transaction, in which no cursor of the server stays open."""
    return getattr(connection.connection.dbapi_connection, "autocommit", None) is True
