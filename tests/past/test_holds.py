"""Every hold of a period: when it began, how it ended, and in which order it is told."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from lockledger import Hold, InvalidHolder, InvalidKey, LockLedger
from support.ledgers import Ledgers, SettableClock
from support.stories import T0, at

MICROSECOND = timedelta(microseconds=1)


def told(hold: Hold) -> tuple[Any, ...]:
    return hold.holder, hold.ended_at, hold.ended_by, hold.end_reason, hold.ended_by_actor


def test_every_end_is_told_with_when_how_why_and_by_whom(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "run:1")
    clock.set(1)
    ledger.release("k", "run:1", reason="done")
    ledger.take("k", "run:2")
    clock.set(2)
    ledger.force_release("k", actor="user:9", reason="holiday")
    ledger.take("k", "run:3")
    clock.set(3)
    ledger.take("k", "run:4", takeover_reason="urgent", actor="user:8", ttl=10)
    clock.set(20)
    ledger.take("k", "run:5", ttl=10)
    clock.set(40)
    unrecorded = list(ledger.holds(key="k"))
    assert [told(hold) for hold in unrecorded] == [
        ("run:1", at(1), "release", "done", "run:1"),
        ("run:2", at(2), "forced", "holiday", "user:9"),
        ("run:3", at(3), "takeover", "urgent", "user:8"),
        ("run:4", at(13), "expiry", None, None),
        ("run:5", at(30), "expiry", None, None),
    ]
    assert [hold.token for hold in unrecorded] == [1, 3, 5, 6, 8]
    assert unrecorded[3].taken_over_from == "run:3"
    assert unrecorded[3].takeover_reason == "urgent"
    assert ledger.expire_due() == 1
    assert list(ledger.holds(key="k")) == unrecorded
    grant = ledger.take("k", "run:6")
    assert ledger.holds(key="k")[-1] == Hold(**grant.model_dump(exclude={"created"}))


def test_a_hold_has_ended_at_the_instant_of_its_expiry(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "run:1", ttl=10)
    clock.now = at(10) - MICROSECOND
    assert ledger.holds()[0].ended_at is None
    clock.set(10)
    assert ledger.holds()[0].ended_by == "expiry"
    assert len(ledger.holds(since=at(10) - MICROSECOND)) == 1
    assert len(ledger.holds(since=at(10))) == 0


def test_a_hold_stays_live_where_the_clock_ran_back(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "run:1", ttl=10)
    clock.set(9)
    ledger.extend("k", "run:1", 10)
    clock.set(-60)
    assert ledger.holds(since=at(8))[0].ended_at is None
    assert len(ledger.holds(since=at(9))) == 1
    assert len(ledger.holds(since=at(9) + MICROSECOND)) == 0


@pytest.mark.parametrize(
    ("since", "until", "holders"),
    [
        (None, None, ["run:1", "run:2"]),
        (10, 11, ["run:1"]),
        (19.999999, None, ["run:1", "run:2"]),
        (20, None, ["run:2"]),
        (None, 10, []),
        (None, 10.000001, ["run:1"]),
        (None, 30, ["run:1"]),
        (20, 30, []),
        (20, 30.000001, ["run:2"]),
        (12, 13, ["run:1"]),
        (500, 501, ["run:2"]),
        (1000, None, ["run:2"]),
        (1000.000001, None, []),
        (12, 12, []),
    ],
)
def test_a_hold_counts_if_it_was_live_at_an_instant_of_the_period(
    ledger: LockLedger,
    clock: SettableClock,
    since: float | None,
    until: float | None,
    holders: list[str],
) -> None:
    clock.set(10)
    ledger.take("k", "run:1")
    clock.set(20)
    ledger.release("k", "run:1")
    clock.set(30)
    ledger.take("k", "run:2")
    clock.set(1000)
    period: dict[str, Any] = {
        "since": None if since is None else at(since),
        "until": None if until is None else at(until),
    }
    selections: list[dict[str, Any]] = [{}, {"key": "k"}, {"under": "k"}, {"key_prefix": "k"}]
    for selected in selections:
        assert [hold.holder for hold in ledger.holds(**period, **selected)] == holders
    for holder in ("run:1", "run:2"):
        found = [hold.holder for hold in ledger.holds(**period, holder=holder)]
        assert found == [each for each in holders if each == holder]


def test_a_hold_that_ended_as_it_began_counts_where_it_stands(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "run:0")
    clock.set(10)
    ledger.take("k", "run:1", takeover_reason="urgent")
    ledger.take("k", "run:2", takeover_reason="more urgent")

    def holders(since: datetime | None, until: datetime | None) -> list[str]:
        found = [hold.holder for hold in ledger.holds(since=since, until=until)]
        assert found == [hold.holder for hold in ledger.holds(key="k", since=since, until=until)]
        return found

    clock.set(20)
    assert holders(at(10), None) == ["run:1", "run:2"]
    assert holders(at(10), at(10) + MICROSECOND) == ["run:1", "run:2"]
    assert holders(at(10) + MICROSECOND, None) == ["run:2"]
    assert holders(None, at(10)) == ["run:0"]
    assert holders(at(10) - MICROSECOND, at(10)) == ["run:0"]


def test_holds_are_told_by_key_in_code_point_order_then_by_token(
    ledger: LockLedger, clock: SettableClock
) -> None:
    keys = ["a", "Z", "ä", "😀", "\ufb01", "a:1", "a1", "a/2", "b"]
    for key in keys:
        for holder in ("run:1", "run:2"):
            ledger.take(key, holder)
            ledger.release(key, holder)
    found = [(hold.key, hold.token) for hold in ledger.holds()]
    assert found == [(key, token) for key in sorted(keys) for token in (1, 3)]
    assert [hold.key for hold in ledger.holds(under="a")] == ["a", "a", "a:1", "a:1"]
    assert [hold.key for hold in ledger.holds(key_prefix="a")] == [
        *("a", "a", "a/2", "a/2", "a1", "a1", "a:1", "a:1")
    ]
    assert [hold.key for hold in ledger.holds(key="a", under="b")] == []
    assert [hold.key for hold in ledger.holds(key="a:1", under="a", key_prefix="a")] == ["a:1"] * 2


def test_following_pages_skips_and_repeats_nothing_whatever_ends_meanwhile(
    ledger: LockLedger, clock: SettableClock
) -> None:
    keys = [f"k:{number}" for number in range(5)]
    for key in keys:
        for _ in range(3):
            ledger.take(key, "run:1")
            ledger.release(key, "run:1")
        ledger.take(key, "run:2", ttl=60)
    expected = [(hold.key, hold.token) for hold in ledger.holds()]
    found: list[tuple[str, int]] = []
    after = None
    while True:
        page = ledger.holds(after=after, limit=1)
        found += [(hold.key, hold.token) for hold in page]
        after = page.next_after
        if after is None:
            break
        clock.forward(2)
        # The hold that the page ended with ends too, and some further on.
        ledger.expire_due(1)
        ledger.try_release(page[0].key, "run:2")
        ledger.try_release("k:3", "run:2")
    assert found == expected


def test_a_place_is_good_in_another_process_and_after_the_hold_has_ended(
    ledgers: Ledgers,
) -> None:
    ledger = ledgers.open()
    key = "/1/2026-03-02T09:00:00.000000Z/7/😀"
    ledger.take(key, "run:1")
    ledger.take(f"{key}/", "run:2")
    after = ledger.holds(limit=1).next_after
    assert after is not None
    ledger.release(key, "run:1")
    program = (
        "import sys; from lockledger import LockLedger;"
        "print([h.holder for h in LockLedger(sys.argv[1]).holds(after=sys.argv[2])])"
    )
    command = [sys.executable, "-c", program, ledgers.database.url, after]
    assert subprocess.check_output(command, text=True).strip() == "['run:2']"


@pytest.mark.parametrize(
    "after",
    [
        "",
        "k",
        "2026-03-02T09:00:00.000000Z/1/",
        "2026-03-02T09:00:00.000000Z/x/k",
        "2026-03-02T09:00:00Z/1/k",
        "2026-13-02T09:00:00.000000Z/1/k",
        "2026-03-02T09:00:00.000000Z/9999999999999999999/k",
        "٢٠٢٦-03-02T09:00:00.000000Z/1/k",
        "2026-03-02T09:00:00.000000Z/1/k\0",
        "2026-03-02T09:00:00.000000Z/1/\ud800",
    ],
    ids=ascii,
)
def test_only_a_place_can_be_followed(ledger: LockLedger, after: str) -> None:
    with pytest.raises(ValueError, match="after="):
        ledger.holds(after=after)


def test_a_place_is_text(ledger: LockLedger) -> None:
    with pytest.raises(TypeError, match="after must be a str"):
        ledger.holds(after=7)  # type: ignore[arg-type]


def test_a_page_holds_one_to_a_thousand(ledger: LockLedger) -> None:
    for limit in (0, -1, 1001):
        with pytest.raises(ValueError, match="1 to 1000"):
            ledger.holds(limit=limit)
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match="limit must be an int"):
            ledger.holds(limit=wrong)  # type: ignore[arg-type]
    ledger.take("k", "run:1")
    assert ledger.holds(limit=1).next_after is None
    assert len(ledger.holds(limit=1000)) == 1


def test_a_period_is_aware_and_ends_after_it_begins(ledger: LockLedger) -> None:
    with pytest.raises(ValueError, match=r"until=.* is before since=.*; give the earlier one"):
        ledger.holds(since=at(1), until=T0)
    for name in ("since", "until"):
        with pytest.raises(ValueError, match=f"{name}=2026-03-02T09:00:00 has no time zone"):
            ledger.holds(**{name: T0.replace(tzinfo=None)})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"{name} must be an aware datetime"):
            ledger.holds(**{name: "yesterday"})  # type: ignore[arg-type]


def test_what_selects_is_checked_like_everywhere(ledger: LockLedger) -> None:
    for text in ("", " k", "x" * 256):
        for name in ("key", "under"):
            with pytest.raises(InvalidKey):
                ledger.holds(**{name: text})  # type: ignore[arg-type]
        with pytest.raises(InvalidHolder):
            ledger.holds(holder=text)
    with pytest.raises(ValueError, match="key_prefix"):
        ledger.holds(key_prefix="\0")
    for name in ("key", "key_prefix", "under", "holder"):
        with pytest.raises(TypeError):
            ledger.holds(**{name: 7})  # type: ignore[arg-type]


def test_the_longest_texts_have_room_in_every_index(ledgers: Ledgers) -> None:
    ledger = ledgers.open(name="😀" * 100)
    key, holder = "𝒦" * 255, "𝐇" * 255
    ledger.take(key, holder, ttl=3600)
    ledger.extend(key, holder, 7200)
    ledger.release(key, holder)
    (hold,) = ledger.holds(key=key, holder=holder)
    assert ledger.holder_at(key, hold.taken_at) is not None
    after = ledger.take(key, holder).taken_at
    assert len(ledger.holds(under=key, limit=1)) == 1
    assert len(ledger.holders_at(after, key_prefix=key)) == 1


def test_pages_skip_and_repeat_nothing_while_others_take_and_release(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    keys = [f"k:{number}" for number in range(12)]
    for key in keys:
        for _ in range(3):
            ledger.take(key, "run:0")
            ledger.release(key, "run:0")
        ledger.take(key, "run:0")
    before = {(hold.key, hold.token) for hold in ledger.holds()}
    over = threading.Event()

    def write(holder: str, rng: random.Random) -> None:
        while not over.is_set():
            key = rng.choice(keys)
            ledger.take(key, holder, takeover_reason="urgent", if_mine="replace")
            ledger.try_release(key, holder)

    with ThreadPoolExecutor(2) as threads:
        writers = [
            threads.submit(write, f"run:{seed}", random.Random(seed)) for seed in range(1, 3)
        ]
        try:
            for _ in range(5):
                found: list[tuple[str, int]] = []
                after = None
                while True:
                    page = ledger.holds(after=after, limit=7)
                    found += [(hold.key, hold.token) for hold in page]
                    after = page.next_after
                    if after is None:
                        break
                assert found == sorted(set(found))
                assert before <= set(found)
        finally:
            over.set()
    for writer in writers:
        writer.result()
