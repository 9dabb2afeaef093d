"""Ledgers on engines of the host's, in sessions set up in odd ways, after fork, in memory, and closed."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from lockledger import (
    ConcurrencyConflict,
    Grant,
    LockedByOther,
    LockLedger,
    Policy,
    SchemaMismatch,
)
from support.ledgers import Ledgers


def live_a_life(ledger: LockLedger, key: str = "k") -> list[str]:
    """Everything a ledger does, on one lock; gives what was recorded."""
    grant = ledger.take(key, "run:1", ttl=3600)
    extended = ledger.extend(key, "run:1", timedelta(hours=2))
    assert extended.expires_at is not None
    assert extended.expires_at - grant.taken_at >= timedelta(hours=2)
    with pytest.raises(LockedByOther):
        ledger.take(key, "run:2")
    taken_over = ledger.take(key, "run:2", takeover_reason="urgent", metadata={"n": 1.5})
    assert ledger.holder_of(key) == ledger.current_holders(under=key)[0]
    assert taken_over.taken_at.utcoffset() == timedelta(0)
    assert ledger.release(key, "run:2", token=taken_over.token)
    assert ledger.force_release(key, actor="user:9", reason="sure") is None
    entries = ledger.history(key, extensions=True)
    assert {entry.occurred_at.utcoffset() for entry in entries} == {timedelta(0)}
    assert [each.event.action for each in ledger.events() if each.event.key == key] == [
        entry.action for entry in entries
    ]
    return [entry.action for entry in entries]


LIFE = ["LockTaken", "LockExtended", "LockTakenOver", "LockReleased"]


# A host's engine


def test_a_hosts_engine_is_used_and_neither_changed_nor_closed(ledgers: Ledgers) -> None:
    engine = ledgers.database.engine(pool_size=1, max_overflow=0)
    before = settings_of(engine)

    ledger = ledgers.open(url_or_engine=engine, busy_timeout=7)
    assert live_a_life(ledger) == LIFE
    assert settings_of(engine) == before
    ledger.close()

    assert settings_of(engine) == before


def settings_of(engine: Engine) -> dict[str, Any]:
    """What the next user of the engine's only connection finds there."""
    names = (
        ("busy_timeout", "foreign_keys", "synchronous", "journal_mode", "query_only")
        if engine.dialect.name == "sqlite"
        else ("TimeZone", "DateStyle", "search_path", "application_name", "lock_timeout")
    )
    command = "PRAGMA" if engine.dialect.name == "sqlite" else "SHOW"
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        found = {name: connection.exec_driver_sql(f"{command} {name}").scalar() for name in names}
        found["isolation level"] = connection.get_isolation_level()
        found["default isolation level"] = connection.default_isolation_level
        found["driver's mode"] = getattr(driver, "autocommit", None)
        found["driver's isolation level"] = driver.isolation_level
        found["execution options"] = dict(connection.get_execution_options())
        return found


@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ", "AUTOCOMMIT"])
def test_the_isolation_level_of_a_hosts_engine_does_not_matter(
    postgres_ledgers: Ledgers, level: str
) -> None:
    engine = postgres_ledgers.database.engine(isolation_level=level, pool_size=1)
    before = settings_of(engine)

    assert live_a_life(postgres_ledgers.open(url_or_engine=engine)) == LIFE
    assert live_a_life(postgres_ledgers.open(url_or_engine=engine, policy=Doing()), "p") == LIFE

    assert settings_of(engine) == before


@pytest.mark.parametrize("level", ["SERIALIZABLE", "READ UNCOMMITTED", "AUTOCOMMIT"])
def test_the_isolation_level_of_a_hosts_sqlite_engine_does_not_matter(
    sqlite_ledgers: Ledgers, level: str
) -> None:
    engine = sqlite_ledgers.database.engine(isolation_level=level, pool_size=1)
    before = settings_of(engine)

    assert live_a_life(sqlite_ledgers.open(url_or_engine=engine)) == LIFE

    assert settings_of(engine) == before


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


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_hosts_engine_that_begins_by_itself_works(sqlite_ledgers: Ledgers, begin: str) -> None:
    engine = sqlite_ledgers.database.engine()
    begin_by_itself(engine, begin)
    before = settings_of(engine)

    assert live_a_life(sqlite_ledgers.open(url_or_engine=engine)) == LIFE
    assert live_a_life(sqlite_ledgers.open(url_or_engine=engine, policy=Doing()), "p") == LIFE

    assert settings_of(engine) == before


def begin_by_itself(engine: Engine, begin: str) -> None:
    """SQLAlchemy's own advice for transactions and savepoints that are what they seem."""

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


class Doing(Policy[Connection]):
    """A policy that reads and writes on the connection it is given."""

    def lock_subject(self, connection: Connection, key: str) -> None:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_a_hosts_engine_without_a_pool_works(ledgers: Ledgers) -> None:
    engine = ledgers.database.engine(poolclass=NullPool)

    assert live_a_life(ledgers.open(url_or_engine=engine)) == LIFE


def test_the_ledgers_busy_timeout_counts_on_a_hosts_engine(sqlite_ledgers: Ledgers) -> None:
    engine = sqlite_ledgers.database.engine()
    ledger = sqlite_ledgers.open(url_or_engine=engine, busy_timeout=0.05)
    ledger.take("k", "run:1")

    with sqlite_ledgers.database.engine().connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(ConcurrencyConflict, match="busy timeout"):
            ledger.take("other", "run:1")
        with pytest.raises(LockedByOther):
            ledger.take("k", "run:2")
        assert ledger.take("k", "run:1").created is False
        assert ledger.is_locked("k")
        other.exec_driver_sql("ROLLBACK")


def test_a_hosts_memory_database_is_used_where_it_is() -> None:
    engine = create_engine("sqlite://")
    with LockLedger(engine) as ledger:
        ledger.migrate()
        assert live_a_life(ledger) == LIFE
        with engine.connect() as connection:
            assert (
                connection.exec_driver_sql("SELECT count(*) FROM lockledger_events").scalar() == 4
            )
    engine.dispose()


# Odd sessions


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
        {"extra_float_digits": "-15"},
        {"standard_conforming_strings": "off"},
        {"client_encoding": "LATIN1"},
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


def odd_session(ledgers: Ledgers, **settings: str) -> LockLedger:
    """A ledger whose sessions have these settings."""
    options = ["-c " + f"{name}={value}".replace(" ", r"\ ") for name, value in settings.items()]
    engine = ledgers.database.engine(pool_size=8, connect_args={"options": " ".join(options)})
    return ledgers.open(url_or_engine=engine)


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
