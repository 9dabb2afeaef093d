"""Whether a row that a projection makes is the one that was read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockledger.adapters.scans import HEADS, Row, agreement_of, form_of
from lockledger.domain.holds import Hold
from lockledger.domain.keys import lock_id
from lockledger.domain.lock import Lock
from lockledger.projections import current_holders

DIALECTS = ("postgresql", "sqlite")
NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
HOLD = Hold(key="k", holder="A", token=3, taken_at=NOW, expires_at=NOW + timedelta(hours=1))
LOCK = Lock(lock_id("default", "k"), "k", 3, HOLD, NOW)
CHANGED_AT = HEADS.index("changed_at")


def read(dialect: str, lock: Lock = LOCK) -> tuple[dict[str, Any], Row]:
    """A head as it should be, and as it is read."""
    row = current_holders.row("default", lock)
    return row, form_of(dialect, HEADS)(row)


def with_value(found: Row, place: int, value: Any) -> Row:
    return (*found[:place], value, *found[place + 1 :])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("microsecond", [0, 1, 500, 120_000, 123_456, 999_999])
def test_a_row_agrees_with_what_is_read_of_it(dialect: str, microsecond: int) -> None:
    lock = replace(LOCK, changed_at=NOW.replace(microsecond=microsecond))
    assert agreement_of(dialect, HEADS)(*read(dialect, lock))
    assert agreement_of(dialect, HEADS)(*read(dialect, replace(lock, hold=None)))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("place", range(1, len(HEADS)), ids=HEADS[1:])
def test_no_column_may_say_anything_else(dialect: str, place: int) -> None:
    row, found = read(dialect)
    agree = agreement_of(dialect, HEADS)
    value = found[place]
    others = [4 if isinstance(value, int) else "other", "" if value is None else None]
    assert agree(row, found)
    for other in others:
        assert not agree(row, with_value(found, place, other))


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01 12:30:00.000001+00",
        "2026-03-01 12:30:00+01",
        "infinity",
        "-infinity",
        "20000-01-01 00:00:00+00",
        "2026-03-01 12:30:00+00 BC",
    ],
)
def test_no_other_instant_is_taken_for_the_right_one(text: str) -> None:
    row, found = read("postgresql")
    assert found[CHANGED_AT] == "2026-03-01 12:30:00+00"
    assert not agreement_of("postgresql", HEADS)(row, with_value(found, CHANGED_AT, text))


@pytest.mark.parametrize("text", ["2026-03-01T12:30:00+00:00", "2026-03-01 12:30:00.000000+00:00"])
def test_on_sqlite_an_instant_is_written_in_one_way_only(text: str) -> None:
    row, found = read("sqlite")
    assert found[CHANGED_AT] == "2026-03-01T12:30:00.000000+00:00"
    assert not agreement_of("sqlite", HEADS)(row, with_value(found, CHANGED_AT, text))
