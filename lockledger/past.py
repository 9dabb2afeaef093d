"""Looking back: which holds there were, and who held what at an instant."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, RowMapping, Select

from lockledger.adapters.clock import checked_now
from lockledger.adapters.failures import readable, translated
from lockledger.adapters.statements import ask
from lockledger.adapters.store import EventStore
from lockledger.domain.errors import shown
from lockledger.domain.holds import Hold, Page
from lockledger.domain.keys import check_holder, check_key, check_under
from lockledger.domain.policy import Clock
from lockledger.projections import past
from lockledger.projections.past_statements import Sources
from lockledger.queries import checked_instant, checked_limit, checked_period, checked_text

T = TypeVar("T")


class Past:
    """Answers who held what when, from the tables of holds, on a connection that somebody else opened."""

    def __init__(self, store: EventStore, clock: Clock | None) -> None:
        self._store = store
        self._clock = clock
        tables = store.tables
        self._sources = Sources(tables.holds, tables.current_holders, tables.audit_trail)

    def holds(
        self, connection: Connection, wanted: past.Filter, *, after: past.Place | None, limit: int
    ) -> Page[Hold, str]:
        """The holds that were live at an instant of the period, by key, then token."""
        limit = checked_limit(limit)
        question = past.holds(
            self._sources, self._store.ledger, wanted, self._now(), after=after, limit=limit + 1
        )
        found = self._rows(connection, question, wanted.key)
        with readable(key=wanted.key):
            page = [past.hold_of(row) for row in found[:limit]]
        return Page(page, place_after(page[-1]) if len(found) > limit else None)

    def holder_at(self, connection: Connection, key: str, when: datetime) -> Hold | None:
        """The hold that was live at an instant."""
        found = self._live_at(connection, past.Filter(key=key), when, after=None, limit=1)
        clock = found[0]["clock"]
        if when > clock:
            newest = past.changed_at(self._sources, self._store.lock_id(key))
            self._refuse_what_is_to_come(connection, when, clock, newest, key)
        with readable(key=key):
            return past.hold_as_it_was(found[0])

    def holders_at(
        self,
        connection: Connection,
        when: datetime,
        wanted: past.Filter,
        *,
        after: str | None,
        limit: int,
    ) -> Page[Hold, str]:
        """The holds that were live at an instant, by key."""
        limit = checked_limit(limit)
        found = self._live_at(connection, wanted, when, after=after, limit=limit + 1)
        clock = found[0]["clock"]
        if when > clock:
            newest = past.newest_times(self._sources, self._store.ledger)
            self._refuse_what_is_to_come(connection, when, clock, newest, None)
        with readable():
            page = [hold for row in found[:limit] if (hold := past.hold_as_it_was(row)) is not None]
        return Page(page, page[-1].key if len(found) > limit else None)

    def _live_at(
        self,
        connection: Connection,
        wanted: past.Filter,
        when: datetime,
        *,
        after: str | None,
        limit: int,
    ) -> Sequence[RowMapping]:
        question = past.live_at(
            self._sources,
            self._store.ledger,
            wanted,
            when,
            self._now(),
            after=after,
            limit=limit,
        )
        return self._rows(connection, question, wanted.key)

    def _refuse_what_is_to_come(
        self,
        connection: Connection,
        when: datetime,
        clock: datetime,
        newest: Select[Any],
        key: str | None,
    ) -> None:
        """Raises `ValueError` for an instant later than now, which is never before the newest event."""
        with translated(key=key), readable(key=key):
            recorded = [time for time in ask(connection, newest).scalars() if time is not None]
        now = max([clock, *recorded])
        if when > now:
            raise ValueError(
                f"when={when.isoformat()} is later than now, {now.isoformat()} by the ledger's clock;"
                " give an instant that has passed, or ask who holds it now instead"
            )

    def _rows(
        self, connection: Connection, question: past.Question, key: str | None
    ) -> Sequence[RowMapping]:
        with translated(key=key), readable(key=key):
            return ask(connection, question.statement, question.values).mappings().all()

    def _now(self) -> datetime | None:
        """The time by the clock that the host gave or the process has; `None` where the database's decides."""
        if self._clock is None and self._store.dialect == "postgresql":
            return None
        return checked_now(self._clock)


class PastVerbs(ABC):
    """The verbs that look back. They change nothing and lock nothing, and need no events but what the tables say."""

    _past: Past

    @abstractmethod
    def _ask(self, question: Callable[[Connection], T]) -> T:
        """Runs a query on a connection."""

    def holds(
        self,
        *,
        key: str | None = None,
        key_prefix: str | None = None,
        under: str | None = None,
        holder: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Hold, str]:
        """Every hold that was live at any instant of [since, until), by key, then token, at most `limit` (1 to 1,000).

        One that began and ended in the same instant counts there. Ended ones say when, how (`release`, `forced`,
        `takeover`, `expiry`), why and by whom; a hold that has run out has ended at its expiry, whether or not that
        is recorded. `under` matches the key itself and all keys under it, `key_prefix` any text a key begins with.

        Pass `next_after` as `after` for more: a text that names the last hold, good for ever and in every process.
        Following it skips and repeats no hold, whatever ends meanwhile; a hold that begins meanwhile may be missed.
        """
        wanted = past_filter(
            key=key, key_prefix=key_prefix, under=under, holder=holder, since=since, until=until
        )
        place = None if after is None else place_of(after)
        return self._ask(
            lambda connection: self._past.holds(connection, wanted, after=place, limit=limit)
        )

    def holder_at(self, key: str, when: datetime) -> Hold | None:
        """The hold that was live at `when`, as it was then, `None` when there was none.

        That is the state after the lock's last event not later than `when`, with expiry at its instant, recorded or
        not; `expires_at` is what it was then, whatever extensions came later. A `when` later than now is a
        `ValueError`. The answer can still change while a transaction is open that took the lock before `when`.
        """
        key, instant = check_key(key), _checked_when(when)
        return self._ask(lambda connection: self._past.holder_at(connection, key, instant))

    def holders_at(
        self,
        when: datetime,
        *,
        holder: str | None = None,
        key_prefix: str | None = None,
        under: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Hold, str]:
        """The holds that were live at `when`, each as `holder_at` gives it, by key, at most `limit` (1 to 1,000).

        A `when` later than now is a `ValueError`. Where the clock went back, now is the time of what was recorded last,
        and a lock that nothing has happened to since `when` is left out.

        Pass `next_after`, a key, as `after` for more. With `holder`, `key_prefix` or `under` it costs what the holds
        that these select cost, else what all holds cost, or those that have ended since `when`, whichever are fewer.
        """
        instant = _checked_when(when)
        wanted = past_filter(holder=holder, key_prefix=key_prefix, under=under)
        key = checked_text(after, "after")
        return self._ask(
            lambda connection: self._past.holders_at(
                connection, instant, wanted, after=key, limit=limit
            )
        )


def past_filter(
    *,
    key: str | None = None,
    key_prefix: str | None = None,
    under: str | None = None,
    holder: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> past.Filter:
    """Which holds are asked for, checked. A naive instant, or `until` before `since`, is a `ValueError`."""
    first, beyond = checked_period(since, until)
    return past.Filter(
        key=None if key is None else check_key(key),
        key_prefix=checked_text(key_prefix, "key_prefix"),
        under=check_under(under),
        holder=None if holder is None else check_holder(holder),
        since=first,
        until=beyond,
    )


_PLACE: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6})Z/(\d{1,19})/(.+)", re.ASCII | re.DOTALL
)


def place_after(hold: Hold) -> str:
    """The place of a hold as text: what pages are followed by."""
    begun = hold.taken_at.replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"{begun}Z/{hold.token}/{hold.key}"


def place_of(text: str) -> past.Place:
    """The place that a page of holds gave as `next_after`; anything else is a `ValueError`."""
    plain = checked_text(text, "after")
    found = None if plain is None else _PLACE.fullmatch(plain)
    if found is not None and int(found[2]) < 2**63:
        try:
            return past.Place(found[3], datetime.fromisoformat(f"{found[1]}+00:00"), int(found[2]))
        except ValueError:
            pass
    raise ValueError(
        f"after={shown(text)} is no place among holds; pass the next_after of the page before it"
    )


def _checked_when(when: datetime) -> datetime:
    instant = checked_instant(when, "when")
    if instant is None:
        raise TypeError(
            "when must be an aware datetime, not None; holder_of tells who holds it now"
        )
    return instant
