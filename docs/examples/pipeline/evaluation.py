"""One run evaluates one round, band by band, and nobody else does meanwhile.

The lock is a lease, extended in the background. A run that crashes stops extending, so the lock runs out and the round
can be tried again; a run that was only asleep finds at its next write that it has lost the lock, and writes nothing.
"""

from collections.abc import Callable
from contextlib import ExitStack

from sqlalchemy.orm import Session, sessionmaker

from lockledger import Grant, LockedByOther, LockLedger
from pipeline.locks import round_key, run_holder
from pipeline.tables import Run, Score

BANDS = (1, 2, 3)
Sessions = sessionmaker[Session]


def evaluate_round(
    sessions: Sessions,
    ledger: LockLedger,
    run_id: int,
    score: Callable[[int], float],
    *,
    lease: float = 60,
) -> bool:
    """Evaluates the run's round: `True` when it is done, `False` when another run has it; `lease` is in seconds.

    However it ends, the lock is released, and what went wrong comes through as itself.
    """
    with sessions() as session:
        number = session.get_one(Run, run_id).round
    with ExitStack() as stack:
        try:
            held = stack.enter_context(
                ledger.hold(round_key(number), run_holder(run_id), ttl=lease, heartbeat=lease / 4)
            )
        except LockedByOther:
            return False
        try:
            _begin(sessions, ledger, run_id, held.grant)
            for band in BANDS:
                held.check()  # costs nothing, and saves the work when the lock is lost already
                _keep(
                    sessions,
                    ledger,
                    held.grant,
                    Score(round=number, band=band, run_id=run_id, value=score(band)),
                )
            _finish(sessions, ledger, run_id, held.grant)
        except BaseException as failure:
            _note_failure(sessions, run_id, failure)
            raise
    return True


def _begin(sessions: Sessions, ledger: LockLedger, run_id: int, grant: Grant) -> None:
    with sessions.begin() as session:
        ledger.using(session).guard(grant.key, grant.holder, token=grant.token)
        session.get_one(Run, run_id).status = "running"


def _keep(sessions: Sessions, ledger: LockLedger, grant: Grant, score: Score) -> None:
    """Writes only while the lock is held: whoever wants to end the hold waits for this transaction."""
    with sessions.begin() as session:
        ledger.using(session).guard(grant.key, grant.holder, token=grant.token)
        session.merge(score)


def _finish(sessions: Sessions, ledger: LockLedger, run_id: int, grant: Grant) -> None:
    """The final step: the result and the end of the hold are one transaction."""
    with sessions.begin() as session:
        ledger.using(session).release(grant.key, grant.holder, token=grant.token)
        session.get_one(Run, run_id).status = "finished"


def _note_failure(sessions: Sessions, run_id: int, failure: BaseException) -> None:
    """Must not mask the failure: what goes wrong here becomes a note on it."""
    try:
        with sessions.begin() as session:
            run = session.get_one(Run, run_id)
            run.status, run.failure = "failed", repr(failure)
    except Exception as second:  # noqa: BLE001 - whatever it was, the failure is what matters
        failure.add_note(f"and run {run_id} could not be marked as failed: {second!r}")
