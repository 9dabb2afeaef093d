"""The verbs that a ledger has on its own and inside a caller's transaction."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from sqlalchemy import Connection

from lockledger.domain.errors import LockedByOther, NotHolding, shown
from lockledger.domain.holds import AuditEntry, Grant, Hold, Page
from lockledger.domain.keys import check_key
from lockledger.domain.lock import IfMine
from lockledger.domain.ttl import Ttl
from lockledger.door import Door, Metadata
from lockledger.past import PastVerbs
from lockledger.queries import Queries, audit_filter
from lockledger.waiting import checked_wait
from lockledger.wishes import Clearance, Command, Performed

T = TypeVar("T")


class Verbs(PastVerbs):
    """Checks the arguments at the door, and leaves it to the kind of ledger on which connection the verb runs."""

    _door: Door
    _queries: Queries

    @abstractmethod
    def perform(self, command: Command[T]) -> Performed[T]:
        """Carries out a checked command, and tells what was recorded for it."""

    @abstractmethod
    def _wait(self, command: Command[Grant], seconds: float) -> Performed[Grant]:
        """Carries out a take again and again until it is not refused, or the time is up."""

    @abstractmethod
    def _ask(self, question: Callable[[Connection], T]) -> T:
        """Runs a query on a connection."""

    @abstractmethod
    def _clear(self, clearance: Clearance) -> int:
        """Ends the selected holds."""

    @abstractmethod
    def _take_all(self, commands: Sequence[Command[Grant]]) -> dict[str, Grant]:
        """Takes all or none."""

    @abstractmethod
    def _expire_due(self, limit: int, expire: Callable[[str], Command[bool]]) -> int:
        """Records expiries that have passed."""

    @property
    @abstractmethod
    def _alone(self) -> bool:
        """Whether the verb has a connection and a snapshot to itself, so that pages must not pass what may still come."""

    def take(
        self,
        key: str,
        holder: str,
        *,
        ttl: Ttl = None,
        takeover_reason: str | None = None,
        if_mine: IfMine = "return",
        expected_token: int | None = None,
        wait: float | timedelta | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Grant:
        """Takes the lock for `holder`, or takes it over when a non-blank `takeover_reason` is given.

        `ttl`: seconds, a `timedelta` or an aware instant, more than 0 and at most 100 years from the grant; `None`
        never expires. `if_mine`: what a hold of the same holder means: `"return"` it unchanged, `"extend"` it,
        `"refuse"` it, `"replace"` it by a new one. `expected_token`: only if the live hold has this token (0: nobody
        holds it). `wait`: seconds or a `timedelta` above 0 to go on asking while another holds it (`WaitTimeout`); the
        ttl counts from the grant, nothing is granted after the wait, and no connection is held meanwhile; not in a
        caller's transaction. Repeating the call gives the same grant with `created=False`, but for `"replace"`.

        Raises `LockedByOther`, `HoldChanged`, `NotLockable`; `InvalidKey`, `InvalidHolder`, `InvalidTtl`,
        `InvalidReason`, `InvalidMetadata`, `TypeError`; `ConcurrencyConflict`, `OutcomeUnknown`, `SchemaMismatch`,
        `TamperedLedger`. After any of them but `OutcomeUnknown`, nothing was recorded.
        """
        command = self._door.take(
            key,
            holder,
            ttl=ttl,
            takeover_reason=takeover_reason,
            if_mine=if_mine,
            expected_token=expected_token,
            actor=actor,
            metadata=metadata,
        )
        return self._taken(command, wait)

    def try_take(
        self,
        key: str,
        holder: str,
        *,
        ttl: Ttl = None,
        takeover_reason: str | None = None,
        if_mine: IfMine = "return",
        expected_token: int | None = None,
        wait: float | timedelta | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Grant | None:
        """As `take`, `None` instead of `LockedByOther` (`WaitTimeout` too); every other error comes through."""
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
            return self._taken(command, wait)
        except LockedByOther:
            return None

    def _taken(self, command: Command[Grant], wait: float | timedelta | None) -> Grant:
        if wait is None:
            return self.perform(command).outcome
        return self._wait(command, checked_wait(wait)).outcome

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
        actor: str | None = None,
        reason: str,
        expected_token: int | None = None,
        metadata: Metadata = None,
    ) -> Hold | None:
        """Ends whoever's hold and gives it with its end; `None`, and nothing recorded, when nobody holds the lock.

        `actor` may be left out only where `using(…)` named one (`TypeError`). `reason` is mandatory (`InvalidReason`). Raises `HoldChanged` when `expected_token` is not the live hold's (0
        when there is none). Who may force is the host's question: this trusts its caller.
        """
        return self.perform(
            self._door.force_release(
                key, actor=actor, reason=reason, expected_token=expected_token, metadata=metadata
            )
        ).outcome

    def release_all(
        self,
        *,
        holder: str | None = None,
        under: str | None = None,
        actor: str | None = None,
        reason: str,
        metadata: Metadata = None,
    ) -> int:
        """Ends every live hold that all given selectors select, as forced, and counts them.

        `holder`: whose; `under`: of this key and all keys under it; no selector is a `ValueError`. `actor` may be left
        out only where `using(…)` named one (`TypeError`); `reason` is mandatory. Holds that begin meanwhile may stay.
        On its own it commits 100 keys at a time, and a repeat goes on; in a caller's transaction it is all or nothing.
        """
        return self._clear(
            self._door.release_all(
                holder=holder, under=under, actor=actor, reason=reason, metadata=metadata
            )
        )

    def take_all(
        self,
        keys: Iterable[str],
        holder: str,
        *,
        ttl: Ttl = None,
        takeover_reason: str | None = None,
        if_mine: IfMine = "return",
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> list[Grant]:
        """Takes all of these locks or none, in one transaction and an order that cannot deadlock.

        Gives the grants in the order of `keys`; the other arguments are those of `take`. A key given twice is a
        `ValueError`. Raises the first refusal in key order, with all of them in `.refusals`; then nothing is recorded.
        """
        commands = self._door.take_all(
            keys,
            holder,
            ttl=ttl,
            takeover_reason=takeover_reason,
            if_mine=if_mine,
            actor=actor,
            metadata=metadata,
        )
        grants = self._take_all(commands) if commands else {}
        return [grants[command.key] for command in commands]

    def expire_due(self, limit: int = 1000, *, metadata: Metadata = None) -> int:
        """Records expiries that have passed, at most `limit`, the longest due first, and counts them.

        No answer about who holds or held a lock depends on it. Several may run at once: each expiry is recorded once,
        and locks that another transaction has in hand are passed over. On its own it commits 100 at a time.
        `metadata` is kept with each expiry; nobody acts in one, so there is no `actor`.
        """
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(
                f"limit must be an int, not {shown(limit)}; give at least 1, or leave it out"
            )
        if not 1 <= limit < 2**63:
            raise ValueError(f"limit={shown(limit)}: give at least 1, and less than 2**63")
        return self._expire_due(limit, self._door.expiry(metadata=metadata))

    def _selected(self, clearance: Clearance, batch: int) -> Iterator[list[str]]:
        """The keys of the holds that a clearance selects, in key order, a batch at a time."""
        after = None
        while True:
            page = self.current_holders(
                holder=clearance.holder, under=clearance.under, after=after, limit=batch
            )
            yield [hold.key for hold in page]
            after = page.next_after
            if after is None:
                return

    def holder_of(self, key: str) -> Hold | None:
        """The live hold, `None` when there is none; its expiry is judged now."""
        return self._ask(lambda connection: self._queries.holder_of(connection, key))

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
        return self._ask(
            lambda connection: self._queries.current_holders(
                connection,
                holder=holder,
                key_prefix=key_prefix,
                under=under,
                after=after,
                limit=limit,
            )
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

        `since` and `until` (excluded, and not before `since`) bound `occurred_at`; `holder` matches who gained or lost; `action` is an event's
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
        settled = self._alone and key is None
        return self._ask(
            lambda connection: self._queries.audit_trail(
                connection, wanted, after=after, limit=limit, settled=settled
            )
        )
