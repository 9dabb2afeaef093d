"""Scenarios 4.6: takeovers, people with two tabs, administrators, closed parents, and what the answers say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy import event as listening

from lockledger import (
    HoldLost,
    Lock,
    LockedByOther,
    LockLedger,
    NotLockable,
    NotLockHolder,
    Policy,
    TakeRequest,
)
from support.ledgers import Ledgers, SettableClock
from support.stories import at


def keys(ledger: LockLedger, holder: str) -> list[str]:
    return [hold.key for hold in ledger.current_holders(holder=holder)]


def replayed(ledger: LockLedger, key: str) -> str | None:
    """Who holds the lock by its events alone."""
    events = [each.event for each in ledger.events() if each.event.key == key]
    lock = Lock.project(None, events)
    return lock.hold.holder if lock and lock.hold else None


def test_s66_my_locked_tasks_are_mine_at_every_step(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("t", "A", ttl=10)
    assert (keys(ledger, "A"), keys(ledger, "B"), replayed(ledger, "t")) == (["t"], [], "A")
    clock.set(10)
    assert (keys(ledger, "A"), keys(ledger, "B")) == ([], [])
    clock.set(11)
    ledger.take("t", "B")
    clock.set(12)
    assert (keys(ledger, "A"), keys(ledger, "B"), replayed(ledger, "t")) == ([], ["t"], "B")

    with pytest.raises(HoldLost) as loss:
        ledger.release("t", "A", token=a.token)
    assert (loss.value.ended_by, loss.value.ended_at) == ("expiry", at(10))
    assert loss.value.current is not None
    assert loss.value.current.holder == "B"


def test_s67_who_was_taken_over_is_told_by_whom_and_why_at_the_next_save(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("doc", "A")
    with ledger.subscribe(after="now", poll=0.01) as subscription:
        clock.set(20)
        b = ledger.take("doc", "B", takeover_reason="deadline")
        notice = next(subscription).event
    assert (notice.action, notice.before().holder) == ("LockTakenOver", "A")  # type: ignore[union-attr]
    clock.set(21)

    with pytest.raises(HoldLost) as loss:
        ledger.extend("doc", "A", 60, token=a.token)

    assert (loss.value.ended_by, loss.value.reason, loss.value.ended_by_actor) == (
        "takeover",
        "deadline",
        "B",
    )
    assert b.token > a.token


def test_s68_the_hosts_policy_says_who_may_take_over_from_whom(
    ledgers: Ledgers, clock: SettableClock
) -> None:
    reviewers = {"user:reviewer"}

    class Workflow(Policy[Connection]):
        """The item is with the reviewers, none of whom has the right to unlock."""

        def check_take(self, connection: Connection, request: TakeRequest) -> None:
            if request.current is not None and request.actor not in reviewers:
                raise NotLockable("only reviewers take over here", code="NOT_A_REVIEWER")

    ledger = ledgers.open(clock=clock, policy=Workflow())
    ledger.take("item", "user:editor")
    with pytest.raises(NotLockable) as refusal:
        ledger.take("item", "user:author", takeover_reason="mine")
    assert refusal.value.code == "NOT_A_REVIEWER"
    assert ledger.take("item", "user:reviewer", takeover_reason="review").taken_over_from == (
        "user:editor"
    )
    hold = ledger.force_release("item", actor="workflow", reason="handed on")
    assert hold is not None
    assert hold.end_reason == "handed on"


def test_s70_a_conflict_tells_of_the_hold_that_is_and_not_of_the_attempt(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("k", "A", ttl=60, metadata={"operation": "apply"})
    clock.set(5)
    with pytest.raises(LockedByOther) as refusal:
        ledger.take("k", "B", ttl=600, metadata={"operation": "plan"})

    current = refusal.value.current
    assert current is not None
    assert current.grant(created=True) == a
    forced = ledger.force_release("k", actor="admin", reason="stuck", expected_token=current.token)
    assert forced is not None
    assert forced.holder == "A"


def test_s72_a_forced_release_is_in_the_history_with_all_it_took_away_and_is_published(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("k", "A", ttl=60)
    clock.set(20)
    with ledger.subscribe(after="now", poll=0.01) as subscription:
        ledger.force_release("k", actor="admin", reason="holiday")
        published = next(subscription).event

    entry = ledger.history("k")[-1]
    assert (entry.actor, entry.holder, entry.reason) == ("admin", "A", "holiday")
    assert entry.before is not None
    assert entry.before.grant(created=True) == a
    assert entry.before.expires_at is not None
    assert (entry.before.expires_at - entry.occurred_at).total_seconds() == 40
    assert (published.action, published.holder, published.actor) == ("LockReleased", "A", "admin")


def test_s73_a_second_tab_of_the_same_user_is_told_that_the_hold_is_theirs(
    ledger: LockLedger,
) -> None:
    first_tab = ledger.take("k", "user:7", if_mine="refuse")
    with pytest.raises(LockedByOther) as refusal:
        ledger.take("k", "user:7", if_mine="refuse")
    assert refusal.value.same_holder
    assert ledger.extend("k", "user:7", 60, token=first_tab.token).token == first_tab.token

    second_tab = ledger.take("k", "user:7", if_mine="replace")
    with pytest.raises(HoldLost) as loss:
        ledger.extend("k", "user:7", 60, token=first_tab.token)
    assert (loss.value.ended_by, loss.value.ended_by_actor) == ("takeover", "user:7")
    assert ledger.release("k", "user:7", token=second_tab.token)


def test_s73_tabs_with_holders_of_their_own_do_not_unlock_each_other(ledger: LockLedger) -> None:
    s1, s2 = "user:7/tab:1", "user:7/tab:2"
    grant = ledger.take("k", s1)
    assert ledger.try_take("k", s2) is None
    with pytest.raises(NotLockHolder):
        ledger.release("k", s2)

    assert ledger.extend("k", s1, 60, token=grant.token).token == grant.token


def test_s74_a_late_worker_takes_nothing_under_a_closed_parent(
    ledgers: Ledgers, clock: SettableClock
) -> None:
    with ledgers.database.engine().begin() as connection:
        connection.exec_driver_sql("CREATE TABLE parents (id TEXT, state TEXT)")
        connection.exec_driver_sql("INSERT INTO parents VALUES ('P', 'open')")

    class OpenParents(Policy[Connection]):
        def check_take(self, connection: Connection, request: TakeRequest) -> None:
            state = connection.exec_driver_sql("SELECT state FROM parents WHERE id = 'P'").scalar()
            if state != "open":
                raise NotLockable(f"P is {state}", code="PARENT_CLOSED")

    ledger = ledgers.open(clock=clock, policy=OpenParents())
    ledger.take("P:y", "worker:1")
    with ledgers.database.engine().begin() as connection:
        connection.exec_driver_sql("UPDATE parents SET state = 'closed'")
    for hold in ledger.current_holders(under="P"):
        ledger.force_release(hold.key, actor="closer", reason="P is closed")

    with pytest.raises(NotLockable) as refusal:
        ledger.take("P:x", "worker:1")
    assert refusal.value.code == "PARENT_CLOSED"
    assert list(ledger.current_holders(under="P")) == [], "and no orphan is left"


def test_s75_the_slot_of_a_cancelled_run_is_freed_with_the_reason_kept(ledger: LockLedger) -> None:
    ledger.take("pool:1", "run:A")
    ledger.force_release("pool:1", actor="user:9", reason="run A was cancelled")

    assert ledger.take("pool:1", "run:B").created
    assert [entry.reason for entry in ledger.history("pool:1")] == [
        None,
        "run A was cancelled",
        None,
    ]


def test_s76_a_lock_stays_with_its_key_and_does_not_travel_with_a_renamed_thing(
    ledger: LockLedger,
) -> None:
    ledger.take("doc1", "A")
    # The host renames doc1 to doc2: no verb moves a hold, so neither key is dragged along or held twice.
    assert not {"rename", "move", "rekey", "transfer"} & set(dir(ledger))

    with pytest.raises(LockedByOther):
        ledger.take("doc1", "B")
    assert ledger.take("doc2", "B").created
    assert (keys(ledger, "A"), keys(ledger, "B")) == (["doc1"], ["doc2"])


def test_s78_two_locks_of_one_job_never_conflict(ledger: LockLedger) -> None:
    assert ledger.take("queueing:job:5", "job:5").created
    assert ledger.take("execution:job:5", "job:5").created
    assert ledger.take("queueing:job:5", "job:5").created is False


def test_s78_a_hold_begins_now_and_none_waits_in_the_future(
    ledger: LockLedger, clock: SettableClock
) -> None:
    with pytest.raises(TypeError):
        ledger.take("k", "A", not_before=at(3600))  # type: ignore[call-arg]
    assert ledger.take("k", "B", ttl=60).taken_at == clock.now


def test_s78_a_cleaner_that_died_does_not_stall_the_next_one(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("cleaner", "cleaner:1", ttl=60)
    clock.set(60)
    assert ledger.take("cleaner", "cleaner:2", ttl=60).created


REPEATED: dict[str, Callable[[LockLedger], Any]] = {
    "LockTaken": lambda ledger: ledger.take("free", "A", ttl=60, metadata={"request": "r"}),
    "LockTakenOver": lambda ledger: ledger.take("held", "A", takeover_reason="urgent"),
}


@pytest.mark.parametrize("action", REPEATED)
def test_s82_a_request_repeated_after_a_lost_answer_gives_the_same_grant_and_one_event(
    ledger: LockLedger, clock: SettableClock, action: str
) -> None:
    ledger.take("held", "B")
    first = REPEATED[action](ledger)
    clock.set(1)

    assert REPEATED[action](ledger) == first.model_copy(update={"created": False})
    assert [entry.action for entry in ledger.audit_trail()] == ["LockTaken", action]


def test_s89_every_verb_asks_the_one_database_that_the_ledger_was_given(ledgers: Ledgers) -> None:
    engine = ledgers.database.engine()
    asked: list[object] = []
    listening.listen(engine.pool, "checkout", lambda *_: asked.append(1))
    ledger = ledgers.open(url_or_engine=engine)
    verbs: list[Callable[[], object]] = [
        lambda: ledger.take("k", "A"),
        lambda: ledger.holder_of("k"),
        lambda: ledger.is_locked("k"),
        ledger.current_holders,
        lambda: ledger.history("k"),
        ledger.audit_trail,
        lambda: list(ledger.events()),
        lambda: ledger.release("k", "A"),
    ]
    for verb in verbs:
        asked.clear()
        verb()
        assert asked, "answered from memory, or by another database"
