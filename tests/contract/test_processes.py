"""Ledgers in memory, closed, without a schema, in forked processes and between threads."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection

from lockledger import Grant, LockLedger, SchemaMismatch
from support.ledgers import Ledgers
from support.lives import LIFE, live_a_life

# In memory


def test_a_ledger_in_memory_is_shared_by_threads_and_gone_when_closed() -> None:
    with LockLedger("sqlite://") as ledger:
        ledger.migrate()
        with ThreadPoolExecutor(4) as pool:
            grants = list(pool.map(lambda n: ledger.try_take("k", f"run:{n}"), range(16)))
        assert len([grant for grant in grants if grant]) == 1
        assert live_a_life(ledger, "other") == LIFE
    with LockLedger("sqlite://") as ledger, pytest.raises(SchemaMismatch):
        ledger.take("k", "run:1")


# In files


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "a#b.db", "a?b.db", "ä;'\".db", "file"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    url = URL.create("sqlite", database=str(tmp_path / name))
    with LockLedger(url) as ledger:
        ledger.migrate()
        assert live_a_life(ledger) == LIFE
    assert (tmp_path / name).stat().st_size > 0
    with LockLedger(url) as ledger:
        assert len(ledger.history("k", extensions=True)) == len(LIFE)


def test_a_mistyped_path_leaves_no_file_behind(tmp_path: Path) -> None:
    with LockLedger(f"sqlite:///{tmp_path}/typo.db") as ledger:
        for _ in range(2):
            with pytest.raises(SchemaMismatch, match="run `lockledger migrate`") as missing:
                ledger.take("k", "run:1")
            assert "typo.db" in "".join(missing.value.__notes__)
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_is_meant_from_where_the_ledger_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with LockLedger("sqlite:///here.db") as ledger:
        ledger.migrate()
        ledger.take("k", "run:1")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(ledger.is_locked, ["k"] * 9)) == [True] * 9
    assert list(tmp_path.rglob("here.db")) == [tmp_path / "here.db"]


# Closed


VERBS: dict[str, Callable[[LockLedger], object]] = {
    "take": lambda ledger: ledger.take("k", "run:1"),
    "try_take": lambda ledger: ledger.try_take("k", "run:1"),
    "release": lambda ledger: ledger.release("k", "run:1"),
    "try_release": lambda ledger: ledger.try_release("k", "run:1"),
    "extend": lambda ledger: ledger.extend("k", "run:1", 5),
    "force_release": lambda ledger: ledger.force_release("k", actor="user:9", reason="why"),
    "holder_of": lambda ledger: ledger.holder_of("k"),
    "is_locked": lambda ledger: ledger.is_locked("k"),
    "current_holders": lambda ledger: ledger.current_holders(),
    "history": lambda ledger: ledger.history("k"),
    "audit_trail": lambda ledger: ledger.audit_trail(),
    "events": lambda ledger: list(ledger.events()),
    "subscribe": lambda ledger: next(ledger.subscribe()),
    "migrate": lambda ledger: ledger.migrate(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_closed_ledger_says_so(ledgers: Ledgers, verb: str) -> None:
    with ledgers.open(name="billing") as ledger:
        ledger.take("k", "run:2")
    ledger.close()

    with pytest.raises(RuntimeError, match="'billing' is closed; open a new LockLedger"):
        VERBS[verb](ledger)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "migrate"])
def test_a_database_without_a_schema_is_named_with_the_remedy(
    empty_database: Any, verb: str
) -> None:
    if empty_database.path is not None:
        empty_database.path.touch()
    with LockLedger(empty_database.url) as ledger:
        with pytest.raises(SchemaMismatch, match="run `lockledger migrate`"):
            VERBS[verb](ledger)
        ledger.migrate()
        assert live_a_life(ledger) == LIFE
    assert empty_database.logged_errors() == []


# Forked


def in_a_child(body: Callable[[], object]) -> int:
    """Runs the body in a forked process; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, only the status leaves this process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("hosts", [False, True], ids=["own engine", "a host's engine"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_ledger_used_after_fork_opens_connections_of_its_own(
    ledgers: Ledgers, hosts: bool
) -> None:
    source: Any = ledgers.database.engine() if hosts else ledgers.database.url
    ledger = ledgers.open(url_or_engine=source)
    parents = ledger.take("k", "run:1")
    sessions = sessions_of(ledger)

    def child() -> None:
        ledger.migrate()
        assert ledger.take("k", "run:1") == parents.model_copy(update={"created": False})
        assert live_a_life(ledger, "child") == LIFE
        assert not sessions & sessions_of(ledger)

    assert in_a_child(child) == 0

    assert live_a_life(ledger, "parent") == LIFE
    if not hosts:
        assert sessions_of(ledger) == sessions
    assert [entry.action for entry in ledger.history("child", extensions=True)] == LIFE


@pytest.mark.parametrize("act", [LockLedger.migrate, LockLedger.close], ids=["migrate", "close"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_leaves_its_parents_session_alone(
    postgres_ledgers: Ledgers, act: Callable[[LockLedger], None]
) -> None:
    ledger = postgres_ledgers.open()
    (session,) = sessions_of(ledger)
    before = last_statement_of(postgres_ledgers, session)

    assert in_a_child(lambda: act(ledger)) == 0

    assert last_statement_of(postgres_ledgers, session) == before
    assert sessions_of(ledger) == {session}


def last_statement_of(ledgers: Ledgers, session: int) -> Any:
    """What a session did last, and when; `None` when there is no such session any more."""
    query = "SELECT query_start, query FROM pg_stat_activity WHERE pid = %s"
    with ledgers.database.engine().connect() as connection:
        return connection.exec_driver_sql(query, (session,)).first()


def sessions_of(ledger: LockLedger) -> set[int]:
    """The server's process ids of the ledger's connections; empty on SQLite."""
    seen: set[int] = set()

    def look(connection: Connection, ids: object) -> dict[str, str]:
        if connection.dialect.name == "postgresql":
            driver: Any = connection.connection.driver_connection
            seen.add(driver.info.backend_pid)
        return {}

    LockLedger.over(ledger._source, names=look).display_names(["run:1"])
    return seen


# Threads


def test_threads_share_a_ledger_and_pass_grants_on(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    grants: list[Grant] = []

    def take() -> None:
        grants.append(ledger.take("k", "run:1"))

    taker = threading.Thread(target=take)
    taker.start()
    taker.join()

    assert ledger.release("k", "run:1", token=grants[0].token)
