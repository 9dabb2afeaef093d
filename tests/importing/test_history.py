"""A table of holds that says how each ended."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from lockledger import LockLedger, LocksWithHistory, Policy, Refusal
from support.ledgers import Ledgers, SettableClock, unchanged
from support.old_system import OldSystem
from support.stories import at


def tell(old: OldSystem) -> None:
    """Version 7 was worked on by three, the second took it over; version 8 is in work since then."""
    old.hold(1, 7, 1, 0, 100)
    old.hold(2, 7, 2, 200, 300)
    old.hold(3, 7, 3, 300, 400, taken_over_from=2, reason=" 2 is ill ")
    old.hold(4, 7, 3, 400, 400)
    old.hold(5, 7, 1, 400, None, valid_until=500)
    old.hold(6, 7, 1, 500, 700, valid_until=600)
    old.hold(7, 8, 2, 450, reason="the version was free")


def summary(ledger: LockLedger, key: str) -> list[tuple[Any, ...]]:
    return [
        (entry.action, entry.occurred_at, entry.actor, entry.previous_holder, entry.reason)
        for entry in ledger.history(key)
    ]


def test_holds_become_the_events_that_the_verbs_would_have_recorded(
    ledger: LockLedger, old: OldSystem
) -> None:
    tell(old)
    report = ledger.import_locks(old.history)
    assert (report.rows, report.locks, report.events) == (7, 2, 12)
    assert summary(ledger, "version:7") == [
        ("LockTaken", at(0), "user:1", None, None),
        ("LockReleased", at(100), "user:1", None, None),
        ("LockTaken", at(200), "user:2", None, None),
        ("LockTakenOver", at(300), "user:3", "user:2", "2 is ill"),
        ("LockReleased", at(400), "user:3", None, None),
        ("LockTaken", at(400), "user:3", None, None),
        ("LockReleased", at(400), "user:3", None, None),
        ("LockTaken", at(400), "user:1", None, None),
        ("LockExpired", at(500), None, None, None),
        ("LockTaken", at(500), "user:1", None, None),
        ("LockExpired", at(600), None, None, None),
    ]
    assert [
        entry.metadata["lockledger_import"]["row"] for entry in ledger.history("version:7")
    ] == [
        *(1, 1, 2, 3, 3, 4, 4, 5, 5, 6, 6),
    ]
    held = ledger.holder_of("version:8")
    assert held is not None
    assert (held.holder, held.taken_at, held.takeover_reason) == ("user:2", at(450), None)
    assert ledger.verify().ok


def test_the_ledger_answers_about_the_past_and_goes_on(ledger: LockLedger, old: OldSystem) -> None:
    tell(old)
    ledger.import_locks(old.history)
    holders = [ledger.holder_at("version:7", at(when)) for when in (50, 150, 250, 350, 450, 550)]
    assert [hold and hold.holder for hold in holders] == [
        *("user:1", None, "user:2", "user:3", "user:1", "user:1"),
    ]
    ended = [(hold.holder, hold.ended_by) for hold in ledger.holds(key="version:7")]
    assert ended[1:3] == [("user:2", "takeover"), ("user:3", "release")]
    grant = ledger.take("version:8", "user:9", takeover_reason="user:2 has left")
    assert (grant.token, grant.taken_over_from) == (2, "user:2")
    assert ledger.take("version:7", "user:9").token == 12


def test_entries_of_all_locks_come_in_the_order_of_their_times(
    ledger: LockLedger, old: OldSystem
) -> None:
    tell(old)
    ledger.import_locks(old.history)
    times = [entry.recorded_at for entry in ledger.audit_trail()]
    assert times == sorted(times)


def test_who_ended_a_hold_why_and_more_may_be_in_the_row(
    ledger: LockLedger, old: OldSystem
) -> None:
    old.hold(1, 7, 1, 0, 100, reason="the year is closed")
    mapping = LocksWithHistory(
        table=text("SELECT *, 'root' AS admin FROM version_lock")
        .columns(*(old.table.c), old.admin)
        .subquery("closing"),
        key=lambda row: f"version:{row['version_id']}",
        holder="user:{locked_by}",
        taken_at="locked_at",
        ended_at="released_at",
        ended_by="admin",
        end_reason="reason",
        metadata=lambda row: {"version": row["version_id"]},
        timezone="UTC",
    )
    assert ledger.import_locks(mapping, database=old.engine).source == "closing"
    hold = ledger.holds(key="version:7")[0]
    assert (hold.ended_by_actor, hold.end_reason) == ("root", "the year is closed")
    assert hold.metadata["version"] == 7


def test_importing_again_changes_nothing(
    ledgers: Ledgers, ledger: LockLedger, clock: SettableClock, old: OldSystem
) -> None:
    tell(old)
    first = ledger.import_locks(old.history)
    clock.forward(60)
    with unchanged(ledgers):
        again = ledger.import_locks(old.history)
    assert (again.locks, again.events, again.unchanged) == (0, 0, first.locks)
    assert again.ok


def test_locks_that_live_on_in_the_ledger_are_left_alone(
    ledgers: Ledgers, ledger: LockLedger, clock: SettableClock, old: OldSystem
) -> None:
    tell(old)
    old.lock("round:5", "run:1", 10, 100_050)
    ledger.import_locks(old.history)
    ledger.import_locks(old.live)
    clock.forward(60)
    ledger.release("version:8", "user:2")
    ledger.take("version:7", "user:4")
    assert ledger.expire_due() == 1
    with unchanged(ledgers):
        assert ledger.import_locks(old.history).unchanged == 2
        assert ledger.import_locks(old.live).unchanged == 1


def test_what_was_added_to_a_lock_since_is_added(
    ledger: LockLedger, clock: SettableClock, old: OldSystem
) -> None:
    tell(old)
    ledger.import_locks(old.history)
    old.run("UPDATE version_lock SET released_at = :at WHERE id = 7", at=old.stored(99_000))
    old.hold(8, 8, 3, 99_000, taken_over_from=2, reason="2 is ill")
    clock.forward(60)
    again = ledger.import_locks(old.history)
    assert (again.locks, again.events, again.unchanged) == (1, 1, 1)
    held = ledger.holder_of("version:8")
    assert held is not None
    assert (held.holder, held.token, held.taken_over_from) == ("user:3", 2, "user:2")
    old.run("UPDATE version_lock SET released_at = :at WHERE id = 8", at=old.stored(99_500))
    clock.forward(60)
    third = ledger.import_locks(old.history)
    assert (third.locks, third.events, third.unchanged) == (1, 1, 1)
    marks = [entry.metadata["lockledger_import"]["when"] for entry in ledger.history("version:8")]
    assert marks == [at(100_000 + more).isoformat() for more in (0, 60, 120)]
    assert ledger.import_locks(old.history).unchanged == 2
    assert ledger.verify().ok


def test_a_dry_run_tells_the_same_and_changes_nothing(
    ledgers: Ledgers, ledger: LockLedger, old: OldSystem
) -> None:
    tell(old)
    old.hold(9, 9, 1, 10, 5)
    with unchanged(ledgers):
        dry = ledger.import_locks(old.history, dry_run=True)
    real = ledger.import_locks(old.history)
    assert dry.dry_run
    assert dry.model_copy(update={"dry_run": False}) == real
    assert real.refused_count == 1


class Deaf(Policy[Any]):
    """A policy that must not be asked, nor told."""

    def lock_subject(self, connection: Any, key: str) -> None:
        raise AssertionError(key)

    check_take = recorded = lock_subject  # type: ignore[assignment]


def test_the_policy_is_not_told(ledgers: Ledgers, clock: SettableClock, old: OldSystem) -> None:
    tell(old)
    assert ledgers.open(clock=clock, policy=Deaf()).import_locks(old.history).ok


def test_refusals_are_told_as_they_come_and_progress_after_each_batch(
    ledger: LockLedger, old: OldSystem
) -> None:
    tell(old)
    old.hold(9, 9, 1, 10, 5)
    refused: list[Refusal] = []
    rows: list[tuple[int, int]] = []
    report = ledger.import_locks(
        old.history,
        refused=refused.append,
        progress=lambda advance: rows.append((advance.done, advance.total)),
    )
    assert tuple(refused) == report.refused
    assert rows == [(8, 8)]


@pytest.mark.parametrize("size", [1, 2])
def test_batches_make_no_difference(
    monkeypatch: pytest.MonkeyPatch, ledger: LockLedger, old: OldSystem, size: int
) -> None:
    monkeypatch.setattr("lockledger.importing.LOCKS_IN_A_BATCH", size)
    for version in range(5):
        old.hold(version, version, 1, version, 50)
    assert ledger.import_locks(old.history).locks == 5
    assert ledger.verify().ok
