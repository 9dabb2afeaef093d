"""`hold(…)` and `take(wait=…)` on a ledger: what takes time, and what it gives back when it is broken off."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic
from traceback import clear_frames
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lockledger.adapters.failures import is_lost_connection
from lockledger.domain.errors import OutcomeUnknown
from lockledger.domain.holds import Grant
from lockledger.domain.keys import new_holder
from lockledger.domain.lock import IfMine
from lockledger.domain.ttl import Ttl
from lockledger.door import Metadata
from lockledger.holding import (
    Held,
    after_body,
    beating,
    checked_heartbeat,
    holding,
    margin,
    may_remain,
)
from lockledger.verbs import Verbs
from lockledger.waiting import Patience, Rest, Wish, checked_wait, wait_for
from lockledger.wishes import Command, Performed
from lockledger.workings import Workings

T = TypeVar("T")


class HoldingVerbs(Verbs):
    """Take for the length of a block, and wait. They need transactions of their own."""

    _workings: Workings
    _rest: Rest

    @abstractmethod
    def _connection(
        self, *, busy_timeout: float | None = None
    ) -> AbstractContextManager[Connection]:
        """A connection in AUTOCOMMIT, the schema looked at."""

    @holding
    @contextmanager
    def hold(
        self,
        key: str,
        holder: str | None = None,
        *,
        ttl: Ttl = None,
        heartbeat: float | timedelta | None = None,
        if_mine: IfMine = "refuse",
        takeover_reason: str | None = None,
        expected_token: int | None = None,
        wait: float | timedelta | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Iterator[Held]:
        """Holds the lock for the length of a `with` block, and releases what it began on every way out.

        `holder`: a new unique one by default. `heartbeat`: seconds between extensions by the ttl, in a thread of its
        own; at most a third of the ttl (`ValueError`). They stop on release, on error and when the interpreter ends,
        never take a lost hold back, and outlive short outages. `Held.check()` tells at once when the hold is lost.
        The other arguments are those of `take`. A hold that was the holder's already (`if_mine="return"` or
        `"extend"`) is used and left in place.

        A hold lost meanwhile is a `HoldLost` at the end when the body succeeded, else a note on the body's exception.
        """
        beats = checked_heartbeat(heartbeat, ttl)
        holder = new_holder() if holder is None else holder
        hold = self.begin_hold(
            key,
            holder,
            wait=wait,
            ttl=ttl,
            takeover_reason=takeover_reason,
            if_mine=if_mine,
            expected_token=expected_token,
            actor=actor,
            metadata=metadata,
        )
        again = partial(self.extend, key, holder, ttl, actor=actor, metadata=metadata)
        end = partial(self.end_hold, hold.grant, actor=actor, metadata=metadata)
        try:
            with beating(hold, partial(again, token=hold.grant.token), beats):
                yield hold
        except BaseException as body:
            after_body(hold, end, body)
            raise
        after_body(hold, end, None)

    def begin_hold(
        self, key: str, holder: str, *, wait: float | timedelta | None, **wish: Any
    ) -> Held:
        """Takes for a `with` block, and measures from before the question that was granted.

        When it is broken off, or nobody knows whether the lock was granted, what it may have begun is ended.
        """
        wished = Wish(self._door.take(key, holder, **wish, verb="hold"))
        patience = Patience(0.0 if wait is None else checked_wait(wait))
        granted = False
        try:
            performed = (
                self.perform(wished.command)
                if wait is None
                else self._wait_for(wished.command, patience)
            )
            granted = True
            return self._held(performed.outcome, patience.asked_at)
        except BaseException as failure:
            if granted or isinstance(failure, OutcomeUnknown) or not isinstance(failure, Exception):
                self._take_back(wished, failure)
            raise

    def _held(self, grant: Grant, asked_at: float) -> Held:
        if grant.expires_at is None:
            return Held(grant, asked_at, None)
        lasts = (grant.expires_at - grant.taken_at).total_seconds()
        if not grant.created or monotonic() - asked_at > margin(lasts):
            # Found in place, or long in coming: what is left of it, the ledger's clock tells.
            asked_at = monotonic()
            lasts = (grant.expires_at - self._ask(self._workings.clock)).total_seconds()
        return Held(grant, asked_at, lasts)

    def end_hold(self, grant: Grant, *, actor: str | None, metadata: Metadata) -> None:
        """Releases the hold that a grant began, or looks whether the one it found is still there: `HoldLost` if not.

        Asks once more, on another connection, when the connection is lost: with a token, repeating is safe.
        """
        key, holder, token = grant.key, grant.holder, grant.token
        end: Command[Any] = (
            self._door.release(key, holder, token=token, actor=actor, metadata=metadata)
            if grant.created
            else self._door.guard(key, holder, token=token)
        )
        try:
            self.perform(end)
        except (DBAPIError, OutcomeUnknown) as failure:
            if not is_lost_connection(failure):
                raise
            self.perform(end)

    def _wait(self, command: Command[Grant], seconds: float) -> Performed[Grant]:
        wish = Wish(command)
        try:
            return self._wait_for(wish.command, Patience(seconds))
        except BaseException as failure:
            if not isinstance(failure, Exception):
                self._take_back(wish, failure)
            raise

    def _take_back(self, wish: Wish, failure: BaseException) -> None:
        """Ends the hold that a call may have begun which was broken off by this failure."""
        command = wish.taken_back(self._door)
        if command is None or wish.proposed is None:
            return
        clear_frames(failure.__traceback__)  # a cursor left in one would keep SQLite's write lock
        try:
            self.perform(command)
        except Exception as another:  # noqa: BLE001 - what broke the call off is the news
            failure.add_note(f"{may_remain(wish.proposed)}: {another}")

    def _wait_for(self, command: Command[T], patience: Patience) -> Performed[T]:
        return wait_for(command, self._attempt, patience, self._rest.sleep, self._workings.now)

    def _attempt(self, command: Command[T], patience: Patience) -> Performed[T] | None:
        patience.asked_at = monotonic()
        with self._connection(busy_timeout=patience.left.total_seconds()) as connection:
            return self._workings.commands.attempt(connection, command, lambda: patience.left)
