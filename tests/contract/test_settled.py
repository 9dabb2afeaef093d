"""What pages by position waits for what may still come before it; what is asked of one lock does not."""

from __future__ import annotations

import pytest

from lockledger import LockLedger
from support.ledgers import Ledgers
from support.uncommitted import uncommitted_take


@pytest.fixture
def ledger(postgres_ledgers: Ledgers) -> LockLedger:
    """On PostgreSQL: on SQLite nobody else can write meanwhile."""
    return postgres_ledgers.open()


def trail(ledger: LockLedger) -> list[str]:
    return [entry.key for entry in ledger.audit_trail()]


def test_nothing_is_shown_beyond_what_an_open_transaction_may_still_bring(
    postgres_ledgers: Ledgers, ledger: LockLedger
) -> None:
    ledger.take("before", "B")
    with uncommitted_take(postgres_ledgers, "slow"):
        ledger.take("meanwhile", "B")

        assert trail(ledger) == ["before"]
        assert [each.event.key for each in ledger.events()] == ["before"]
        assert list(ledger.audit_trail(key_prefix="mean", holder="B", actor="B")) == []
        page = ledger.audit_trail(limit=1)
        assert (list(page), page.next_after) == (list(ledger.history("before")), None)

    assert trail(ledger) == ["before", "slow", "meanwhile"]
    assert [each.event.key for each in ledger.events()] == ["before", "slow", "meanwhile"]


def test_following_next_after_meanwhile_skips_nothing(
    postgres_ledgers: Ledgers, ledger: LockLedger
) -> None:
    seen: list[str] = []
    after = 0

    def follow() -> None:
        nonlocal after
        while page := ledger.audit_trail(after=after, limit=2):
            seen.extend(entry.key for entry in page)
            after = page[-1].position

    ledger.take("k1", "B")
    follow()
    with uncommitted_take(postgres_ledgers, "slow"):
        ledger.take("k2", "B")
        follow()
        ledger.take("k3", "B")
        follow()
    follow()

    assert seen == ["k1", "slow", "k2", "k3"]


def test_what_is_asked_of_one_lock_is_answered_from_what_is_committed(
    postgres_ledgers: Ledgers, ledger: LockLedger
) -> None:
    with uncommitted_take(postgres_ledgers, "slow"):
        ledger.take("meanwhile", "B")

        assert len(ledger.history("meanwhile")) == 1
        assert len(ledger.audit_trail(key="meanwhile")) == 1
        assert ledger.is_locked("meanwhile")
        assert [hold.key for hold in ledger.current_holders()] == ["meanwhile"]
        assert list(ledger.history("slow")) == []
        assert not ledger.is_locked("slow")


def test_an_open_transaction_of_another_ledger_holds_nobody_back(
    postgres_ledgers: Ledgers,
) -> None:
    mine = postgres_ledgers.open(name="mine")
    with uncommitted_take(postgres_ledgers, "slow"):
        mine.take("k", "B")

        assert trail(mine) == ["k"]
        with mine.subscribe(poll=0.01) as subscription:
            assert next(subscription).event.key == "k"


def test_a_subscription_to_now_begins_before_what_is_still_open(
    postgres_ledgers: Ledgers, ledger: LockLedger
) -> None:
    ledger.take("before", "B")
    with uncommitted_take(postgres_ledgers, "slow"):
        ledger.take("meanwhile", "B")
        subscription = ledger.subscribe(after="now", poll=0.01)

    with subscription:
        assert [next(subscription).event.key for _ in range(2)] == ["slow", "meanwhile"]


def test_on_sqlite_readers_see_what_is_committed_while_another_writes(
    sqlite_ledgers: Ledgers,
) -> None:
    ledger = sqlite_ledgers.open()
    ledger.take("before", "B")
    with uncommitted_take(sqlite_ledgers, "slow"):
        assert trail(ledger) == ["before"]
        assert [each.event.key for each in ledger.events()] == ["before"]
        assert not ledger.is_locked("slow")
        assert ledger.try_take("before", "A") is None, "a refusal waits for nobody"
        assert ledger.take("before", "B").created is False, "nor does an unchanged answer"
    assert trail(ledger) == ["before", "slow"]
