"""Every limit of the contract, from both sides: what is within is kept exactly, what is beyond changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from lockledger import (
    InvalidHolder,
    InvalidKey,
    InvalidMetadata,
    InvalidReason,
    InvalidTtl,
    LockLedger,
    LockLedgerError,
)
from support.ledgers import Ledgers, unchanged
from support.stories import at

Refusal = type[Exception]
Bad = tuple[Any, Refusal, str]

TEXTS_THAT_ARE_NONE: list[Bad] = [
    *[(value, TypeError, "str") for value in (5, 5.0, True, b"k", None, ("k",), UUID(int=5))],
]
TEXTS: list[tuple[str, str]] = [
    ("", "is empty"),
    ("x" * 256, "256 characters, at most 255"),
    ("я" * 256, "256 characters, at most 255"),
    ("\U0001f600" * 256, "256 characters, at most 255"),
    (" k", "white space"),
    ("k ", "white space"),
    ("k\u00a0", "white space"),
    ("\u2003k", "white space"),
    ("e\u0301", "normal form C"),
    ("a\0b", "control character"),
    ("a\tb", "control character"),
    ("a\nb", "control character"),
    ("a\x7fb", "control character"),
    ("a\x85b", "control character"),
    ("a\ud800b", "surrogate"),
    ("\udfff", "surrogate"),
]
KEYS: list[Bad] = [(text, InvalidKey, why) for text, why in TEXTS] + TEXTS_THAT_ARE_NONE
HOLDERS: list[Bad] = [(text, InvalidHolder, why) for text, why in TEXTS] + TEXTS_THAT_ARE_NONE
ACTORS = [bad for bad in HOLDERS if bad[0] is not None]

HUNDRED_YEARS = timedelta(days=36525)
TTLS: list[Bad] = [
    *[(ttl, InvalidTtl, "100 years") for ttl in (0, 0.0, -0.0, -1, -0.5, float("nan"))],
    *[(ttl, InvalidTtl, "100 years") for ttl in (float("inf"), float("-inf"), 10**400, 1e-9)],
    *[(ttl, InvalidTtl, "100 years") for ttl in (36525 * 86400 + 1, timedelta(0), -HUNDRED_YEARS)],
    (HUNDRED_YEARS + timedelta(microseconds=1), InvalidTtl, "100 years"),
    (at(0), InvalidTtl, "has passed"),
    (at(-1), InvalidTtl, "has passed"),
    (at(0) + HUNDRED_YEARS + timedelta(microseconds=1), InvalidTtl, "100 years"),
    (datetime(2026, 3, 3, 9), InvalidTtl, "time zone"),  # noqa: DTZ001 - naive is the point
    (datetime.max.replace(tzinfo=UTC), InvalidTtl, "100 years"),
    *[(ttl, TypeError, "a ttl is") for ttl in (True, False, "", "60", Decimal(60), at(60).date())],
]
REASONS: list[Bad] = [
    ("x" * 2001, InvalidReason, "2001 characters, at most 2000"),
    ("a\0b", InvalidReason, "newline and tab"),
    ("a\rb", InvalidReason, "newline and tab"),
    ("a\x1bb", InvalidReason, "newline and tab"),
    ("a\x85b", InvalidReason, "newline and tab"),
    ("a\ud800b", InvalidReason, "newline and tab"),
    *[(value, TypeError, "reason must be a str") for value in (5, True, b"why", ["why"])],
]
MISSING_REASONS: list[Bad] = [
    *[(value, InvalidReason, "mandatory") for value in (None, "", " \n\t", "\u00a0")],
]
METADATA: list[Bad] = [
    ({"x": float("nan")}, InvalidMetadata, "JSON cannot express"),
    ({"x": [float("inf")]}, InvalidMetadata, "JSON cannot express"),
    ({"x": "a\0b"}, InvalidMetadata, "NUL"),
    ({"a\0b": 1}, InvalidMetadata, "NUL"),
    ({"x": {"y": ["\ud800"]}}, InvalidMetadata, "surrogate"),
    ({5: "x"}, InvalidMetadata, "keys must be str"),
    ({"x": {None: 1}}, InvalidMetadata, "keys must be str"),
    ({"x": b"bytes"}, InvalidMetadata, "only JSON values"),
    ({"x": at(0)}, InvalidMetadata, "only JSON values"),
    ({"x": {1, 2}}, InvalidMetadata, "only JSON values"),
    ({"x": "y" * 8192}, InvalidMetadata, "at most 8192"),
    ({"x": "я" * 4093}, InvalidMetadata, "at most 8192"),
    ({"x": 10**5000}, InvalidMetadata, "640 digits"),
    *[(value, TypeError, "mapping") for value in (5, False, "", "{}", [], [("a", 1)])],
]
TOKENS: list[Bad] = [
    *[(token, TypeError, "must be an int") for token in (True, False, "1", "", 1.0)],
    *[(token, ValueError, "tokens are 0") for token in (-1, 2**63, 10**30)],
]


@contextmanager
def refused(bad: Bad) -> Iterator[None]:
    value, kind, why = bad
    with pytest.raises(kind, match=why) as refusal:
        yield
    if issubclass(kind, LockLedgerError):
        assert isinstance(refusal.value, ValueError), "bad input is a ValueError too"
    assert len(str(refusal.value)) < 400, f"a message that goes on and on about {str(value)[:40]}"


def refuse(ledgers: Ledgers, bad: list[Bad], *calls: Callable[[Any], object]) -> None:
    """Each call refuses each bad value, and afterwards no table has gained or lost a row."""
    with unchanged(ledgers):
        for each in bad:
            for call in calls:
                with refused(each):
                    call(each[0])


@pytest.fixture
def held(ledger: LockLedger) -> LockLedger:
    """`mine` is held by run:1 until second 1000, `theirs` by run:2."""
    ledger.take("mine", "run:1", ttl=1000)
    ledger.take("theirs", "run:2", ttl=1000)
    return ledger


def test_keys_beyond_the_limits_are_refused_by_every_verb(
    ledgers: Ledgers, held: LockLedger
) -> None:
    refuse(
        ledgers,
        KEYS,
        lambda key: held.take(key, "run:1"),
        lambda key: held.try_take(key, "run:1"),
        lambda key: held.release(key, "run:1"),
        lambda key: held.try_release(key, "run:1"),
        lambda key: held.extend(key, "run:1", 60),
        lambda key: held.force_release(key, actor="user:9", reason="why"),
        held.holder_of,
        held.is_locked,
        held.history,
    )
    refuse(
        ledgers,
        [bad for bad in KEYS if bad[0] is not None],
        lambda key: held.audit_trail(key=key),
        lambda key: held.audit_trail(under=key),
        lambda key: held.current_holders(under=key),
    )


def test_a_bad_under_is_named_by_its_own_name(ledgers: Ledgers, held: LockLedger) -> None:
    refuse(
        ledgers,
        [
            ("", InvalidKey, "^under='' is empty; leave it out, or give a key$"),
            (" k", InvalidKey, "^under=' k' is surrounded by white space; strip it$"),
            (5, TypeError, "^under must be a str, not int 5; write"),
        ],
        lambda under: held.audit_trail(under=under),
        lambda under: held.current_holders(under=under),
        lambda under: held.holds(under=under),
        lambda under: held.holders_at(at(0), under=under),
        lambda under: held.release_all(under=under, actor="user:9", reason="why"),
    )


def test_holders_and_actors_beyond_the_limits_are_refused_by_every_verb(
    ledgers: Ledgers, held: LockLedger
) -> None:
    refuse(
        ledgers,
        HOLDERS,
        lambda holder: held.take("mine", holder),
        lambda holder: held.try_take("mine", holder),
        lambda holder: held.release("mine", holder),
        lambda holder: held.try_release("mine", holder),
        lambda holder: held.extend("mine", holder, 60),
    )
    refuse(
        ledgers,
        ACTORS,
        lambda actor: held.take("free", "run:1", actor=actor),
        lambda actor: held.try_take("mine", "run:1", actor=actor),
        lambda actor: held.release("mine", "run:1", actor=actor),
        lambda actor: held.try_release("mine", "run:1", actor=actor),
        lambda actor: held.extend("mine", "run:1", 2000, actor=actor),
        lambda actor: held.force_release("mine", actor=actor, reason="why"),
        lambda holder: held.current_holders(holder=holder),
        lambda holder: held.audit_trail(holder=holder),
        lambda actor: held.audit_trail(actor=actor),
    )


def test_a_forced_release_by_nobody_is_refused(ledgers: Ledgers, held: LockLedger) -> None:
    force: Any = held.force_release
    with unchanged(ledgers):
        for key in ("mine", "free"):
            with pytest.raises(TypeError, match="actor"):
                force(key, reason="why")
            with pytest.raises(TypeError, match="actor"):
                force(key, actor=None, reason="why")


def test_ttls_beyond_the_limits_are_refused_where_a_hold_would_begin_or_move(
    ledgers: Ledgers, held: LockLedger
) -> None:
    refuse(
        ledgers,
        TTLS,
        lambda ttl: held.take("free", "run:1", ttl=ttl),
        lambda ttl: held.try_take("free", "run:1", ttl=ttl),
        lambda ttl: held.take("theirs", "run:1", ttl=ttl, takeover_reason="urgent"),
        lambda ttl: held.take("mine", "run:1", ttl=ttl, if_mine="replace"),
        lambda ttl: held.take("mine", "run:1", ttl=ttl, if_mine="extend"),
        lambda ttl: held.extend("mine", "run:1", ttl),
    )


def test_a_ttls_type_sign_and_size_are_checked_even_where_it_is_ignored(
    ledgers: Ledgers, held: LockLedger
) -> None:
    refuse(
        ledgers,
        [bad for bad in TTLS if bad[2] != "has passed"],
        lambda ttl: held.take("mine", "run:1", ttl=ttl),
        lambda ttl: held.take("theirs", "run:1", ttl=ttl),
        lambda ttl: held.extend("theirs", "run:1", ttl),
        lambda ttl: held.extend("free", "run:1", ttl),
    )
    assert held.take("mine", "run:1", ttl=at(-1)).created is False


def test_reasons_beyond_the_limits_are_refused_by_every_verb_even_where_they_are_not_kept(
    ledgers: Ledgers, held: LockLedger
) -> None:
    refuse(
        ledgers,
        REASONS,
        lambda reason: held.take("free", "run:1", takeover_reason=reason),
        lambda reason: held.try_take("theirs", "run:1", takeover_reason=reason),
        lambda reason: held.release("mine", "run:1", reason=reason),
        lambda reason: held.try_release("mine", "run:1", reason=reason),
        lambda reason: held.force_release("mine", actor="user:9", reason=reason),
    )
    refuse(
        ledgers,
        MISSING_REASONS,
        lambda reason: held.force_release("mine", actor="user:9", reason=reason),
        lambda reason: held.force_release("free", actor="user:9", reason=reason),
    )


def test_metadata_beyond_the_limits_is_refused_by_every_verb(
    ledgers: Ledgers, held: LockLedger
) -> None:
    refuse(
        ledgers,
        METADATA,
        lambda metadata: held.take("free", "run:1", metadata=metadata),
        lambda metadata: held.try_take("mine", "run:1", metadata=metadata),
        lambda metadata: held.release("mine", "run:1", metadata=metadata),
        lambda metadata: held.try_release("mine", "run:1", metadata=metadata),
        lambda metadata: held.extend("mine", "run:1", 2000, metadata=metadata),
        lambda metadata: held.force_release(
            "mine", actor="user:9", reason="why", metadata=metadata
        ),
    )


def test_tokens_that_no_grant_has_are_refused(ledgers: Ledgers, held: LockLedger) -> None:
    refuse(
        ledgers,
        TOKENS,
        lambda token: held.take("free", "run:1", expected_token=token),
        lambda token: held.release("mine", "run:1", token=token),
        lambda token: held.try_release("mine", "run:1", token=token),
        lambda token: held.extend("mine", "run:1", 2000, token=token),
        lambda token: held.force_release(
            "mine", actor="user:9", reason="why", expected_token=token
        ),
    )


def test_options_that_do_not_exist_are_refused(ledgers: Ledgers, held: LockLedger) -> None:
    refuse(
        ledgers,
        [(value, ValueError, "if_mine") for value in ("", "Return", None, True, {"n": 10**5000})],
        lambda if_mine: held.take("free", "run:1", if_mine=if_mine),
    )
    refuse(
        ledgers,
        [(value, ValueError, "use one of LockTaken") for value in ("", "taken", "locktaken", 0)],
        lambda action: held.audit_trail(action=action),
    )


def test_pages_have_1_to_1000_entries(ledgers: Ledgers, held: LockLedger) -> None:
    calls: list[Callable[[Any], object]] = [
        lambda limit: held.current_holders(limit=limit),
        lambda limit: held.history("mine", limit=limit),
        lambda limit: held.audit_trail(limit=limit),
    ]
    refuse(ledgers, [(limit, ValueError, "1 to 1000") for limit in (0, -1, 1001, 10**9)], *calls)
    refuse(
        ledgers,
        [
            (limit, TypeError, "limit must be an int, .*; give 1 to 1000")
            for limit in (True, None, "5", 5.0)
        ],
        *calls,
    )
    for call in calls:
        call(1)
        call(1000)


def test_positions_and_instants_that_bound_nothing_are_refused(
    ledgers: Ledgers, held: LockLedger
) -> None:
    refuse(
        ledgers,
        [
            *[(after, ValueError, "position") for after in (-1, 2**63)],
            *[
                (after, TypeError, "position must be an int, .*; give 0 for")
                for after in ("", "1", 1.0, False)
            ],
        ],
        held.events,
        lambda after: held.subscribe(after=after),
        lambda after: held.history("mine", after=after),
        lambda after: held.audit_trail(after=after),
    )
    naive = datetime(2026, 3, 2, 9)  # noqa: DTZ001 - naive is the point
    refuse(
        ledgers,
        [
            (naive, ValueError, "has no time zone"),
            *[(each, TypeError, "aware datetime") for each in ("", "2026-03-02", 0, False)],
        ],
        lambda since: held.audit_trail(since=since),
        lambda until: held.audit_trail(until=until),
    )
    refuse(
        ledgers,
        [
            *[(value, TypeError, "must be a str") for value in (0, False, b"k", ["k"])],
            *[(value, ValueError, "NUL or a surrogate") for value in ("a\0", "\ud800")],
        ],
        lambda prefix: held.current_holders(key_prefix=prefix),
        lambda after: held.current_holders(after=after),
        lambda prefix: held.audit_trail(key_prefix=prefix),
        lambda prefix: held.subscribe(key_prefix=prefix),
    )
    refuse(
        ledgers,
        [
            *[(poll, ValueError, "poll=") for poll in (0, -1, float("nan"), 86401, timedelta(0))],
            *[(poll, TypeError, "poll is") for poll in (True, None, "1")],
        ],
        lambda poll: held.subscribe(poll=poll),
    )


def test_a_ledger_is_opened_within_limits_only(ledgers: Ledgers) -> None:
    refuse(
        ledgers,
        [
            *[(each, ValueError, "busy_timeout=") for each in (-1, float("nan"), float("inf"))],
            *[(each, TypeError, "busy_timeout is") for each in (True, None, "30")],
        ],
        lambda busy_timeout: ledgers.open(busy_timeout=busy_timeout),
    )
    for url in ("mysql://host/db", "postgresql+psycopg2://host/db", "sqlite+pysqlcipher:///f"):
        with pytest.raises(ValueError, match="use postgresql"):
            LockLedger(url)
    with pytest.raises(TypeError, match="wants a database URL or a SQLAlchemy engine"):
        LockLedger(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        (datetime(2026, 3, 2, 9), ValueError),  # noqa: DTZ001 - naive is the point
        ("2026-03-02T09:00:00Z", TypeError),
        (None, TypeError),
        (1772442000.0, TypeError),
    ],
    ids=repr,
)
def test_a_clock_that_gives_no_aware_datetime_changes_nothing(
    ledgers: Ledgers, says: Any, kind: type[Exception]
) -> None:
    ledger = ledgers.open(clock=lambda: says)
    with unchanged(ledgers):
        for call in (
            lambda: ledger.take("k", "run:1"),
            lambda: ledger.release("k", "run:1"),
            lambda: ledger.holder_of("k"),
            ledger.current_holders,
        ):
            with pytest.raises(kind, match=r"clock\(\)"):
                call()
