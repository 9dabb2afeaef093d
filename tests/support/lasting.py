"""Holds that are live for a while and then run out, on a machine that may stand still in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from support.databases import Database
from support.in_the_way import clock_of

LASTING = (0.4, 4.0, 30.0)
"""Seconds that a hold lasts: longer each time that the one before had run out too early."""

Story = Callable[[str, float], None]


class RanOut(Exception):
    """A hold was over before the test came to what must be done while it is live."""


@contextmanager
def while_live(database: Database, expires_at: datetime | None) -> Iterator[None]:
    """What fails inside does not count once the hold has run out by the database's clock: raises `RanOut` then."""
    assert expires_at is not None
    try:
        yield
    except BaseException:
        if clock_of(database) >= expires_at:
            raise RanOut from None
        raise


def lasting(story: Story, *ttls: float) -> None:
    """Tells a story with a key and a ttl; begins it anew, with others, when a hold in it was over too early."""
    for ttl in ttls or LASTING:
        with suppress(RanOut):
            story(f"k:{ttl}", ttl)
            return
    raise AssertionError("however long a hold lasts, it is over too early")
