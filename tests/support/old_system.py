"""Lock tables of another system, in the two shapes that they have, in the ledger's own database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, DateTime, Integer, MetaData, Table, Text, column, insert, text

from lockledger import LiveLocks, LocksWithHistory
from support.databases import Database
from support.stories import at

_TABLES = MetaData()
LIVE = Table(
    "run_lock",
    _TABLES,
    Column("lock_key", Text),
    Column("owner", Text),
    Column("taken_at", DateTime(timezone=True)),
    Column("expires_at", DateTime(timezone=True)),
)
HISTORY = Table(
    "version_lock",
    _TABLES,
    Column("id", Integer, primary_key=True),
    Column("version_id", Integer),
    Column("locked_by", Integer),
    Column("locked_at", DateTime(timezone=True)),
    Column("released_at", DateTime(timezone=True)),
    Column("valid_until", DateTime(timezone=True)),
    Column("taken_over_from", Integer),
    Column("reason", Text),
)

RUN_LOCKS = LiveLocks(
    table="run_lock", key="lock_key", holder="owner", taken_at="taken_at", expires_at="expires_at"
)
VERSION_LOCKS = LocksWithHistory(
    "version_lock",
    key="version:{version_id}",
    holder="user:{locked_by}",
    taken_at="locked_at",
    ended_at="released_at",
    expires_at="valid_until",
    taken_over_from="user:{taken_over_from}",
    reason="reason",
    timezone="UTC",
)


class OldSystem:
    """The tables of the system before, in the ledger's own database. Times are seconds since T0."""

    def __init__(self, database: Database) -> None:
        self.engine = database.engine()
        _TABLES.create_all(self.engine)
        # SQLite keeps no offset with an instant.
        self._zoned = database.dialect == "postgresql"
        self.live = RUN_LOCKS if self._zoned else LiveLocks(**_facts(RUN_LOCKS), timezone="UTC")
        self.history = VERSION_LOCKS
        self.table = HISTORY
        self.admin = column("admin", Text)

    def stored(self, seconds: float) -> Any:
        """An instant as the driver takes it."""
        return at(seconds) if self._zoned else at(seconds).strftime("%Y-%m-%d %H:%M:%S.%f")

    def lock(self, key: str | None, owner: str | None, taken: Any, expires: Any = None) -> None:
        self._insert(LIVE, lock_key=key, owner=owner, taken_at=taken, expires_at=expires)

    def hold(
        self, row: int, version: int | None, by: int, taken: Any, released: Any = None, **more: Any
    ) -> None:
        values = {"version_id": version, "locked_by": by, "locked_at": taken}
        self._insert(HISTORY, id=row, released_at=released, **values, **more)

    def _insert(self, table: Table, **values: Any) -> None:
        for name, value in values.items():
            if isinstance(table.c[name].type, DateTime) and isinstance(value, int | float):
                values[name] = at(value)
        with self.engine.begin() as connection:
            connection.execute(insert(table), values)

    def run(self, sql: str, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(sql), values)


def _facts(mapping: LiveLocks) -> dict[str, Any]:
    names = ("table", "key", "holder", "taken_at", "expires_at")
    return {name: getattr(mapping, name) for name in names}
