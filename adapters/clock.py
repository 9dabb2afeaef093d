"""Clocks: the database's own on PostgreSQL, the process's on SQLite, or the one that the host puts in their place."""

from datetime import UTC, datetime

from lockledger.domain.policy import Clock


def checked_now(clock: Clock | None) -> datetime:
    """What the clock says, in UTC; without a clock the process's own.

    Raises `ValueError` for an answer that is naive or beyond the years 1 to 9999 in UTC, and `TypeError` for anything but a datetime.
    """
    if clock is None:
        return datetime.now(UTC)
    now = clock()
    if not isinstance(now, datetime):
        raise TypeError(f"clock() must return an aware datetime, not {now!r}")
    if now.utcoffset() is None:
        raise ValueError(
            f"clock() returned the naive datetime {now.isoformat()}; return datetime.now(UTC)"
        )
    try:
        return now.astimezone(UTC)
    except OverflowError:
        raise ValueError(
            f"clock() returned {now.isoformat()}, which is in no year from 1 to 9999 in UTC; return datetime.now(UTC)"
        ) from None
