"""The contract's table of `take`, cell by cell, through the door of a ledger: each cell has a lock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import pytest

from lockledger import Grant, HoldChanged, LockedByOther, LockLedger
from lockledger.domain.lock import IfMine
from support.ledgers import SettableClock
from support.situations import ANOTHERS, FREE, MINE, RUN_OUT_UNRECORDED, SITUATIONS, Told, told
from support.stories import at

Expected = Literal["none", "the actual one", "of the past", "of the future", "of the other state"]
IF_MINE: tuple[IfMine, ...] = get_args(IfMine)
FITTING: tuple[Expected, ...] = ("none", "the actual one")
STALE: tuple[Expected, ...] = ("of the past", "of the future", "of the other state")
REASONS = (None, "the deadline")


@dataclass(frozen=True)
class Cell:
    """One situation and one way to ask."""

    situation: str
    if_mine: IfMine
    expected: Expected
    reason: str | None

    def expected_token(self, lock: Told) -> int | None:
        tokens: dict[Expected, int | None] = {
            "none": None,
            "the actual one": lock.live.token if lock.live else 0,
            "of the past": 1,
            "of the future": lock.version + 1,
            "of the other state": 0 if lock.live else lock.trail[-1].token,
        }
        return tokens[self.expected]

    def take(self, lock: Told) -> Grant:
        return lock.ledger.take(
            lock.key,
            "run:1",
            ttl=300,
            takeover_reason=self.reason,
            if_mine=self.if_mine,
            expected_token=self.expected_token(lock),
            metadata={"request": "r1"},
        )


def cells(
    situations: Iterable[str],
    if_mine: Iterable[IfMine],
    expected: Iterable[Expected],
    reasons: Iterable[str | None] = REASONS,
) -> list[Cell]:
    return [Cell(*each) for each in product(situations, if_mine, expected, reasons)]


SAME_GRANT = cells(MINE, ("return",), FITTING + STALE)
EXTENDED = cells(MINE, ("extend",), FITTING + STALE)
REFUSED_AS_MINE = cells(MINE, ("refuse",), FITTING + STALE)
CHANGED_MINE = cells(MINE, ("replace",), STALE)
CHANGED = cells([*FREE, *ANOTHERS], IF_MINE, STALE)
REPLACED = cells(MINE, ("replace",), FITTING)
TAKEN = cells(FREE, IF_MINE, FITTING)
REFUSED = cells(ANOTHERS, IF_MINE, FITTING, (None,))
TAKEN_OVER = cells(ANOTHERS, IF_MINE, FITTING, ("the deadline",))
ROWS = (
    *(SAME_GRANT, EXTENDED, REFUSED_AS_MINE, CHANGED_MINE, CHANGED),
    *(REPLACED, TAKEN, REFUSED, TAKEN_OVER),
)

Row = Callable[[list[Cell]], Iterator[tuple[Cell, Told]]]


@pytest.fixture
def each(ledger: LockLedger, clock: SettableClock) -> Row:
    """Walks the cells of a row of the table; a failure names its cell."""

    def walk(row: list[Cell]) -> Iterator[tuple[Cell, Told]]:
        for number, cell in enumerate(row):
            lock = told(ledger, clock, f"cell:{number} {cell}"[:255], cell.situation)
            yield cell, lock

    return walk


def test_the_rows_cover_every_cell_exactly_once() -> None:
    covered = [cell for row in ROWS for cell in row]

    assert len(covered) == len(set(covered))
    assert set(covered) == set(cells(SITUATIONS, IF_MINE, FITTING + STALE))


def test_a_repeated_take_gives_the_same_grant_and_records_nothing(each: Row) -> None:
    for cell, lock in each(SAME_GRANT):
        grant = cell.take(lock)

        assert lock.live is not None
        assert grant == lock.live.grant(created=False), cell
        assert lock.has_not_changed(), cell


def test_a_take_that_may_extend_moves_only_the_expiry_of_an_own_hold(each: Row) -> None:
    for cell, lock in each(EXTENDED):
        grant = cell.take(lock)

        assert lock.live is not None
        moves = lock.live.expires_at is not None
        moved = lock.live.model_copy(update={"expires_at": at(400) if moves else None})
        assert grant == moved.grant(created=False), cell
        assert lock.live_now() == moved, cell
        assert [entry.action for entry in lock.recorded()] == ["LockExtended"] * moves, cell


def test_a_take_that_must_be_the_first_is_refused_by_an_own_hold(each: Row) -> None:
    for cell, lock in each(REFUSED_AS_MINE):
        with pytest.raises(LockedByOther) as refusal:
            cell.take(lock)

        assert (refusal.value.current, refusal.value.same_holder) == (lock.live, True), cell
        assert lock.has_not_changed(), cell


@pytest.mark.parametrize("row", [CHANGED_MINE, CHANGED], ids=["mine", "not mine"])
def test_a_take_of_another_state_than_its_author_saw_is_refused(each: Row, row: list[Cell]) -> None:
    for cell, lock in each(row):
        with pytest.raises(HoldChanged) as refusal:
            cell.take(lock)

        assert refusal.value.current == lock.live, cell
        assert refusal.value.expected_token == cell.expected_token(lock), cell
        assert lock.has_not_changed(), cell


def test_a_holder_fences_off_its_own_ghost(each: Row) -> None:
    for cell, lock in each(REPLACED):
        grant = cell.take(lock)

        assert lock.live is not None
        assert grant.model_dump() == begun(lock, lock.version + 1, "run:1", cell.reason), cell
        (entry,) = lock.recorded()
        assert (entry.action, entry.previous_holder) == ("LockTakenOver", "run:1"), cell
        assert (entry.before, entry.after) == (lock.live, lock.live_now()), cell


def test_a_lock_that_nobody_holds_is_taken_and_a_reason_is_not_kept(each: Row) -> None:
    for cell, lock in each(TAKEN):
        expected = ["LockTaken"]
        if cell.situation in RUN_OUT_UNRECORDED:
            expected.insert(0, "LockExpired")

        grant = cell.take(lock)

        assert grant.model_dump() == begun(lock, lock.version + len(expected), None, None), cell
        recorded = lock.recorded()
        assert [entry.action for entry in recorded] == expected, cell
        assert [entry.reason for entry in recorded] == [None] * len(expected), cell


def test_a_held_lock_is_refused_with_its_actual_holder(each: Row) -> None:
    for cell, lock in each(REFUSED):
        with pytest.raises(LockedByOther) as refusal:
            cell.take(lock)

        assert (refusal.value.current, refusal.value.same_holder) == (lock.live, False), cell
        assert lock.has_not_changed(), cell


def test_a_held_lock_is_taken_over_with_a_reason(each: Row) -> None:
    for cell, lock in each(TAKEN_OVER):
        grant = cell.take(lock)

        token = lock.version + 1
        assert grant.model_dump() == begun(lock, token, "run:2", "the deadline"), cell
        (entry,) = lock.recorded()
        assert (entry.action, entry.previous_holder) == ("LockTakenOver", "run:2"), cell
        assert (entry.before, entry.after) == (lock.live, lock.live_now()), cell
        assert entry.reason == "the deadline", cell


@pytest.mark.parametrize("blank", ["", " ", " \n\t ", "\u00a0"])
def test_a_blank_reason_is_no_reason(ledger: LockLedger, blank: str) -> None:
    ledger.take("k", "run:2")

    with pytest.raises(LockedByOther):
        ledger.take("k", "run:1", takeover_reason=blank)


def test_a_reason_is_stripped(ledger: LockLedger) -> None:
    ledger.take("k", "run:2")

    assert ledger.take("k", "run:1", takeover_reason=" the deadline\n").takeover_reason == (
        "the deadline"
    )


def begun(lock: Told, token: int, taken_over_from: str | None, reason: str | None) -> object:
    """The facts of a grant that begins a hold at second 100."""
    return {
        "key": lock.key,
        "holder": "run:1",
        "token": token,
        "taken_at": at(100),
        "expires_at": at(400),
        "taken_over_from": taken_over_from,
        "takeover_reason": reason,
        "metadata": {"request": "r1"},
        "created": True,
    }
