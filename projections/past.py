"""The past: which holds there were, and who held what at an instant.

The holds of one lock never overlap, and neither their beginnings nor their ends run back. So the last that began up to
an instant is the only one that can have been live then, and within a lock the order of beginnings is that of tokens.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Executable, RowMapping, Select, select, union_all

from lockledger.domain.holds import Hold
from lockledger.projections import current_holders, past_statements
from lockledger.projections.past_statements import END, Form, Sources
from lockledger.projections.spans import Span, forms, spans


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
        """The keys that are asked for; none in a period without an instant."""
        if self.until is not None and self.since == self.until:
            return []
        return spans(self.key, self.key_prefix, self.under)


class Place(NamedTuple):
    """A hold's place in the order by key, then token. Its beginning changes nothing in the order, but leads an index."""

    key: str
    taken_at: datetime
    token: int


@dataclass(frozen=True, slots=True)
class Question:
    """A statement, and the values of its parameters."""

    statement: Executable
    values: dict[str, Any]


def holds(
    sources: Sources,
    ledger: str,
    wanted: Filter,
    now: datetime | None,
    *,
    after: Place | None,
    limit: int,
) -> Question:
    """The holds that were live at an instant of the period, by key, then token, at most `limit`.

    `now`: `None` for the database's clock. A hold that has run out and is still to be recorded has `ended_at` and no
    `ended_by`.
    """
    form, values = _form(ledger, wanted, now, None if after is None else after.key, limit)
    if after is not None:
        values |= {"after_taken_at": after.taken_at, "after_token": after.token}
    return Question(past_statements.holds(sources, form), values)


def live_at(
    sources: Sources,
    ledger: str,
    wanted: Filter,
    when: datetime,
    now: datetime | None,
    *,
    after: str | None,
    limit: int,
) -> Question:
    """The holds that were live at `when`, by key, at most `limit`; each row with the clock, one without a hold if none.

    `next_extension` is the hold as the first extension after `when` found it.
    """
    form, values = _form(ledger, wanted, now, after, limit)
    return Question(past_statements.live_at(sources, form), values | {"when": when})


def changed_at(sources: Sources, lock_id: UUID) -> Select[Any]:
    """The time of a lock's newest event."""
    c = sources.current.c
    return select(c.changed_at).where(c.lock_id == lock_id)


def newest_times(sources: Sources, ledger: str) -> Select[Any]:
    """The latest instant of an entry of the trail, and when its last one was recorded, each by an index.

    Both, since an expiry may be recorded long after its instant.
    """
    c = sources.trail.c
    parts = (
        select(c.occurred_at.label("time"))
        .where(c.ledger == ledger)
        .order_by(c.occurred_at.desc())
        .limit(1),
        select(c.recorded_at).where(c.ledger == ledger).order_by(c.position.desc()).limit(1),
    )
    return select(union_all(*(select(part.subquery()) for part in parts)).subquery("newest"))


def hold_of(found: RowMapping) -> Hold:
    """The hold in a row of `holds`."""
    hold = current_holders.hold_of(found)
    if hold.ended_at is None or hold.ended_by is not None:
        return hold
    return hold.ended(hold.ended_at, "expiry", actor=None, reason=None)


def hold_as_it_was(found: RowMapping) -> Hold | None:
    """The hold in a row of `live_at`, not ended yet, and with the expiry that it had then."""
    if found["key"] is None:
        return None
    facts = {name: found[name] for name in Hold.model_fields if name not in END}
    if found["next_extension"] is not None:
        facts["expires_at"] = found["next_extension"]["expires_at"]
    return Hold(**facts)


def _form(
    ledger: str, wanted: Filter, now: datetime | None, after: str | None, limit: int
) -> tuple[Form, dict[str, Any]]:
    found, keys = forms(wanted.spans, after)
    given = {
        "holder": wanted.holder,
        "since": wanted.since,
        "until": wanted.until,
        "now": now,
        "after_key": after,
    }
    values = {name: value for name, value in given.items() if value is not None}
    form = Form(
        found,
        wanted.holder is not None,
        wanted.since is not None,
        wanted.until is not None,
        now is None,
    )
    return form, {"ledger": ledger, "at_most": limit, **keys, **values}
