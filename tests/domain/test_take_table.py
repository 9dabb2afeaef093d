"""The contract's table of `take`, cell by cell: 16 situations, and 80 ways to ask in each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import pytest

from lockledger.domain.errors import HoldChanged, LockedByOther
from lockledger.domain.events import LockTakenOver
from lockledger.domain.holds import Grant
from lockledger.domain.lock import IfMine
from support.stories import ANOTHERS, BEGINNINGS, FREE, KEY, MINE, Story, at, begun

Result = Literal[
    "same grant",
    "extended",
    "refused as mine",
    "hold changed",
    "replaced",
    "taken",
    "refused",
    "taken over",
]


IF_MINE: tuple[IfMine, ...] = get_args(IfMine)
FITTING = ("none", "the actual one")
STALE = ("the first hold's", "one of the future", "that of the other state")
REASONS = (None, "", " \n\t", "the deadline")
BLANK = REASONS[:3]


@dataclass(frozen=True)
class Cell:
    """One situation and one way to ask."""

    situation: str
    if_mine: IfMine
    expected: str
    reason: str | None

    def expected_token(self, story: Story) -> int | None:
        live = story.live_hold(now=100)
        tokens = {
            "none": None,
            "the actual one": live.token if live else 0,
            "the first hold's": 1,
            "one of the future": story.lock.version + 1,
            "that of the other state": 0 if live else story.lock.version,
        }
        return tokens[self.expected]

    def take(self, story: Story) -> Grant:
        return story.take(
            "run:1",
            now=100,
            ttl=300,
            takeover_reason=self.reason,
            if_mine=self.if_mine,
            expected_token=self.expected_token(story),
            metadata={"request": "r1"},
        )


@dataclass(frozen=True)
class Row:
    """A row of the table: all cells of these situations and ways to ask have one result."""

    situations: Iterable[str]
    if_mine: Iterable[IfMine]
    expected: Iterable[str]
    reasons: Iterable[str | None]
    result: Result

    def cells(self) -> list[Cell]:
        ways = product(self.situations, self.if_mine, self.expected, self.reasons)
        return [Cell(*way) for way in ways]


ANY_TOKEN = FITTING + STALE
ROWS = [
    Row(MINE, ("return",), ANY_TOKEN, REASONS, "same grant"),
    Row(MINE, ("extend",), ANY_TOKEN, REASONS, "extended"),
    Row(MINE, ("refuse",), ANY_TOKEN, REASONS, "refused as mine"),
    Row(MINE, ("replace",), STALE, REASONS, "hold changed"),
    Row([*FREE, *ANOTHERS], IF_MINE, STALE, REASONS, "hold changed"),
    Row(MINE, ("replace",), FITTING, REASONS, "replaced"),
    Row(FREE, IF_MINE, FITTING, REASONS, "taken"),
    Row(ANOTHERS, IF_MINE, FITTING, BLANK, "refused"),
    Row(ANOTHERS, IF_MINE, FITTING, ("the deadline",), "taken over"),
]


def cells_of(result: Result) -> list[Cell]:
    return [cell for row in ROWS if row.result == result for cell in row.cells()]


def cells(result: Result) -> pytest.MarkDecorator:
    found = cells_of(result)
    names = [f"{c.situation}-{c.if_mine}-{c.expected}-{c.reason!r}" for c in found]
    return pytest.mark.parametrize("cell", found, ids=names)


def test_the_rows_cover_every_cell_exactly_once() -> None:
    covered = [cell for row in ROWS for cell in row.cells()]

    assert len(covered) == len(set(covered))
    assert set(covered) == set(Row(BEGINNINGS, IF_MINE, ANY_TOKEN, REASONS, "taken").cells())


@cells("same grant")
def test_a_repeated_take_gives_the_same_grant_and_records_nothing(cell: Cell) -> None:
    story = begun(cell.situation)
    hold = story.lock.hold
    events = len(story.events)

    grant = cell.take(story)

    assert hold is not None
    assert grant == hold.grant(created=False)
    assert len(story.events) == events


@cells("extended")
def test_a_take_that_may_extend_moves_only_the_expiry_of_an_own_hold(cell: Cell) -> None:
    story = begun(cell.situation)
    hold = story.lock.hold
    events = len(story.events)

    grant = cell.take(story)

    assert hold is not None
    if hold.expires_at is None:
        assert grant == hold.grant(created=False)
        assert len(story.events) == events
    else:
        assert grant == hold.model_copy(update={"expires_at": at(400)}).grant(created=False)
        assert story.actions[events:] == ["LockExtended"]


@cells("refused as mine")
def test_a_take_that_must_be_the_first_is_refused_by_an_own_hold(cell: Cell) -> None:
    story = begun(cell.situation)

    with pytest.raises(LockedByOther) as refusal:
        cell.take(story)

    assert (refusal.value.current, refusal.value.same_holder) == (story.lock.hold, True)


@cells("hold changed")
def test_a_take_of_another_state_than_its_author_saw_is_refused(cell: Cell) -> None:
    story = begun(cell.situation)
    live = story.live_hold(now=100)

    with pytest.raises(HoldChanged) as refusal:
        cell.take(story)

    assert refusal.value.current == live
    assert refusal.value.expected_token == cell.expected_token(story)


@cells("replaced")
def test_a_holder_fences_off_its_own_ghost(cell: Cell) -> None:
    story = begun(cell.situation)
    old = story.live_hold(now=100)
    version = story.lock.version

    grant = cell.take(story)

    assert old is not None
    assert grant.created
    assert grant.token == version + 1 > old.token
    assert grant.taken_over_from == "run:1"
    assert grant.takeover_reason == ("the deadline" if cell.reason == "the deadline" else None)
    assert (grant.taken_at, grant.expires_at) == (at(100), at(400))
    assert len(story.events) == version + 1
    event = story.events[-1]
    assert isinstance(event, LockTakenOver)
    assert event.before() == old


@cells("taken")
def test_a_lock_that_nobody_holds_is_taken_and_a_reason_is_not_kept(cell: Cell) -> None:
    story = begun(cell.situation)
    before = story.lock

    grant = cell.take(story)

    ran_out = before.hold is not None
    assert story.actions[before.version :] == (
        ["LockExpired", "LockTaken"] if ran_out else ["LockTaken"]
    )
    assert grant.model_dump() == {
        "key": KEY,
        "holder": "run:1",
        "token": before.version + (2 if ran_out else 1),
        "taken_at": at(100),
        "expires_at": at(400),
        "taken_over_from": None,
        "takeover_reason": None,
        "metadata": {"request": "r1"},
        "created": True,
    }


@cells("refused")
def test_a_held_lock_is_refused_with_its_actual_holder(cell: Cell) -> None:
    story = begun(cell.situation)

    with pytest.raises(LockedByOther) as refusal:
        cell.take(story)

    assert (refusal.value.current, refusal.value.same_holder) == (story.lock.hold, False)


@cells("taken over")
def test_a_held_lock_is_taken_over_with_a_reason(cell: Cell) -> None:
    story = begun(cell.situation)
    version = story.lock.version

    grant = cell.take(story)

    assert story.actions[version:] == ["LockTakenOver"]
    assert grant.model_dump() == {
        "key": KEY,
        "holder": "run:1",
        "token": version + 1,
        "taken_at": at(100),
        "expires_at": at(400),
        "taken_over_from": "run:2",
        "takeover_reason": "the deadline",
        "metadata": {"request": "r1"},
        "created": True,
    }


@pytest.mark.parametrize("result", ["refused as mine", "hold changed", "refused"])
def test_a_refused_take_leaves_the_lock_as_it_was(result: Result) -> None:
    for cell in cells_of(result):
        story = begun(cell.situation)
        before, events = story.lock, list(story.events)
        with pytest.raises((LockedByOther, HoldChanged)):
            cell.take(story)
        assert (story.lock, story.events) == (before, events)
