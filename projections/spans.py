"""Spans of keys: what is asked for by key, prefix or tree, cut into pieces that an index walks in order."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.sql import ColumnElement

from lockledger.domain.keys import range_of_prefix, range_under


@dataclass(frozen=True, slots=True)
class Span:
    """An unbroken run of keys in code point order: exactly one, or those in [first, beyond)."""

    only: str | None = None
    first: str = ""
    beyond: str | None = None

    def __contains__(self, key: str) -> bool:
        if self.only is not None:
            return key == self.only
        return self.first <= key and (self.beyond is None or key < self.beyond)

    def ends_before(self, key: str) -> bool:
        """Whether all its keys come before this one."""
        if self.only is not None:
            return self.only < key
        return self.beyond is not None and self.beyond <= key

    def conditions(self, key: ColumnElement[str]) -> Iterator[ColumnElement[bool]]:
        """The same for a column."""
        if self.only is not None:
            yield key == self.only
            return
        if self.first:
            yield key >= self.first
        if self.beyond is not None:
            yield key < self.beyond


def spans(key: str | None, key_prefix: str | None, under: str | None) -> list[Span]:
    """The keys that all of these select, in order; none when they contradict each other.

    A tree is two spans, since other keys lie between `round:5` and `round:5:band`: `round:50` is one.
    """
    first, beyond = range_of_prefix(key_prefix or "")
    begins = Span(first=first, beyond=beyond)
    if under is None:
        found = [begins]
    else:
        lower, upper = range_under(under)
        tree = Span(first=max(first, lower), beyond=min(beyond or upper, upper))
        found = [Span(only=under), tree] if under in begins else [tree]
    if key is None:
        return found
    return [Span(only=key)] if any(key in span for span in found) else []
