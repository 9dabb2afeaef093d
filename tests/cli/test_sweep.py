"""`sweep`: once or again and again, by any number at once, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lockledger import LockLedger
from support.company import until
from support.databases import Database
from support.ledgers import Ledgers, proven, unchanged


def due(ledger: LockLedger, *keys: str) -> None:
    """Holds of these keys have run out."""
    ledger.take_all(keys, "run:1", ttl=0.02)
    until(lambda: not any(map(ledger.is_locked, keys)), "they run out")


def expired(ledger: LockLedger, key: str) -> bool:
    return ledger.history(key)[-1].action == "LockExpired"


@contextmanager
def meanwhile(story: Callable[[], object], how: signal.Signals) -> Iterator[None]:
    """The story goes on in another thread beside the command, which it ends by a signal."""
    failures: list[BaseException] = []

    def told() -> None:
        try:
            story()
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)
        # Only while the command listens: without it the signal would end the tests.
        assert signal.getsignal(how) not in (signal.SIG_DFL, signal.default_int_handler)
        os.kill(os.getpid(), how)

    thread = threading.Thread(target=told)
    thread.start()
    yield
    thread.join()
    assert not failures, failures


def test_what_is_due_is_recorded_once(cli: Any, ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    ledger.take("live", "run:1", ttl=600)
    due(ledger, "a", "b", "c")
    ran = cli.done("sweep", "--json")
    assert set(ran.json) == {"at", "recorded", "seconds"}
    assert (ran.json["recorded"], ran.err) == (3, "")
    entry = ledger.history("a")[-1]
    assert (entry.action, entry.actor) == ("LockExpired", None)
    assert entry.occurred_at < entry.recorded_at
    with unchanged(ledgers):
        assert cli.done("sweep").out.endswith("Z 0 expiries recorded\n")
    assert ledger.is_locked("live")


def test_all_batches_are_recorded_in_one_run(
    cli: Any, ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockledger.cli.sweep.BATCH", 2)
    due(ledgers.open(), "a", "b", "c", "d", "e")
    assert cli.done("sweep", "--limit", "3", "--json").json["recorded"] == 3
    assert cli.done("sweep").out.endswith("Z 2 expiries recorded\n")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("--every", seconds) for seconds in ("0", "-1", "nan", "86401")],
        *[("--limit", count) for count in ("0", "x")],
    ],
)
def test_options_that_make_no_sense_are_refused(
    cli: Any, ledgers: Ledgers, option: str, value: str
) -> None:
    due(ledgers.open(), "a")
    with unchanged(ledgers):
        ran = cli("sweep", option, value)
    assert (ran.code, ran.out) == (2, "")
    assert option in ran.err


def test_it_goes_on_until_it_is_terminated(cli: Any, ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    due(ledger, "a")

    def story() -> None:
        until(lambda: expired(ledger, "a"), "the first turn")
        due(ledger, "b", "c")
        until(lambda: expired(ledger, "b") and expired(ledger, "c"), "another turn")

    with meanwhile(story, signal.SIGTERM):
        ran = cli("sweep", "--every", "0.02", "--json")
    assert ran.code == 0
    assert sum(turn["recorded"] for turn in ran.lines) == 3
    assert ran.lines[0]["recorded"] == 1
    assert ran.err == f"lockledger: ended; 3 expiries recorded in {len(ran.lines)} turns\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupt_ends_it_with_130(cli: Any, ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    due(ledger, "a")
    with meanwhile(lambda: until(lambda: expired(ledger, "a"), "a turn"), signal.SIGINT):
        ran = cli("sweep", "--every", "600")
    assert (ran.code, ran.err) == (130, "lockledger: interrupted\n")
    assert ran.out.endswith("Z 1 expiry recorded\n")


def test_a_signal_waits_for_the_batch_under_way(
    cli: Any, ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ledgers.open()
    due(ledger, "a", "b")
    monkeypatch.setattr("lockledger.cli.sweep.BATCH", 1)
    expire_due = LockLedger.expire_due

    def told(self: LockLedger, limit: int = 1000) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return expire_due(self, limit)

    monkeypatch.setattr(LockLedger, "expire_due", told)
    ran = cli("sweep", "--every", "600", "--json")
    assert (ran.code, ran.json["recorded"]) == (0, 1)
    assert expired(ledger, "a") != expired(ledger, "b")


def test_a_lost_connection_is_told_and_the_next_turn_tries_again(
    lockledger: Any, postgres_database: Database
) -> None:
    lockledger.on(postgres_database.url)
    with proven(postgres_database) as ledgers:
        ledgers.may_log_errors = True  # the server says that it ended a session
        ledger = ledgers.open()
        due(ledger, "a")

        def story() -> None:
            until(lambda: expired(ledger, "a"), "the first turn")
            with postgres_database.engine().connect() as connection:
                ended = connection.exec_driver_sql(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE application_name = 'lockledger' AND datname = current_database()"
                ).scalar()
                assert ended == 1
            due(ledger, "b")
            until(lambda: expired(ledger, "b"), "a turn after the fault")

        with meanwhile(story, signal.SIGTERM):
            ran = lockledger("sweep", "--every", "0.05", "--json")
    assert ran.code == 0
    assert sum(turn["recorded"] for turn in ran.lines) == 2
    fault, ended = ran.err.splitlines()
    assert json.loads(fault)["message"].endswith("; the next turn, in 0.05 s, tries again")
    assert ended.startswith("lockledger: ended; 2 expiries")


def test_a_database_that_is_not_there_at_first_ends_it(lockledger: Any) -> None:
    ran = lockledger("sweep", "--every", "1", "--database", "postgresql://127.0.0.1:1/x")
    assert (ran.code, ran.out) == (4, "")
    assert "check --database" in ran.err


def test_missing_tables_end_it(lockledger: Any, empty_database: Database) -> None:
    lockledger.on(empty_database.url)
    ran = lockledger("sweep", "--every", "1")
    assert ran.code == 4
    assert "lockledger migrate" in ran.err


def test_two_processes_at_once_record_each_expiry_once(cli: Any, ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    keys = [f"k:{number:03}" for number in range(600)]
    ledger.take_all(keys, "run:1", ttl=1)
    command = [sys.executable, "-m", "lockledger", "sweep", "--every", "0.05", "--json"]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]

    def ends() -> list[str]:
        return [each.key for each in ledger.audit_trail(action="LockExpired", limit=1000)]

    until(lambda: len(ends()) == 600, "all are recorded")
    for each in running:
        each.terminate()
    said = [each.communicate(timeout=30) for each in running]
    # One that came too late to find anything may not have listened for the signal yet.
    assert {each.returncode for each in running} <= {0, -signal.SIGTERM}, said
    turns = [json.loads(line) for out, _ in said for line in out.splitlines()]
    assert sum(turn["recorded"] for turn in turns) == 600
    assert sorted(ends()) == keys
    last = [each.event for each in ledger.events()][-1]
    assert getattr(last, "recorded_during", None) == "sweep"
