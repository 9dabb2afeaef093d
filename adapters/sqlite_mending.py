"""Mending on SQLite: in a write transaction, which keeps everybody else out and sees everything there is."""

from typing import Final

from lockledger.adapters.differences import Difference, Projected
from lockledger.adapters.identifiers import SQLITE
from lockledger.adapters.mending import Tally, forms, replace, right_row
from lockledger.adapters.repairs import Repairs, key_of

_KEPT_AT_MOST: Final = 10_000


class SQLiteMender:
    """Repairs in the open write transaction."""

    def __init__(self, repairs: Repairs, tally: Tally) -> None:
        self._repairs = repairs
        self._tally = tally
        self._forms = forms(SQLITE)
        self._wrong: dict[Projected, list[Difference]] = {"audit": [], "hold": []}

    def mend(self, difference: Difference) -> None:
        """Repairs it, or keeps it until the triggers are out of the way."""
        table, right = difference.table, right_row(self._forms, difference)
        if table == "head":
            self._repairs.settle_head(difference.lock_id)
        elif (
            right is not None
            and difference.found is None
            and self._repairs.there(table, key_of(table, right)) is None
        ):
            self._repairs.insert(table, right)
        else:
            self._wrong[table].append(difference)
            if len(self._wrong[table]) >= _KEPT_AT_MOST:
                self._replace(table)
            return
        self._tally.repaired(difference)

    def finish(self) -> None:
        """Repairs what was kept."""
        for table in self._wrong:
            self._replace(table)

    def _replace(self, table: Projected) -> None:
        if not self._wrong[table]:
            return
        with self._repairs.unprotected(table):
            for difference in self._wrong[table]:
                replace(self._repairs, difference, right_row(self._forms, difference))
                self._tally.repaired(difference)
        self._wrong[table].clear()
