"""What is within the limits of the contract is kept exactly."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from lockledger import LockLedger
from support.stories import at

HUNDRED_YEARS = timedelta(days=36525)
LONGEST = [
    "k",
    "x" * 255,
    "я" * 255,
    "\U0001f600" * 255,
    "é",
    "a b",
    "\u200b",
    "\U0010ffff",
    "%_\\'",
]


def test_keys_and_holders_within_the_limits_are_kept_exactly(ledger: LockLedger) -> None:
    for text in LONGEST:
        grant = ledger.take(text, text, actor=text)

        assert (grant.key, grant.holder) == (text, text)
        assert ledger.take(text, text) == grant.model_copy(update={"created": False})
        assert ledger.current_holders(holder=text)[0].key == text
        (entry,) = ledger.audit_trail(key=text, holder=text, actor=text)
        assert (entry.key, entry.holder, entry.actor) == (text, text, text)
    assert sorted(LONGEST) == [hold.key for hold in ledger.current_holders()]


def test_ttls_within_the_limits_are_kept_to_the_microsecond(ledger: LockLedger) -> None:
    lengths: list[tuple[Any, datetime | None]] = [
        (0.9, at(0.9)),
        (1e-6, at(0.000001)),
        (1, at(1)),
        (timedelta(microseconds=1), at(0.000001)),
        (36525 * 86400, at(0) + HUNDRED_YEARS),
        (HUNDRED_YEARS, at(0) + HUNDRED_YEARS),
        (at(0.000001), at(0.000001)),
        (at(0) + HUNDRED_YEARS, at(0) + HUNDRED_YEARS),
        (datetime.fromisoformat("2026-03-02T23:00:00+09:00"), at(5 * 3600)),
        (None, None),
    ]
    for number, (ttl, until) in enumerate(lengths):
        grant = ledger.take(f"k{number}", "run:1", ttl=ttl)
        assert grant.expires_at == until, ttl
        assert ledger.holder_of(f"k{number}") == ledger.current_holders(under=f"k{number}")[0]


def test_reasons_within_the_limits_are_kept_exactly_but_stripped(ledger: LockLedger) -> None:
    for reason in (
        "x" * 2000,
        "я" * 2000,
        "\U0001f600" * 2000,
        "line\n\tline",
        "a\\'\"%s :b \u200b",
    ):
        ledger.take("k", "run:1")
        hold = ledger.take("k", "run:2", takeover_reason=f" \n{reason}\t ")
        assert hold.takeover_reason == reason
        ledger.release("k", "run:2", reason=f"  {reason} ")
        assert [entry.reason for entry in ledger.history("k")][-2:] == [reason, reason]


def test_metadata_within_the_limits_comes_back_equal(ledger: LockLedger) -> None:
    deep: dict[str, Any] = {"leaf": True}
    for _ in range(30):
        deep = {"x": deep}
    objects: list[dict[str, Any]] = [
        {},
        {"x": "y" * 8184},
        {"x": "я" * 4092},
        {"": "", "a": [None, True, False, 0, -1, 1.5, -0.0, 5e-324, 1.7976931348623157e308]},
        {"big": [2**63, -(2**63), 10**40, 1e22, 0.1, 1 / 3]},
        {"text": '\U0001f600 \u2028 \x7f \x01 " \\ / é e\u0301 %s :x'},
        {"z": 1, "a": 2, "Z": {"b": [], "a": {}}},
        deep,
    ]
    for number, metadata in enumerate(objects):
        key = f"k{number}"
        grant = ledger.take(key, "run:1", metadata=metadata)
        hold = ledger.holder_of(key)
        assert hold is not None
        ledger.release(key, "run:1", metadata=metadata)
        first, last = ledger.history(key)
        assert first.after is not None
        event = list(ledger.events())[-1].event
        found: list[Any] = [grant, hold, first, first.after, last, event]
        assert [each.metadata for each in found] == [metadata] * len(found)
        assert repr(hold.metadata) == repr(metadata), "numbers keep their kind, keys their order"
