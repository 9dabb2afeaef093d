"""What is within the limits of the contract is kept exactly."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

from lockledger import LockLedger
from support.ledgers import Ledgers
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


class Word(StrEnum):
    ROUND = "round:5"
    RUN = "run:1"
    WHY = "why"


class Later(datetime):
    """As libraries for dates have them."""


def test_texts_of_other_classes_are_kept_as_plain_ones(ledgers: Ledgers) -> None:
    ledger = ledgers.open(name=Word.WHY)

    grant = ledger.take(Word.ROUND, Word.RUN, actor=Word.RUN)
    ledger.take("round:5", "run:2", takeover_reason=Word.WHY)

    assert [type(text) for text in (ledger.name, grant.key, grant.holder)] == [str, str, str]
    entries = ledgers.open(name="why").history("round:5")
    assert [(entry.holder, entry.reason) for entry in entries] == [
        ("run:1", None),
        ("run:2", "why"),
    ]
    assert repr(entries[0].holder) == "'run:1'"


def test_metadata_of_any_mapping_is_kept_as_a_plain_object(ledger: LockLedger) -> None:
    brought = MappingProxyType({"a": OrderedDict(b=(1, 2)), "word": Word.WHY, "n": Number.FIVE})

    grant = ledger.take("k", "run:1", metadata=brought)

    expected = {"a": {"b": [1, 2]}, "word": "why", "n": 5}
    assert repr(grant.metadata) == repr(expected)
    assert ledger.history("k")[0].metadata == expected


class Number(IntEnum):
    FIVE = 5


def test_instants_of_any_zone_and_class_are_kept_in_plain_utc(ledgers: Ledgers) -> None:
    tokyo = timezone(timedelta(hours=9))
    ledger = ledgers.open(clock=lambda: Later(2026, 3, 2, 18, 0, tzinfo=tokyo))

    grant = ledger.take("k", "run:1", ttl=Later(2026, 3, 2, 18, 1, tzinfo=tokyo))

    assert (grant.taken_at, grant.expires_at) == (at(0), at(60))
    assert repr(grant.taken_at) == repr(at(0))
    assert ledger.holder_of("k") == ledger.current_holders()[0]
    assert repr(ledger.history("k")[0].occurred_at) == repr(at(0))
