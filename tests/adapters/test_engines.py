"""Where connections come from: URLs of every form, files of every name, and what an own engine does to neither."""

from __future__ import annotations

import multiprocessing
import sqlite3
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import OperationalError

from lockledger import AsyncLockLedger, ConcurrencyConflict, LockLedger, SchemaMismatch
from lockledger.adapters.engines import Source, checked_busy_timeout, checked_url
from support.databases import Database
from support.ledgers import Ledgers, ledgers

__all__ = ["ledgers"]


# URLs.


@pytest.mark.parametrize(
    ("given", "asynchronous", "driver"),
    [
        ("postgresql://u@h/d", False, "postgresql+psycopg"),
        ("postgres://u@h/d", False, "postgresql+psycopg"),
        ("postgresql+psycopg://u@h/d", False, "postgresql+psycopg"),
        ("postgresql+psycopg_async://u@h/d", False, "postgresql+psycopg"),
        ("postgresql://u@h/d", True, "postgresql+psycopg"),
        ("postgresql+psycopg_async://u@h/d", True, "postgresql+psycopg"),
        ("sqlite:///f.db", False, "sqlite+pysqlite"),
        ("sqlite+pysqlite:///f.db", False, "sqlite+pysqlite"),
        ("sqlite:///f.db", True, "sqlite+aiosqlite"),
        ("sqlite+aiosqlite:///f.db", True, "sqlite+aiosqlite"),
    ],
)
def test_a_url_gets_the_driver_that_the_ledger_speaks_to(
    given: str, asynchronous: bool, driver: str
) -> None:
    for url in (given, make_url(given)):
        assert checked_url(url, asynchronous=asynchronous).drivername == driver


@pytest.mark.parametrize(
    "given",
    [
        "postgresql+psycopg2://u@h/d",
        "postgresql+asyncpg://u@h/d",
        "postgresql+pg8000://u@h/d",
        "sqlite+pysqlcipher:///f.db",
        "sqlite+aiosqlite:///f.db",
        "mysql://u@h/d",
        "mysql+pymysql://u@h/d",
        "oracle://u@h/d",
        "nonsense://u@h/d",
    ],
)
def test_another_database_or_driver_is_refused_with_what_to_use(given: str) -> None:
    with pytest.raises(ValueError, match=r"use postgresql\+psycopg://… or sqlite:///…"):
        LockLedger(given)


@pytest.mark.parametrize(
    "given",
    [
        "nonsense",
        "",
        "sqlite:",
        "secret@h/d",
        "postgresql://u:secret@h:secret/d",
        "postgresql://u:a@secret@h/d",
        "postgresql+asyncpg://u:secret@h/d",
        "mysql://u:secret@h/d",
        b"postgresql://u:secret@h/d",
    ],
)
@pytest.mark.parametrize("kind", [LockLedger, AsyncLockLedger])
def test_what_is_no_url_is_refused_with_the_form_of_one_and_never_with_a_password(
    kind: Any, given: Any
) -> None:
    with pytest.raises((ValueError, TypeError)) as refusal:
        kind(given)
    told = str(refusal.value)
    assert "postgresql+psycopg://" in told or "as %40" in told
    assert "secret" not in told
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize(
    ("kind", "url", "driver", "remedy"),
    [
        (AsyncLockLedger, "sqlite+aiosqlite://", "aiosqlite", "lockledger[sqlite-async]"),
        (AsyncLockLedger, "sqlite:///f.db", "aiosqlite", "lockledger[sqlite-async]"),
        (AsyncLockLedger, "postgresql://h/d", "psycopg", "psycopg[binary]"),
        (LockLedger, "postgresql://h/d", "psycopg", "psycopg[binary]"),
    ],
)
def test_a_driver_that_is_not_installed_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, kind: Any, url: str, driver: str, remedy: str
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ModuleNotFoundError) as missing:
        kind(url)
    assert missing.value.name == driver
    told = "; ".join([str(missing.value), *getattr(missing.value, "__notes__", ())])
    assert f"pip install '{remedy}'" in told


@pytest.mark.parametrize("given", [None, 5, b"sqlite:///f.db", Path("f.db"), object()])
def test_what_is_neither_url_nor_engine_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="a database URL or a SQLAlchemy engine"):
        LockLedger(given)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(0, 0), (0.25, 0.25), (30, 30), (timedelta(minutes=1), 60), (86_400, 86_400)],
)
def test_a_busy_timeout_is_seconds_or_a_duration(given: Any, seconds: float) -> None:
    assert checked_busy_timeout(given) == seconds


@pytest.mark.parametrize("given", [-1, 86_401, float("nan"), float("inf"), timedelta(seconds=-1)])
def test_a_busy_timeout_out_of_bounds_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="0 to 86,400 seconds"):
        LockLedger("sqlite://", busy_timeout=given)


@pytest.mark.parametrize("given", [None, "30", True, b"1"])
def test_a_busy_timeout_of_another_type_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="busy_timeout is seconds or a timedelta"):
        LockLedger("sqlite://", busy_timeout=given)


# Files.


@pytest.mark.parametrize(
    "name",
    [
        "plain.db",
        "with space.db",
        "100%.db",
        "a#b.db",
        "naïve-ÄÖ.db",
        "it's.db",
        'q"q.db',
        "a&b=c",
        "no\udcffutf-8",
    ],
)
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    url = make_url("sqlite://").set(database=str(tmp_path / name))
    with LockLedger(url) as ledger:
        ledger.migrate()
        ledger.take("k", "ann")
    assert (tmp_path / name).is_file()
    with LockLedger(url) as again:
        assert again.is_locked("k")


def test_a_relative_file_stays_the_same_when_the_program_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with LockLedger("sqlite:///f.db") as ledger:
        ledger.migrate()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert ledger.take("k", "ann").created
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_relative_file_is_made_where_the_ledger_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with LockLedger("sqlite:///f.db") as ledger:
        monkeypatch.chdir(tmp_path / "elsewhere")
        with pytest.raises(SchemaMismatch):
            ledger.take("k", "ann")
        ledger.migrate()
        assert ledger.take("k", "ann").created
    assert (tmp_path / "f.db").is_file()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_that_is_locked_for_good_is_a_conflict_to_a_new_connection_too(
    sqlite_database: Database,
) -> None:
    with sqlite3.connect(sqlite_database.path or "", isolation_level=None) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with LockLedger(sqlite_database.url, busy_timeout=0.1) as ledger:
            for call in (lambda: ledger.take("k", "ann"), lambda: list(ledger.events())):
                with pytest.raises(ConcurrencyConflict, match="locked for longer"):
                    call()
        other.execute("ROLLBACK")
    other.close()


def test_a_file_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "mistyped.db"
    with (
        LockLedger(f"sqlite:///{path}") as ledger,
        pytest.raises(SchemaMismatch, match="migrate") as missing,
    ):
        ledger.take("k", "ann")
    assert missing.value.__notes__ == [f"there is no file {path}"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_a_folder_that_is_not_there_is_its_own_error_to_migrate(tmp_path: Path) -> None:
    with LockLedger(f"sqlite:///{tmp_path}/nowhere/f.db") as ledger:
        with pytest.raises(Exception, match="unable to open database file") as failed:
            ledger.migrate()
        assert str(tmp_path / "nowhere" / "f.db") in failed.value.__notes__[0]
        with pytest.raises(SchemaMismatch):
            ledger.take("k", "ann")


def test_what_a_uri_asks_of_sqlite_reaches_it(sqlite_database: Database) -> None:
    with LockLedger(sqlite_database.url) as writing:
        writing.take("k", "ann")
    url = f"sqlite:///file:{sqlite_database.path}?mode=ro&uri=true"
    with LockLedger(url) as reading:
        assert reading.is_locked("k")
        with pytest.raises(OperationalError, match="readonly database"):
            reading.release("k", "ann")
    missing = f"sqlite:///file:{sqlite_database.path}.missing?mode=rw&uri=true"
    with (
        LockLedger(missing) as nowhere,
        pytest.raises(OperationalError, match="unable to open database file"),
    ):
        nowhere.take("k", "ann")


# Engines.


def test_a_call_that_waits_for_the_one_connection_in_memory_has_a_bound() -> None:
    with LockLedger("sqlite://", busy_timeout=0.2) as ledger:
        ledger.migrate()
        source: Source = ledger._source
        with source.connect():
            began = time.monotonic()
            with pytest.raises(ConcurrencyConflict, match="one connection .* in memory"):
                ledger.take("k", "ann")
            assert 0.15 < time.monotonic() - began < 20
        assert ledger.take("k", "ann").created


def test_an_own_engine_gives_its_connections_back(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    pool: Any = ledger._source.engine.pool
    for number in range(20):
        ledger.take(f"k{number}", "ann")
        ledger.try_take(f"k{number}", "ben")
        assert list(ledger.events(number)) != []
    assert pool.checkedout() == 0
    assert pool.checkedin() == 1


def test_a_closed_ledger_holds_no_connection(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    ledger.take("k", "ann")
    pool: Any = ledger._source.engine.pool
    ledger.close()
    assert pool.checkedin() == 0


def test_threads_that_begin_at_once_share_an_engine(ledgers: Ledgers) -> None:
    ledger, barrier = ledgers.open(), threading.Barrier(8)
    granted: list[str] = []

    def take(number: int) -> None:
        barrier.wait(60)
        granted.append(ledger.take(f"k{number}", "ann").key)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(granted) == [f"k{number}" for number in range(8)]


def test_a_ledger_cannot_be_sent_to_another_process_by_accident(ledgers: Ledgers) -> None:
    """Only its URL can: connections are no values."""
    for ledger in (ledgers.open(), AsyncLockLedger(ledgers.database.url)):
        with pytest.raises(TypeError, match="cannot be pickled, .* from its URL"):
            multiprocessing.reduction.ForkingPickler.dumps(ledger)


def test_a_hosts_engine_that_was_disposed_of_has_new_connections(ledgers: Ledgers) -> None:
    engine = create_engine(ledgers.database.url)
    ledger = ledgers.open(url_or_engine=engine)
    ledger.take("k", "ann")
    engine.dispose()
    assert ledger.release("k", "ann")
    engine.dispose()
