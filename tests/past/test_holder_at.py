"""Who held it then: the state after the last event not later than the instant, with expiry at its instant."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from lockledger import Hold, InvalidHolder, InvalidKey, LockLedger
from support.ledgers import Ledgers, SettableClock
from support.stories import T0, at

MICROSECOND = timedelta(microseconds=1)


def holder_at(ledger: LockLedger, when: datetime, key: str = "k") -> str | None:
    """Who held it; both verbs agree on that."""
    found = ledger.holder_at(key, when)
    assert [hold for hold in ledger.holders_at(when) if hold.key == key] == (
        [found] if found else []
    )
    return None if found is None else found.holder


def test_a_hold_is_told_with_all_that_was_true_of_it_then(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "run:1")
    clock.set(10)
    taken = ledger.take("k", "run:2", takeover_reason="urgent", ttl=60, metadata={"request": 7})
    clock.set(20)
    ledger.force_release("k", actor="user:9", reason="holiday")
    assert ledger.holder_at("k", at(15)) == Hold(**taken.model_dump(exclude={"created"}))
    assert holder_at(ledger, at(9.999999)) == "run:1"
    assert holder_at(ledger, at(20)) is None


def test_an_expiry_is_told_as_it_was_before_it_was_moved(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "run:1", ttl=10)
    clock.set(9)
    ledger.extend("k", "run:1", 10)
    ledger.extend("k", "run:1", 20)
    clock.set(15)
    ledger.extend("k", "run:1", 60)

    def expiries() -> list[datetime | None]:
        instants = (0, 5, 8.999999, 9, 14, 15)
        found = [ledger.holder_at("k", at(when)) for when in instants]
        assert [list(ledger.holders_at(at(when))) for when in instants] == [
            [each] for each in found
        ]
        return [None if each is None else each.expires_at for each in found]

    expected = [at(10), at(10), at(10), at(29), at(29), at(75)]
    assert expiries() == expected  # while the hold is live
    clock.set(75)
    assert expiries() == expected  # run out unrecorded
    ledger.expire_due()
    assert expiries() == expected  # run out and recorded
    ledger.take("k", "run:2", ttl=5)
    ledger.extend("k", "run:2", 50)
    assert expiries() == expected  # with another hold after it, which was extended too


def test_an_expiry_counts_at_its_very_microsecond_recorded_or_not(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "run:1", ttl=10)
    clock.set(30)

    def around() -> list[str | None]:
        return [
            holder_at(ledger, at(10) + step)
            for step in (-MICROSECOND, 0 * MICROSECOND, MICROSECOND)
        ]

    assert around() == ["run:1", None, None]
    ledger.expire_due()
    assert around() == ["run:1", None, None]
    ledger.take("k", "run:2")
    assert around() == ["run:1", None, None]


def test_of_one_instant_the_last_event_counts(ledger: LockLedger, clock: SettableClock) -> None:
    ledger.take("k", "run:1")
    ledger.take("k", "run:2", takeover_reason="urgent")
    assert holder_at(ledger, T0) == "run:2"
    ledger.release("k", "run:2")
    assert holder_at(ledger, T0) is None
    ledger.take("k", "run:3", ttl=10)
    ledger.extend("k", "run:3", 20)
    clock.set(5)
    found = ledger.holder_at("k", T0)
    assert found is not None
    assert (found.holder, found.token, found.expires_at) == ("run:3", 4, at(20))


def test_nobody_held_what_was_never_or_not_yet_taken(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "run:1")
    assert holder_at(ledger, T0 - MICROSECOND) is None
    assert holder_at(ledger, T0, key="K") is None
    assert holder_at(ledger, datetime.min.replace(tzinfo=UTC)) is None


def test_an_instant_may_be_given_in_any_zone(ledger: LockLedger, clock: SettableClock) -> None:
    ledger.take("k", "run:1", ttl=10)
    clock.set(60)
    zone = timezone(timedelta(hours=5, minutes=30))
    assert holder_at(ledger, at(9).astimezone(zone)) == "run:1"
    assert holder_at(ledger, at(10).astimezone(zone)) is None


def test_now_may_be_asked_for_and_nothing_later(ledger: LockLedger, clock: SettableClock) -> None:
    ledger.take("k", "run:1")
    assert holder_at(ledger, T0) == "run:1"
    for ask in (lambda when: ledger.holder_at("k", when), ledger.holders_at):
        with pytest.raises(
            ValueError,
            match=r"is later than now, .*; give an instant that has passed, or ask who holds it now",
        ):
            ask(T0 + MICROSECOND)
    with pytest.raises(ValueError, match="is later than now"):
        ledger.holder_at("never taken", T0 + MICROSECOND)


def test_a_locks_now_is_never_before_its_newest_event(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("other", "run:1")
    clock.set(60)
    grant = ledger.take("k", "run:1")
    clock.set(0)
    assert ledger.holder_at("k", grant.taken_at) == ledger.holder_of("k")
    for key, when in (("k", at(60) + MICROSECOND), ("other", at(60))):
        with pytest.raises(ValueError, match="is later than now"):
            ledger.holder_at(key, when)


def test_a_ledgers_now_is_never_before_its_newest_event(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("other", "run:1")
    clock.set(60)
    grant = ledger.take("k", "run:1")
    clock.set(0)
    ledger.take("last", "run:1")
    # Of the others nobody can tell yet who holds them then.
    assert list(ledger.holders_at(grant.taken_at)) == [ledger.holder_at("k", grant.taken_at)]
    assert list(ledger.holders_at(at(60))) == list(ledger.holds(since=at(60), until=at(61)))
    assert list(ledger.holders_at(at(60), key_prefix="o")) == []
    assert [hold.key for hold in ledger.holders_at(T0)] == ["last", "other"]
    with pytest.raises(ValueError, match=f"is later than now, {re.escape(at(60).isoformat())} by"):
        ledger.holders_at(at(60) + MICROSECOND)


def test_a_ledgers_now_is_never_before_a_sweep(ledger: LockLedger, clock: SettableClock) -> None:
    ledger.take("k", "run:1", ttl=10)
    clock.set(60)
    ledger.expire_due()
    clock.set(0)
    assert holder_at(ledger, at(60)) is None
    assert holder_at(ledger, at(9)) == "run:1"
    with pytest.raises(ValueError, match="is later than now"):
        ledger.holders_at(at(60) + MICROSECOND)


def test_in_a_ledger_without_events_now_is_the_clocks(ledger: LockLedger) -> None:
    assert list(ledger.holders_at(T0)) == []
    with pytest.raises(ValueError, match="is later than now"):
        ledger.holders_at(T0 + MICROSECOND)


def test_the_databases_clock_says_what_is_now(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    grant = ledger.take("k", "run:1")
    assert holder_at(ledger, grant.taken_at) == "run:1"
    for ask in (lambda when: ledger.holder_at("k", when), ledger.holders_at):
        with pytest.raises(ValueError, match="is later than now") as refused:
            ask(datetime.now(UTC) + timedelta(hours=1))
        assert "+00:00" in str(refused.value)


def test_the_sessions_time_zone_changes_nothing(ledgers: Ledgers) -> None:
    clock = SettableClock()
    options: dict[str, Any] = {}
    if ledgers.database.dialect == "postgresql":
        options = {"connect_args": {"options": "-c TimeZone=America/New_York"}}
    ledger = ledgers.open(url_or_engine=ledgers.database.engine(**options), clock=clock)
    ledger.take("k", "run:1", ttl=10)
    clock.set(9)
    ledger.extend("k", "run:1", 10)
    clock.set(30)
    found = ledger.holder_at("k", at(5))
    assert found is not None
    assert (found.taken_at.isoformat(), found.expires_at) == (T0.isoformat(), at(10))
    assert [hold.ended_at for hold in ledger.holds(since=at(18))] == [at(19)]


@pytest.mark.parametrize(
    ("when", "kind", "fault"),
    [
        (datetime(2026, 3, 2, 9), ValueError, "when=2026-03-02T09:00:00 has no time zone"),  # noqa: DTZ001
        (None, TypeError, "when must be an aware datetime, not None"),
        ("2026-03-02T09:00:00Z", TypeError, "when must be an aware datetime, not '2026"),
        (T0.timestamp(), TypeError, "when must be an aware datetime"),
        (T0.date(), TypeError, "when must be an aware datetime"),
        (
            datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
            ValueError,
            "in no year from 1 to 9999 in UTC; give one that is",
        ),
        (
            datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))),
            ValueError,
            "in no year from 1 to 9999 in UTC; give one that is",
        ),
    ],
    ids=repr,
)
def test_an_instant_is_aware_and_a_datetime(
    ledger: LockLedger, when: Any, kind: type[Exception], fault: str
) -> None:
    for ask in (lambda: ledger.holder_at("k", when), lambda: ledger.holders_at(when)):
        with pytest.raises(kind, match=fault):
            ask()


def test_keys_holders_and_pages_are_checked_like_everywhere(ledger: LockLedger) -> None:
    for key in ("", " k", "x" * 256, "e\u0301"):
        with pytest.raises(InvalidKey):
            ledger.holder_at(key, T0)
        with pytest.raises(InvalidKey):
            ledger.holders_at(T0, under=key)
        with pytest.raises(InvalidHolder):
            ledger.holders_at(T0, holder=key)
    for wrong in (7, b"k"):
        with pytest.raises(TypeError):
            ledger.holder_at(wrong, T0)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            ledger.holders_at(T0, key_prefix=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            ledger.holders_at(T0, after=wrong)  # type: ignore[arg-type]
    for limit in (0, 1001, -1):
        with pytest.raises(ValueError, match="1 to 1000"):
            ledger.holders_at(T0, limit=limit)
    with pytest.raises(TypeError, match="limit must be an int, not True; give 1 to 1000"):
        ledger.holders_at(T0, limit=True)


def test_ledgers_that_share_the_tables_have_pasts_of_their_own(ledgers: Ledgers) -> None:
    clock = SettableClock()
    one, other = ledgers.open(name="one", clock=clock), ledgers.open(name="other", clock=clock)
    one.take("k", "run:1")
    other.take("k", "run:2", ttl=5)
    clock.set(10)
    assert (holder_at(one, at(3)), holder_at(other, at(3))) == ("run:1", "run:2")
    assert [hold.holder for hold in one.holds()] == ["run:1"]
    assert [hold.holder for hold in other.holds(key="k")] == ["run:2"]
    assert list(ledgers.open(name="third").holds()) == []


def test_each_schema_has_a_past_of_its_own(postgres_ledgers: Ledgers) -> None:
    here, elsewhere = postgres_ledgers.open(), postgres_ledgers.open(schema="Tenant-7")
    elsewhere.migrate()
    grant = elsewhere.take("k", "run:7")
    assert elsewhere.holder_at("k", grant.taken_at) == elsewhere.holder_of("k")
    assert here.holder_at("k", grant.taken_at) is None
    assert (len(here.holds()), len(elsewhere.holds())) == (0, 1)
