"""Whether an event may come next: for events that no verb decided, handed over by another program."""

from lockledger.domain.errors import InvalidMetadata, InvalidReason
from lockledger.domain.events import (
    LockEvent,
    LockExpired,
    LockExtended,
    LockReleased,
    LockTaken,
    LockTakenOver,
)
from lockledger.domain.keys import fault_of
from lockledger.domain.lock import Lock
from lockledger.domain.metadata import check_metadata
from lockledger.domain.reasons import check_reason


def misfit(lock: Lock, event: LockEvent) -> str | None:
    """Why no verb could have recorded this event as the lock's next, `None` when one could.

    Who acts, what is allowed by a policy and how late the clock is are not looked at.
    """
    return _out_of_place(lock, event) or _of_another_hold(lock, event) or _beyond_limits(event)


def _out_of_place(lock: Lock, event: LockEvent) -> str | None:
    if (event.originator_id, event.key) != (lock.id, lock.key):
        return "it belongs to another lock"
    if event.originator_version != lock.version + 1:
        return f"the lock is at version {lock.version}"
    if lock.changed_at is not None and event.timestamp < lock.changed_at:
        return f"it is earlier than the lock's newest event, of {lock.changed_at.isoformat()}"
    return None


def _of_another_hold(lock: Lock, event: LockEvent) -> str | None:
    before = event.before()
    if before != lock.hold:
        return "the lock is not held" if lock.hold is None else "the lock's hold is not as it says"
    if isinstance(event, LockExpired):
        over = before is not None and event.expired_at == before.expires_at
        return None if over and event.expired_at <= event.timestamp else "the hold has not run out"
    if before is not None and not before.is_live(event.timestamp):
        return "the hold has run out; an expiry comes first"
    if isinstance(event, LockExtended):
        longer = event.expires_at is not None and event.expires_at > event.previous_expires_at
        return None if longer else "it does not extend the hold"
    if isinstance(event, LockTaken | LockTakenOver):
        return _badly_begun(event)
    return None


def _badly_begun(event: LockTaken | LockTakenOver) -> str | None:
    """What is wrong with the hold that the event begins."""
    if event.token != event.originator_version or event.taken_at != event.timestamp:
        return (
            "a hold's token is the version, and its beginning the time, of the event that begins it"
        )
    if event.expires_at is not None and event.expires_at <= event.taken_at:
        return "the new hold has run out already"
    if isinstance(event, LockTaken):
        from_nobody = event.taken_over_from is None and event.takeover_reason is None
        return None if from_nobody else "a hold on a free lock is taken over from nobody"
    if event.taken_over_from != event.previous.holder or event.takeover_reason != event.reason:
        return "the new hold does not say from whom it was taken over, and why"
    if event.reason is None and event.holder != event.previous.holder:
        return "nobody takes a hold over from another without a reason"
    return None


def _beyond_limits(event: LockEvent) -> str | None:
    for text in (event.key, event.holder, event.actor):
        if text is not None and (fault := fault_of(text)):
            return f"a key, holder or actor {fault}"
    try:
        if check_reason(event.why) != event.why:
            return "its reason is blank, or surrounded by white space"
        for metadata in (event.metadata, event.hold_metadata):
            check_metadata(metadata)
    except (InvalidReason, InvalidMetadata) as fault:
        return str(fault)
    if event.actor is None and not isinstance(event, LockExpired):
        return "nobody acts in it"
    if isinstance(event, LockReleased) and event.forced and event.why is None:
        return "a forced release needs a reason"
    return None
