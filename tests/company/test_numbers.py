"""Numbers beyond every limit: refused by name, whether or not Python can write them out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from lockledger import InvalidTtl, LockLedger
from support.company import Company
from support.ledgers import SettableClock, unchanged

BEYOND = [2**63, 10**400, 10**5000, -(10**5000)]
"""What no 64 bits hold, no float, and no text of Python's."""


@pytest.mark.parametrize("number", BEYOND, ids=["2**63", "400", "5,000", "-5,000"])
def test_a_number_beyond_the_limit_is_refused_by_name(company: Company, number: int) -> None:
    ledger = company.open()
    ledger.take("k", "run:1", ttl=600)
    calls: dict[str, Callable[[], object]] = {
        "limit": lambda: ledger.expire_due(number),
        "1 to 1000": lambda: ledger.current_holders(limit=number),
        "wait=": lambda: ledger.take("k", "run:2", wait=number),
        "token=": lambda: ledger.release("k", "run:1", token=number),
        "expected_token=": lambda: ledger.take("k", "run:2", expected_token=number),
        "position": lambda: ledger.audit_trail(after=number),
        "100 years": lambda: ledger.extend("k", "run:1", number),
        "at most 100 years": lambda: ledger.take("j", "run:2", ttl=number),
        "heartbeat=": lambda: enter(company, ledger, heartbeat=number, ttl=30),
        "poll=": lambda: ledger.subscribe(poll=number),
    }
    with unchanged(company.ledgers):
        for named, call in calls.items():
            with pytest.raises(ValueError, match=named) as refused:
                call()
            assert "4300" not in str(refused.value)
            assert len(str(refused.value)) < 400


def enter(company: Company, ledger: LockLedger, **options: Any) -> None:
    with company.hold(ledger, "j", **options):
        pass


def test_the_largest_limit_is_one(ledger: LockLedger) -> None:
    ledger.take("k", "run:1", ttl=600)
    assert ledger.expire_due(2**63 - 1) == 0


@pytest.mark.parametrize("keys", [None, 5, "k"])
def test_what_is_no_list_of_keys_is_refused_by_name(ledger: LockLedger, keys: Any) -> None:
    with pytest.raises(TypeError, match=f"keys={keys!r}: give a list of keys"):
        ledger.take_all(keys, "run:1")


def test_no_hold_lasts_beyond_the_last_year_there_is(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    clock.now = datetime(9999, 12, 31, 23, 0, tzinfo=UTC)
    timed.take("k", "run:1", ttl=3599)
    with unchanged(company.ledgers):
        for call in (
            lambda: timed.take("j", "run:1", ttl=3600),
            lambda: timed.extend("k", "run:1", timedelta(days=1)),
            lambda: timed.take("k", "run:2", ttl=7200, takeover_reason="urgent"),
            lambda: timed.take_all(["i", "j"], "run:1", ttl=3600),
            lambda: enter(company, timed, ttl=7200),
        ):
            with pytest.raises(InvalidTtl, match="ends after 9999-12-31T23:59:59.999999"):
                call()
    assert timed.extend("k", "run:1", 3599.9).expires_at == datetime(
        9999, 12, 31, 23, 59, 59, 900000, tzinfo=UTC
    )


def test_a_clock_beyond_the_last_year_there_is_is_refused(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    clock.now = datetime.max.replace(tzinfo=timezone(-timedelta(hours=5)))
    with (
        unchanged(company.ledgers),
        pytest.raises(
            ValueError, match=r"in no year from 1 to 9999 in UTC; return datetime.now\(UTC\)"
        ),
    ):
        timed.take("k", "run:1")
