"""Holds, grants, audit entries and pages as plain values: they cross threads, processes and JSON."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from lockledger.domain.holds import (
    AuditEntry,
    Grant,
    Hold,
    HoldFacts,
    Page,
    RecordedEvent,
    plain_utc,
)
from support.stories import T0, Story, at

METADATA = {"request": "r1", "nested": {"list": [1, 2.5, None, True]}}
HOLD = Hold(
    key="round:5",
    holder="run:42",
    token=7,
    taken_at=at(0.000001),
    expires_at=at(60),
    taken_over_from="run:41",
    takeover_reason="urgent",
    metadata=METADATA,
)
OVER = HOLD.ended(at(9), "forced", actor="user:9", reason="holiday")
GRANT = HOLD.grant(created=True)
ENTRY = AuditEntry(
    position=12,
    key="round:5",
    version=7,
    action="LockTakenOver",
    actor="user:42",
    holder="run:42",
    previous_holder="run:41",
    token=7,
    occurred_at=at(0),
    recorded_at=at(1),
    reason="urgent",
    before=OVER,
    after=HOLD,
    metadata=METADATA,
    event_hash="ab" * 32,
)
VALUES: list[BaseModel] = [
    HOLD,
    OVER,
    GRANT,
    ENTRY,
    Hold(key="k", holder="h", token=1, taken_at=T0),
]
each_value = pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


def through_json(value: BaseModel) -> BaseModel:
    return type(value).model_validate_json(value.model_dump_json())


def through_plain_values(value: BaseModel) -> BaseModel:
    return type(value).model_validate(value.model_dump(mode="json"))


@each_value
@pytest.mark.parametrize(
    "journey", [through_pickle, through_json, through_plain_values, copy.copy, copy.deepcopy]
)
def test_a_value_arrives_as_it_left(
    value: BaseModel, journey: Callable[[BaseModel], BaseModel]
) -> None:
    """S04: a grant may be released from another thread or process than the one that took it."""
    again = journey(value)

    assert again == value
    assert again.model_dump() == value.model_dump()
    assert again.model_dump_json() == value.model_dump_json()


@each_value
def test_a_value_cannot_be_changed(value: BaseModel) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        value.key = "other"  # type: ignore[attr-defined]
    with pytest.raises(ValidationError, match="Extra inputs"):
        type(value).model_validate({**value.model_dump(), "other": 1})


def test_a_hold_says_in_json_what_it_says_in_python() -> None:
    assert OVER.model_dump(mode="json") == {
        "key": "round:5",
        "holder": "run:42",
        "token": 7,
        "taken_at": "2026-03-02T09:00:00.000001Z",
        "expires_at": "2026-03-02T09:01:00Z",
        "taken_over_from": "run:41",
        "takeover_reason": "urgent",
        "metadata": METADATA,
        "ended_at": "2026-03-02T09:00:09Z",
        "ended_by": "forced",
        "end_reason": "holiday",
        "ended_by_actor": "user:9",
    }


def test_a_grant_is_the_live_holds_facts_and_whether_it_is_new() -> None:
    assert list(Grant.model_fields) == [*HoldFacts.model_fields, "created"]
    assert GRANT.model_dump(exclude={"created"}) == HOLD.model_dump(
        include=set(HoldFacts.model_fields)
    )
    assert (HOLD.grant(created=True).created, HOLD.grant(created=False).created) == (True, False)


def test_an_end_changes_nothing_of_the_hold_itself() -> None:
    assert (HOLD.ended_at, HOLD.ended_by, HOLD.end_reason, HOLD.ended_by_actor) == (None,) * 4
    assert OVER.model_dump(include=set(HoldFacts.model_fields)) == HOLD.model_dump(
        include=set(HoldFacts.model_fields)
    )


def test_an_unknown_kind_of_end_is_refused() -> None:
    with pytest.raises(ValidationError):
        Hold.model_validate({**HOLD.model_dump(), "ended_by": "magic"})


@pytest.mark.parametrize(("now", "live"), [(59.999999, True), (60, False), (60.000001, False)])
def test_a_hold_is_live_until_its_expiry_and_not_at_it(now: float, live: bool) -> None:
    assert HOLD.is_live(at(now)) is live


def test_a_hold_without_expiry_is_live_for_ever() -> None:
    hold = Hold(key="k", holder="h", token=1, taken_at=T0)

    assert hold.is_live(datetime.max.replace(tzinfo=UTC))


# instants


class HostInstant(datetime):
    """A datetime of a host's own class."""


class NoOffset(tzinfo):
    """A time zone that does not say how far it is from UTC."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, dt: datetime | None) -> str:
        return "nowhere"


EAST = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    "instant",
    [T0, T0.astimezone(EAST), HostInstant(2026, 3, 2, 9, tzinfo=UTC)],
    ids=["UTC", "another zone", "another class"],
)
def test_every_instant_is_kept_as_a_plain_one_in_utc(instant: datetime) -> None:
    """S40: the same answer whatever zone the value came in."""
    kept = Hold(key="k", holder="h", token=1, taken_at=instant).taken_at

    assert kept == T0
    assert (type(kept), kept.tzinfo) == (datetime, UTC)


def test_an_instant_from_json_is_in_utc() -> None:
    text = '{"key":"k","holder":"h","token":1,"taken_at":"2026-03-02T14:30:00.000001+05:30"}'

    kept = Hold.model_validate_json(text).taken_at

    assert (kept, kept.tzinfo) == (at(0.000001), UTC)


@pytest.mark.parametrize(
    "instant",
    [datetime(2026, 3, 2), datetime(2026, 3, 2, tzinfo=NoOffset())],  # noqa: DTZ001 - refused
    ids=["naive", "a zone without offset"],
)
def test_a_naive_instant_is_refused(instant: datetime) -> None:
    with pytest.raises(ValidationError):
        Hold(key="k", holder="h", token=1, taken_at=instant)
    with pytest.raises(ValueError, match=r"has no time zone; give it one, datetime\.now\(UTC\)"):
        plain_utc(instant)
    with pytest.raises(ValueError, match="has no time zone"):
        Story().lock.now(instant)


# pages


def test_a_page_is_a_sequence_with_the_place_to_go_on_from() -> None:
    page = Page(["a", "b", "c"], "c")

    assert isinstance(page, Sequence)
    assert (list(page), len(page), page.next_after) == (["a", "b", "c"], 3, "c")
    assert (page[0], page[-1], page[1:]) == ("a", "c", ("b", "c"))
    assert ("b" in page, "x" in page, page.index("b"), page.count("a")) == (True, False, 1, 1)
    assert list(reversed(page)) == ["c", "b", "a"]
    assert repr(page) == "Page(['a', 'b', 'c'], next_after='c')"
    with pytest.raises(IndexError):
        page[3]


def test_the_last_page_has_no_place_to_go_on_from() -> None:
    page: Page[str, str] = Page(["a"])

    assert page.next_after is None
    assert not Page([])


class Anything:
    """A value of another class that finds itself equal to all."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_pages_are_equal_when_items_and_place_are() -> None:
    assert Page(["a"], 1) == Page(("a",), 1)
    assert Page(["a"], 1) != Page(["a"], 2)
    assert Page(["a"], 1) != Page(["b"], 1)
    assert Page(["a"], 1) != ["a"]
    assert (Page(["a"], 1) == ["a"]) is False
    assert Page(["a"], 1) == Anything()
    with pytest.raises(TypeError, match="unhashable"):
        hash(Page(["a"], 1))


def test_a_page_does_not_change_with_what_it_was_made_of() -> None:
    items = ["a"]
    page = Page(items, "a")

    items.append("b")

    assert list(page) == ["a"]


@pytest.mark.parametrize("journey", [through_pickle, copy.copy, copy.deepcopy])
def test_a_page_arrives_as_it_left(journey: Callable[[Page[Hold, str]], object]) -> None:
    page = Page([HOLD, OVER], "round:5")

    assert journey(page) == page


def test_a_recorded_event_arrives_as_it_left() -> None:
    story = Story()
    story.take("run:1")
    recorded = RecordedEvent(12, story.events[0])

    assert through_pickle(recorded) == recorded
    assert copy.deepcopy(recorded) == recorded
    with pytest.raises(AttributeError):
        recorded.position = 13  # type: ignore[misc]
