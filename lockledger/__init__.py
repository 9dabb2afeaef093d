"""Business locks as events: who holds what, since when and why, inside the host's own database.

Open a `LockLedger` on a database URL or an engine, `migrate()` once, then `take` and `release`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockledger.adapters.sessions import configure_sqlite
    from lockledger.async_subscription import AsyncSubscription
    from lockledger.asynchronous import AsyncBoundLedger, AsyncLockLedger
    from lockledger.bound import BoundLedger
    from lockledger.checkpoints import Checkpoint
    from lockledger.domain.errors import (
        ConcurrencyConflict,
        EventFormatMismatch,
        HoldChanged,
        HoldLost,
        HoldSuspect,
        InvalidHolder,
        InvalidKey,
        InvalidMetadata,
        InvalidReason,
        InvalidTtl,
        LockedByOther,
        LockLedgerError,
        NotHeld,
        NotHolding,
        NotLockable,
        NotLockHolder,
        OutcomeUnknown,
        SchemaMismatch,
        TamperedLedger,
        WaitTimeout,
    )
    from lockledger.domain.events import (
        LockEvent,
        LockExpired,
        LockExtended,
        LockReleased,
        LockTaken,
        LockTakenOver,
    )
    from lockledger.domain.faults import Fault
    from lockledger.domain.holds import AuditEntry, Grant, Hold, Page, RecordedEvent
    from lockledger.domain.keys import lock_key, new_holder
    from lockledger.domain.lock import Lock
    from lockledger.domain.policy import Clock, Names, Policy, TakeRequest
    from lockledger.holding import Held
    from lockledger.importing import ImportReport
    from lockledger.importing_export import AuditExport
    from lockledger.importing_rows import Refusal
    from lockledger.importing_tables import LiveLocks, LocksWithHistory
    from lockledger.ledger import LockLedger
    from lockledger.rebuilding import Rebuilt
    from lockledger.replaying import Projection
    from lockledger.subscription import Subscription
    from lockledger.tables import include_object, metadata, migration_sql
    from lockledger.timeline import draw_timeline
    from lockledger.verification import Advance, Verification

__all__ = [
    "Advance",
    "AsyncBoundLedger",
    "AsyncLockLedger",
    "AsyncSubscription",
    "AuditEntry",
    "AuditExport",
    "BoundLedger",
    "Checkpoint",
    "Clock",
    "ConcurrencyConflict",
    "EventFormatMismatch",
    "Fault",
    "Grant",
    "Held",
    "Hold",
    "HoldChanged",
    "HoldLost",
    "HoldSuspect",
    "ImportReport",
    "InvalidHolder",
    "InvalidKey",
    "InvalidMetadata",
    "InvalidReason",
    "InvalidTtl",
    "LiveLocks",
    "Lock",
    "LockEvent",
    "LockExpired",
    "LockExtended",
    "LockLedger",
    "LockLedgerError",
    "LockReleased",
    "LockTaken",
    "LockTakenOver",
    "LockedByOther",
    "LocksWithHistory",
    "Names",
    "NotHeld",
    "NotHolding",
    "NotLockHolder",
    "NotLockable",
    "OutcomeUnknown",
    "Page",
    "Policy",
    "Projection",
    "Rebuilt",
    "RecordedEvent",
    "Refusal",
    "SchemaMismatch",
    "Subscription",
    "TakeRequest",
    "TamperedLedger",
    "Verification",
    "WaitTimeout",
    "configure_sqlite",
    "draw_timeline",
    "include_object",
    "lock_key",
    "metadata",
    "migration_sql",
    "new_holder",
]

_MODULES = {
    "lockledger.adapters.sessions": ("configure_sqlite",),
    "lockledger.async_subscription": ("AsyncSubscription",),
    "lockledger.asynchronous": ("AsyncBoundLedger", "AsyncLockLedger"),
    "lockledger.bound": ("BoundLedger",),
    "lockledger.checkpoints": ("Checkpoint",),
    "lockledger.domain.errors": (
        "ConcurrencyConflict",
        "EventFormatMismatch",
        "HoldChanged",
        "HoldLost",
        "HoldSuspect",
        "InvalidHolder",
        "InvalidKey",
        "InvalidMetadata",
        "InvalidReason",
        "InvalidTtl",
        "LockedByOther",
        "LockLedgerError",
        "NotHeld",
        "NotHolding",
        "NotLockable",
        "NotLockHolder",
        "OutcomeUnknown",
        "SchemaMismatch",
        "TamperedLedger",
        "WaitTimeout",
    ),
    "lockledger.domain.events": (
        "LockEvent",
        "LockExpired",
        "LockExtended",
        "LockReleased",
        "LockTaken",
        "LockTakenOver",
    ),
    "lockledger.domain.faults": ("Fault",),
    "lockledger.domain.holds": ("AuditEntry", "Grant", "Hold", "Page", "RecordedEvent"),
    "lockledger.domain.keys": ("lock_key", "new_holder"),
    "lockledger.domain.lock": ("Lock",),
    "lockledger.domain.policy": ("Clock", "Names", "Policy", "TakeRequest"),
    "lockledger.holding": ("Held",),
    "lockledger.importing": ("ImportReport",),
    "lockledger.importing_export": ("AuditExport",),
    "lockledger.importing_rows": ("Refusal",),
    "lockledger.importing_tables": ("LiveLocks", "LocksWithHistory"),
    "lockledger.ledger": ("LockLedger",),
    "lockledger.rebuilding": ("Rebuilt",),
    "lockledger.replaying": ("Projection",),
    "lockledger.subscription": ("Subscription",),
    "lockledger.tables": ("include_object", "metadata", "migration_sql"),
    "lockledger.timeline": ("draw_timeline",),
    "lockledger.verification": ("Advance", "Verification"),
}
"""Where each name is. It is loaded when it is first asked for, so that the command line starts at once."""
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_WHERE[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
