"""Imports beside takes and other imports, and broken off in the middle: each lock comes as a whole, once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from lockledger import Advance, LockedByOther, LockLedger, OutcomeUnknown
from lockledger.importing import _Import
from support.colours import Loop, asynchronous, running_loop
from support.hosts import Host, host_on
from support.ledgers import Ledgers
from support.old_system import OldSystem
from support.proxies import proxy_of
from support.uncommitted import uncommitted_take

VERSIONS = 40
COMMIT = "COMMIT\0"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockledger.importing.LOCKS_IN_A_BATCH", 7)


@pytest.fixture
def postgres_host(postgres_ledgers: Ledgers) -> Iterator[Host]:
    with host_on(postgres_ledgers) as host:
        yield host


def fill(old: OldSystem, versions: int = VERSIONS) -> None:
    for version in range(versions):
        old.hold(2 * version, version, 1, version, 500)
        reason = {"taken_over_from": 1, "reason": "1 is ill"}
        old.hold(2 * version + 1, version, 2, 500, None, **reason)


def test_importers_at_once_import_each_lock_once(ledgers: Ledgers, old: OldSystem) -> None:
    fill(old)
    several = [ledgers.open() for _ in range(4)]
    begin = threading.Barrier(4)

    def run(ledger: LockLedger) -> Any:
        begin.wait()
        return ledger.import_locks(old.history, database=old.engine)

    with ThreadPoolExecutor(4) as threads:
        reports = list(threads.map(run, several))
    assert [report.refused_count for report in reports] == [0] * 4
    assert sum(report.locks for report in reports) == VERSIONS
    assert sum(report.events for report in reports) == 2 * VERSIONS
    assert sum(report.unchanged for report in reports) == 3 * VERSIONS
    assert several[0].verify().ok


class BrokenOff(Exception):
    pass


def break_off(advance: Advance) -> None:
    raise BrokenOff


def test_an_import_that_is_broken_off_goes_on_when_it_is_run_again(
    ledgers: Ledgers, old: OldSystem
) -> None:
    fill(old)
    ledger = ledgers.open()
    with pytest.raises(BrokenOff):
        ledger.import_locks(old.history, progress=break_off)
    assert ledgers.rows()["current_holders"] == 7
    assert ledger.verify().ok
    report = ledger.import_locks(old.history)
    assert (report.locks, report.unchanged) == (VERSIONS - 7, 7)
    assert ledger.import_locks(old.history).unchanged == VERSIONS


def test_a_lost_connection_leaves_whole_locks(postgres_host: Host) -> None:
    old = OldSystem(postgres_host.database)
    fill(old)
    postgres_host.ledgers.may_log_errors = True
    with proxy_of(postgres_host.database) as proxy:
        ledger = postgres_host.ledgers.open(url_or_engine=proxy.url)
        proxy.lose_answer_to("SET token = h.token")
        with pytest.raises(DBAPIError):
            ledger.import_locks(old.history, database=old.engine)
        assert postgres_host.ledgers.rows()["events"] == 0
        proxy.lose_answer_to(COMMIT)
        with pytest.raises(OutcomeUnknown):
            ledger.import_locks(old.history, database=old.engine)
        assert postgres_host.ledgers.rows()["events"] == 14
        report = ledger.import_locks(old.history, database=old.engine)
    assert (report.locks, report.unchanged) == (VERSIONS - 7, 7)


def test_a_take_under_way_is_waited_for_and_then_its_lock_is_refused(
    postgres_host: Host,
) -> None:
    old = OldSystem(postgres_host.database)
    fill(old, 3)
    ledger = postgres_host.ledger
    with uncommitted_take(postgres_host.ledgers, "version:1", "user:9"):
        running = postgres_host.blocked(lambda: ledger.import_locks(old.history))
    report = running.result()
    assert report.locks == 2
    assert [(refusal.row, refusal.key) for refusal in report.refused] == [(2, "version:1")]
    assert [entry.action for entry in ledger.history("version:1")] == ["LockTaken"]


def test_a_take_waits_for_an_import_under_way_and_finds_the_lock_imported(
    monkeypatch: pytest.MonkeyPatch, postgres_host: Host
) -> None:
    old = OldSystem(postgres_host.database)
    fill(old, 3)
    taking: list[Any] = []
    append = _Import._append

    def slowly(self: _Import, decided: Any) -> None:
        taking.append(
            postgres_host.blocked(lambda: postgres_host.ledger.take("version:1", "user:9"))
        )
        append(self, decided)

    monkeypatch.setattr(_Import, "_append", slowly)
    other = postgres_host.ledgers.open()
    assert other.import_locks(old.history).locks == 3
    refusal = taking[0].exception()
    assert isinstance(refusal, LockedByOther)
    assert refusal.current is not None
    assert (refusal.current.holder, refusal.current.token) == ("user:2", 2)


@pytest.fixture
def loop() -> Iterator[Loop]:
    with running_loop() as loop:
        yield loop


def test_awaited(ledgers: Ledgers, loop: Loop, old: OldSystem) -> None:
    fill(old, 20)
    ledger = asynchronous(loop, ledgers.database.url)
    url = ledgers.database.url.replace("sqlite:", "sqlite+aiosqlite:")
    engine = create_async_engine(url)
    assert ledger.import_locks(old.history, database=engine).locks == 20
    assert ledger.import_locks(old.history).unchanged == 20
    ledger.close()
    loop.run(engine.dispose())
