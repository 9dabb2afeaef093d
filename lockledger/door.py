"""The door: checks the arguments of every writing verb before anything else happens."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

from lockledger.adapters.clock import checked_now
from lockledger.domain.errors import shown
from lockledger.domain.holds import Grant, Hold
from lockledger.domain.keys import check_holder, check_key, check_under
from lockledger.domain.lock import Call, Decision, IfMine, Take
from lockledger.domain.metadata import check_metadata
from lockledger.domain.policy import Clock, TakeRequest
from lockledger.domain.reasons import check_reason
from lockledger.domain.ttl import CheckedTtl, Ttl, check_ttl
from lockledger.wishes import Clearance, Command

Verb = Literal["take", "try_take", "take_all", "hold"]
Metadata = Mapping[str, object] | None
_ANY_TIME = datetime.min.replace(tzinfo=UTC)
"""Where no instant is compared with the time, the clock is not asked."""


class Door:
    """Checks the arguments of every writing verb before anything else happens."""

    def __init__(
        self, clock: Clock | None, *, actor: str | None = None, metadata: Metadata = None
    ) -> None:
        self._clock = clock
        self._actor = None if actor is None else check_holder(actor, what="actor")
        self._metadata = check_metadata(metadata)

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
        verb: Verb = "take",
    ) -> Command[Grant]:
        """A take; see the contract's table for what becomes of it."""
        key, holder = check_key(key), check_holder(holder)
        if if_mine not in get_args(IfMine):
            raise ValueError(
                f"if_mine={shown(if_mine)}: use one of {', '.join(map(repr, get_args(IfMine)))}"
            )
        call = self._call(actor, holder, metadata)
        reason = check_reason(takeover_reason)
        wish = Take(
            holder, call, self._ttl(ttl), reason, if_mine, _token(expected_token, "expected_token")
        )

        def request(current: Hold | None) -> TakeRequest:
            return TakeRequest(verb, key, holder, call.actor, current, dict(call.metadata))

        until = wish.ttl if isinstance(wish.ttl, datetime) else None
        return Command(
            key, lambda lock, now, look: lock.take(wish, now, look.in_the_way), request, until
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
    ) -> list[Command[Grant]]:
        """A take of each key, in the order given."""
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise TypeError(f"keys={shown(keys)}: give a list of keys, or call take for one")
        commands = [
            self.take(
                key,
                holder,
                ttl=ttl,
                takeover_reason=takeover_reason,
                if_mine=if_mine,
                actor=actor,
                metadata=metadata,
                verb="take_all",
            )
            for key in keys
        ]
        seen: set[str] = set()
        for command in commands:
            if command.key in seen:
                raise ValueError(f"the key {shown(command.key)} is given twice; give each key once")
            seen.add(command.key)
        return commands

    def expiry(self, *, metadata: Metadata = None) -> Callable[[str], Command[bool]]:
        """Makes records that a hold has run out, if it has; nobody acts in them."""
        merged = self._merged(metadata)
        return lambda key: Command(key, lambda lock, now, _: lock.expire(merged, now))

    def release(
        self,
        key: str,
        holder: str,
        *,
        token: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Command[bool]:
        """A release by the holder."""
        key, holder, token = check_key(key), check_holder(holder), _token(token, "token")
        call, why = self._call(actor, holder, metadata), check_reason(reason)
        return Command(
            key, lambda lock, now, look: lock.release(holder, token, why, call, now, look.ended)
        )

    def extend(
        self,
        key: str,
        holder: str,
        ttl: Ttl,
        *,
        token: int | None = None,
        actor: str | None = None,
        metadata: Metadata = None,
    ) -> Command[Grant]:
        """An extension by the holder."""
        key, holder, token = check_key(key), check_holder(holder), _token(token, "token")
        call, length = self._call(actor, holder, metadata), self._ttl(ttl)
        return Command(
            key, lambda lock, now, look: lock.extend(holder, length, token, call, now, look.ended)
        )

    def force_release(
        self,
        key: str,
        *,
        actor: str | None = None,
        reason: str,
        expected_token: int | None = None,
        metadata: Metadata = None,
    ) -> Command[Hold | None]:
        """An end by somebody with the right to."""
        key, call = check_key(key), self._call(actor, None, metadata)
        why = cast(str, check_reason(reason, mandatory=True))
        token = _token(expected_token, "expected_token")
        return Command(key, lambda lock, now, _: lock.force_release(token, why, call, now))

    def release_all(
        self,
        *,
        holder: str | None = None,
        under: str | None = None,
        actor: str | None = None,
        reason: str,
        metadata: Metadata = None,
    ) -> Clearance:
        """An end of every hold that all given selectors select, by somebody with the right to."""
        if holder is None and under is None:
            raise ValueError("release_all needs holder=, under= or both: it never means everything")
        return Clearance(
            holder=None if holder is None else check_holder(holder),
            under=check_under(under),
            reason=cast(str, check_reason(reason, mandatory=True)),
            call=self._call(actor, None, metadata),
        )

    def guard(self, key: str, holder: str, *, token: int | None = None) -> Command[Hold]:
        """An assertion that the holder holds the lock."""
        key, holder, token = check_key(key), check_holder(holder), _token(token, "token")
        return Command(
            key, lambda lock, now, look: Decision(lock.held_by(holder, token, now, look.ended))
        )

    def _ttl(self, ttl: Ttl) -> CheckedTtl:
        return check_ttl(ttl, checked_now(self._clock) if isinstance(ttl, datetime) else _ANY_TIME)

    def _call(self, actor: str | None, holder: str | None, metadata: Metadata) -> Call:
        """The verb's actor wins over the door's, and that over the holder; metadata is merged key by key."""
        if actor is not None:
            acting = check_holder(actor, what="actor")
        elif (acting_by_default := self._actor or holder) is not None:
            acting = acting_by_default
        else:
            raise TypeError("actor is missing: say who forces this, or name an actor in using(…)")
        return Call(acting, self._merged(metadata))

    def _merged(self, metadata: Metadata) -> dict[str, Any]:
        given = check_metadata(metadata)
        if not self._metadata:
            return given
        return check_metadata(self._metadata | given) if given else self._metadata


def _token(token: int | None, name: str) -> int | None:
    if token is None:
        return None
    if isinstance(token, bool) or not isinstance(token, int):
        raise TypeError(f"{name} must be an int, not {shown(token)}; pass grant.token")
    if not 0 <= token < 2**63:
        raise ValueError(
            f"{name}={shown(token)}: tokens are 0 (nobody) and above, below 2**63; pass grant.token"
        )
    return int(token)
