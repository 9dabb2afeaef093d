"""What the reference shows to people with a SQL prompt: it agrees with the verb."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lockledger import LockLedger
from support.ledgers import Ledgers, SettableClock

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "schema.md"
LONG_AGO = datetime(2015, 3, 2, 9, tzinfo=UTC)
INSTANT = "2026-03-14T12:00:00.000000+00:00"


def test_the_statement_that_the_reference_shows_tells_who_held_what(
    ledgers: Ledgers, ledger: LockLedger, clock: SettableClock
) -> None:
    clock.now = LONG_AGO  # the view judges by the database's clock
    ledger.take("gone", "run:1")
    ledger.take("run out", "run:2", ttl=30)
    ledger.take("kept", "run:3")
    ledger.take("taken over", "run:4", ttl=60)
    clock.forward(10)
    ledger.release("gone", "run:1")
    ledger.take("taken over", "run:5", takeover_reason="urgent")
    clock.forward(50)

    page = SCHEMA.read_text("utf-8")
    (statement,) = (
        block
        for block in re.findall(r"^```sql\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        if "lockledger_all_holds\n" in block
    )
    with ledgers.database.engine().connect() as connection:
        for seconds in (-1, 0, 9.999999, 10, 29.999999, 30, 60):
            when = LONG_AGO + timedelta(seconds=seconds)
            moment = when.isoformat(timespec="microseconds")
            rows = connection.exec_driver_sql(statement.replace(INSTANT, moment)).all()
            expected = [(hold.key, hold.holder) for hold in ledger.holders_at(when)]
            assert [(row[0], row[1]) for row in rows] == expected
