"""Ledgers in PostgreSQL sessions that are set up in odd ways."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from lockledger import LockLedger
from support.ledgers import Ledgers
from support.lives import LIFE, live_a_life


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/St_Johns", "UTC", "<+0545>-05:45"])
def test_the_sessions_time_zone_does_not_matter(postgres_ledgers: Ledgers, zone: str) -> None:
    assert live_a_life(odd_session(postgres_ledgers, TimeZone=zone)) == LIFE


@pytest.mark.parametrize("style", ["ISO,DMY", "SQL,DMY", "SQL,MDY", "German", "Postgres,DMY"])
def test_the_sessions_date_style_does_not_matter(postgres_ledgers: Ledgers, style: str) -> None:
    assert live_a_life(odd_session(postgres_ledgers, DateStyle=style)) == LIFE


@pytest.mark.parametrize(
    "settings",
    [
        {"search_path": "pg_catalog"},
        {"search_path": "nowhere"},
        {"bytea_output": "escape"},
        {"IntervalStyle": "sql_standard"},
        {"IntervalStyle": "iso_8601", "DateStyle": "German"},
        {"extra_float_digits": "-15"},
        {"standard_conforming_strings": "off"},
        {"plan_cache_mode": "force_generic_plan"},
        {"lock_timeout": "60000"},
    ],
    ids=str,
)
def test_the_sessions_other_settings_do_not_matter(
    postgres_ledgers: Ledgers, settings: dict[str, str]
) -> None:
    ledger = odd_session(postgres_ledgers, **settings)

    assert live_a_life(ledger) == LIFE
    reason = r"a \ back'slash, ä and 1.100000000000000088"
    ledger.take("k", "run:1")
    assert ledger.take("k", "run:2", takeover_reason=reason).takeover_reason == reason
    ledger.take_all(["many:1", "many:2"], "run:1", metadata={"note": reason})
    assert ledger.release_all(holder="run:1", actor="run:1", reason=reason) == 2
    verification = ledger.verify()
    assert verification.ok, verification.faults


def odd_session(ledgers: Ledgers, **settings: str) -> LockLedger:
    """A ledger whose sessions have these settings."""
    options = ["-c " + f"{name}={value}".replace(" ", r"\ ") for name, value in settings.items()]
    engine = ledgers.database.engine(pool_size=8, connect_args={"options": " ".join(options)})
    return ledgers.open(url_or_engine=engine)


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_many_takers_meet_no_error_where_the_database_serializes_by_default(
    postgres_ledgers: Ledgers, level: str
) -> None:
    ledger = odd_session(postgres_ledgers, default_transaction_isolation=level)

    def one_run(number: int) -> int:
        granted = 0
        for round_ in range(15):
            grant = ledger.try_take(f"round:{round_ % 3}", f"run:{number}")
            granted += grant is not None
            if grant:
                ledger.release(grant.key, grant.holder, token=grant.token)
        return granted

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one_run, range(8))) > 0
    # What the database could not serialize is decided again, and its log says so.
    postgres_ledgers.may_log_errors = True
