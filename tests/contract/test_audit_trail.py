"""Reading what happened: every filter alone and with each other, pages, time, and the facts of each entry."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import combinations
from typing import Any

import pytest

from lockledger import AuditEntry, LockLedger
from support.ledgers import SettableClock
from support.stories import at


@pytest.fixture
def year(ledger: LockLedger, clock: SettableClock) -> LockLedger:
    """A ledger to which everything has happened that can, on keys that prefixes confuse."""
    for number, key in enumerate(
        ["round:5", "round:5:band:2", "round:50", "Round:5", "z_1", "zx1"]
    ):
        clock.set(100 * number)
        ledger.take(key, "run:1", ttl=50, actor="user:1", metadata={"n": number})
        clock.forward(10)
        ledger.extend(key, "run:1", 80)
        clock.forward(5)
        ledger.take(key, "run:2", takeover_reason="urgent", ttl=20)
        clock.forward(30)
        ledger.take(key, "run:3", actor="user:1")
        clock.forward(5)
        if number % 2:
            ledger.force_release(key, actor="user:9", reason="holiday")
        else:
            ledger.release(key, "run:3", reason="done")
    return ledger


ACTIONS = ("LockTaken", "LockTakenOver", "LockExtended", "LockReleased", "LockExpired")
Matches = Callable[[AuditEntry], bool]
# What each filter must match, in Python.
FILTERS: list[tuple[dict[str, Any], Matches]] = [
    ({"key": "round:5"}, lambda entry: entry.key == "round:5"),
    ({"key": "nothing"}, lambda entry: False),
    ({"key_prefix": "round:5"}, lambda entry: entry.key.startswith("round:5")),
    ({"key_prefix": "z_"}, lambda entry: entry.key.startswith("z_")),
    ({"under": "round:5"}, lambda entry: entry.key in ("round:5", "round:5:band:2")),
    ({"holder": "run:1"}, lambda entry: "run:1" in (entry.holder, entry.previous_holder)),
    ({"holder": "run:3"}, lambda entry: "run:3" in (entry.holder, entry.previous_holder)),
    ({"actor": "user:1"}, lambda entry: entry.actor == "user:1"),
    ({"actor": "user:9"}, lambda entry: entry.actor == "user:9"),
    *[
        ({"action": action}, lambda entry, action=action: entry.action == action)
        for action in ACTIONS
    ],
    ({"since": at(115)}, lambda entry: entry.occurred_at >= at(115)),
    ({"until": at(215)}, lambda entry: entry.occurred_at < at(215)),
    ({"extensions": True}, lambda entry: True),
]


def everything(ledger: LockLedger) -> list[AuditEntry]:
    return list(ledger.audit_trail(extensions=True, limit=1000))


def test_the_whole_trail_is_in_position_order_and_complete(year: LockLedger) -> None:
    entries = everything(year)

    assert [entry.action for entry in entries] == 6 * [
        *("LockTaken", "LockExtended", "LockTakenOver", "LockExpired", "LockTaken", "LockReleased")
    ]
    positions = [entry.position for entry in entries]
    assert positions == sorted(set(positions))


def test_each_filter_and_each_two_and_three_select_exactly_what_fits(year: LockLedger) -> None:
    entries = everything(year)
    for size in (1, 2, 3):
        for chosen in combinations(FILTERS, size):
            wanted: dict[str, Any] = {}
            for asked, _ in chosen:
                wanted |= asked
            if len(wanted) < size:
                continue  # two values for one filter
            extensions = wanted.get("extensions") or wanted.get("action") == "LockExtended"
            expected = [
                entry
                for entry in entries
                if all(matches(entry) for _, matches in chosen)
                and (extensions or entry.action != "LockExtended")
            ]
            assert list(year.audit_trail(**wanted, limit=1000)) == expected, wanted


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    "wanted",
    [{}, {"holder": "run:1"}, {"holder": "run:2", "extensions": True}, {"key": "round:5"}],
    ids=str,
)
def test_following_next_after_skips_nothing(
    year: LockLedger, wanted: dict[str, Any], limit: int
) -> None:
    found: list[AuditEntry] = []
    after: int | None = None
    while True:
        page = year.audit_trail(**wanted, after=after, limit=limit)
        found += page
        if page.next_after is None:
            break
        assert page.next_after == page[-1].position
        after = page.next_after

    assert found == list(year.audit_trail(**wanted, limit=1000))
    assert len(found) >= 5


def test_a_period_that_ends_before_it_begins_is_refused(ledger: LockLedger) -> None:
    with pytest.raises(ValueError, match=r"until=.* is before since=.*; give the earlier one"):
        ledger.audit_trail(since=at(1), until=at(0))
    assert list(ledger.audit_trail(since=at(1), until=at(1))) == []


def test_since_includes_until_excludes_and_both_bound_when_it_happened(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "run:1", ttl=10)
    clock.set(100)
    ledger.take("k", "run:2")

    def between(since: float | None, until: float | None) -> list[str]:
        entries = ledger.audit_trail(
            since=None if since is None else at(since), until=None if until is None else at(until)
        )
        return [entry.action for entry in entries]

    assert between(0, 10) == ["LockTaken"]
    assert between(10, 10.000001) == ["LockExpired"]
    assert between(10.000001, 100) == []
    assert between(100, None) == ["LockTaken"]
    assert between(None, 100) == ["LockTaken", "LockExpired"]
    assert between(5, 5) == []


def test_an_instant_of_any_zone_bounds_the_trail(year: LockLedger) -> None:
    east = datetime.fromisoformat("2026-03-02T18:01:55+09:00")
    assert east == at(115)

    assert year.audit_trail(since=east) == year.audit_trail(since=at(115))


def test_a_history_is_one_locks_own_and_shows_extensions_only_when_asked(year: LockLedger) -> None:
    entries = [entry for entry in everything(year) if entry.key == "round:5"]

    assert list(year.history("round:5", extensions=True)) == entries
    plain = [entry for entry in entries if entry.action != "LockExtended"]
    assert list(year.history("round:5")) == plain
    page = year.history("round:5", limit=2)
    assert (list(page), page.next_after) == (plain[:2], plain[1].position)
    assert list(year.history("round:5", after=page.next_after)) == plain[2:]
    assert list(year.history("never taken")) == []


# The facts of an entry


def test_an_entry_tells_before_and_after_of_each_kind_of_event(
    ledger: LockLedger, clock: SettableClock
) -> None:
    taken = ledger.take("k", "run:1", ttl=50)
    clock.set(10)
    extended = ledger.extend("k", "run:1", 80)
    clock.set(20)
    taken_over = ledger.take("k", "run:2", takeover_reason="urgent", ttl=5)
    clock.set(100)
    again = ledger.take("k", "run:3")
    ledger.release("k", "run:3", reason="done")

    def holds(entry: AuditEntry) -> tuple[Any, Any]:
        return (
            entry.before and entry.before.grant(created=True),
            entry.after and entry.after.grant(created=True),
        )

    moved = extended.model_copy(update={"created": True})
    entries = ledger.history("k", extensions=True)
    assert [(entry.action, *holds(entry)) for entry in entries] == [
        ("LockTaken", None, taken),
        ("LockExtended", taken, moved),
        ("LockTakenOver", moved, taken_over),
        ("LockExpired", taken_over, None),
        ("LockTaken", None, again),
        ("LockReleased", again, None),
    ]
    assert [
        (entry.version, entry.holder, entry.previous_holder, entry.token, entry.reason)
        for entry in entries
    ] == [
        (1, "run:1", None, 1, None),
        (2, "run:1", None, 1, None),
        (3, "run:2", "run:1", 3, "urgent"),
        (4, "run:2", None, 3, None),
        (5, "run:3", None, 5, None),
        (6, "run:3", None, 5, "done"),
    ]


def test_the_two_times_differ_only_for_an_expiry(ledger: LockLedger, clock: SettableClock) -> None:
    ledger.take("k", "run:1", ttl=50)
    clock.set(100)
    ledger.take("k", "run:2")

    assert [(entry.occurred_at, entry.recorded_at) for entry in ledger.history("k")] == [
        (at(0), at(0)),
        (at(50), at(100)),
        (at(100), at(100)),
    ]


def test_each_entry_carries_the_hash_of_its_event(ledger: LockLedger) -> None:
    ledger.take("k", "run:1")
    ledger.release("k", "run:1")

    hashes = [entry.event_hash for entry in ledger.history("k")]
    assert len(set(hashes)) == 2
    assert {len(bytes.fromhex(each)) for each in hashes} == {32}
