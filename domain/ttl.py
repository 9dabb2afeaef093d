"""Time to live: seconds, a duration, or an instant. Zero is never "default", "forever" or "delete"."""

from datetime import UTC, datetime, timedelta

from lockledger.domain.errors import InvalidTtl, shown
from lockledger.domain.holds import plain_utc

Ttl = float | int | timedelta | datetime | None
CheckedTtl = timedelta | datetime | None
MAX_TTL = timedelta(days=36525)  # 100 years
_LIMIT = "it must be more than 0 and at most 100 years"


def check_ttl(ttl: Ttl, now: datetime) -> CheckedTtl:
    """The ttl as a duration or an aware UTC instant; `None` never expires.

    Checks type, sign and size; an instant is held against `now` for its size only. Whether it has passed is judged
    where a hold would begin or move. Raises `InvalidTtl`, or `TypeError` for another type (`bool` included).
    """
    if ttl is None:
        return None
    if isinstance(ttl, datetime):
        return _check_instant(ttl, now)
    if isinstance(ttl, timedelta):
        length = timedelta(ttl.days, ttl.seconds, ttl.microseconds)
    elif isinstance(ttl, bool) or not isinstance(ttl, int | float):
        raise TypeError(
            f"a ttl is seconds (int or float), a timedelta, an aware datetime or None, not {shown(ttl)}"
        )
    elif not 0 < ttl <= MAX_TTL.total_seconds():
        raise InvalidTtl(
            f"a ttl of {shown(ttl)} seconds: {_LIMIT}; a hold that never expires is taken without a ttl"
        )
    else:
        length = timedelta(seconds=ttl)
    if not timedelta(0) < length <= MAX_TTL:
        raise InvalidTtl(
            f"a ttl of {shown(ttl)}: {_LIMIT}, in whole microseconds; a hold that never expires is taken without a ttl"
        )
    return length


def _check_instant(instant: datetime, now: datetime) -> datetime:
    if instant.utcoffset() is None:
        raise InvalidTtl(
            f"the instant {instant.isoformat()} has no time zone; give it one, datetime.now(UTC) + …"
        )
    try:
        plain = plain_utc(instant)
    except OverflowError as error:
        raise InvalidTtl(
            f"the instant {instant.isoformat()} has no date in UTC; {_LIMIT} ahead"
        ) from error
    if plain - now > MAX_TTL:
        raise InvalidTtl(
            f"the instant {instant.isoformat()} is more than 100 years ahead; {_LIMIT} ahead"
        )
    return plain


def until_when(ttl: CheckedTtl) -> timedelta | datetime:
    """The ttl of an extension. Raises `InvalidTtl` for `None`, which would not say until when."""
    if ttl is None:
        raise InvalidTtl("an extension needs a ttl; None would not say until when")
    return ttl


def expiry(ttl: timedelta | datetime, now: datetime) -> datetime:
    """The instant at which a hold that is granted at `now` runs out.

    Raises `InvalidTtl` when it has passed already, or when it lies beyond the year 9999.
    """
    if isinstance(ttl, timedelta):
        try:
            return now + ttl
        except OverflowError as error:
            raise InvalidTtl(
                f"a ttl of {ttl.total_seconds():g} seconds from {now.isoformat()} ends after"
                f" {datetime.max.replace(tzinfo=UTC).isoformat()}, the last instant there is; give a shorter one"
            ) from error
    if ttl <= now:
        raise InvalidTtl(
            f"the instant {ttl.isoformat()} has passed: it is {now.isoformat()} now; {_LIMIT} ahead"
        )
    return ttl
