"""How a row of a projection differs from the one that follows from the events."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID

from lockledger.adapters.scans import AUDIT_TRAIL, HEADS, HOLDS, Row, form_of
from lockledger.domain.errors import shown
from lockledger.domain.faults import Fault

Projected = Literal["head", "audit", "hold"]
Expected = dict[str, Any]

COLUMNS: Final[Mapping[Projected, Sequence[str]]] = {
    "head": HEADS,
    "audit": AUDIT_TRAIL,
    "hold": HOLDS,
}
_JSON: Final = {"metadata", "before", "after"}


@dataclass(frozen=True, slots=True)
class Difference:
    """A row of a projection that is missing, that follows from no event, or that says something else than it must.

    `number` is the entry's version, or the hold's token. `expected` is the row as projections make it, `found` as it is
    read; `columns` are those in which the two differ.
    """

    table: Projected
    lock_id: UUID
    key: str | None
    number: int | None
    position: int | None
    expected: Expected | None
    found: Row | None
    columns: Sequence[str] = ()


def differing(table: Projected, right: Row, found: Row) -> list[str]:
    """The columns in which two rows differ; JSON differs by its value and not by how it is written."""
    columns = zip(COLUMNS[table], right, found, strict=True)
    return [name for name, one, other in columns if not _same(name, one, other)]


def _same(name: str, right: Any, there: Any) -> bool:
    if right == there and type(right) is type(there):
        return True
    if name not in _JSON or not isinstance(right, str) or not isinstance(there, str):
        return False
    try:
        return _value_of(right) == _value_of(there)
    except (ValueError, RecursionError):
        return False


def _value_of(text: str) -> str:
    """The value of JSON, written in one way; unlike Python's ==, it tells 1, 1.0 and true apart, and the sign of zero."""
    return json.dumps(json.loads(text), sort_keys=True)


def fault_of(difference: Difference, dialect: str) -> Fault:
    """The difference as a fault for a person to read."""
    table, columns = difference.table, difference.columns
    kind = {
        (False, True): f"{table}_extra",
        (True, False): f"{table}_missing",
        (True, True): f"{table}_different",
    }[difference.expected is not None, difference.found is not None]
    if kind == "audit_different" and list(columns) == ["position"]:
        kind = "position"
    expected = found = "no row"
    if difference.expected is not None:
        row = dict(
            zip(COLUMNS[table], form_of(dialect, COLUMNS[table])(difference.expected), strict=True)
        )
        expected = _told(row, columns or _TOLD[table])
    if difference.found is not None:
        found = _told(
            dict(zip(COLUMNS[table], difference.found, strict=True)), columns or _TOLD[table]
        )
    return Fault.model_validate(
        {
            "kind": kind,
            "key": difference.key,
            "lock_id": difference.lock_id,
            "version": difference.number,
            "position": difference.position,
            "expected": expected,
            "found": found,
        }
    )


_TOLD: Final[Mapping[Projected, Sequence[str]]] = {
    "head": ("version", "holder", "token"),
    "audit": ("action", "holder", "token", "position"),
    "hold": ("holder", "taken_at", "ended_at", "ended_by"),
}


def _told(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    return ", ".join(f"{name}={_value(row[name])}" for name in columns)


def _value(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else shown(value)
