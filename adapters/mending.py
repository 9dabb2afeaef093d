"""What both databases share when differences are mended: what was done, and how a wrong row is replaced."""

from collections.abc import Callable, Mapping
from typing import Any

from lockledger.adapters.differences import COLUMNS, Difference, Projected, fault_of
from lockledger.adapters.repairs import Repairs, key_of
from lockledger.adapters.scans import Row, form_of
from lockledger.domain.faults import FaultCount

Forms = Mapping[Projected, Callable[[Mapping[str, Any]], Row]]


class Tally:
    """What was done so far, in rows, and which differences are left. `needs_owner`: the role does not own the tables."""

    def __init__(self, dialect: str) -> None:
        self.inserted = self.corrected = self.removed = 0
        self.needs_owner = False
        self.left = FaultCount()
        self._dialect = dialect

    def repaired(self, difference: Difference) -> None:
        """A difference that is no more."""
        if difference.found is None:
            self.inserted += 1
        elif difference.expected is None:
            self.removed += 1
        else:
            self.corrected += 1

    def leave(self, difference: Difference) -> None:
        """A difference that stays."""
        self.left.add(fault_of(difference, self._dialect))

    def add(self, more: "Tally") -> None:
        """All that another tally says."""
        self.inserted += more.inserted
        self.corrected += more.corrected
        self.removed += more.removed
        self.needs_owner = self.needs_owner or more.needs_owner
        self.left.extend(more.left)


def forms(dialect: str) -> Forms:
    """Brings each projection's rows into the form in which they are read."""
    return {table: form_of(dialect, columns) for table, columns in COLUMNS.items()}


def right_row(of: Forms, difference: Difference) -> Row | None:
    """The row that should be there."""
    return None if difference.expected is None else of[difference.table](difference.expected)


def replace(repairs: Repairs, difference: Difference, right: Row | None) -> None:
    """Puts the right row in the place of a wrong one, or nothing, while the table is unprotected."""
    present = right if difference.found is None else difference.found
    if present is not None:
        repairs.remove(difference.table, key_of(difference.table, present))
    if right is not None:
        repairs.insert(difference.table, right)
