"""When holds run out, to the microsecond: extensions, late heartbeats, nights with two or no hours, odd time zones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from lockledger import HoldLost, LockLedger, NotHeld
from support.company import Company, until
from support.ledgers import Ledgers, SettableClock
from support.stories import at

AMSTERDAM = ZoneInfo("Europe/Amsterdam")
ZONES = ("Europe/Amsterdam", "America/St_Johns", "Asia/Kathmandu", "Pacific/Apia", "Etc/GMT+12")
NIGHTS = {"spring": datetime(2026, 3, 29, 0, 30), "autumn": datetime(2026, 10, 25, 0, 0)}  # noqa: DTZ001


def expiries(ledger: LockLedger, key: str) -> list[datetime | None]:
    """What each event of the lock said its hold would run out at."""
    entries = ledger.history(key, extensions=True)
    return [None if entry.after is None else entry.after.expires_at for entry in entries]


def test_extensions_at_9_18_and_27_with_a_ttl_of_10_give_19_28_and_37(
    timed: LockLedger, clock: SettableClock
) -> None:
    grant = timed.take("k", "run:1", ttl=10)
    ends = [grant.expires_at]
    for second in (9, 18, 27):
        clock.set(second)
        extended = timed.extend("k", "run:1", 10, token=grant.token)
        assert extended.token == grant.token
        ends.append(extended.expires_at)

    assert ends == [at(10), at(19), at(28), at(37)]
    assert expiries(timed, "k") == ends
    clock.set(36.999999)
    assert timed.is_locked("k")
    clock.set(37)
    assert not timed.is_locked("k")
    with pytest.raises(NotHeld):
        timed.extend("k", "run:1", 10)
    with pytest.raises(HoldLost) as lost:
        timed.extend("k", "run:1", 10, token=grant.token)
    assert (lost.value.ended_by, lost.value.ended_at) == ("expiry", at(37))


def test_an_extension_never_shortens(timed: LockLedger, clock: SettableClock) -> None:
    timed.take("k", "run:1", ttl=10)
    clock.set(1)
    assert timed.extend("k", "run:1", 100).expires_at == at(101)
    for second, ttl in ((2, 10), (50, 51), (60, timedelta(seconds=1)), (90, at(100.999999))):
        clock.set(second)
        assert timed.extend("k", "run:1", ttl).expires_at == at(101)
        assert timed.take("k", "run:1", ttl=ttl, if_mine="extend").expires_at == at(101)
        assert timed.take("k", "run:1", ttl=ttl).expires_at == at(101)

    assert expiries(timed, "k") == [at(10), at(101)]


def test_a_heartbeat_that_comes_late_does_not_shorten_what_another_call_has_extended(
    timed: LockLedger, clock: SettableClock
) -> None:
    grant = timed.take("k", "run:1", ttl=10)
    clock.set(3)
    timed.extend("k", "run:1", 3600)
    clock.set(9)  # the beat of second 3, on its way until now
    assert timed.extend("k", "run:1", 10, token=grant.token).expires_at == at(3603)

    holder = timed.holder_of("k")
    assert holder is not None
    assert holder.expires_at == at(3603)


def test_a_hold_without_expiry_stays_without(timed: LockLedger, clock: SettableClock) -> None:
    grant = timed.take("k", "run:1")
    for second in (9, 18, 27):
        clock.set(second)
        assert timed.extend("k", "run:1", 10, token=grant.token).expires_at is None
        assert timed.take("k", "run:1", ttl=10, if_mine="extend").expires_at is None
    clock.set(1e9)

    holder = timed.holder_of("k")
    assert holder is not None
    assert holder.expires_at is None
    assert expiries(timed, "k") == [None]


def test_heartbeats_move_the_expiry_to_exactly_a_ttl_after_each(
    company: Company, ledger: LockLedger
) -> None:
    with company.hold(ledger, "k", ttl=600, heartbeat=0.1):
        until(lambda: len(ledger.history("k", extensions=True)) >= 5, "the heart beats")
    taken, *extended, _released = ledger.history("k", extensions=True)

    assert len(extended) >= 2
    moments = [(entry.occurred_at, entry.after) for entry in (taken, *extended)]
    for moment, after in moments:
        assert after is not None
        assert after.expires_at == moment + timedelta(seconds=600)
        assert after.token == taken.token
    assert all(one < other for (one, _), (other, _) in pairwise(moments))


@pytest.fixture
def local_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The process lives in another time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("local_zone", ZONES, indirect=True)
@pytest.mark.parametrize("night", NIGHTS)
def test_a_night_with_two_or_no_hours_changes_nothing(
    ledgers: Ledgers, local_zone: str, night: str
) -> None:
    now = NIGHTS[night].replace(tzinfo=UTC)
    ledger = ledgers.open(clock=lambda: now.astimezone(AMSTERDAM))
    ends = []
    for _ in range(36):  # three hours
        grant = ledger.take("k", "run:1", ttl=600, if_mine="extend")
        assert grant.expires_at == now + timedelta(seconds=600)
        assert grant.expires_at.tzinfo is UTC
        assert ledger.holder_of("k") == ledger.current_holders()[0]
        ends.append(grant.expires_at)
        now += timedelta(seconds=300)

    assert all(later - earlier == timedelta(seconds=300) for earlier, later in pairwise(ends))
    now += timedelta(seconds=299)
    assert ledger.is_locked("k")
    now += timedelta(seconds=1)
    assert not ledger.is_locked("k")


def test_the_hour_that_comes_twice_is_two_hours(timed: LockLedger, clock: SettableClock) -> None:
    clock.now = datetime(2026, 10, 25, 0, 0, tzinfo=UTC)
    first, second = (datetime(2026, 10, 25, 2, 30, tzinfo=AMSTERDAM, fold=f) for f in (0, 1))
    assert timed.take("first", "run:1", ttl=first).expires_at == datetime(
        2026, 10, 25, 0, 30, tzinfo=UTC
    )
    assert timed.take("second", "run:1", ttl=second).expires_at == datetime(
        2026, 10, 25, 1, 30, tzinfo=UTC
    )
    clock.now = datetime(2026, 10, 25, 1, 0, tzinfo=UTC)
    assert [hold.key for hold in timed.current_holders()] == ["second"]


@pytest.mark.parametrize("zone", ZONES)
def test_the_time_zone_of_a_session_changes_nothing(postgres_ledgers: Ledgers, zone: str) -> None:
    there = postgres_ledgers.open(
        url_or_engine=postgres_ledgers.database.engine(
            connect_args={"options": f"-c timezone={zone} -c datestyle=SQL,DMY"}
        )
    )
    here = postgres_ledgers.open()
    grant = there.take("k", "run:1", ttl=600)
    extended = here.extend("k", "run:1", 1200, token=grant.token)

    assert grant.expires_at == grant.taken_at + timedelta(seconds=600)
    assert extended.expires_at is not None
    assert timedelta(seconds=1200) <= extended.expires_at - grant.taken_at < timedelta(seconds=1230)
    assert there.holder_of("k") == here.holder_of("k") == there.current_holders()[0]
    assert abs(grant.taken_at - datetime.now(UTC)) < timedelta(seconds=30)
    assert list(there.history("k", extensions=True)) == list(here.history("k", extensions=True))
    assert there.try_take("k", "run:2") is None
    assert there.expire_due() == 0


def test_an_expiry_is_recorded_at_the_instant_it_came_in_any_zone(
    postgres_ledgers: Ledgers,
) -> None:
    ledger = postgres_ledgers.open()
    grant = ledger.take("k", "run:1", ttl=0.05)
    time.sleep(0.1)
    for zone in ZONES:
        other = postgres_ledgers.open(
            url_or_engine=postgres_ledgers.database.engine(
                connect_args={"options": f"-c timezone={zone}"}
            )
        )
        assert not other.is_locked("k")
        other.expire_due()
    entry = ledger.history("k")[-1]

    assert (entry.action, entry.occurred_at) == ("LockExpired", grant.expires_at)
    assert len(ledger.history("k")) == 2
