"""Pages of what somebody may see: what is hidden neither fills a page nor shows in where the next one begins."""

from collections.abc import Callable
from typing import TypeVar

from lockledger.domain.holds import Page
from lockledger.queries import MAX_LIMIT

T = TypeVar("T")
C = TypeVar("C")


def visible_page(
    read: Callable[[C | None, int], Page[T, C]],
    may_see: Callable[[T], bool],
    cursor: Callable[[T], C],
    *,
    after: C | None,
    limit: int,
) -> Page[T, C]:
    """At most `limit` visible items; `next_after` is that of the last one, and set only if another visible one follows.

    Reads on until it knows, so a list of which little is visible costs what the whole list costs.
    """
    shown: list[T] = []
    batch = min(limit + 1, MAX_LIMIT)
    while True:
        page = read(after, batch)
        for item in page:
            if not may_see(item):
                continue
            if len(shown) == limit:
                return Page(shown, cursor(shown[-1]))
            shown.append(item)
        if page.next_after is None:
            return Page(shown)
        after, batch = page.next_after, MAX_LIMIT
