"""Time to live: every kind, every limit from both sides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockledger.domain.errors import InvalidTtl
from lockledger.domain.ttl import MAX_TTL, Ttl, check_ttl, expiry, until_when
from support.stories import T0, at

CENTURY = 36525 * 24 * 3600
MICROSECOND = timedelta(microseconds=1)


class HostInstant(datetime):
    """A datetime of a host's own class."""


class HostDuration(timedelta):
    """A timedelta of a host's own class."""


class NoOffset(tzinfo):
    """A time zone that does not say how far it is from UTC."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, dt: datetime | None) -> str:
        return "nowhere"


@pytest.mark.parametrize(
    ("ttl", "length"),
    [
        (1, timedelta(seconds=1)),
        (0.9, timedelta(milliseconds=900)),
        (1e-6, MICROSECOND),
        (6e-7, MICROSECOND),
        (2.0000004, timedelta(seconds=2)),
        (CENTURY, MAX_TTL),
        (float(CENTURY), MAX_TTL),
        (MICROSECOND, MICROSECOND),
        (MAX_TTL, MAX_TTL),
        (HostDuration(seconds=5), timedelta(seconds=5)),
    ],
    ids=repr,
)
def test_a_duration_is_seconds_or_a_timedelta(ttl: Ttl, length: timedelta) -> None:
    checked = check_ttl(ttl, T0)

    assert checked == length
    assert type(checked) is timedelta
    assert expiry(length, T0) == T0 + length


@pytest.mark.parametrize(
    "ttl",
    [
        0,
        0.0,
        -0.0,
        -1,
        -1e-9,
        1e-7,
        5e-324,
        nan,
        inf,
        -inf,
        1e400,
        CENTURY + 1,
        CENTURY + 1e-6,
        10**400,
        10**5000,
        -(10**5000),
        timedelta(0),
        -MICROSECOND,
        timedelta(seconds=-130),
        timedelta.min,
        MAX_TTL + MICROSECOND,
        timedelta.max,
        HostDuration(0),
    ],
    ids=lambda ttl: ascii(ttl)[:20] if not isinstance(ttl, int) else f"int {ttl % 97}",
)
def test_a_duration_outside_the_limits_is_refused(ttl: Ttl) -> None:
    with pytest.raises(InvalidTtl, match="more than 0 and at most 100 years") as refusal:
        check_ttl(ttl, T0)

    assert "a hold that never expires is taken without a ttl" in str(refusal.value)


@pytest.mark.parametrize(
    "ttl",
    [True, False, "60", b"60", Decimal(60), Fraction(60), [60], T0.date(), T0.time(), object()],
    ids=lambda ttl: type(ttl).__name__,
)
def test_another_type_is_a_type_error(ttl: Ttl) -> None:
    with pytest.raises(
        TypeError,
        match=r"^a ttl is seconds \(int or float\), a timedelta, an aware datetime or None",
    ):
        check_ttl(ttl, T0)


def test_none_never_expires() -> None:
    assert check_ttl(None, T0) is None


def test_the_messages_name_value_limit_and_remedy() -> None:
    with pytest.raises(InvalidTtl) as refusal:
        check_ttl(0, T0)
    assert str(refusal.value) == (
        "a ttl of 0 seconds: it must be more than 0 and at most 100 years;"
        " a hold that never expires is taken without a ttl"
    )
    with pytest.raises(InvalidTtl) as refusal:
        check_ttl(1e-7, T0)
    assert str(refusal.value) == (
        "a ttl of 1e-07: it must be more than 0 and at most 100 years, in whole microseconds;"
        " a hold that never expires is taken without a ttl"
    )
    with pytest.raises(InvalidTtl) as refusal:
        check_ttl(datetime(2026, 3, 3), T0)  # noqa: DTZ001 - a naive instant is what is refused
    assert str(refusal.value) == (
        "the instant 2026-03-03T00:00:00 has no time zone; give it one, datetime.now(UTC) + …"
    )
    with pytest.raises(InvalidTtl) as refusal:
        expiry(at(-60), T0)
    assert str(refusal.value) == (
        "the instant 2026-03-02T08:59:00+00:00 has passed: it is 2026-03-02T09:00:00+00:00 now;"
        " it must be more than 0 and at most 100 years ahead"
    )


# instants


@pytest.mark.parametrize(
    "instant",
    [
        T0 + MICROSECOND,
        T0 + MAX_TTL,
        at(60).astimezone(timezone(timedelta(hours=5))),
        at(60).astimezone(timezone(-timedelta(hours=12))),
        HostInstant(2026, 3, 2, 9, 1, tzinfo=UTC),
        HostInstant(2026, 3, 2, 14, 1, tzinfo=timezone(timedelta(hours=5))),
    ],
    ids=repr,
)
def test_an_instant_becomes_a_plain_one_in_utc(instant: datetime) -> None:
    checked = check_ttl(instant, T0)

    assert checked == instant
    assert type(checked) is datetime
    assert checked.tzinfo is UTC


@pytest.mark.parametrize("instant", [T0, T0 - MICROSECOND, at(-1e9)], ids=repr)
def test_an_instant_that_has_passed_is_judged_where_a_hold_begins_not_at_the_door(
    instant: datetime,
) -> None:
    checked = check_ttl(instant, T0)

    assert checked == instant
    with pytest.raises(InvalidTtl, match="has passed"):
        expiry(until_when(checked), T0)


@pytest.mark.parametrize(
    "instant",
    [
        datetime(2026, 3, 3),  # noqa: DTZ001 - a naive instant is what is refused
        HostInstant(2026, 3, 3),
        datetime(2026, 3, 3, tzinfo=NoOffset()),
    ],
    ids=["naive", "naive of another class", "a zone without offset"],
)
def test_a_naive_instant_is_refused(instant: datetime) -> None:
    with pytest.raises(InvalidTtl, match="has no time zone"):
        check_ttl(instant, T0)


@pytest.mark.parametrize(
    "instant",
    [
        T0 + MAX_TTL + MICROSECOND,
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ],
    ids=repr,
)
def test_an_instant_too_far_away_is_refused(instant: datetime) -> None:
    with pytest.raises(InvalidTtl, match="at most 100 years ahead"):
        check_ttl(instant, T0)


def test_an_extension_says_until_when() -> None:
    assert until_when(timedelta(seconds=1)) == timedelta(seconds=1)
    with pytest.raises(
        InvalidTtl, match=r"^an extension needs a ttl; None would not say until when$"
    ):
        until_when(None)


@given(st.one_of(st.floats(), st.integers(), st.timedeltas()))
def test_whatever_the_number_it_is_a_sound_length_or_refused(ttl: float | timedelta) -> None:
    try:
        length = check_ttl(ttl, T0)
    except InvalidTtl:
        return
    assert isinstance(length, timedelta)
    assert timedelta(0) < length <= MAX_TTL


@given(st.datetimes(timezones=st.timezones()))
def test_whatever_the_zone_it_is_the_same_instant_or_refused(instant: datetime) -> None:
    try:
        checked = check_ttl(instant, T0)
    except InvalidTtl:
        return
    assert isinstance(checked, datetime)
    assert checked.tzinfo is UTC
    assert checked == instant.astimezone(UTC)


def test_a_hold_ends_by_the_last_instant_there_is() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    assert expiry(timedelta(seconds=1), last - timedelta(seconds=1)) == last
    with pytest.raises(
        InvalidTtl, match=r"^a ttl of 1 seconds from 9999-.* ends after 9999-12-31T23:59:59\.999999"
    ):
        expiry(timedelta(seconds=1), last - timedelta(seconds=1) + MICROSECOND)
