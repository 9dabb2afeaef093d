"""One ledger's tables in the order of its locks, or of positions, a page at a time: memory does not grow with them.

Rows come as the database keeps them: ids and instants as text, JSON as it was written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Table, Uuid

from lockledger.adapters.identifiers import POSTGRESQL, qualified
from lockledger.adapters.schema import POSITION_SEQUENCE, Tables, declared
from lockledger.adapters.statements import run
from lockledger.adapters.store import EventStore
from lockledger.projections import audit_trail, current_holders, holds
from lockledger.projections.columns import Instant, Json, instant_to_text

PAGE: Final = 2000
Row = tuple[Any, ...]
Form = Callable[[Mapping[str, Any]], Row]
Agreement = Callable[[Mapping[str, Any], Row], bool]

EVENTS: Final = ("lock_id", "version", "position", "topic", "state", "hash")
HEADS: Final = current_holders.COLUMNS
AUDIT_TRAIL: Final = (*audit_trail.COLUMNS, "position")
HOLDS: Final = holds.COLUMNS


@dataclass(frozen=True, slots=True)
class Between:
    """The locks whose ids are in (after, upto], in the order of their bytes; `None`: no bound."""

    after: UUID | None = None
    upto: UUID | None = None


EVERYTHING: Final = Between()


class Scans:
    """Reads on one connection, which somebody holds in one snapshot."""

    def __init__(self, store: EventStore, connection: Connection) -> None:
        self._connection = connection
        self._ledger = store.ledger
        self._sql = _statements(store.dialect, store.schema)
        self._id = str if store.dialect == POSTGRESQL else _digits

    def events(self, between: Between = EVERYTHING) -> Iterator[Row]:
        """The `EVENTS` columns, by lock and version."""
        return chain.from_iterable(self._by_lock("events", between, numbered=True))

    def heads(self, between: Between = EVERYTHING) -> Iterator[Row]:
        """The `HEADS` columns, by lock."""
        return chain.from_iterable(self._by_lock("heads", between, numbered=False))

    def audit_trail(self, between: Between = EVERYTHING) -> Iterator[Row]:
        """The `AUDIT_TRAIL` columns, by lock and version."""
        return chain.from_iterable(self._by_lock("audit trail", between, numbered=True))

    def holds(self, between: Between = EVERYTHING) -> Iterator[Row]:
        """The `HOLDS` columns, by lock and token."""
        return chain.from_iterable(self._by_lock("holds", between, numbered=True))

    def leaves(self, upto: int) -> Iterator[tuple[int, Any]]:
        """Position and hash of each event up to a position, in position order, none passed over where two have one."""
        after: Row = (-(2**63), self._id(UUID(int=0)), -(2**63))
        while page := self._page("leaves", {"upto": upto, **_place(after)}):
            for position, _, _, event_hash in page:
                yield position, event_hash
            if len(page) < PAGE:
                return
            after = tuple(page[-1][:3])

    def doubled_positions(self, limit: int) -> list[Row]:
        """Positions that several events have, and how many have each; at most `limit`."""
        values = {"ledger": self._ledger, "limit": limit}
        return [tuple(row) for row in run(self._connection, self._sql["doubled"], values)]

    def count_events(self) -> int:
        """How many events the ledger has."""
        return int(run(self._connection, self._sql["count"], {"ledger": self._ledger}).scalar_one())

    def newest_position(self) -> int:
        """The position of the ledger's newest event, 0 when there is none."""
        found = run(self._connection, self._sql["newest"], {"ledger": self._ledger}).scalar()
        return int(found or 0)

    def last_given_position(self) -> int | None:
        """The last position that was given to an event, asked after the snapshot had begun; `None`: nobody knows."""
        last = run(self._connection, self._sql["last given"]).scalar()
        return None if last is None else int(last)

    def _by_lock(self, table: str, between: Between, *, numbered: bool) -> Iterator[Sequence[Row]]:
        """The pages of a table."""
        bounds = {
            "after": None if between.after is None else self._id(between.after),
            "upto": None if between.upto is None else self._id(between.upto),
        }
        first = f"{table} from {'a lock' if between.after else 'the first'}"
        following = f"{table} from a row"
        if between.upto is not None:
            first, following = f"{first} up to", f"{following} up to"
        page = self._page(first, bounds)
        while page:
            yield page
            if len(page) < PAGE:
                return
            last = page[-1]
            place = {"lock": last[0], "number": last[1] if numbered else None}
            page = self._page(following, bounds | place)

    def _page(self, name: str, values: Mapping[str, Any]) -> Sequence[Any]:
        return run(self._connection, self._sql[name], {"ledger": self._ledger, **values}).all()


def _digits(lock_id: UUID) -> str:
    return lock_id.hex


def _place(row: Row) -> dict[str, Any]:
    return {"position": row[0], "lock": row[1], "number": row[2]}


def form_of(dialect: str, columns: Sequence[str]) -> Form:
    """Makes a function that brings a projection's row into the form in which these columns are read."""
    id_text = _cached_text if dialect == POSTGRESQL else _cached_digits
    instant_text = _postgres_text if dialect == POSTGRESQL else instant_to_text
    pick = itemgetter(*columns)
    lock = columns.index("lock_id")
    instants = _instants(columns)

    def form(row: Mapping[str, Any]) -> Row:
        values = list(pick(row))
        values[lock] = id_text(values[lock])
        known = text = None
        for place in instants:
            instant = values[place]
            if instant is not None:
                if instant is not known:
                    known, text = instant, instant_text(instant)
                values[place] = text
        return tuple(values)

    return form


def agreement_of(dialect: str, columns: Sequence[str]) -> Agreement:
    """Makes a function that tells whether a projection's row is what was read of these columns, of the same lock.

    PostgreSQL writes an instant in one way only, and reading it takes a tenth of the time of writing it.
    """
    if dialect != POSTGRESQL:
        form = form_of(dialect, columns)
        return lambda row, found: form(row) == found
    _, *compared = columns
    pick, instants = itemgetter(*compared), _instants(compared)

    def agree(row: Mapping[str, Any], found: Row) -> bool:
        right: Row = pick(row)
        _, *values = found
        try:
            for place in instants:
                if values[place] is not None:
                    values[place] = datetime.fromisoformat(values[place])
        except ValueError:
            return False  # in no year that a datetime has
        return right == tuple(values)

    return agree


def _instants(columns: Sequence[str]) -> list[int]:
    return [place for place, name in enumerate(columns) if name.endswith("_at")]


@lru_cache(maxsize=16)
def _cached_text(lock_id: UUID) -> str:
    return str(lock_id)


@lru_cache(maxsize=16)
def _cached_digits(lock_id: UUID) -> str:
    return lock_id.hex


def _postgres_text(instant: datetime) -> str:
    """An instant of UTC as PostgreSQL writes it: no zeros at the end of a fraction."""
    text = instant.isoformat(" ")
    return f"{text[:-6].rstrip('0')}+00" if instant.microsecond else text[:-3]


@lru_cache(maxsize=256)
def _statements(dialect: str, schema: str | None) -> dict[str, str]:
    mark = _PSYCOPG if dialect == POSTGRESQL else _SQLITE
    declared_tables = declared(dialect, schema)
    tables = {
        "events": (declared_tables.events, EVENTS, "version"),
        "heads": (declared_tables.current_holders, HEADS, None),
        "audit trail": (declared_tables.audit_trail, AUDIT_TRAIL, "version"),
        "holds": (declared_tables.holds, HOLDS, "token"),
    }
    events = named(declared_tables.events)
    statements = {
        "count": f"SELECT count(*) FROM {events} WHERE ledger = {mark['ledger']}",
        "doubled": f"SELECT position, count(*) FROM {events} WHERE ledger = {mark['ledger']}"
        f" GROUP BY position HAVING count(*) > 1 ORDER BY position LIMIT {mark['limit']}",
        "newest": f"SELECT max(position) FROM {events} WHERE ledger = {mark['ledger']}",
        "last given": _last_given(dialect, declared_tables),
        "leaves": f"SELECT t.position, t.lock_id, t.version, t.hash FROM {events} AS t"
        f" WHERE t.ledger = {mark['ledger']} AND t.position <= {mark['upto_position']}"
        f" AND t.position >= {mark['position']}"
        f" AND (t.position, t.lock_id, t.version) > ({mark['position']}, {mark['lock']}, {mark['number']})"
        f" ORDER BY t.position, t.lock_id, t.version LIMIT {PAGE}",
    }
    for name, (table, columns, number) in tables.items():
        statements |= _scans(name, dialect, table, columns, number, mark)
    return statements


def _scans(
    name: str,
    dialect: str,
    table: Table,
    columns: Sequence[str],
    number: str | None,
    mark: Mapping[str, str],
) -> dict[str, str]:
    """A table's first page and those that follow, with and without bounds."""
    listed = ", ".join(selected(dialect, table, column) for column in columns)
    # Qualified: PostgreSQL takes a bare name in ORDER BY for the text that is selected, and would sort.
    order = "t.lock_id" if number is None else f"t.lock_id, t.{number}"
    begin = f"SELECT {listed} FROM {named(table)} AS t WHERE t.ledger = {mark['ledger']}"
    end = f" ORDER BY {order} LIMIT {PAGE}"
    upto = f" AND t.lock_id <= {mark['upto']}"
    following = (
        f" AND t.lock_id > {mark['lock']}"
        if number is None
        else f" AND (t.lock_id, t.{number}) > ({mark['lock']}, {mark['number']})"
    )
    starts = {
        "the first": "",
        "a lock": f" AND t.lock_id > {mark['after']}",
        "a row": following,
    }
    return {
        f"{name} from {start}{bounded}": f"{begin}{condition}{upto if bounded else ''}{end}"
        for start, condition in starts.items()
        for bounded in ("", " up to")
    }


def _last_given(dialect: str, tables: Tables) -> str:
    if dialect == POSTGRESQL:
        sequence = qualified(POSITION_SEQUENCE, dialect, tables.events.schema)
        return f"SELECT pg_sequence_last_value('{sequence}'::regclass)"
    return f"SELECT seq FROM sqlite_sequence WHERE name = '{tables.events.name}'"


def selected(dialect: str, table: Table, name: str) -> str:
    """A column of the table `t`, as rows are read."""
    kind = table.c[name].type
    as_text = dialect == POSTGRESQL and (isinstance(kind, Instant | Json | Uuid))
    return f't."{name}"::text' if as_text else f't."{name}"'


def named(table: Table) -> str:
    """The table as SQL names it."""
    return f'"{table.name}"' if table.schema is None else f'"{table.schema}"."{table.name}"'


_PSYCOPG = {
    "ledger": "%(ledger)s",
    "limit": "%(limit)s",
    "lock": "%(lock)s::uuid",
    "number": "%(number)s::bigint",
    "after": "%(after)s::uuid",
    "upto": "%(upto)s::uuid",
    "upto_position": "%(upto)s::bigint",
    "position": "%(position)s::bigint",
}
_SQLITE = {name: f":{'upto' if name == 'upto_position' else name}" for name in _PSYCOPG}
