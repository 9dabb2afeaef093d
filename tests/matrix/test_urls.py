"""What a database's URL and driver have to be like, said before anything is asked of it."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from sqlalchemy import create_engine

from lockledger import AsyncLockLedger, LockLedger

TOO_OLD = r"SQLite 3\.24\.9 is too old: lockledger needs 3\.25\.0 or newer; use a Python"


@pytest.mark.parametrize("given", [LockLedger, AsyncLockLedger])
def test_an_sqlite_that_is_too_old(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3.dbapi2, "sqlite_version_info", (3, 24, 9))
    if given is AsyncLockLedger:
        import aiosqlite

        monkeypatch.setattr(aiosqlite, "sqlite_version_info", (3, 24, 9), raising=False)
    with pytest.raises(ValueError, match=TOO_OLD):
        given("sqlite:///ledger.db")
    if given is LockLedger:
        with pytest.raises(ValueError, match=TOO_OLD):
            LockLedger(create_engine("sqlite://"))


def test_the_oldest_sqlite_that_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3.dbapi2, "sqlite_version_info", (3, 25, 0))
    with LockLedger("sqlite://") as ledger:
        ledger.migrate()
        assert ledger.take("k", "ann").created


@pytest.mark.parametrize("given", ["-1", "1.5", "None", "1000000", "²", "none&prepare_threshold=5"])
def test_a_threshold_that_is_none(given: str) -> None:
    with pytest.raises(ValueError, match=r"prepare_threshold=.* a whole number of runs"):
        LockLedger(f"postgresql://host/database?prepare_threshold={given}")


@pytest.mark.parametrize(("given", "expected"), [("none", None), ("0", 0), ("12", 12)])
def test_the_driver_prepares_as_the_url_says(
    postgres_database: Any, given: str, expected: int | None
) -> None:
    url = f"{postgres_database.url}&prepare_threshold={given}"
    with LockLedger(url) as ledger, ledger._source.connect() as connection:
        driver: Any = connection.connection.driver_connection
        assert driver.prepare_threshold == expected
