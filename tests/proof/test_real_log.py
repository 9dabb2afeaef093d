"""The log of a help desk is sound when it is recorded, loses nothing in a rebuild, and one changed byte of it is found."""

from __future__ import annotations

import pytest

from lockledger import LockLedger
from support.crowd import record
from support.databases import Database
from support.helpdesk import EVENTS, LOG, lives
from support.proof import prove
from support.tampering import tamper

pytestmark = pytest.mark.skipif(
    not LOG.exists(),
    reason="the log is not part of the project; it lies beside the checkout or nowhere",
)


def test_the_log_is_sound_and_stays_so(database: Database) -> None:
    assert record(database.engine(), lives()) == EVENTS
    with LockLedger(database.url) as ledger:
        kept = ledger.checkpoint()
        verification = ledger.verify(checkpoint=kept)
        assert verification.faults == ()
        assert (verification.events, verification.locks) == (EVENTS, len(prove(database.engine())))

        tamper(database, "DELETE FROM lockledger_audit_trail", "DELETE FROM lockledger_holds")
        assert ledger.rebuild().ok
        assert ledger.verify(checkpoint=kept).faults == ()
        prove(database.engine())

        tamper(
            database,
            "UPDATE lockledger_events SET state = replace(state, 'agent:', 'agent:1') WHERE position = 5000",
        )
        (fault,) = ledger.verify(checkpoint=kept).faults
        assert (fault.kind, fault.position) == ("event_hash", 5000)
