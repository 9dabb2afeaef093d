"""What does not fit is refused, with the row and the reason, and nothing of its lock is imported."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from lockledger import LockLedger, LocksWithHistory
from support.ledgers import Ledgers, SettableClock, unchanged
from support.old_system import OldSystem
from support.stories import at

OVER = {"taken_over_from": 1, "reason": "1 is ill"}
# Who held it, from when, until when, and more; and which of the holds is refused, and why.
UNFIT: dict[str, tuple[list[tuple[Any, ...]], int, str]] = {
    "two at once": ([(1, 0), (2, 10)], 1, "has not ended"),
    "overlapping": ([(1, 0, 20), (2, 10)], 1, "ended only at 2026-03-02T09:00:20"),
    "ended first": ([(1, 50, 40)], 0, "it ended at 2026-03-02T09:00:40+00:00, before"),
    "begins in the future": ([(1, 100_001)], 0, "which is in the future"),
    "ends in the future": ([(1, 0, 100_001)], 0, "which is in the future"),
    "from nobody": ([(2, 0, None, OVER)], 0, "of whom there is no hold before"),
    "from another": ([(3, 0, 10), (2, 10, None, OVER)], 1, "was of 'user:3'"),
    "too late": ([(1, 0, 10), (2, 11, None, OVER)], 1, "at the same instant"),
    "from an open one": ([(1, 0), (2, 11, None, OVER)], 1, "not ended; a takeover"),
    "without a reason": (
        [(1, 0, 10), (2, 10, None, {"taken_over_from": 1, "reason": " "})],
        1,
        "without a reason",
    ),
    "from one that ran out": (
        [(1, 0, 10, {"valid_until": 10}), (2, 10, None, OVER)],
        1,
        "had run out",
    ),
    "ran out first": ([(1, 10, None, {"valid_until": 10})], 0, "no later than it began"),
    "a century": ([(1, 0, None, {"valid_until": 4e9})], 0, "more than 100 years"),
    "a long reason": (
        [(1, 0, 10), (2, 10, None, {**OVER, "reason": "x" * 2001})],
        1,
        "2001 characters",
    ),
    "no instant": ([(1, None)], 0, "it does not say when it was taken"),
    "one of several": ([(1, 0, 10), (2, 20, 15), (2, 30, 40)], 1, "before it began"),
}


def test_a_row_that_does_not_fit_is_refused_with_its_lock(
    ledgers: Ledgers, ledger: LockLedger, old: OldSystem
) -> None:
    expected = {}
    for version, (holds, unfit, why) in enumerate(UNFIT.values(), 1):
        expected[f"version:{version}"] = (10 * version + unfit, why)
        for number, (by, taken, *rest) in enumerate(holds):
            released = rest[0] if rest else None
            more = rest[1] if len(rest) > 1 else {}
            old.hold(10 * version + number, version, by, taken, released, **more)
    old.hold(1000, None, 1, 0)
    with unchanged(ledgers):
        report = ledger.import_locks(old.history)
    assert (report.locks, report.events, report.unchanged) == (0, 0, 0)
    no_key, *others = sorted(report.refused, key=lambda refusal: (refusal.key or "", refusal.row))
    assert (no_key.row, no_key.key) == (1000, None)
    assert no_key.reason.startswith(
        "a key must be a str, not NoneType None; make a text of it, key="
    )
    assert {refusal.key: refusal.row for refusal in others} == {
        key: row for key, (row, _) in expected.items()
    }
    for refusal in others:
        assert expected[str(refusal.key)][1] in refusal.reason

    old.hold(2000, 99, 1, 0, 10)
    assert ledger.import_locks(old.history).locks == 1


def test_keys_and_holders_are_held_to_their_limits(ledger: LockLedger, old: OldSystem) -> None:
    refused = {
        "": ("run:1", "the key '' is empty"),
        " k": ("run:1", "surrounded by white space"),
        "l" * 256: ("run:1", "has 256 characters"),
        "m": (None, "a holder must be a str, not NoneType None"),
        "n": ("a\u0007", "holds the control character"),
        "o": ("e\u0301", "not in Unicode normal form C"),
    }
    for key, (owner, _) in refused.items():
        old.lock(key, owner, 0)
    report = ledger.import_locks(old.live)
    assert report.refused_count == len(refused)
    for _, why in refused.values():
        assert any(why in refusal.reason for refusal in report.refused), why


def test_every_row_that_cannot_be_read_is_named(ledger: LockLedger, old: OldSystem) -> None:
    for row, by in ((1, 5), (2, 6), (3, 7)):
        old.hold(row, 7, by, row * 10, row * 10 + 5)
    mapping = replace(old.history, holder=lambda row: f"user:{8 // (row['locked_by'] - 6)}")
    first, *others = ledger.import_locks(mapping).refused
    assert str(first) == (
        "row 2 of 'version:7': holder failed: ZeroDivisionError: integer division or modulo by zero"
    )
    assert others == []


def test_a_lock_that_has_other_events_is_refused(
    ledgers: Ledgers, ledger: LockLedger, old: OldSystem
) -> None:
    ledger.take("version:7", "user:2")
    old.hold(1, 7, 1, 0)
    old.hold(2, 8, 1, 0)
    ledger.import_locks(old.history)
    old.run("UPDATE version_lock SET locked_by = 5 WHERE id = 2")
    with unchanged(ledgers):
        report = ledger.import_locks(old.history)
    assert [(refusal.row, refusal.key) for refusal in report.refused] == [
        (1, "version:7"),
        (2, "version:8"),
    ]
    assert report.refused[1].reason == (
        f"the lock has other events already: its version 1 is a LockTaken by 'user:1' at {at(0).isoformat()}, and"
        f" not the LockTaken by 'user:5' at {at(0).isoformat()} that the source tells of; they"
        " differ in holder, actor"
    )


def test_the_same_rows_under_another_name_are_other_events(
    ledger: LockLedger, old: OldSystem
) -> None:
    old.hold(1, 7, 1, 0)
    ledger.import_locks(old.history)
    assert not ledger.import_locks(replace(old.history, source="another")).ok


def test_naive_instants_are_refused_unless_their_zone_is_given(
    ledger: LockLedger, old: OldSystem
) -> None:
    old.run("CREATE TABLE naive (k TEXT, t TEXT)")
    old.run("INSERT INTO naive VALUES ('k', '2026-01-12 09:00:00'), ('l', 'yesterday')")
    mapping = replace(old.live, table="naive", key="k", holder="k", taken_at="t", expires_at=None)
    naive, wrong = ledger.import_locks(replace(mapping, timezone=None)).refused
    assert naive.reason.startswith("taken_at: 2026-01-12T09:00:00 has no time zone; say which")
    assert wrong.reason == "taken_at: 'yesterday' is no instant in ISO 8601"
    assert ledger.import_locks(replace(mapping, timezone="Europe/Berlin")).locks == 1
    taken_at = ledger.history("k")[0].occurred_at
    assert taken_at.isoformat() == "2026-01-12T08:00:00+00:00"


def test_in_the_nights_when_clocks_are_changed_no_row_gets_lost_and_none_runs_backwards(
    ledger: LockLedger, old: OldSystem
) -> None:
    old.run("CREATE TABLE nights (k TEXT, t TEXT, e TEXT)")
    for key, taken, ended in (
        ("twice", "2025-10-26 02:30:00", "2025-10-26 03:00:00"),
        ("left out", "2025-03-30 02:30:00", "2025-03-30 04:00:00"),
        ("over both", "2025-10-26 01:30:00", "2025-10-26 03:30:00"),
        ("back", "2025-10-26 02:50:00", "2025-10-26 02:10:00"),
    ):
        old.run("INSERT INTO nights VALUES (:k, :t, :e)", k=key, t=taken, e=ended)
    mapping = LocksWithHistory(
        "nights", row="k", key="k", holder="k", taken_at="t", ended_at="e", timezone="Europe/Berlin"
    )
    (refusal,) = ledger.import_locks(mapping).refused
    assert (refusal.key, refusal.reason) == (
        "back",
        "it ended at 2025-10-26T00:10:00+00:00, before it began at 2025-10-26T00:50:00+00:00",
    )
    told = {hold.key: (hold.taken_at, hold.ended_at) for hold in ledger.holds()}
    assert told == {
        "twice": (utc("2025-10-26T00:30"), utc("2025-10-26T02:00")),
        "left out": (utc("2025-03-30T01:30"), utc("2025-03-30T02:00")),
        "over both": (utc("2025-10-25T23:30"), utc("2025-10-26T02:30")),
    }


def utc(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}:00+00:00")


def test_no_text_of_a_fault_stops_an_import(ledger: LockLedger, old: OldSystem) -> None:
    def failing(row: Any) -> str:
        raise RuntimeError("\ud800")

    old.hold(1, 7, 1, 0)
    (refusal,) = ledger.import_locks(replace(old.history, holder=failing)).refused
    assert refusal.reason == "holder failed: RuntimeError: \\ud800"


def test_metadata_is_held_to_its_limits(ledger: LockLedger, old: OldSystem) -> None:
    for row in range(6):
        old.hold(row, row, 1, 0)
    given = [
        {"a": float("nan")},
        '{"a": 1',
        {"lockledger_import": 1},
        {"a": "x" * 8100},
        '{"b": 2}',
        '{"a": ' + "9" * 5000 + "}",
    ]
    mapping = replace(old.history, metadata=lambda row: given[row["version_id"]])
    report = ledger.import_locks(mapping)
    assert [refusal.row for refusal in report.refused] == [0, 1, 2, 3, 5]
    told = "metadata holds a number with too many digits; write it as a text"
    assert told in report.refused[-1].reason
    assert ledger.history("version:4")[0].metadata["b"] == 2


def test_a_mapping_that_fits_no_table_is_an_error(ledger: LockLedger, old: OldSystem) -> None:
    with pytest.raises(ValueError, match="there is no table 'run_locks'; there are .*run_lock"):
        ledger.import_locks(replace(old.live, table="run_locks"))
    with pytest.raises(
        ValueError, match="run_lock has no column 'lockkey'; it has lock_key, owner"
    ):
        ledger.import_locks(replace(old.live, key="lockkey"))
    with pytest.raises(ValueError, match="only columns' names stand in braces"):
        replace(old.live, key="{owner.name}")
    with pytest.raises(ValueError, match="no time zone that is known"):
        replace(old.live, timezone="Mars/Olympus")
    with pytest.raises(TypeError, match="import_locks wants LiveLocks"):
        ledger.import_locks("run_lock")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no file nowhere.db"):
        ledger.import_locks(old.live, database="sqlite:///nowhere.db")
    with pytest.raises(TypeError, match="database must be a URL"):
        ledger.import_locks(old.live, database=7)  # type: ignore[arg-type]


def test_the_report_keeps_the_first_thousand_and_counts_all(
    monkeypatch: pytest.MonkeyPatch, ledger: LockLedger, old: OldSystem
) -> None:
    monkeypatch.setattr("lockledger.importing.MAX_REFUSALS", 2)
    for row in range(3):
        old.hold(row, row, 1, 10, 5)
    report = ledger.import_locks(old.history)
    assert (len(report.refused), report.refused_count, report.ok) == (2, 3, False)


def test_under_scopes_a_live_hold_must_not_stand_in_anothers_way(
    ledgers: Ledgers, clock: SettableClock, old: OldSystem
) -> None:
    ledger = ledgers.open(clock=clock, scopes=True)
    ledger.take("round:5", "run:1")
    old.lock("round:5:band:2", "run:2", 10)
    old.lock("round:5:band:3", "run:1", 10)
    old.lock("round:5:band:4", "run:2", 10, 20)
    old.lock("round:6", "run:2", 10)
    old.lock("round:6:band:1", "run:3", 11)
    report = ledger.import_locks(old.live)
    assert [(refusal.key, refusal.reason) for refusal in report.refused] == [
        (
            "round:5:band:2",
            "'run:2' would hold it, but 'run:1' holds 'round:5'; end one of the two holds first",
        ),
        (
            "round:6:band:1",
            "'run:3' would hold it, but 'run:2' holds 'round:6'; end one of the two holds first",
        ),
    ]
    assert report.locks == 3
