"""Scenarios 4.3: clocks of several machines, time zones, and the instant of an expiry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import HoldLost, LockedByOther, LockLedger, NotHolding, Policy
from support.ledgers import Ledgers, SettableClock
from support.stories import at


def shift_the_process_clock(patch: pytest.MonkeyPatch, by: timedelta) -> None:
    """This process's clock is wrong, as far as the ledger asks it."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + by

    for module in ("adapters.clock", "adapters.postgres"):
        patch.setattr(f"lockledger.{module}.datetime", Shifted)


@pytest.mark.parametrize("minutes", [3, 60, -60])
def test_s34_a_process_with_a_wrong_clock_is_judged_by_the_databases(
    postgres_ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    a, b = postgres_ledgers.open(), postgres_ledgers.open()
    right = a.take("k", "A", ttl=120)
    shift_the_process_clock(monkeypatch, timedelta(minutes=minutes))

    with pytest.raises(LockedByOther):
        b.take("k", "B")
    assert [hold.holder for hold in b.current_holders()] == ["A"]
    wrong = b.take("other", "B", ttl=120)
    assert timedelta(0) <= wrong.taken_at - right.taken_at < timedelta(minutes=1)
    assert b.extend("other", "B", 180).expires_at is not None


def test_s34_processes_on_one_sqlite_file_share_the_machines_clock(
    sqlite_ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = sqlite_ledgers.open()
    a.take("k", "A", ttl=120)
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        with pytest.raises(LockedByOther):
            sqlite_ledgers.open().take("k", "B")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_s35_a_handler_that_outlives_its_hold_is_fenced_off(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("k", "A", ttl=10)
    granted = None
    for second in range(60):
        clock.set(second)
        granted = granted or ledger.try_take("k", "B", ttl=100)
        assert (granted is not None) is (second >= 10)
    assert granted is not None
    assert granted.taken_at == at(10)
    clock.set(60)

    with pytest.raises(HoldLost):
        ledger.extend("k", "A", 10, token=a.token)
    assert granted.token > a.token


@pytest.fixture
def amsterdam(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process is in a zone whose clocks go forward on 29 March 2026 at 01:00 UTC."""
    monkeypatch.setenv("TZ", "Europe/Amsterdam")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def in_zone(ledgers: Ledgers, zone: str, **options: Any) -> LockLedger:
    """A ledger in sessions of a zone, where sessions have one."""
    if ledgers.database.dialect == "sqlite":
        return ledgers.open(**options)
    engine = ledgers.database.engine(connect_args={"options": f"-c TimeZone={zone}"})
    return ledgers.open(url_or_engine=engine, **options)


@pytest.mark.usefixtures("amsterdam")
def test_s38_no_hold_is_longer_or_shorter_in_the_night_of_the_change(
    ledgers: Ledgers, clock: SettableClock
) -> None:
    ledger = in_zone(ledgers, "Europe/Amsterdam", clock=clock)
    clock.now = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    expiries: list[datetime] = []
    while clock.now < datetime(2026, 3, 29, 3, 30, tzinfo=UTC):
        key = f"k{len(expiries)}"
        ledger.take(key, "A", ttl=600)
        hold = ledger.current_holders(under=key)[0]
        assert hold.expires_at is not None
        assert hold.expires_at.timestamp() - hold.taken_at.timestamp() == 600
        assert hold.taken_at == clock.now
        expiries.append(hold.expires_at)
        clock.forward(300)

    assert len(set(expiries)) == 36
    assert expiries == sorted(expiries)


def test_s40_answers_are_the_same_in_every_session_zone_and_aware(ledgers: Ledgers) -> None:
    tokyo, utc = in_zone(ledgers, "Asia/Tokyo"), in_zone(ledgers, "UTC")
    tokyo.take("k", "A", ttl=3600)
    tokyo.take("forever", "A")

    for ledger in (tokyo, utc):
        hold = ledger.holder_of("k")
        assert hold is not None
        assert (hold, ledger.holder_of("forever")) == (utc.holder_of("k"), utc.holder_of("forever"))
        assert hold.taken_at.utcoffset() == timedelta(0)
        assert hold.is_live(datetime.now(UTC))
        assert [each.key for each in ledger.current_holders()] == ["forever", "k"]
        with pytest.raises(TypeError, match="offset-naive"):
            hold.is_live(datetime.now())  # noqa: DTZ005 - naive is the point
        with pytest.raises(ValueError, match="time zone"):
            ledger.audit_trail(since=datetime.now())  # noqa: DTZ005 - naive is the point
    east = (datetime.now(UTC) + timedelta(hours=1)).astimezone(
        datetime.fromisoformat("2026-01-01T00:00:00+05:00").tzinfo
    )
    assert utc.take("east", "A", ttl=east).expires_at == east


def test_s41_a_contender_in_another_session_zone_is_refused(ledgers: Ledgers) -> None:
    west, east = in_zone(ledgers, "America/Los_Angeles"), in_zone(ledgers, "Asia/Karachi")
    west.take("k", "A", ttl=120)

    with pytest.raises(LockedByOther):
        east.take("k", "B")
    assert east.release("k", "A")


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_s42_a_transaction_that_began_long_ago_grants_from_now(
    ledgers: Ledgers, level: str
) -> None:
    class Slow(Policy[Connection]):
        """The transaction has begun, and something else takes its time before the lock is read."""

        def lock_subject(self, connection: Connection, key: str) -> None:
            connection.exec_driver_sql("SELECT 1").scalar()
            time.sleep(0.4)

    source: Any = ledgers.database.url
    if ledgers.database.dialect == "postgresql":
        level = level.replace(" ", "\\ ")
        options = f"-c default_transaction_isolation={level}"
        source = ledgers.database.engine(connect_args={"options": options})
    ledger = ledgers.open(url_or_engine=source, policy=Slow())

    before = ledgers.open().take("measure", "A").taken_at
    grant = ledger.take("k", "A", ttl=60)

    assert grant.taken_at - before >= timedelta(seconds=0.4)
    assert grant.expires_at == grant.taken_at + timedelta(seconds=60)
    with pytest.raises(LockedByOther):
        ledgers.open().take("k", "B")


def test_s43_a_clock_that_jumps_ends_holds_but_turns_nothing_round(
    ledger: LockLedger, clock: SettableClock
) -> None:
    a = ledger.take("k", "A", ttl=60)
    ledger.take("untouched", "A", ttl=60)
    clock.forward(3600)
    assert not ledger.is_locked("k")
    b = ledger.take("k", "B", ttl=60)
    clock.forward(-3600)

    with pytest.raises(LockedByOther):
        ledger.take("k", "C")
    assert ledger.is_locked("untouched")
    c = ledger.take("k", "C", takeover_reason="urgent")
    assert a.token < b.token < c.token
    entries = ledger.audit_trail()
    positions = [entry.position for entry in entries]
    assert positions == sorted(positions)
    times = [entry.recorded_at for entry in ledger.history("k")]
    assert times == sorted(times)


def test_s44_a_pause_between_reading_the_clock_and_writing_grants_nothing_stale(
    postgres_ledgers: Ledgers,
) -> None:
    ledger = postgres_ledgers.open()
    before = ledger.take("k", "before", ttl=60)
    ledger.release("k", "before")
    pauses = pause_once(ledger)

    grant = ledger.take("k", "A", ttl=0.3)

    assert pauses == ["paused"]
    assert grant.taken_at - before.taken_at >= timedelta(seconds=0.4)
    assert grant.expires_at == grant.taken_at + timedelta(seconds=0.3)


def test_s44_of_two_who_pause_one_is_granted(ledgers: Ledgers) -> None:
    a, b = ledgers.open(), ledgers.open()
    pause_once(a)
    pause_once(b)

    first = a.take("k", "A", ttl=0.3)
    second = b.try_take("k", "B", ttl=5)

    assert second is None or (first.expires_at or second.taken_at) <= second.taken_at


def pause_once(ledger: LockLedger) -> list[str]:
    """The process stands still for longer than the ttl, once, between its decision and the append."""
    pauses: list[str] = []
    store = ledger._workings.store
    append = store.append

    def paused(*arguments: Any, **options: Any) -> Any:
        if not pauses:
            pauses.append("paused")
            time.sleep(0.4)
        return append(*arguments, **options)

    store.append = paused  # type: ignore[method-assign]
    return pauses


def test_s44_at_the_very_instant_of_the_expiry_the_next_one_wins(
    ledger: LockLedger, clock: SettableClock
) -> None:
    ledger.take("k", "A", ttl=10)
    clock.set(10)

    assert ledger.take("k", "B").taken_at == at(10)
    with pytest.raises(NotHolding):
        ledger.extend("k", "A", 10)
