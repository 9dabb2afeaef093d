"""What an import reads: rows of any kind, sorted by lock in a temporary file, so that memory does not grow with them."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from lockledger.adapters.store import EventStore
from lockledger.domain.events import LockEvent
from lockledger.domain.past_holds import RowId


class Refusal(BaseModel):
    """Something that was not imported: which row of the source, of which lock, and why.

    `row` is the row's id in its table, or its line in a file; `key` is `None` where the row has none that can be one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: int | str
    key: str | None
    reason: str

    def __str__(self) -> str:
        where = "" if self.key is None else f" of {self.key!r}"
        return f"row {self.row!r}{where}: {self.reason}"


class Row(NamedTuple):
    """One row of a lock. `place` orders it in its lock, `rank` among all rows; `fault`: why it cannot be used.

    `turn` orders rows of the same place, and then their ids; those without a turn stay as they were read.
    """

    key: str
    place: int | str
    rank: int | str
    id: RowId
    text: str
    fault: str | None = None
    turn: float | str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """The events that a lock's rows tell of, and the rank of each among all that is imported.

    `needed`: so many of them, from the first, must be in the ledger for the lock to be there already.
    """

    events: Sequence[LockEvent]
    ranks: Sequence[Any]
    needed: int


class Origin(ABC):
    """Where an import comes from: how it is read, and what its rows mean."""

    name: str
    events_of_a_row: int
    """The most events that one row tells of."""

    @abstractmethod
    def rows(self) -> Iterator[Row | Refusal]:
        """All rows, in any order."""

    @abstractmethod
    def told(
        self,
        store: EventStore,
        key: str,
        rows: Sequence[Row],
        there: Sequence[LockEvent],
        now: datetime,
    ) -> Told:
        """The events of one lock; `there` are those that the ledger has already. Raises `Unfit`."""


@dataclass(frozen=True, slots=True)
class Life:
    """All rows of one lock, in their order."""

    key: str
    rows: Sequence[Row]


class Spool:
    """Rows by lock, in a temporary file that is gone when it is closed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.count = 0
        connection.execute(
            "CREATE TABLE rows (key TEXT, place, turn, number INTEGER, rank, id, text TEXT, fault TEXT)"
        )

    def fill(self, rows: Iterable[Row | Refusal], refuse: Callable[[Refusal], None]) -> None:
        """Keeps all rows, but for those that belong to no lock."""
        self._connection.executemany(
            "INSERT INTO rows (key, place, rank, id, text, fault, turn, number)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            self._kept(rows, refuse),
        )
        self._connection.execute("CREATE INDEX by_lock ON rows (key, place, turn, number)")

    def _kept(
        self, rows: Iterable[Row | Refusal], refuse: Callable[[Refusal], None]
    ) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            self.count += 1
            if isinstance(row, Refusal):
                refuse(row)
            else:
                yield *row, self.count

    def lives(self) -> Iterator[Life]:
        """The locks, the one with the lowest rank first."""
        keys = self._connection.execute("SELECT key FROM rows GROUP BY key ORDER BY min(rank), key")
        for (key,) in keys:
            rows = self._connection.execute(
                "SELECT key, place, rank, id, text, fault, turn FROM rows WHERE key = ?"
                " ORDER BY place, turn, CASE WHEN turn IS NOT NULL THEN id END, number",
                (key,),
            )
            yield Life(key, [Row(*row) for row in rows])


@contextmanager
def spool() -> Iterator[Spool]:
    """An empty spool."""
    # Without a name SQLite keeps it in a file of its own making, which no other process can open.
    with closing(sqlite3.connect("", isolation_level=None)) as connection:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE"):
            connection.execute(f"PRAGMA {setting}").close()
        connection.execute("BEGIN")
        yield Spool(connection)
