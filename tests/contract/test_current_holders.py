"""Reading who holds what: filters, order, pages, and prefixes of every kind of text."""

from __future__ import annotations

import time

import pytest

from lockledger import Hold, LockLedger
from support.lasting import lasting, while_live
from support.ledgers import Ledgers, SettableClock
from support.stories import at

# Keys that collations, LIKE patterns, case folding and UTF-16 order would mix up; in code point order.
KEYS = sorted(
    [
        *("round:5", "round:5:band:2", "round:5:band:2:lot", "round:50", "round:5x", "round;5"),
        *("Round:5", "ROUND:5", "round:4", "round_5", "round%5", "round\\5", "round'5", "roun"),
        *("a_b", "axb", "a%b", "aXXb", "a\\%b", "ß", "ss", "é", "e", "ﬁle", "file", "a b", "a  b"),
        *("\U0001f600", "\U0001f600:x", "\U0001f601", "￿", "\ud7ff", "\ue000", "퟿:1"),
        *("\U0010ffff", "\U0010ffff\U0010ffff", "\U0010ffff:1", "z" * 255, "-1", "0", "9"),
    ]
)
PREFIXES = [
    *("", "round", "round:5", "round:5:", "Round", "round_", "round%", "a_", "a%", "a\\", "aX"),
    *("ß", "s", "é", "e", "\U0001f600", "\U0001f600:", "\ud7ff", "￿", "\U0010ffff", "퟿:", "z"),
    *("\U0010ffff\U0010ffff", "nothing begins like this", " ", "'", '"', "r" * 300),
]


@pytest.fixture
def all_held(ledger: LockLedger) -> LockLedger:
    """Every key is held, odd ones by `run:1` and even ones by `run:2`; taken out of order."""
    for number, key in enumerate(reversed(KEYS)):
        ledger.take(key, f"run:{1 + number % 2}")
    return ledger


def keys(holds: object) -> list[str]:
    assert hasattr(holds, "__iter__")
    return [hold.key for hold in holds]


def test_live_holds_come_in_code_point_order_of_their_keys(all_held: LockLedger) -> None:
    assert keys(all_held.current_holders()) == KEYS


@pytest.mark.parametrize("limit", [1, 2, 7, len(KEYS) - 1, len(KEYS), len(KEYS) + 1, 1000])
def test_following_next_after_gives_every_hold_once(all_held: LockLedger, limit: int) -> None:
    found: list[str] = []
    after: str | None = None
    while True:
        page = all_held.current_holders(after=after, limit=limit)
        found += keys(page)
        if page.next_after is None:
            break
        assert len(page) == limit
        after = page.next_after

    assert found == KEYS


def test_a_prefix_matches_the_texts_that_begin_with_it_and_no_pattern(
    all_held: LockLedger,
) -> None:
    for prefix in PREFIXES:
        expected = [key for key in KEYS if key.startswith(prefix)]
        assert keys(all_held.current_holders(key_prefix=prefix)) == expected, prefix


def test_under_matches_the_key_itself_and_all_keys_under_it(all_held: LockLedger) -> None:
    for under in [*KEYS, "round", "nothing"]:
        expected = [key for key in KEYS if key == under or key.startswith(under + ":")]
        assert keys(all_held.current_holders(under=under)) == expected, under


def test_every_filter_narrows_and_pages_with_the_others(all_held: LockLedger) -> None:
    for prefix in ("", "round", "\U0001f600"):
        for under in (None, "round:5", "\U0001f600"):
            for holder in (None, "run:1", "run:2", "run:3"):
                expected = [
                    hold
                    for hold in all_held.current_holders(limit=1000)
                    if hold.key.startswith(prefix)
                    and (under is None or hold.key == under or hold.key.startswith(under + ":"))
                    and holder in (None, hold.holder)
                ]
                found: list[Hold] = []
                after: str | None = None
                while True:
                    page = all_held.current_holders(
                        key_prefix=prefix, under=under, holder=holder, after=after, limit=2
                    )
                    found += page
                    after = page.next_after
                    if after is None:
                        break
                assert found == expected, (prefix, under, holder)


def test_an_after_need_not_be_a_key_and_is_excluded(all_held: LockLedger) -> None:
    for after in ("", "round:5", "round:5 ", "e\u0301", " ", "\U0010ffff" * 300):
        expected = [key for key in KEYS if key > after]
        assert keys(all_held.current_holders(after=after)) == expected, after


def test_a_holder_is_compared_exactly(ledger: LockLedger) -> None:
    for number, holder in enumerate(["Run:1", "run:1", "RUN:1", "run:1x", "run_1", "run%1"]):
        ledger.take(f"k{number}", holder)

    assert keys(ledger.current_holders(holder="run:1")) == ["k1"]
    assert keys(ledger.current_holders(holder="run_1")) == ["k4"]


def test_a_hold_is_listed_until_the_instant_of_its_expiry(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("runs out", "run:1", ttl=10)
    ledger.take("stays", "run:1")
    for second, expected in [
        (9.999999, ["runs out", "stays"]),
        (10, ["stays"]),
        (9, ["runs out", "stays"]),
    ]:
        clock.set(second)
        assert keys(ledger.current_holders()) == expected
        assert ledger.is_locked("runs out") is (len(expected) == 2)


def test_a_clock_that_jumps_back_reverses_nothing(ledger: LockLedger, clock: SettableClock) -> None:
    clock.set(3600)
    ledger.take("k", "run:1", ttl=10)
    clock.set(3605)
    ledger.take("k", "run:2", takeover_reason="urgent", ttl=5)
    clock.set(0)

    assert ledger.holder_of("k") == ledger.current_holders()[0]
    (hold,) = ledger.current_holders()
    assert (hold.taken_at, hold.expires_at) == (at(3605), at(3610))
    released = ledger.force_release("k", actor="user:9", reason="over")
    assert released is not None
    assert released.ended_at == at(3605)
    again = ledger.take("k", "run:1", ttl=5)
    assert (again.taken_at, again.expires_at) == (at(3605), at(3610))


def test_lists_are_judged_by_the_databases_clock_when_none_is_given(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    ledger.take("stays", "run:1", ttl=3600)

    def story(runs_out: str, ttl: float) -> None:
        grant = ledger.take(runs_out, "run:1", ttl=ttl)
        with while_live(ledgers.database, grant.expires_at):
            assert keys(ledger.current_holders()) == [runs_out, "stays"]

        while ledger.is_locked(runs_out):
            time.sleep(0.01)

        assert keys(ledger.current_holders()) == ["stays"]
        assert keys(ledger.current_holders(holder="run:1", key_prefix=runs_out)) == []

    lasting(story)


def test_a_page_is_a_loaded_sequence(all_held: LockLedger) -> None:
    page = all_held.current_holders(limit=3)
    all_held.close()

    assert len(page) == 3
    assert keys(page[1:]) == KEYS[1:3]
    assert page[0] in page
    assert page.next_after == KEYS[2]
    assert page == page
    assert "next_after=" in repr(page)
