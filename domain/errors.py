"""Everything the library refuses or reports. One root; each class makes its sentence from facts, with the remedy in it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self

from lockledger.domain.holds import EndedBy, Hold

_SHOWN = 60


def shown(value: object) -> str:
    """A value as an error message may show it: escaped, and cut when it is long."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python converts
        return f"<{type(value).__name__} too large to show>"
    if len(text) <= _SHOWN:
        return text
    return (
        f"{text[:_SHOWN]}… ({len(value)} characters)"
        if isinstance(value, str)
        else f"{text[:_SHOWN]}…"
    )


def _instant(instant: datetime | None) -> str:
    return "no expiry" if instant is None else instant.isoformat()


def _whose(hold: Hold) -> str:
    until = "without expiry" if hold.expires_at is None else f"until {_instant(hold.expires_at)}"
    return (
        f"held by {shown(hold.holder)} since {_instant(hold.taken_at)} {until}, token {hold.token}"
    )


def _blank(kind: type["LockLedgerError"], args: tuple[Any, ...]) -> "LockLedgerError":
    return kind.__new__(kind, *args)


class LockLedgerError(Exception):
    """The root of all errors of this library. `code` is stable; the facts are attributes; pickling keeps them."""

    code = "LOCK_LEDGER_ERROR"
    key: str | None = None
    current: Hold | None = None
    refusals: tuple["LockLedgerError", ...] = ()
    """All refusals of a call for many locks, in key order; the error raised is the first of them."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the initialiser, which takes facts. These come last, as `refusals` may hold the error itself.
        return _blank, (type(self), self.args), self.__dict__

    def noted(self, text: str) -> Self:
        """The same error with a note for the reader of a traceback."""
        self.add_note(text)
        return self


class LockedByOther(LockLedgerError):
    """A live hold stands in the way; `current` is that hold. `same_holder`: it is the caller's own (`if_mine="refuse"`)."""

    code = "LOCKED_BY_OTHER"

    def __init__(self, key: str, current: Hold, *, same_holder: bool = False) -> None:
        self.key, self.current, self.same_holder = key, current, same_holder
        which = "" if current.key == key else f", because {shown(current.key)} is"
        whose = "already yours: " if same_holder else ""
        super().__init__(f"{shown(key)} cannot be taken{which or ':'} {whose}{_whose(current)}")


class WaitTimeout(LockedByOther):
    """The lock was not to be had within the time given. `current` is the hold last seen in the way.

    `None` when none was: then transactions that had not ended yet stood in the way, or the time was too short to ask.
    """

    code = "WAIT_TIMEOUT"

    def __init__(
        self, key: str, current: Hold | None, *, waited: float, same_holder: bool = False
    ) -> None:
        self.key, self.current, self.waited, self.same_holder = key, current, waited, same_holder
        who = "no hold was in the way, but open transactions, or the time was too short"
        if current is not None:
            which = "" if current.key == key else f"{shown(current.key)} is "
            who = f"{which}{'already yours: ' if same_holder else ''}{_whose(current)}"
        LockLedgerError.__init__(
            self, f"{shown(key)} was not to be had within {waited:g} seconds: {who}"
        )


class HoldChanged(LockLedgerError):
    """The lock is not at the token its caller saw. `current` is the live hold, `None` when there is none (token 0)."""

    code = "HOLD_CHANGED"

    def __init__(self, key: str, current: Hold | None, *, expected_token: int) -> None:
        self.key, self.current, self.expected_token = key, current, expected_token
        actual = "free (token 0)" if current is None else _whose(current)
        super().__init__(
            f"{shown(key)} was expected at token {expected_token} but is {actual}; look again and decide anew"
        )


class NotHolding(LockLedgerError):
    """The caller does not hold what it wants to release, extend or guard."""

    code = "NOT_HOLDING"


class NotLockHolder(NotHolding):
    """Another holder has the live hold, `current`."""

    code = "NOT_LOCK_OWNER"

    def __init__(self, key: str, current: Hold, *, holder: str) -> None:
        self.key, self.current, self.holder = key, current, holder
        super().__init__(f"{shown(key)} is not held by {shown(holder)}: {_whose(current)}")


class NotHeld(NotHolding):
    """Nobody holds the lock now."""

    code = "NOT_HELD"

    def __init__(self, key: str, *, holder: str) -> None:
        self.key, self.holder = key, holder
        super().__init__(
            f"{shown(key)} is not held by anyone, so not by {shown(holder)} either; take it first"
        )


class HoldLost(NotHolding):
    """The hold with this token is over: how, when, by whom and why. All null when the holder never had such a hold.

    An expiry is by nobody, at the instant the hold ran out. `current` is whoever holds the lock now.
    """

    code = "HOLD_LOST"
    ended_by: EndedBy | None = None
    ended_at: datetime | None = None
    ended_by_actor: str | None = None
    reason: str | None = None

    def __init__(
        self,
        key: str,
        current: Hold | None,
        *,
        holder: str,
        token: int,
        ended_by: EndedBy | None = None,
        ended_at: datetime | None = None,
        ended_by_actor: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.key, self.current, self.holder, self.token = key, current, holder, token
        self.ended_by, self.ended_at = ended_by, ended_at
        self.ended_by_actor, self.reason = ended_by_actor, reason
        super().__init__(
            f"{shown(key)}: {self._end()}; it is {'free' if current is None else _whose(current)} now"
        )

    def _end(self) -> str:
        if self.ended_by is None or self.ended_at is None:
            return f"{shown(self.holder)} never had a hold with token {self.token}"
        how = {
            "release": "was released",
            "forced": "was released by force",
            "takeover": "was taken over",
            "expiry": "ran out",
        }[self.ended_by]
        who = "" if self.ended_by_actor is None else f" by {shown(self.ended_by_actor)}"
        why = "" if self.reason is None else f" ({shown(self.reason)})"
        return f"the hold of {shown(self.holder)} with token {self.token} {how}{who} at {_instant(self.ended_at)}{why}"


class HoldSuspect(HoldLost):
    """The hold could not be extended in time: by this process's monotonic clock it may have run out. Stop working.

    Whether it has, the ledger knows: `holder_of` tells who holds the lock now.
    """

    code = "HOLD_SUSPECT"

    def __init__(self, key: str, *, holder: str, token: int, silent_for: float) -> None:
        self.key, self.holder, self.token, self.silent_for = key, holder, token, silent_for
        LockLedgerError.__init__(
            self,
            f"{shown(key)}: the hold of {shown(holder)} with token {token} was last confirmed {silent_for:.1f} seconds"
            " ago and may have run out; stop, and ask holder_of",
        )


class NotLockable(LockLedgerError):
    """Raised by a host's policy: this may not be taken now. `code` may be the host's own."""

    code = "NOT_LOCKABLE"

    def __init__(
        self,
        message: str = "the policy refuses this take",
        *,
        code: str | None = None,
        key: str | None = None,
    ):
        self.key = key
        if code is not None:
            self.code = code
        super().__init__(message)


class InvalidKey(LockLedgerError, ValueError):
    """A key outside the limits: 1 to 255 characters, NFC, no surrounding white space, no control or surrogate."""

    code = "INVALID_KEY"


class InvalidHolder(LockLedgerError, ValueError):
    """A holder or actor outside the limits, which are those of a key."""

    code = "INVALID_HOLDER"


class InvalidTtl(LockLedgerError, ValueError):
    """A ttl that is zero, negative, not finite, in the past, or longer than 100 years."""

    code = "INVALID_TTL"


class InvalidReason(LockLedgerError, ValueError):
    """A reason that is missing where one is mandatory, too long, or holds control characters."""

    code = "INVALID_REASON"


class InvalidMetadata(LockLedgerError, ValueError):
    """Metadata that is not a JSON object within the limits."""

    code = "INVALID_METADATA"


class ConcurrencyConflict(LockLedgerError):
    """The database gave up on this transaction (deadlock, serialization failure, lock or busy timeout).

    Nothing was changed. The driver's error is the cause. In a caller's transaction that transaction is lost; run it again.
    """

    code = "CONCURRENCY_CONFLICT"

    def __init__(
        self, what: str, *, key: str | None = None, remedy: str = "run the transaction again"
    ) -> None:
        self.key = key
        super().__init__(f"{what}; nothing was changed: {remedy}")


class OutcomeUnknown(LockLedgerError):
    """The connection was lost when a change may have been committed: it may or may not have been made.

    Repeat the call, with `token=` or `expected_token=` where it ends a hold, so that it ends no other; or ask `holder_of`.
    """

    code = "OUTCOME_UNKNOWN"

    def __init__(self, *, key: str | None = None) -> None:
        self.key = key
        about = "" if key is None else f" of {shown(key)}"
        super().__init__(
            f"the connection was lost during the change{about}: it may or may not have been made; repeat the call, with the"
            " token of the hold where it ends one, or ask who holds it"
        )


class SchemaMismatch(LockLedgerError):
    """The database's schema is missing, incomplete, older or newer than this library.

    `found` is `None` when it is missing; `missing` names tables that somebody has taken out of it.
    """

    code = "SCHEMA_MISMATCH"
    missing: tuple[str, ...] = ()

    def __init__(
        self,
        found: str | None,
        expected: str,
        *,
        schema: str | None = None,
        missing: Sequence[str] = (),
    ) -> None:
        self.found, self.expected, self.schema = found, expected, schema
        self.missing = tuple(missing)
        where = "" if schema is None else f" in schema {shown(schema)}"
        if missing:
            are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
            what = f"lockledger's tables{where} are at version {found}, but {', '.join(missing)} {are} missing"
            remedy = f"restore {them} from a backup"
        elif found is None:
            what, remedy = (
                f"lockledger's tables are missing{where}",
                "run `lockledger migrate` (or `ledger.migrate()`)",
            )
        elif found < expected:
            what = f"lockledger's tables{where} are at version {shown(found)}, older than {expected}, which this library needs"
            remedy = "run `lockledger migrate` (or `ledger.migrate()`)"
        else:
            what = f"lockledger's tables{where} are at version {shown(found)}, which this library ({expected}) does not know"
            remedy = "install the lockledger that made them; `lockledger migrate` of that version is ahead of this one"
        super().__init__(f"{what}; {remedy}")


class EventFormatMismatch(SchemaMismatch):
    """A stored event was written in a newer format than this library reads."""

    code = "EVENT_FORMAT_MISMATCH"

    def __init__(self, topic: str, found: int, known: int) -> None:
        self.found, self.expected, self.schema = str(found), str(known), None
        LockLedgerError.__init__(
            self,
            f"a stored {topic} has format version {found}, this library reads up to {known}; upgrade lockledger here",
        )


class TamperedLedger(LockLedgerError):
    """Stored events and what was derived from them disagree: somebody changed rows behind the ledger's back."""

    code = "TAMPERED_LEDGER"

    def __init__(self, key: str | None, what: str) -> None:
        self.key = key
        about = "the ledger" if key is None else shown(key)
        super().__init__(
            f"{about}: {what}; nothing was changed: run `lockledger doctor` and `lockledger verify`, and look into the"
            " database's logs"
        )
