"""The ledger that a program opens: the verbs, each in a transaction of its own."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal, Self, TypeVar

from sqlalchemy import URL, Connection, Engine

from lockledger.adapters.engines import Source, checked_busy_timeout
from lockledger.adapters.migration import migrate
from lockledger.adapters.postgres import PostgresEventStore
from lockledger.adapters.schema import check_schema
from lockledger.adapters.sqlite import SQLiteEventStore
from lockledger.adapters.store import EventStore
from lockledger.commands import Command, Commands, Door, Metadata, Performed
from lockledger.domain.errors import LockedByOther, NotHolding
from lockledger.domain.holds import AuditEntry, Grant, Hold, Page, RecordedEvent
from lockledger.domain.keys import check_key, check_ledger_name
from lockledger.domain.lock import IfMine
from lockledger.domain.policy import Clock, Names, Policy
from lockledger.domain.ttl import Ttl
from lockledger.queries import Queries, audit_filter, checked_position
from lockledger.subscription import PAGE, Subscription, read_settled

T = TypeVar("T")
_STORES: dict[str, type[EventStore]] = {
    store.dialect: store for store in (PostgresEventStore, SQLiteEventStore)
}


class LockLedger:
    """A ledger of business locks on PostgreSQL or SQLite; threads may share it.

    `url_or_engine`: a database URL (`postgresql+psycopg://…`, `sqlite:///file.db`), for which the ledger opens and
    owns an engine, or an engine of the host's, which is used as it is and never closed. `name`: several ledgers may
    share the tables; each sees only its own locks. `schema`: PostgreSQL only, `public` by default. `clock` replaces
    the database's clock: a callable that returns an aware datetime, asked at each decision. `policy` and `names`: the
    host's say (see `Policy`) and its display names. `busy_timeout`: seconds a write waits for SQLite's write lock.

    Every verb is one transaction. On PostgreSQL a take makes two round trips, locks no row but its own lock's, and
    never an entire table. Call `migrate()` once before the first use; until then verbs raise `SchemaMismatch`.
    """

    def __init__(
        self,
        url_or_engine: str | URL | Engine,
        *,
        name: str = "default",
        schema: str | None = None,
        clock: Clock | None = None,
        policy: Policy[Connection] | None = None,
        names: Names[Connection] | None = None,
        busy_timeout: float | timedelta = 30,
    ) -> None:
        self.name = check_ledger_name(name)
        self.schema = schema
        self._source = Source(url_or_engine, busy_timeout=checked_busy_timeout(busy_timeout))
        self._store = _STORES[self._source.dialect](self.name, schema)
        self._door = Door(clock)
        self._commands = Commands(self._store, clock, policy)
        self._queries = Queries(self._store, clock)
        self._names = names
        self._schema_is_right = False
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives back what the ledger itself opened. A closed ledger raises `RuntimeError`."""
        self._closed = True
        self._source.close()

    def migrate(self) -> None:
        """Brings the schema up to date, from nothing or from any released version; safe to call twice and at once.

        Raises `SchemaMismatch` when the schema is newer than this library.
        """
        self._refuse_when_closed()
        self._source.create_missing_file()
        migrate(self._source.engine, schema=self.schema)

    # Verbs that write

    def take(
        self,
        key: str,
        holder: str,
        *,
        ttl: Ttl = None,
        takeover_reason: str | None = None,
        if_mine: IfMine = "return",
        expected_token: int | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Grant:
        """Takes the lock for `holder`, or takes it over when a non-blank `takeover_reason` is given.

        `ttl`: seconds, a `timedelta` or an aware instant, more than 0 and at most 100 years from the grant; `None`
        never expires. `if_mine`: what a hold of the same holder means: `"return"` it unchanged, `"extend"` it,
        `"refuse"` it, `"replace"` it by a new one. `expected_token`: only if the live hold has this token (0: nobody
        holds it). Repeating the call gives the same grant with `created=False`, but for `"replace"`.

        Raises `LockedByOther`, `HoldChanged`, `NotLockable`; `InvalidKey`, `InvalidHolder`, `InvalidTtl`,
        `InvalidReason`, `InvalidMetadata`, `TypeError`; `ConcurrencyConflict`, `OutcomeUnknown`, `SchemaMismatch`,
        `TamperedLedger`. After any of them but `OutcomeUnknown`, nothing was recorded.
        """
        return self.perform(
            self._door.take(
                key,
                holder,
                ttl=ttl,
                takeover_reason=takeover_reason,
                if_mine=if_mine,
                expected_token=expected_token,
                actor=actor,
                metadata=metadata,
            )
        ).outcome

    def try_take(
        self,
        key: str,
        holder: str,
        *,
        ttl: Ttl = None,
        takeover_reason: str | None = None,
        if_mine: IfMine = "return",
        expected_token: int | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Grant | None:
        """As `take`, `None` instead of `LockedByOther`; every other error comes through."""
        command = self._door.take(
            key,
            holder,
            ttl=ttl,
            takeover_reason=takeover_reason,
            if_mine=if_mine,
            expected_token=expected_token,
            actor=actor,
            metadata=metadata,
            verb="try_take",
        )
        try:
            return self.perform(command).outcome
        except LockedByOther:
            return None

    def release(
        self,
        key: str,
        holder: str,
        *,
        token: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> bool:
        """Ends the holder's hold: `True`; `False` when nobody holds the lock.

        Raises `NotLockHolder` when somebody else holds it. With a `token`, `HoldLost` when the hold with this token is
        over, with how, when, by whom and why; but a release repeated after the hold's own release is `False`.
        """
        return self.perform(
            self._door.release(
                key, holder, token=token, reason=reason, actor=actor, metadata=metadata
            )
        ).outcome

    def try_release(
        self,
        key: str,
        holder: str,
        *,
        token: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> bool:
        """As `release`, `False` instead of `NotHolding`: fit for a `finally`."""
        try:
            return self.release(
                key, holder, token=token, reason=reason, actor=actor, metadata=metadata
            )
        except NotHolding:
            return False

    def extend(
        self,
        key: str,
        holder: str,
        ttl: Ttl,
        *,
        token: int | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Grant:
        """Moves the expiry to the later of the old one and now + `ttl` (or the instant given); never shortens.

        A hold without expiry stays so; an extension that moves nothing records nothing. Raises `NotHeld`,
        `NotLockHolder`, with a `token` `HoldLost`; `None` as ttl is an `InvalidTtl`.
        """
        return self.perform(
            self._door.extend(key, holder, ttl, token=token, actor=actor, metadata=metadata)
        ).outcome

    def force_release(
        self,
        key: str,
        *,
        actor: str,
        reason: str,
        expected_token: int | None = None,
        metadata: Metadata = None,
    ) -> Hold | None:
        """Ends whoever's hold and gives it with its end; `None`, and nothing recorded, when nobody holds the lock.

        `reason` is mandatory (`InvalidReason`). Raises `HoldChanged` when `expected_token` is not the live hold's (0
        when there is none). Who may force is the host's question: this trusts its caller.
        """
        return self.perform(
            self._door.force_release(
                key, actor=actor, reason=reason, expected_token=expected_token, metadata=metadata
            )
        ).outcome

    def perform(self, command: Command[T]) -> Performed[T]:
        """Carries out a checked command in a transaction of its own, and tells what was recorded for it."""
        with self._connection() as connection:
            if not self._commands.needs_transaction:
                return self._commands.perform(connection, command, inside=False)
            with self._commands.transaction(connection, command.key):
                return self._commands.perform(connection, command, inside=True)

    # Verbs that read

    def holder_of(self, key: str) -> Hold | None:
        """The live hold, `None` when there is none; its expiry is judged now."""
        with self._connection() as connection:
            return self._queries.holder_of(connection, key)

    def is_locked(self, key: str) -> bool:
        """Whether there is a live hold now."""
        return self.holder_of(key) is not None

    def current_holders(
        self,
        *,
        holder: str | None = None,
        key_prefix: str | None = None,
        under: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Hold, str]:
        """The live holds, by key, at most `limit` (1 to 1,000); pass `next_after` as `after` for more.

        `under` matches the key itself and all keys under it, `key_prefix` any text a key begins with.
        """
        with self._connection() as connection:
            return self._queries.current_holders(
                connection,
                holder=holder,
                key_prefix=key_prefix,
                under=under,
                after=after,
                limit=limit,
            )

    def history(
        self, key: str, *, extensions: bool = False, after: int | None = None, limit: int = 100
    ) -> Page[AuditEntry, int]:
        """What happened to one lock, oldest first; extensions only when asked for. Pages by position."""
        return self.audit_trail(key=check_key(key), extensions=extensions, after=after, limit=limit)

    def audit_trail(
        self,
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
        after: int | None = None,
        limit: int = 100,
    ) -> Page[AuditEntry, int]:
        """Who did what to which lock, in position order, at most `limit` (1 to 1,000) entries a page.

        `since` and `until` (excluded) bound `occurred_at`; `holder` matches who gained or lost; `action` is an event's
        name. Extensions only when asked for. Without `key`, nothing beyond the settled position is shown, so that
        following `next_after` skips nothing; it may lag behind the oldest open transaction that changed a lock here.
        """
        wanted = audit_filter(
            key=key,
            key_prefix=key_prefix,
            under=under,
            holder=holder,
            actor=actor,
            action=action,
            since=since,
            until=until,
            extensions=extensions or action == "LockExtended",
        )
        with self._connection() as connection:
            return self._queries.audit_trail(
                connection, wanted, after=after, limit=limit, settled=key is None
            )

    def events(self, after: int = 0) -> Iterator[RecordedEvent]:
        """The events after a position, in position order, up to what is settled; none is skipped.

        It may lag behind the oldest open transaction that changed a lock of this ledger. Holds no connection between
        pages.
        """
        return read_settled(self._next_page, checked_position(after))

    def subscribe(
        self,
        *,
        after: int | Literal["now"] = 0,
        key_prefix: str | None = None,
        poll: float | timedelta = 0.25,
    ) -> Subscription:
        """As `events`, but goes on waiting for new ones, until it is closed; use it as a context manager.

        `after="now"` begins with what settles from now on. `poll`: seconds between two looks when nothing is new, more
        than 0. Each event comes once and in order, also while slow transactions commit and roll back around it.
        """
        start = self._settled() if after == "now" else checked_position(after)
        return Subscription(
            self._next_page, after=start, key_prefix=key_prefix, poll=_seconds(poll)
        )

    def display_names(self, ids: Collection[str]) -> Mapping[str, str | None]:
        """The host's names of holders and actors as they are now; `None` for those it does not know."""
        distinct = sorted(set(ids))
        if self._names is None or not distinct:
            return dict.fromkeys(distinct)
        with self._connection() as connection:
            known = self._names(connection, distinct)
        return {each: known.get(each) for each in distinct}

    def _next_page(self, after: int) -> tuple[list[RecordedEvent], int]:
        with self._connection() as connection:
            return self._store.settled_page(connection, after, PAGE)

    def _settled(self) -> int:
        with self._connection() as connection:
            return self._store.settled(connection)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        self._refuse_when_closed()
        with self._source.connect() as connection:
            if not self._schema_is_right:
                check_schema(connection, self.schema)
                self._schema_is_right = True
            yield connection

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise RuntimeError(f"the ledger {self.name!r} is closed; open a new LockLedger")


def _seconds(poll: float | timedelta) -> float:
    seconds = poll.total_seconds() if isinstance(poll, timedelta) else poll
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"poll is seconds or a timedelta, not {poll!r}")
    if not 0 < seconds <= 86_400:
        raise ValueError(f"poll={poll!r}: give more than 0 and at most 86,400 seconds")
    return float(seconds)
