"""The reading verbs, on a connection that somebody else opened. They change nothing and lock nothing."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, func
from sqlalchemy.sql import ColumnElement

from lockledger.adapters.clock import checked_now
from lockledger.adapters.failures import readable, translated
from lockledger.adapters.statements import ask
from lockledger.adapters.store import EventStore
from lockledger.domain.errors import shown
from lockledger.domain.events import EVENTS
from lockledger.domain.holds import AuditEntry, Hold, Page
from lockledger.domain.keys import check_holder, check_key, check_under
from lockledger.domain.policy import Clock
from lockledger.projections import audit_trail, current_holders

MAX_LIMIT = 1000
_ACTIONS = tuple(kind.__name__ for kind in EVENTS.values())


class Queries:
    """Answers who holds what, and who did what, from the projections."""

    def __init__(self, store: EventStore, clock: Clock | None) -> None:
        self._store = store
        self._clock = clock

    def holder_of(self, connection: Connection, key: str) -> Hold | None:
        """The live hold of the lock with this key."""
        with translated(key=key):
            newest = self._store.newest(connection, check_key(key))
        return newest.lock.live_hold(
            newest.lock.now(newest.clock if self._clock is None else checked_now(self._clock))
        )

    def current_holders(
        self,
        connection: Connection,
        *,
        holder: str | None = None,
        key_prefix: str | None = None,
        under: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Hold, str]:
        """The live holds, by key."""
        query = current_holders.live_holds(
            self._store.tables.current_holders,
            self._store.ledger,
            self._now(),
            holder=None if holder is None else check_holder(holder),
            key_prefix=checked_text(key_prefix, "key_prefix"),
            under=check_under(under),
            after=checked_text(after, "after"),
            limit=checked_limit(limit) + 1,
        )
        with translated(), readable():
            found = [
                current_holders.hold_of(row) for row in ask(connection, query).mappings().all()
            ]
        return Page(found[:limit], found[limit - 1].key if len(found) > limit else None)

    def due(self, connection: Connection, limit: int, passed: int = 0) -> list[str]:
        """The keys of holds that have run out unrecorded, the longest due first, without the first `passed`."""
        table = self._store.tables.current_holders
        query = current_holders.due(table, self._store.ledger, self._now(), limit, passed)
        with translated():
            return list(ask(connection, query).scalars())

    def audit_trail(
        self,
        connection: Connection,
        wanted: audit_trail.Filter,
        *,
        after: int | None,
        limit: int,
        settled: bool,
    ) -> Page[AuditEntry, int]:
        """The entries in position order; `settled`: nothing beyond the settled position, so that paging skips nothing."""
        limit, first = checked_limit(limit), checked_position(0 if after is None else after)
        with translated(key=wanted.key):
            upto = self._store.settled(connection) if settled else None
            query = audit_trail.entries(
                self._store.tables.audit_trail,
                self._store.ledger,
                wanted,
                after=first,
                upto=upto,
                limit=limit + 1,
            )
            with readable(key=wanted.key):
                found = [audit_trail.entry_of(row) for row in ask(connection, query).all()]
        return Page(found[:limit], found[limit - 1].position if len(found) > limit else None)

    def _now(self) -> datetime | ColumnElement[datetime]:
        """The clock by which a list is judged: inside the statement on PostgreSQL."""
        if self._clock is None and self._store.dialect == "postgresql":
            return func.clock_timestamp()
        return checked_now(self._clock)


def audit_filter(
    *,
    key: str | None = None,
    key_prefix: str | None = None,
    under: str | None = None,
    holder: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    extensions: bool = False,
) -> audit_trail.Filter:
    """What an audit is asked for, checked.

    An unknown action, a naive instant, or `until` before `since`, is a `ValueError`.
    """
    first, beyond = checked_period(since, until)
    if action is not None and action not in _ACTIONS:
        raise ValueError(f"action={shown(action)}: use one of {', '.join(_ACTIONS)}")
    return audit_trail.Filter(
        key=None if key is None else check_key(key),
        key_prefix=checked_text(key_prefix, "key_prefix"),
        under=check_under(under),
        holder=None if holder is None else check_holder(holder),
        actor=None if actor is None else check_holder(actor, what="actor"),
        action=action,
        since=first,
        until=beyond,
        extensions=bool(extensions),
    )


def checked_limit(limit: int) -> int:
    """A page's size, 1 to 1,000."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not {shown(limit)}; give 1 to {MAX_LIMIT}")
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(
            f"limit={shown(limit)}: a page has 1 to {MAX_LIMIT} entries; follow next_after for more"
        )
    return limit


def checked_position(position: int) -> int:
    """A place in the ledger, 0 (before everything) and above."""
    if isinstance(position, bool) or not isinstance(position, int):
        raise TypeError(
            f"a position must be an int, not {shown(position)}; give 0 for everything, or one that was told"
        )
    if not 0 <= position < 2**63:
        raise ValueError(
            f"position {shown(position)}: positions are 0 (before everything) and above, below 2**63"
        )
    return position


def checked_instant(instant: datetime | None, name: str) -> datetime | None:
    """An aware instant in UTC."""
    if instant is None:
        return None
    if not isinstance(instant, datetime):
        raise TypeError(f"{name} must be an aware datetime, not {shown(instant)}")
    if instant.utcoffset() is None:
        raise ValueError(f"{name}={instant.isoformat()} has no time zone; give it one, such as UTC")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise ValueError(
            f"{name}={instant.isoformat()} is in no year from 1 to 9999 in UTC; give one that is"
        ) from None


def checked_period(
    since: datetime | None, until: datetime | None
) -> tuple[datetime | None, datetime | None]:
    """The bounds of a period, in UTC. `until` before `since` is a `ValueError`."""
    first, beyond = checked_instant(since, "since"), checked_instant(until, "until")
    if first is not None and beyond is not None and beyond < first:
        raise ValueError(
            f"until={beyond.isoformat()} is before since={first.isoformat()}; give the earlier one as since"
        )
    return first, beyond


def checked_text(text: Any, name: str) -> str | None:
    """What keys are compared with, and need not be a key itself. Raises `TypeError` or `ValueError`."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, not {shown(text)}")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{name}={shown(text)} holds a NUL or a surrogate, which no key does")
    return str.__str__(text)
