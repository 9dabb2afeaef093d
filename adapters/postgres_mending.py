"""Mending on PostgreSQL, beside everybody else: nobody is kept waiting for longer than a short transaction.

Rows that are missing are copied in. Heads are settled one by one, each under its row's lock, which is only taken when it
is free. Only what is wrong in an append-only table needs the table, for a few rows at a time, and the owner's role.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from time import monotonic
from types import TracebackType
from typing import Final, Self

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lockledger.adapters.copying import Copying
from lockledger.adapters.differences import COLUMNS, Difference, Projected
from lockledger.adapters.failures import LOCK_NOT_AVAILABLE, NOT_PERMITTED, sqlstate
from lockledger.adapters.mending import Tally, forms, replace, right_row
from lockledger.adapters.repairs import Repairs, key_of
from lockledger.adapters.scans import Row
from lockledger.adapters.store import EventStore

REPLACED_AT_ONCE: Final = 50
"""Rows in one transaction that keeps whoever writes to their table waiting."""

PATIENCE_SECONDS: Final = 30.0
"""How long a repair is tried again when transactions are in its way."""

_KEPT_AT_MOST: Final = 10_000
_DEADLOCK: Final = "40P01"


class PostgresMender:
    """Repairs on a connection of its own, opened for the first one. Use it as a context manager."""

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Connection]],
        store: EventStore,
        tally: Tally,
        sleep: Callable[[float], None],
        *,
        copying: bool,
    ) -> None:
        self._opened = opened
        self._store = store
        self._tally = tally
        self._sleep = sleep
        self._copying = copying
        self._forms = forms(store.dialect)
        self._open = ExitStack()
        self._connection: Connection | None = None
        self._transaction = ExitStack()
        self._entries: Copying | None = None
        self._missing: dict[Projected, list[Row]] = {"hold": [], "head": []}
        self._wrong: list[Difference] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._open:
            if error is not None and self._entries is not None:
                self._entries.abandon(error)
            self._transaction.__exit__(kind, error, trace)

    def mend(self, difference: Difference) -> None:
        """Repairs it, or keeps it until enough others are there."""
        table, right = difference.table, right_row(self._forms, difference)
        if right is None or difference.found is not None:
            self._wrong.append(difference)
        elif not self._copying:
            self._insert(difference, right)
        elif table == "audit":
            self._copy_of_entries().write(right)
        else:
            self._missing[table].append(right)
        if len(self._wrong) + sum(map(len, self._missing.values())) >= _KEPT_AT_MOST:
            self.finish()

    def finish(self) -> None:
        """Repairs what was kept, and commits all of it."""
        if self._entries is not None:
            self._entries.close()
            self._transaction.close()
            self._tally.inserted += self._entries.rows
            self._entries = None
        for table, rows in self._missing.items():
            self._copy(table, rows)
            rows.clear()
        for difference in self._wrong:
            if difference.table == "head":
                self._settle(difference)
        for table in ("audit", "hold"):
            wrong = [each for each in self._wrong if each.table == table]
            for start in range(0, len(wrong), REPLACED_AT_ONCE):
                self._replace(table, wrong[start : start + REPLACED_AT_ONCE])
        self._wrong.clear()

    def _writing(self) -> Connection:
        if self._connection is None:
            self._connection = self._open.enter_context(self._opened())
        return self._connection

    def _copy_of_entries(self) -> Copying:
        """Stays open while entries are made, so that making and inserting them go on at the same time."""
        if self._entries is None:
            connection = self._writing()
            self._transaction.enter_context(self._store.transaction(connection))
            self._entries = Copying(connection, self._store.tables.audit_trail, COLUMNS["audit"])
        return self._entries

    def _copy(self, table: Projected, rows: Sequence[Row]) -> None:
        if not rows:
            return
        connection = self._writing()
        repairs = Repairs(self._store, connection)
        with self._store.transaction(connection):
            copy = Copying(connection, repairs.tables[table], COLUMNS[table])
            try:
                copy.write_all(rows)
                copy.close()
            except BaseException as error:
                copy.abandon(error)
                raise
        self._tally.inserted += copy.rows

    def _insert(self, difference: Difference, right: Row) -> None:
        """One row, with a look at what is there under its key."""
        table, connection = difference.table, self._writing()
        repairs = Repairs(self._store, connection)
        with self._store.transaction(connection):
            there = repairs.there(table, key_of(table, right))
            if there is None:
                repairs.insert(table, right)
        if there is None:
            self._tally.repaired(difference)
        elif there != right:
            self._wrong.append(difference)

    def _settle(self, difference: Difference) -> None:
        connection = self._writing()
        repairs = Repairs(self._store, connection)

        def settle() -> bool:
            with self._store.transaction(connection):
                return repairs.settle_head(difference.lock_id)

        if self._patiently(settle):
            self._tally.repaired(difference)
        else:
            self._tally.leave(difference)

    def _replace(self, table: Projected, wrong: Sequence[Difference]) -> None:
        connection = self._writing()
        repairs = Repairs(self._store, connection)

        def replace_all() -> bool:
            with self._store.transaction(connection), repairs.unprotected(table):
                for difference in wrong:
                    replace(repairs, difference, right_row(self._forms, difference))
            return True

        done = not self._tally.needs_owner and self._patiently(replace_all)
        for difference in wrong:
            (self._tally.repaired if done else self._tally.leave)(difference)

    def _patiently(self, repair: Callable[[], bool]) -> bool:
        """Tries until it is done; `False` when others are in the way for too long, or the role may not do it.

        Pauses between are long beside the time for which a try may hold others up.
        """
        ends = monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if repair():
                    return True
            except DBAPIError as error:
                state = sqlstate(error)
                if state == NOT_PERMITTED:
                    self._tally.needs_owner = True
                    return False
                if state not in (LOCK_NOT_AVAILABLE, _DEADLOCK):
                    raise
            if monotonic() > ends:
                return False
            self._sleep(random.uniform(0.05, 0.25))
