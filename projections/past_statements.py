"""The statements that look back, one for each form of the question: to make one takes longer than to run it.

Ended and current holds are read together in one statement, so that a hold that ends meanwhile is seen once. Each part
is cut off by itself and read in the order of an index, so a page costs what a page holds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Dialect,
    ScalarSelect,
    Select,
    Subquery,
    Table,
    bindparam,
    case,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.sql import ColumnElement
from sqlalchemy.types import UserDefinedType

from lockledger.domain.events import LockExtended
from lockledger.projections.columns import Count, ExactText, Instant, instant_to_text
from lockledger.projections.spans import SpanForm

_FACTS = (
    "lock_id",
    "key",
    "holder",
    "token",
    "taken_at",
    "expires_at",
    "taken_over_from",
    "takeover_reason",
    "metadata",
)
END = ("ended_at", "ended_by", "end_reason", "ended_by_actor")


@dataclass(frozen=True, slots=True)
class Sources:
    """The tables that tell the past."""

    ended: Table
    current: Table
    trail: Table


@dataclass(frozen=True, slots=True)
class Form:
    """What is asked for but for the values, which are parameters. `databases_clock`: no value is given for `now`."""

    spans: tuple[SpanForm, ...]
    holder: bool
    since: bool
    until: bool
    databases_clock: bool


_LEDGER: Final = bindparam("ledger", type_=ExactText)
_HOLDER: Final = bindparam("holder", type_=ExactText)
_NOW: Final = bindparam("now", type_=Instant())
_AFTER_KEY: Final = bindparam("after_key", type_=ExactText)
_AFTER_TAKEN_AT: Final = bindparam("after_taken_at", type_=Instant())
_AFTER_TOKEN: Final = bindparam("after_token", type_=Count)
_AT_MOST: Final = bindparam("at_most", type_=BigInteger())


class _Written(UserDefinedType[datetime]):
    """An instant in the text of the statement."""

    cache_ok = True

    def literal_processor(self, dialect: Dialect) -> Callable[[datetime], str]:
        return lambda instant: f"'{instant_to_text(instant)}'"


def _asked(form: Form, name: str) -> ColumnElement[datetime]:
    """An instant that is asked for: a parameter for one lock, where every plan is the same.

    Else PostgreSQL has to see it, to know whether more holds come before it by key, or fewer have ended since. Given a
    parameter, it would after some calls keep a plan for any instant, and go through the whole ledger for a recent one.
    """
    if all(span.one_key for span in form.spans):
        return bindparam(name, type_=Instant())
    return bindparam(name, type_=_Written(), literal_execute=True)


def _now(form: Form) -> ColumnElement[datetime]:
    return func.clock_timestamp(type_=Instant()) if form.databases_clock else _NOW


@lru_cache(maxsize=512)
def holds(sources: Sources, form: Form) -> Select[Any]:
    """The holds that were live at an instant of [since, until), by key, then token, at most `at_most`."""
    parts: list[Select[Any]] = []
    for span in form.spans:
        parts += (_ended(sources, form, span), _unended(sources, form, span))
    found = _together(sources, form, parts)
    return select(found).order_by(found.c.key, found.c.taken_at, found.c.token).limit(_AT_MOST)


@lru_cache(maxsize=512)
def live_at(sources: Sources, form: Form) -> Select[Any]:
    """The holds that were live at `when`, by key, at most `at_most`, with the clock and the next extension."""
    parts: list[Select[Any]] = []
    for span in form.spans:
        parts += (_ended_later(sources, form, span), _unended_at(sources, form, span))
    together = _together(sources, form, parts)
    found = select(together).order_by(together.c.key).limit(_AT_MOST).subquery("found")
    moment = select(_now(form).label("clock")).subquery("moment")
    return (
        select(moment, found, _next_extension(sources.trail, form, found).label("next_extension"))
        .select_from(moment.outerjoin(found, true()))
        .order_by(found.c.key)
    )


def _ended(sources: Sources, form: Form, span: SpanForm) -> Select[Any]:
    """The ended holds of a span that were live at an instant of the period, in order."""
    c, since = sources.ended.c, _asked(form, "since")
    query = _all_ended(sources, form).where(*span.conditions(c.key))
    if form.until:
        query = query.where(c.taken_at < _asked(form, "until"))
    if form.since:
        # What began and ended in one instant was live at none, and counts where it stands.
        query = query.where(c.ended_at >= since, or_(c.ended_at > since, c.taken_at >= since))
    if span.goes_on and span.one_key:
        place = tuple_(c.taken_at, c.token) > tuple_(_AFTER_TAKEN_AT, _AFTER_TOKEN)
        query = query.where(place)
    elif span.goes_on:
        place = tuple_(c.key, c.taken_at, c.token) > tuple_(
            _AFTER_KEY, _AFTER_TAKEN_AT, _AFTER_TOKEN
        )
        query = query.where(place)
    elif span.one_key and form.since:
        query = query.where(c.taken_at >= _begun_by(sources, span, since))
    return query.order_by(c.key, c.taken_at, c.token).limit(_AT_MOST)


def _begun_by(
    sources: Sources, span: SpanForm, instant: ColumnElement[datetime]
) -> ColumnElement[datetime]:
    """When the last ended hold of a lock began that had begun by an instant: those before it were over by then."""
    c = sources.ended.alias("earlier").c
    last = (
        select(c.taken_at)
        .where(c.ledger == _LEDGER, c.key == span.only, c.taken_at <= instant)
        .order_by(c.taken_at.desc())
        .limit(1)
    )
    return func.coalesce(last.scalar_subquery(), instant)


def _unended(sources: Sources, form: Form, span: SpanForm) -> Select[Any]:
    """The holds of a span of which no end is recorded, if they were live at an instant of the period, in order."""
    c, since = sources.current.c, _asked(form, "since")
    query = _all_unended(sources, form).where(*span.conditions(c.key))
    if form.until:
        query = query.where(c.taken_at < _asked(form, "until"))
    if form.since:
        # No hold was live at an instant that is still to come.
        query = query.where(
            or_(c.expires_at.is_(None), c.expires_at > since),
            or_(_now(form) >= since, c.changed_at >= since),
        )
    if span.goes_on:
        further = or_(c.key > _AFTER_KEY, c.token > _AFTER_TOKEN)
        query = query.where(c.key >= _AFTER_KEY, further)
    return query.order_by(c.key).limit(_AT_MOST)


def _ended_later(sources: Sources, form: Form, span: SpanForm) -> Select[Any]:
    """The holds of a span that were live at `when` and have ended since."""
    c, when = sources.ended.c, _asked(form, "when")
    query = _all_ended(sources, form).where(c.taken_at <= when, *_further_keys(span, c.key))
    if not span.one_key:
        return query.where(c.ended_at > when).order_by(c.key).limit(_AT_MOST)
    last = query.order_by(c.taken_at.desc(), c.token.desc()).limit(1).subquery("last")
    return select(last).where(last.c.ended_at > when)


def _unended_at(sources: Sources, form: Form, span: SpanForm) -> Select[Any]:
    """The holds of a span that were live at `when` and of which no end is recorded."""
    c, when = sources.current.c, _asked(form, "when")
    live = or_(c.expires_at.is_(None), c.expires_at > when)
    # No hold was live at an instant that is still to come.
    has_come = or_(_now(form) >= when, c.changed_at >= when)
    query = _all_unended(sources, form).where(c.taken_at <= when, live, has_come)
    return query.where(*_further_keys(span, c.key)).order_by(c.key).limit(_AT_MOST)


def _further_keys(span: SpanForm, key: ColumnElement[str]) -> Iterator[ColumnElement[bool]]:
    """The keys of a span after the one where it goes on."""
    if span.goes_on:
        yield key > _AFTER_KEY
    yield from span.conditions(key)


def _next_extension(trail: Table, form: Form, found: Subquery) -> ScalarSelect[Any]:
    """The hold as the first extension after `when` found it."""
    c, when = trail.c, _asked(form, "when")
    # A literal: a plan that is made for any value of a parameter cannot use the index of extensions.
    is_extension = c.action == literal_column(f"'{LockExtended.__name__}'")
    return (
        select(c.before)
        .where(found.c.expires_at.is_not(None), is_extension)
        .where(c.lock_id == found.c.lock_id, c.token == found.c.token, c.occurred_at > when)
        .order_by(c.occurred_at, c.version)
        .limit(1)
        .scalar_subquery()
    )


def _all_ended(sources: Sources, form: Form) -> Select[Any]:
    c = sources.ended.c
    query = select(*(c[name] for name in (*_FACTS, *END))).where(c.ledger == _LEDGER)
    return query.where(c.holder == _HOLDER) if form.holder else query


def _all_unended(sources: Sources, form: Form) -> Select[Any]:
    c = sources.current.c
    # The newest event of such a hold came before its expiry, so the lock's now is past it when the clock is.
    end = [case((c.expires_at <= _now(form), c.expires_at)).label("ended_at")]
    end += [null().label(name) for name in END[1:]]
    query = select(*(c[name] for name in _FACTS), *end)
    query = query.where(c.ledger == _LEDGER, c.holder.is_not(None))
    return query.where(c.holder == _HOLDER) if form.holder else query


def _together(sources: Sources, form: Form, parts: list[Select[Any]]) -> Subquery:
    """The rows of all parts, each of which is cut off by itself and read in the order of an index."""
    if not parts:
        parts = [_all_ended(sources, form).where(false())]
    return union_all(*(select(part.subquery()) for part in parts)).subquery("together")
