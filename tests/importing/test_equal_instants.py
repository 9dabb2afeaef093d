"""Rows of equal instants follow one another as their ids say, however they come to be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from lockledger import LockLedger, LocksWithHistory
from support.ledgers import Ledgers, unchanged
from support.old_system import OldSystem
from support.stories import at

T = "2026-01-01T00:00:00Z"
HIST = LocksWithHistory(
    table="hist",
    key="k",
    holder="h",
    taken_at="t",
    ended_at="e",
    taken_over_from="tof",
    reason="reason",
)
CHAIN: dict[Any, tuple[str | None, str | None, str | None]] = {
    9: (None, "a", T),
    10: ("a", "b", T),
    11: ("b", "c", T),
    12: ("c", "d", None),
}
"""Who took it over from whom, and until when, by the row's id."""


def fill(old: OldSystem, ids: list[Any], kind: str = "INTEGER") -> None:
    """The chain, in the order of the ids; `None` is an id that is missing."""
    old.run(f"CREATE TABLE hist (id {kind}, k TEXT, h TEXT, t TEXT, e TEXT, tof TEXT, reason TEXT)")
    for number, row in zip(ids, [10, 12, 9, 11], strict=True):
        over, by, ended = CHAIN[row]
        old.run(
            "INSERT INTO hist VALUES (:id, 'z', :h, :t, :e, :tof, 'ill')",
            id=number,
            h=by,
            t=T,
            e=ended,
            tof=over,
        )


def holders(ledger: LockLedger) -> list[str]:
    return [entry.holder for entry in ledger.history("z") if entry.action != "LockReleased"]


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        ("INTEGER", [10, 12, 9, 11]),
        ("NUMERIC(10, 2)", [10, 12, 9, 11]),
        ("TEXT", ["10", "12", "9", "11"]),
        ("TEXT", ["b", "d", "a", "c"]),
        ("TEXT", ["10 b", "12", "9", "10 c"]),
        ("TEXT", [f"1{'0' * 20}{last}" for last in (1, 3, 0, 2)]),
    ],
)
def test_ids_order_rows_of_equal_instants(
    ledger: LockLedger, old: OldSystem, kind: str, ids: list[Any]
) -> None:
    fill(old, ids, kind)
    report = ledger.import_locks(HIST)
    assert report.refused == ()
    assert holders(ledger) == ["a", "b", "c", "d"]


def test_rows_without_ids_stay_as_they_are_read(ledger: LockLedger, old: OldSystem) -> None:
    old.run("CREATE TABLE hist (id INTEGER, k TEXT, h TEXT, t TEXT, e TEXT, tof TEXT, reason TEXT)")
    for number in range(12):
        old.run("INSERT INTO hist (k, h, t, e) VALUES ('z', :h, :t, :t)", h=f"by {number}", t=T)
    assert ledger.import_locks(HIST).ok
    assert holders(ledger) == [f"by {number}" for number in range(12)]


def test_a_table_that_is_read_in_another_order_is_there_already(
    ledgers: Ledgers, ledger: LockLedger, old: OldSystem
) -> None:
    for row, by in ((1, 1), (2, 2), (3, 3)):
        old.hold(row, 7, by, 0, 0 if row < 3 else None)
    first = ledger.import_locks(old.history)
    assert (first.locks, first.events) == (1, 5)
    old.run("DELETE FROM version_lock WHERE id = 1")
    with old.engine.begin() as connection:
        connection.execute(text("UPDATE version_lock SET reason = reason"))
    old.hold(1, 7, 1, 0, 0)
    backwards = replace(
        old.history, table=old.table.select().order_by(old.table.c.id.desc()).subquery("v")
    )
    for source in (old.history, replace(backwards, source="version_lock")):
        with unchanged(ledgers):
            again = ledger.import_locks(source)
        assert (again.refused, again.events, again.unchanged) == ((), 0, 1)
    assert ledger.history("version:7")[-1].occurred_at == at(0)
