"""Spans of keys: what is asked for by key, prefix or tree, cut into runs that an index walks in order."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import BindParameter, bindparam
from sqlalchemy.sql import ColumnElement

from lockledger.domain.keys import range_of_prefix, range_under
from lockledger.projections.columns import ExactText


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


@dataclass(frozen=True, slots=True)
class SpanForm:
    """A span without its keys, as a statement knows it; they are its parameters.

    `goes_on`: the page before ended within the span, and the statement goes on from its place.
    """

    number: int
    one_key: bool
    has_first: bool
    has_beyond: bool
    goes_on: bool

    def conditions(self, key: ColumnElement[str]) -> Iterator[ColumnElement[bool]]:
        """Which keys are in it. No first key where it goes on: an index begins at one place, and SQLite picks any."""
        if self.one_key:
            yield key == self._parameter("only")
        if self.has_first and not self.goes_on:
            yield key >= self._parameter("first")
        if self.has_beyond:
            yield key < self._parameter("beyond")

    def values(self, span: Span) -> Iterator[tuple[str, str]]:
        """The values of its parameters."""
        for name, value in (("only", span.only), ("first", span.first), ("beyond", span.beyond)):
            if value:
                yield f"{name}_{self.number}", value

    @property
    def only(self) -> BindParameter[str]:
        """Its one key."""
        return self._parameter("only")

    def _parameter(self, name: str) -> BindParameter[str]:
        return bindparam(f"{name}_{self.number}", type_=ExactText)


def forms(found: list[Span], after: str | None) -> tuple[tuple[SpanForm, ...], dict[str, str]]:
    """The forms of those spans that are not over at the key `after`, and the values of their parameters."""
    left = [span for span in found if after is None or not span.ends_before(after)]
    made = tuple(
        SpanForm(
            number,
            span.only is not None,
            bool(span.first),
            span.beyond is not None,
            after is not None and after in span,
        )
        for number, span in enumerate(left)
    )
    return made, dict(
        pair for form, span in zip(made, left, strict=True) for pair in form.values(span)
    )
