"""Holds of another system, told again as events: what each becomes, and what does not fit."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lockledger.domain.events import LockEvent
from lockledger.domain.lock import Lock, evolve
from lockledger.domain.past_holds import IMPORT, PastHold, Unfit, events_of, unfit
from lockledger.domain.succession import misfit
from lockledger.domain.ttl import MAX_TTL
from support.stories import ID, KEY, at

NOW = 1000
MICROSECOND = timedelta(microseconds=1)


def hold(row: int, user: int, taken: float, ended: float | None = None, **facts: Any) -> PastHold:
    """A hold of `user:…`, by seconds since T0."""
    past = PastHold(row, f"user:{user}", at(taken), ended_at=None if ended is None else at(ended))
    return replace(past, **facts)


def over(user: int, reason: str | None = "urgent") -> dict[str, Any]:
    """What a hold that was taken over from this user says of it."""
    return {"taken_over_from": f"user:{user}", "reason": reason}


def told(*holds: PastHold) -> list[LockEvent]:
    """The events that these holds become, each of which fits after the one before."""
    events = events_of(
        Lock(ID, KEY),
        holds,
        source="old",
        now=at(NOW),
        imported_at=lambda version: f"with version {version}",
    )
    lock = Lock(ID, KEY)
    for event in events:
        assert misfit(lock, event) is None
        lock = evolve(event)
    return events


def summary(*holds: PastHold) -> list[tuple[Any, ...]]:
    return [
        (event.action, event.timestamp, event.actor, event.why, event.metadata[IMPORT]["row"])
        for event in told(*holds)
    ]


# A hold by itself


@pytest.mark.parametrize(
    ("past", "runs_out", "over_at"),
    [
        (hold(1, 1, 0), False, None),
        (hold(1, 1, 0, 10), False, 10),
        (hold(1, 1, 0, expires_at=at(20)), True, 20),
        (hold(1, 1, 0, 10, expires_at=at(20)), False, 10),
        (hold(1, 1, 0, 20, expires_at=at(20)), True, 20),
        (hold(1, 1, 0, 30, expires_at=at(20)), True, 20),
    ],
    ids=["open", "ended", "to run out", "ended before", "ended at the expiry", "ended after"],
)
def test_a_hold_is_over_when_it_was_ended_or_ran_out_whichever_came_first(
    past: PastHold, runs_out: bool, over_at: float | None
) -> None:
    assert past.runs_out is runs_out
    assert past.over_at == (None if over_at is None else at(over_at))


@pytest.mark.parametrize(
    "past",
    [
        hold(1, 1, NOW),
        hold(1, 1, 0, 0),
        hold(1, 1, 0, NOW),
        hold(1, 1, 0, expires_at=at(0) + MICROSECOND),
        hold(1, 1, 0, expires_at=at(0) + MAX_TTL),
        hold(1, 1, 0, 10, expires_at=at(NOW + 1)),
    ],
    ids=[
        "begins now",
        "ends where it begins",
        "ends now",
        "lasts a microsecond",
        "lasts a century",
        "was to last on",
    ],
)
def test_what_is_within_the_limits_is_fit(past: PastHold) -> None:
    assert unfit(past, at(NOW)) is None


@pytest.mark.parametrize(
    ("past", "fault"),
    [
        (
            hold(1, 1, 0, taken_at=at(NOW) + MICROSECOND),
            "it begins at 2026-03-02T09:16:40.000001+00:00, which is in the future",
        ),
        (
            hold(1, 1, 60, expires_at=at(60)),
            "it had run out at 2026-03-02T09:01:00+00:00, no later than it began at 2026-03-02T09:01:00+00:00",
        ),
        (
            hold(1, 1, 0, expires_at=at(0) + MAX_TTL + MICROSECOND),
            (
                "it was to last until 2126-03-03T09:00:00.000001+00:00, more than 100 years;"
                " leave the expiry out where there is none"
            ),
        ),
        (
            hold(1, 1, 60, 59),
            "it ended at 2026-03-02T09:00:59+00:00, before it began at 2026-03-02T09:01:00+00:00",
        ),
        (
            hold(1, 1, 0, NOW + 1),
            "it ends at 2026-03-02T09:16:41+00:00, which is in the future",
        ),
    ],
    ids=["begins later", "never lasted", "over a century", "ended first", "ends later"],
)
def test_what_is_beyond_the_limits_is_told(past: PastHold, fault: str) -> None:
    assert unfit(past, at(NOW)) == fault


# One after another


def test_a_hold_becomes_a_take_and_its_end() -> None:
    assert summary(hold(1, 1, 0, 10), hold(2, 2, 10, 30, expires_at=at(20))) == [
        ("LockTaken", at(0), "user:1", None, 1),
        ("LockReleased", at(10), "user:1", None, 1),
        ("LockTaken", at(10), "user:2", None, 2),
        ("LockExpired", at(20), None, None, 2),
    ]


def test_a_hold_that_is_not_over_yet_has_no_end() -> None:
    assert summary(hold(1, 1, 0)) == [("LockTaken", at(0), "user:1", None, 1)]
    taken, expired = told(hold(1, 1, 0, expires_at=at(NOW)))
    assert (taken.expires_at, expired.action, expired.occurred_at) == (
        *(at(NOW), "LockExpired", at(NOW)),
    )
    (taken,) = told(hold(1, 1, 0, expires_at=at(NOW) + MICROSECOND))
    assert taken.expires_at == at(NOW) + MICROSECOND


def test_a_takeover_is_the_end_of_one_hold_and_the_beginning_of_another() -> None:
    assert summary(
        hold(1, 1, 0, 10, expires_at=at(11)), hold(2, 2, 10, 20, **over(1)), hold(3, 1, 20)
    ) == [
        ("LockTaken", at(0), "user:1", None, 1),
        ("LockTakenOver", at(10), "user:2", "urgent", 2),
        ("LockReleased", at(20), "user:2", None, 2),
        ("LockTaken", at(20), "user:1", None, 3),
    ]


def test_who_takes_over_from_itself_needs_no_reason() -> None:
    assert summary(hold(1, 1, 0, 10), hold(2, 1, 10, **over(1, None))) == [
        ("LockTaken", at(0), "user:1", None, 1),
        ("LockTakenOver", at(10), "user:1", None, 2),
    ]


def test_who_ended_a_hold_acts_in_its_end() -> None:
    ended = {"ended_by": "root", "end_reason": "the year is closed"}
    assert summary(hold(1, 1, 0, 10, **ended), hold(2, 2, 10, 20)) == [
        ("LockTaken", at(0), "user:1", None, 1),
        ("LockReleased", at(10), "root", "the year is closed", 1),
        ("LockTaken", at(10), "user:2", None, 2),
        ("LockReleased", at(20), "user:2", None, 2),
    ]
    assert summary(hold(1, 1, 0, 10, **ended), hold(2, 2, 10, 20, **over(1))) == [
        ("LockTaken", at(0), "user:1", None, 1),
        ("LockTakenOver", at(10), "root", "urgent", 2),
        ("LockReleased", at(20), "user:2", None, 2),
    ]


def test_each_event_says_where_it_comes_from_beside_the_holds_own_metadata() -> None:
    events = told(hold(7, 1, 0, 10, metadata={"case": 3}), hold(8, 2, 10, 20, **over(1)))
    assert [event.metadata for event in events] == [
        {"case": 3, IMPORT: {"source": "old", "row": 7, "when": "with version 1"}},
        {IMPORT: {"source": "old", "row": 8, "when": "with version 2"}},
        {IMPORT: {"source": "old", "row": 8, "when": "with version 3"}},
    ]


@pytest.mark.parametrize(
    ("holds", "sentence"),
    [
        (
            [hold(1, 1, 0), hold(2, 2, 10)],
            "row 2: it begins at 2026-03-02T09:00:10+00:00, but the hold before, row 1, has not ended",
        ),
        (
            [hold(1, 1, 0, 20), hold(2, 2, 10)],
            (
                "row 2: it begins at 2026-03-02T09:00:10+00:00, but the hold before, row 1,"
                " ended only at 2026-03-02T09:00:20+00:00"
            ),
        ),
        (
            [hold(1, 2, 0, **over(1))],
            "row 1: it was taken over from 'user:1', of whom there is no hold before",
        ),
        (
            [hold(1, 3, 0, 10), hold(2, 2, 10, **over(1))],
            "row 2: it was taken over from 'user:1', but the hold before, row 1, was of 'user:3'",
        ),
        (
            [hold(1, 1, 0), hold(2, 2, 11, **over(1))],
            (
                "row 2: it was taken over from 'user:1' at 2026-03-02T09:00:11+00:00, but that hold, row 1,"
                " had not ended; a takeover ends the one and begins the other at the same instant"
            ),
        ),
        (
            [hold(1, 1, 0, 10), hold(2, 2, 11, **over(1))],
            (
                "row 2: it was taken over from 'user:1' at 2026-03-02T09:00:11+00:00, but that hold, row 1,"
                " had ended at 2026-03-02T09:00:10+00:00; a takeover ends the one and begins the other at"
                " the same instant"
            ),
        ),
        (
            [hold(1, 1, 0, expires_at=at(10)), hold(2, 2, 10, **over(1))],
            (
                "row 2: it was taken over from 'user:1' at 2026-03-02T09:00:10+00:00, when that hold, row 1,"
                " had run out; leave taken_over_from out where the lock was free"
            ),
        ),
        (
            [hold(1, 1, 0, 10), hold(2, 2, 10, **over(1, None))],
            "row 2: it was taken over from 'user:1' without a reason; give one",
        ),
        (
            [hold(1, 1, 60, expires_at=at(60))],
            (
                "row 1: the instant 2026-03-02T09:01:00+00:00 has passed: it is 2026-03-02T09:01:00+00:00"
                " now; it must be more than 0 and at most 100 years ahead"
            ),
        ),
    ],
    ids=[
        "two at once",
        "overlapping",
        "from nobody",
        "from another",
        "from one that was never ended",
        "too late",
        "from one that had run out",
        "without a reason",
        "never lasted",
    ],
)
def test_a_hold_that_does_not_follow_from_the_one_before_is_refused_by_its_row(
    holds: list[PastHold], sentence: str
) -> None:
    with pytest.raises(Unfit) as refusal:
        told(*holds)
    assert str(refusal.value) == sentence
    assert sentence == f"row {refusal.value.row}: {refusal.value.why}"
