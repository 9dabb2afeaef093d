"""Every error: its code, its facts, its sentence, and its journeys through pickle and copy."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from lockledger.domain import errors
from lockledger.domain.errors import (
    ConcurrencyConflict,
    EventFormatMismatch,
    HoldChanged,
    HoldLost,
    HoldSuspect,
    InvalidHolder,
    InvalidKey,
    InvalidMetadata,
    InvalidReason,
    InvalidTtl,
    LockedByOther,
    LockLedgerError,
    NotHeld,
    NotHolding,
    NotLockable,
    NotLockHolder,
    OutcomeUnknown,
    SchemaMismatch,
    TamperedLedger,
    WaitTimeout,
    shown,
)
from lockledger.domain.holds import Hold
from support.stories import T0, at

LIVE = Hold(key="round:5", holder="run:42", token=7, taken_at=T0, expires_at=at(3600))
FOREVER = Hold(key="round:5", holder="user:я", token=8, taken_at=T0)
ABOVE = Hold(key="round", holder="run:42", token=7, taken_at=T0)

# An error as the library makes it, its facts, and its sentence.
SAID: list[tuple[LockLedgerError, dict[str, Any], str]] = [
    (
        LockedByOther("round:5", LIVE),
        {"key": "round:5", "current": LIVE, "same_holder": False},
        (
            "'round:5' cannot be taken: held by 'run:42' since 2026-03-02T09:00:00+00:00"
            " until 2026-03-02T10:00:00+00:00, token 7"
        ),
    ),
    (
        LockedByOther("round:5", FOREVER, same_holder=True),
        {"key": "round:5", "current": FOREVER, "same_holder": True},
        (
            "'round:5' cannot be taken: already yours: held by 'user:я'"
            " since 2026-03-02T09:00:00+00:00 without expiry, token 8"
        ),
    ),
    (
        LockedByOther("round:5", ABOVE),
        {"key": "round:5", "current": ABOVE, "same_holder": False},
        (
            "'round:5' cannot be taken, because 'round' is held by 'run:42'"
            " since 2026-03-02T09:00:00+00:00 without expiry, token 7"
        ),
    ),
    (
        WaitTimeout("round:5", LIVE, waited=2.5),
        {"key": "round:5", "current": LIVE, "waited": 2.5, "same_holder": False},
        (
            "'round:5' was not to be had within 2.5 seconds: held by 'run:42'"
            " since 2026-03-02T09:00:00+00:00 until 2026-03-02T10:00:00+00:00, token 7"
        ),
    ),
    (
        WaitTimeout("round:5", None, waited=60),
        {"key": "round:5", "current": None, "waited": 60},
        (
            "'round:5' was not to be had within 60 seconds: no hold was in the way, but open transactions,"
            " or the time was too short"
        ),
    ),
    (
        WaitTimeout("round:5", ABOVE, waited=2.5),
        {"key": "round:5", "current": ABOVE, "waited": 2.5, "same_holder": False},
        (
            "'round:5' was not to be had within 2.5 seconds: 'round' is held by 'run:42'"
            " since 2026-03-02T09:00:00+00:00 without expiry, token 7"
        ),
    ),
    (
        WaitTimeout("round:5", FOREVER, waited=2.5, same_holder=True),
        {"key": "round:5", "current": FOREVER, "waited": 2.5, "same_holder": True},
        (
            "'round:5' was not to be had within 2.5 seconds: already yours: held by 'user:я'"
            " since 2026-03-02T09:00:00+00:00 without expiry, token 8"
        ),
    ),
    (
        HoldSuspect("round:5", holder="run:41", token=3, silent_for=9.04),
        {"key": "round:5", "current": None, "holder": "run:41", "token": 3, "silent_for": 9.04}
        | {"ended_by": None, "ended_at": None, "ended_by_actor": None, "reason": None},
        (
            "'round:5': the hold of 'run:41' with token 3 was last confirmed 9.0 seconds ago"
            " and may have run out; stop, and ask holder_of"
        ),
    ),
    (
        HoldChanged("round:5", LIVE, expected_token=6),
        {"key": "round:5", "current": LIVE, "expected_token": 6},
        (
            "'round:5' was expected at token 6 but is held by 'run:42' since 2026-03-02T09:00:00+00:00"
            " until 2026-03-02T10:00:00+00:00, token 7; look again and decide anew"
        ),
    ),
    (
        HoldChanged("round:5", None, expected_token=6),
        {"key": "round:5", "current": None, "expected_token": 6},
        "'round:5' was expected at token 6 but is free (token 0); look again and decide anew",
    ),
    (
        NotLockHolder("round:5", LIVE, holder="run:41"),
        {"key": "round:5", "current": LIVE, "holder": "run:41"},
        (
            "'round:5' is not held by 'run:41': held by 'run:42' since 2026-03-02T09:00:00+00:00"
            " until 2026-03-02T10:00:00+00:00, token 7"
        ),
    ),
    (
        NotHeld("round:5", holder="run:41"),
        {"key": "round:5", "current": None, "holder": "run:41"},
        "'round:5' is not held by anyone, so not by 'run:41' either; take it first",
    ),
    (
        HoldLost("round:5", None, holder="run:41", token=3),
        {"key": "round:5", "current": None, "holder": "run:41", "token": 3, "ended_by": None}
        | {"ended_at": None, "ended_by_actor": None, "reason": None},
        "'round:5': 'run:41' never had a hold with token 3; it is free now",
    ),
    (
        HoldLost(
            "round:5", None, holder="run:41", token=3, ended_by="release", ended_at=at(9)
        ).noted("seen at exit"),
        {"ended_by": "release", "ended_at": at(9), "ended_by_actor": None, "reason": None},
        (
            "'round:5': the hold of 'run:41' with token 3 was released at 2026-03-02T09:00:09+00:00;"
            " it is free now"
        ),
    ),
    (
        HoldLost(
            "round:5",
            LIVE,
            holder="run:41",
            token=3,
            ended_by="takeover",
            ended_at=at(9),
            ended_by_actor="user:2",
            reason="the\ndeadline",
        ),
        {"ended_by": "takeover", "ended_at": at(9), "ended_by_actor": "user:2"}
        | {"reason": "the\ndeadline", "current": LIVE},
        (
            "'round:5': the hold of 'run:41' with token 3 was taken over by 'user:2'"
            " at 2026-03-02T09:00:09+00:00 ('the\\ndeadline'); it is held by 'run:42'"
            " since 2026-03-02T09:00:00+00:00 until 2026-03-02T10:00:00+00:00, token 7 now"
        ),
    ),
    (
        HoldLost("round:5", None, holder="run:41", token=3, ended_by="forced", ended_at=at(9)),
        {"ended_by": "forced"},
        (
            "'round:5': the hold of 'run:41' with token 3 was released by force"
            " at 2026-03-02T09:00:09+00:00; it is free now"
        ),
    ),
    (
        HoldLost("round:5", None, holder="run:41", token=3, ended_by="expiry", ended_at=at(9)),
        {"ended_by": "expiry"},
        (
            "'round:5': the hold of 'run:41' with token 3 ran out at 2026-03-02T09:00:09+00:00;"
            " it is free now"
        ),
    ),
    (
        NotLockable(),
        {"key": None, "current": None, "code": "NOT_LOCKABLE"},
        "the policy refuses this take",
    ),
    (
        NotLockable("the version is cancelled", code="VERSION_CANCELLED", key="version:9"),
        {"key": "version:9", "code": "VERSION_CANCELLED"},
        "the version is cancelled",
    ),
    (InvalidKey("the key '' is empty"), {"key": None}, "the key '' is empty"),
    (InvalidHolder("the holder '' is empty"), {"key": None}, "the holder '' is empty"),
    (InvalidTtl("a ttl of 0"), {"key": None}, "a ttl of 0"),
    (InvalidReason("a reason is mandatory"), {"key": None}, "a reason is mandatory"),
    (InvalidMetadata("metadata holds nan"), {"key": None}, "metadata holds nan"),
    (
        ConcurrencyConflict("a deadlock was found", key="round:5"),
        {"key": "round:5"},
        "a deadlock was found; nothing was changed: run the transaction again",
    ),
    (
        ConcurrencyConflict("another writer was busy", remedy="begin with BEGIN IMMEDIATE"),
        {"key": None},
        "another writer was busy; nothing was changed: begin with BEGIN IMMEDIATE",
    ),
    (
        OutcomeUnknown(key="round:5"),
        {"key": "round:5"},
        (
            "the connection was lost during the change of 'round:5': it may or may not have been made; repeat the call,"
            " with the token of the hold where it ends one, or ask who holds it"
        ),
    ),
    (
        OutcomeUnknown(),
        {"key": None},
        (
            "the connection was lost during the change: it may or may not have been made; repeat the call,"
            " with the token of the hold where it ends one, or ask who holds it"
        ),
    ),
    (
        SchemaMismatch(None, "0002"),
        {"found": None, "expected": "0002", "schema": None},
        "lockledger's tables are missing; run `lockledger migrate` (or `ledger.migrate()`)",
    ),
    (
        SchemaMismatch("0001", "0002", schema="tenant"),
        {"found": "0001", "expected": "0002", "schema": "tenant"},
        (
            "lockledger's tables in schema 'tenant' are at version '0001', older than 0002, which this"
            " library needs; run `lockledger migrate` (or `ledger.migrate()`)"
        ),
    ),
    (
        SchemaMismatch("0003", "0002"),
        {"found": "0003", "expected": "0002", "schema": None},
        (
            "lockledger's tables are at version '0003', which this library (0002) does not know;"
            " install the lockledger that made them; `lockledger migrate` of that version is ahead of"
            " this one"
        ),
    ),
    (
        EventFormatMismatch("lockledger.LockTaken", 2, 1),
        {"found": "2", "expected": "1", "schema": None},
        (
            "a stored lockledger.LockTaken has format version 2, this library reads up to 1;"
            " upgrade lockledger here"
        ),
    ),
    (
        TamperedLedger("round:5", "head and events disagree"),
        {"key": "round:5"},
        (
            "'round:5': head and events disagree; nothing was changed: run `lockledger doctor` and `lockledger verify`, and look"
            " into the database's logs"
        ),
    ),
    (
        TamperedLedger(None, "an event is missing"),
        {"key": None},
        (
            "the ledger: an event is missing; nothing was changed: run `lockledger doctor` and `lockledger verify`, and look"
            " into the database's logs"
        ),
    ),
]
CODES = {
    LockedByOther: "LOCKED_BY_OTHER",
    HoldChanged: "HOLD_CHANGED",
    NotHolding: "NOT_HOLDING",
    NotLockHolder: "NOT_LOCK_OWNER",
    HoldLost: "HOLD_LOST",
    NotHeld: "NOT_HELD",
    NotLockable: "NOT_LOCKABLE",
}
ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, LockLedgerError)
]
each_said = pytest.mark.parametrize(
    ("error", "facts", "sentence"),
    SAID,
    ids=[f"{type(error).__name__}-{number}" for number, (error, *_) in enumerate(SAID)],
)


def shallow(error: LockLedgerError) -> LockLedgerError:
    return copy.copy(error)


def deep(error: LockLedgerError) -> LockLedgerError:
    return copy.deepcopy(error)


def pickled(error: LockLedgerError) -> LockLedgerError:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert isinstance(again, LockLedgerError)
    return again


@each_said
def test_an_error_makes_its_sentence_from_its_facts(
    error: LockLedgerError, facts: dict[str, Any], sentence: str
) -> None:
    assert str(error) == sentence
    assert {name: getattr(error, name) for name in facts} == facts


@pytest.mark.parametrize("journey", [pickled, shallow, deep])
def test_the_first_of_several_refusals_keeps_all_of_them(
    journey: Callable[[LockLedgerError], LockLedgerError],
) -> None:
    first, second = LockedByOther("round:5", LIVE), NotLockable("closed", key="round:6")
    first.refusals = (first, second)

    again = journey(first)

    assert [str(each) for each in again.refusals] == [str(first), str(second)]
    assert type(again.refusals[1]) is NotLockable


@each_said
@pytest.mark.parametrize("journey", [pickled, shallow, deep])
def test_an_error_keeps_its_facts_through_pickle_and_copy(
    error: LockLedgerError,
    facts: dict[str, Any],
    sentence: str,
    journey: Callable[[LockLedgerError], LockLedgerError],
) -> None:
    again = journey(error)

    assert again is not error
    assert type(again) is type(error)
    assert (str(again), again.args) == (sentence, error.args)
    assert vars(again) == vars(error)
    assert again.code == error.code
    assert {name: getattr(again, name) for name in facts} == facts


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_code_is_the_contracts_or_the_classs_name(kind: type[LockLedgerError]) -> None:
    by_name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper()

    assert kind.code == CODES.get(kind, by_name)


def test_every_error_is_told_here() -> None:
    assert {type(error) for error, *_ in SAID} == set(ALL) - {LockLedgerError, NotHolding}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_bad_input_alone_is_also_a_value_error(kind: type[LockLedgerError]) -> None:
    assert issubclass(kind, ValueError) == kind.__name__.startswith("Invalid")


def test_not_holding_has_three_kinds() -> None:
    assert NotHolding.__subclasses__() == [NotLockHolder, NotHeld, HoldLost]


def test_a_hosts_own_code_is_of_that_error_only() -> None:
    assert NotLockable(code="VERSION_CANCELLED").code == "VERSION_CANCELLED"
    assert NotLockable().code == "NOT_LOCKABLE"


def test_an_error_without_a_key_says_so() -> None:
    assert (LockLedgerError("x").key, LockLedgerError("x").current) == (None, None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("k", "'k'"),
        ("я", "'я'"),
        ("a\nb\x1b[31m", "'a\\nb\\x1b[31m'"),
        ("x" * 58, f"'{'x' * 58}'"),
        ("x" * 59, f"'{'x' * 59}… (59 characters)"),
        ("😀" * 255, "'" + "😀" * 59 + "… (255 characters)"),
        (42, "42"),
        (b"x" * 100, f"b'{'x' * 58}…"),
        (None, "None"),
        (10**5000, "<int too large to show>"),
        ([10**5000], "<list too large to show>"),
    ],
    ids=range(11),
)
def test_a_message_shows_a_value_escaped_and_not_at_length(value: object, text: str) -> None:
    """A key may come from anywhere: it must not forge lines of a log, or flood it."""
    assert shown(value) == text
