"""The past: which holds there were, and who held what at an instant. Ended and current holds together, in one statement.

The holds of one lock never overlap, and neither their beginnings nor their ends run back. So the last that began up to
an instant is the only one that can have been live then, and in a lock the order of beginnings is that of tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    RowMapping,
    ScalarSelect,
    Select,
    Subquery,
    Table,
    case,
    false,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.sql import ColumnElement

from lockledger.domain.events import LockExtended
from lockledger.domain.holds import Hold
from lockledger.projections import current_holders
from lockledger.projections.columns import Instant
from lockledger.projections.spans import Span, spans

Now = datetime | ColumnElement[datetime]

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
_END = ("ended_at", "ended_by", "end_reason", "ended_by_actor")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the past is kept: the tables, and the ledger whose rows are meant."""

    ledger: str
    ended: Table
    current: Table
    trail: Table


@dataclass(frozen=True, slots=True)
class Filter:
    """Which holds are asked for. `since` and `until` (excluded): those that were live at an instant between."""

    key: str | None = None
    key_prefix: str | None = None
    under: str | None = None
    holder: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def spans(self) -> list[Span]:
        """The keys that are asked for."""
        return spans(self.key, self.key_prefix, self.under)


class Place(NamedTuple):
    """A hold's place in the order by key, then token. Its beginning adds nothing to the order, but is in the index."""

    key: str
    taken_at: datetime
    token: int


def holds(
    sources: Sources, wanted: Filter, now: Now, *, after: Place | None, limit: int
) -> Select[Any]:
    """The holds that were live at an instant of the period, by key, then token, at most `limit`.

    One that has run out and is still to be recorded has `ended_at` and no `ended_by`.
    """
    parts: list[Select[Any]] = []
    for span in wanted.spans:
        if after is None or not span.ends_before(after.key):
            parts.append(_ended(sources, wanted, span, after).limit(limit))
            parts.append(_unended(sources, wanted, span, now, after).limit(limit))
    found = _together(sources, parts)
    return select(found).order_by(found.c.key, found.c.taken_at, found.c.token).limit(limit)


def live_at(
    sources: Sources, wanted: Filter, when: datetime, now: Now, *, after: str | None, limit: int
) -> Select[Any]:
    """The holds that were live at `when`, by key, at most `limit`; each row with the clock, one without a hold if none.

    `next_extension` is the hold as the first extension after `when` found it.
    """
    parts: list[Select[Any]] = []
    for span in wanted.spans:
        if after is None or not span.ends_before(after):
            parts.append(_ended_later(sources, wanted, span, when, after).limit(limit))
            parts.append(_unended_at(sources, wanted, span, when, after).limit(limit))
    together = _together(sources, parts)
    found = select(together).order_by(together.c.key).limit(limit).subquery("found")
    clock = literal(now, Instant()) if isinstance(now, datetime) else now
    moment = select(clock.label("clock")).subquery("moment")
    extension = _next_extension(sources.trail, found, when)
    return (
        select(moment, found, extension.label("next_extension"))
        .select_from(moment.outerjoin(found, true()))
        .order_by(found.c.key)
    )


def changed_at(sources: Sources, lock_id: UUID) -> Select[Any]:
    """The time of a lock's newest event."""
    c = sources.current.c
    return select(c.changed_at).where(c.lock_id == lock_id)


def hold_of(found: RowMapping) -> Hold:
    """The hold in a row of `holds`."""
    hold = current_holders.hold_of(found)
    if hold.ended_at is None or hold.ended_by is not None:
        return hold
    return hold.ended(hold.ended_at, "expiry", actor=None, reason=None)


def hold_as_it_was(found: RowMapping) -> Hold:
    """The hold in a row of `live_at`, until when it was to last then; it had not ended."""
    facts = {name: found[name] for name in Hold.model_fields if name not in _END}
    if found["next_extension"] is not None:
        facts["expires_at"] = found["next_extension"]["expires_at"]
    return Hold(**facts)


def _ended(sources: Sources, wanted: Filter, span: Span, after: Place | None) -> Select[Any]:
    """The ended holds of a span that were live at an instant of the period, in order."""
    c = sources.ended.c
    query = _all_ended(sources, wanted)
    if wanted.until is not None:
        query = query.where(c.taken_at < wanted.until)
    if wanted.since is not None:
        # What began and ended in one instant was live at none, and counts where it stands.
        query = query.where(
            c.ended_at >= wanted.since, or_(c.ended_at > wanted.since, c.taken_at >= wanted.since)
        )
    # An index begins at one lower bound: given two, SQLite might choose the one that is further away.
    if after is not None and span.only == after.key:
        place = tuple_(c.taken_at, c.token) > (after.taken_at, after.token)
        query = query.where(c.key == after.key, place)
    elif after is not None and after.key in span:
        place = tuple_(c.key, c.taken_at, c.token) > (after.key, after.taken_at, after.token)
        query = query.where(place, *Span(beyond=span.beyond).conditions(c.key))
    else:
        query = query.where(*span.conditions(c.key))
        if span.only is not None and wanted.since is not None:
            query = query.where(c.taken_at >= _begun_by(sources, span.only, wanted.since))
    return query.order_by(c.key, c.taken_at, c.token)


def _begun_by(sources: Sources, key: str, instant: datetime) -> ColumnElement[datetime]:
    """When the last ended hold of a lock began that had begun by an instant: those before it were over by then."""
    c = sources.ended.alias("earlier").c
    last = (
        select(c.taken_at)
        .where(c.ledger == sources.ledger, c.key == key, c.taken_at <= instant)
        .order_by(c.taken_at.desc())
        .limit(1)
    )
    return func.coalesce(last.scalar_subquery(), literal(instant, Instant()))


def _unended(
    sources: Sources, wanted: Filter, span: Span, now: Now, after: Place | None
) -> Select[Any]:
    """The holds of a span of which no end is recorded, if they were live at an instant of the period, in order."""
    c = sources.current.c
    query = _all_unended(sources, wanted, now)
    if wanted.until is not None:
        query = query.where(c.taken_at < wanted.until)
    if wanted.since is not None:
        since = literal(wanted.since, Instant())
        # What is still to come was not.
        query = query.where(
            or_(c.expires_at.is_(None), c.expires_at > since),
            or_(since <= now, since <= c.changed_at),
        )
    if after is not None and after.key in span:
        query = query.where(or_(c.key > after.key, c.token > after.token))
        if span.only is None:
            span = Span(first=after.key, beyond=span.beyond)
    return query.where(*span.conditions(c.key)).order_by(c.key)


def _ended_later(
    sources: Sources, wanted: Filter, span: Span, when: datetime, after: str | None
) -> Select[Any]:
    """The holds of a span that were live at `when` and have ended since."""
    c = sources.ended.c
    query = _all_ended(sources, wanted).where(c.taken_at <= when, *_keys(span, c.key, after))
    if span.only is None:
        return query.where(c.ended_at > when).order_by(c.key)
    last = query.order_by(c.taken_at.desc(), c.token.desc()).limit(1).subquery("last")
    return select(last).where(last.c.ended_at > when)


def _unended_at(
    sources: Sources, wanted: Filter, span: Span, when: datetime, after: str | None
) -> Select[Any]:
    """The holds of a span that were live at `when` and of which no end is recorded."""
    c = sources.current.c
    live = or_(c.expires_at.is_(None), c.expires_at > when)
    query = _all_unended(sources, wanted, when)
    return query.where(c.taken_at <= when, live, *_keys(span, c.key, after)).order_by(c.key)


def _keys(span: Span, key: ColumnElement[str], after: str | None) -> Iterator[ColumnElement[bool]]:
    """The keys of a span that come after one."""
    if after is not None and after in span:
        yield key > after
        span = span if span.only is not None else Span(beyond=span.beyond)
    yield from span.conditions(key)


def _next_extension(trail: Table, found: Subquery, when: datetime) -> ScalarSelect[Any]:
    """The hold as the first extension after `when` found it."""
    c = trail.c
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


def _all_ended(sources: Sources, wanted: Filter) -> Select[Any]:
    c = sources.ended.c
    query = select(*(c[name] for name in (*_FACTS, *_END))).where(c.ledger == sources.ledger)
    return query if wanted.holder is None else query.where(c.holder == wanted.holder)


def _all_unended(sources: Sources, wanted: Filter, now: Now) -> Select[Any]:
    c = sources.current.c
    has_run_out = or_(c.expires_at <= now, c.expires_at <= c.changed_at)
    end = [case((has_run_out, c.expires_at)).label("ended_at")]
    end += [null().label(name) for name in _END[1:]]
    query = select(*(c[name] for name in _FACTS), *end).where(
        c.ledger == sources.ledger, c.holder.is_not(None)
    )
    return query if wanted.holder is None else query.where(c.holder == wanted.holder)


def _together(sources: Sources, parts: list[Select[Any]]) -> Subquery:
    """The rows of all parts, each of which is cut off by itself and read in the order of an index."""
    if not parts:
        parts = [_all_ended(sources, Filter()).where(false())]
    return union_all(*(select(part.subquery()) for part in parts)).subquery("together")
