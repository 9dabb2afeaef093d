"""Scenarios 4.4 that need no caller's transaction: databases, their errors, pools, backups and schemas."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from lockledger import (
    ConcurrencyConflict,
    Grant,
    InvalidKey,
    LockedByOther,
    LockLedger,
    NotHolding,
    OutcomeUnknown,
    Policy,
    RecordedEvent,
    SchemaMismatch,
)
from support.databases import Database
from support.ledgers import Ledgers, SettableClock, unchanged
from support.proof import prove
from support.roles import role_of
from support.stories import at


def actions(ledger: LockLedger, key: str = "k") -> list[str]:
    return [entry.action for entry in ledger.history(key, extensions=True)]


def execute(database: Database, *statements: str) -> None:
    with database.engine().begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def test_s47_contention_is_an_answer_and_no_line_in_the_servers_log(ledgers: Ledgers) -> None:
    ledger = ledgers.open()

    def contend(number: int) -> int:
        refused = 0
        for round_ in range(20):
            key, me = f"k{round_ % 2}", f"run:{number}"
            try:
                grant = ledger.take(key, me, takeover_reason="urgent" if round_ % 7 == 0 else None)
                ledger.release(key, me, token=grant.token)
            except (LockedByOther, NotHolding):
                refused += 1
        return refused

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(contend, range(8)))

    assert ledgers.database.logged_errors() == []


# Errors that are not "locked"


def test_s48_a_key_that_is_too_long_is_told_at_once(ledger: LockLedger) -> None:
    with pytest.raises(InvalidKey):
        ledger.try_take("x" * 256, "A")


@pytest.mark.parametrize("table", ["events", "audit_trail", "current_holders"])
def test_s48_a_missing_table_is_the_databases_own_error(ledgers: Ledgers, table: str) -> None:
    ledger = ledgers.open()
    ledger.take("k", "A")
    ledger.release("k", "A")
    ledgers.may_log_errors = True
    moved, back = f"lockledger_{table}", "out_of_the_way"
    if ledgers.database.dialect == "sqlite":  # triggers and views would have to go first
        rename = "PRAGMA legacy_alter_table = ON; ALTER TABLE {} RENAME TO {}"
    else:
        rename = "ALTER TABLE {} RENAME TO {}"
    execute(ledgers.database, *rename.format(moved, back).split("; "))

    with pytest.raises(DBAPIError, match=f"{moved}|out_of_the_way"):
        ledger.try_take("k", "B")

    execute(ledgers.database, *rename.format(back, moved).split("; "))
    assert ledger.take("k", "B").created


def test_s48_a_missing_privilege_is_the_databases_own_error(postgres_ledgers: Ledgers) -> None:
    database = postgres_ledgers.database
    postgres_ledgers.may_log_errors = True
    with role_of(database) as role:
        execute(
            database,
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
            f"GRANT USAGE ON SEQUENCE lockledger_position TO {role}",
            f"GRANT INSERT, UPDATE ON lockledger_current_holders TO {role}",
        )
        engine = database.engine(connect_args={"options": f"-c role={role}"})
        ledger = postgres_ledgers.open(url_or_engine=engine)
        with unchanged(postgres_ledgers), pytest.raises(DBAPIError, match="permission denied"):
            ledger.try_take("k", "A")
        execute(
            database,
            *[
                f"GRANT INSERT ON lockledger_{table} TO {role}"
                for table in ("events", "audit_trail", "holds")
            ],
        )
        assert ledger.take("k", "A").created
        ledger.close()
        engine.dispose()


@pytest.mark.parametrize("first", [True, False], ids=["a lock's first take", "a later take"])
@pytest.mark.parametrize("scopes", [True, False], ids=["in a transaction", "by itself"])
def test_s48_a_killed_session_is_an_unknown_outcome_or_the_databases_own_error(
    postgres_ledgers: Ledgers, first: bool, scopes: bool
) -> None:
    ledger = postgres_ledgers.open(scopes=scopes)
    if not first:
        ledger.take("k", "A")
        ledger.release("k", "A")
    postgres_ledgers.may_log_errors = True
    kill_before(ledger, postgres_ledgers.database, "append")

    with pytest.raises((OutcomeUnknown, DBAPIError)) as lost:
        ledger.try_take("k", "B")

    # A single statement commits by itself; in an explicit transaction it was not yet committed.
    assert isinstance(lost.value, OperationalError if scopes else OutcomeUnknown)
    assert ledger.take("k", "B").created, "the killed take left nothing, and repeating it is safe"


def test_s48_a_session_killed_before_anything_was_sent_is_the_databases_own_error(
    postgres_ledgers: Ledgers,
) -> None:
    ledger = postgres_ledgers.open()
    ledger.take("k", "A")
    postgres_ledgers.may_log_errors = True
    kill_before(ledger, postgres_ledgers.database, "newest")

    with pytest.raises(OperationalError):
        ledger.try_take("k", "B")
    with pytest.raises(LockedByOther):
        ledger.take("k", "B")


def kill_before(ledger: LockLedger, database: Database, step: str) -> None:
    """The server ends the session, once, before this step of the store."""
    store: Any = ledger._workings.store
    original: Callable[..., Any] = getattr(store, step)
    killed: list[int] = []

    def kill_first(connection: Connection, *arguments: Any, **options: Any) -> Any:
        if not killed:
            driver: Any = connection.connection.driver_connection
            killed.append(driver.info.backend_pid)
            with database.engine().connect() as other:
                kill = "SELECT pg_terminate_backend(%s, 60000)"
                assert other.exec_driver_sql(kill, (killed[0],)).scalar()
        return original(connection, *arguments, **options)

    setattr(store, step, kill_first)


# Together or not at all


@pytest.mark.parametrize("verb", ["take", "release"])
def test_s49_what_is_rolled_back_never_was(ledgers: Ledgers, verb: str) -> None:
    class Broken(Policy[Connection]):
        def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
            raise ConnectionError("the command could not be published")

    plain, broken = ledgers.open(), ledgers.open(policy=Broken())
    if verb == "release":
        plain.take("k", "A")
    with unchanged(ledgers), pytest.raises(ConnectionError):
        getattr(broken, verb)("k", "A")

    assert list(plain.events(after=0)) == list(plain.events())
    assert plain.is_locked("k") is (verb == "release")
    if verb == "take":
        assert plain.take("k", "other").created


def test_s50_a_release_and_what_the_host_wrote_with_it_appear_together(ledgers: Ledgers) -> None:
    execute(ledgers.database, "CREATE TABLE work (x INT)", "INSERT INTO work VALUES (0)")
    seen: list[tuple[bool, object]] = []
    other = ledgers.open()

    def look() -> None:
        with ledgers.database.engine().connect() as connection:
            x = connection.exec_driver_sql("SELECT x FROM work").scalar()
        seen.append((other.is_locked("k"), x))

    class Writing(Policy[Connection]):
        def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
            if events[-1].event.action == "LockReleased":
                connection.exec_driver_sql("UPDATE work SET x = 1")
                look()

    ledger = ledgers.open(policy=Writing())
    ledger.take("k", "A")
    ledger.release("k", "A")
    look()

    assert seen == [(True, 0), (False, 1)]


# Pools, poolers and crowds


def test_s51_nothing_depends_on_the_session_that_took(ledgers: Ledgers) -> None:
    engine = ledgers.database.engine(poolclass=NullPool)  # another session for each call
    ledger = ledgers.open(url_or_engine=engine)
    grant = ledger.take("k", "A")

    if ledgers.database.dialect == "postgresql":
        with engine.connect() as connection:
            here = "(SELECT oid FROM pg_database WHERE datname = current_database())"
            held = (
                f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = {here}"
            )
            assert connection.exec_driver_sql(held).scalar() == 0
    assert ledger.extend("k", "A", 60).token == grant.token
    assert ledger.release("k", "A", token=grant.token) is True
    assert ledger.release("k", "A", token=grant.token) is False


def test_s52_a_crowd_that_takes_and_releases_meets_no_deadlock_and_loses_no_release(
    ledgers: Ledgers,
) -> None:
    ledger = ledgers.open()
    granted: list[Grant] = []

    def work(number: int) -> None:
        for round_ in range(8):
            grant = ledger.try_take(f"k{(number + round_) % 5}", f"worker:{number}", ttl=60)
            if grant is not None:
                assert ledger.release(grant.key, grant.holder, token=grant.token)
                granted.append(grant)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(work, range(20)))

    assert list(ledger.current_holders()) == []
    recorded = [each.event.action for each in ledger.events()]
    assert recorded.count("LockTaken") == recorded.count("LockReleased") == len(granted) > 0


def fail_once(database: Database, sqlstate: str) -> None:
    """The first insert of an event fails with that state; sequences do not roll back."""
    execute(
        database,
        "CREATE SEQUENCE faults",
        f"""
        CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN IF nextval(''faults'') = 1 THEN RAISE EXCEPTION ''a fault'' USING ERRCODE = ''{sqlstate}'';
        END IF; RETURN NEW; END'""",
        "CREATE TRIGGER fail_once BEFORE INSERT ON lockledger_events"
        " FOR EACH ROW EXECUTE FUNCTION fail_once()",
    )


CHANGES: dict[str, Callable[[LockLedger], object]] = {
    "LockTaken": lambda ledger: ledger.take("new", "A"),
    "LockTakenOver": lambda ledger: ledger.take("held", "B", takeover_reason="urgent"),
    "LockExtended": lambda ledger: ledger.extend("held", "A", 120),
    "LockReleased": lambda ledger: ledger.release("held", "A"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_s53_one_transient_fault_records_one_event(postgres_ledgers: Ledgers, change: str) -> None:
    ledger = postgres_ledgers.open()
    ledger.take("held", "A", ttl=60)
    fail_once(postgres_ledgers.database, "40001")
    postgres_ledgers.may_log_errors = True

    CHANGES[change](ledger)

    assert [entry.action for entry in ledger.audit_trail(extensions=True)] == ["LockTaken", change]


@pytest.mark.parametrize("change", CHANGES)
def test_s53_a_deadlock_is_told_and_the_repeated_call_records_one_event(
    postgres_ledgers: Ledgers, change: str
) -> None:
    ledger = postgres_ledgers.open()
    ledger.take("held", "A", ttl=60)
    fail_once(postgres_ledgers.database, "40P01")
    postgres_ledgers.may_log_errors = True

    with unchanged(postgres_ledgers), pytest.raises(ConcurrencyConflict) as conflict:
        CHANGES[change](ledger)
    assert isinstance(conflict.value.__cause__, DBAPIError)
    CHANGES[change](ledger)

    assert [entry.action for entry in ledger.audit_trail(extensions=True)] == ["LockTaken", change]


@pytest.mark.parametrize("change", CHANGES)
def test_s53_a_busy_file_is_told_and_the_repeated_call_records_one_event(
    sqlite_ledgers: Ledgers, change: str
) -> None:
    ledger = sqlite_ledgers.open(busy_timeout=0.02)
    ledger.take("held", "A", ttl=60)
    with sqlite_ledgers.database.engine().connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(ConcurrencyConflict, match="busy timeout"):
            CHANGES[change](ledger)
    CHANGES[change](ledger)

    assert [entry.action for entry in ledger.audit_trail(extensions=True)] == ["LockTaken", change]


def test_s55_of_two_who_renew_and_take_the_same_lease_one_succeeds(ledgers: Ledgers) -> None:
    for number in range(10):
        replicas = [ledgers.open(), ledgers.open()]
        key = f"lease:{number}"
        start = threading.Barrier(2)
        tokens: list[int] = []

        def take(
            replica: LockLedger, key: str = key, start: Any = start, tokens: Any = tokens
        ) -> None:
            start.wait()
            grant = replica.try_take(key, f"replica:{id(replica)}")
            if grant:
                tokens.append(grant.token)

        takers = [threading.Thread(target=take, args=(replica,)) for replica in replicas]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join()
        assert tokens == [1]
        assert actions(replicas[0], key) == ["LockTaken"]


# Backups and schemas


def test_s57_a_lock_that_came_back_with_a_backup_is_explained_and_can_be_forced(
    ledgers: Ledgers, clock: SettableClock, tmp_path: Path
) -> None:
    with ledgers.open(clock=clock) as ledger:
        grant = ledger.take("k", "pod:1", ttl=None)
    with restored(ledgers.database, tmp_path) as database:
        clock.set(90 * 86400)
        with LockLedger(database.url, clock=clock) as ledger:
            with pytest.raises(LockedByOther) as refusal:
                ledger.take("k", "pod:2")
            assert refusal.value.current is not None
            assert refusal.value.current.taken_at == grant.taken_at == at(0)
            assert "'pod:1' since 2026-03-02" in str(refusal.value)
            ledger.force_release("k", actor="admin", reason="restored from backup")
            assert ledger.take("k", "pod:2").token == grant.token + 2
            assert ledger.history("k")[1].reason == "restored from backup"
            assert len(list(ledger.events())) == 3
        prove(database.engine())


class restored:  # noqa: N801 - a context manager that reads as a word
    """The database as it comes back from a backup."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._server, self._name = database.server, ""
        if database.path is not None:
            copy = folder / "restored.db"
            with database.engine().connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            database.close()
            shutil.copyfile(database.path, copy)
            self.database = Database(f"sqlite:///{copy}", "sqlite", "restored", path=copy)
        else:
            assert self._server is not None
            database.close()
            self._name = self._server.create_database(database.name)
            self.database = Database(
                self._server.url(self._name), "postgresql", self._name, self._server
            )

    def __enter__(self) -> Database:
        return self.database

    def __exit__(self, *_: object) -> None:
        self.database.close()
        if self._server is not None:
            self._server.drop_database(self._name)


@pytest.mark.parametrize("version", ["lockledger_9999", "lockledger_0000"])
def test_s91_a_schema_of_another_release_is_refused_and_nobody_goes_on_without_a_lock(
    ledgers: Ledgers, version: str
) -> None:
    ledgers.open().take("k", "A")
    (known,) = versions(ledgers.database)
    execute(ledgers.database, f"UPDATE lockledger_schema_version SET version_num = '{version}'")

    for call in (
        lambda: ledgers.open().try_take("k", "B"),
        lambda: ledgers.open().try_release("k", "A"),
        lambda: ledgers.open().is_locked("k"),
    ):
        with pytest.raises(SchemaMismatch, match=version):
            call()
    if version > known:
        with pytest.raises(SchemaMismatch, match=version):
            ledgers.open().migrate()

    execute(ledgers.database, f"UPDATE lockledger_schema_version SET version_num = '{known}'")
    assert ledgers.open().release("k", "A")


def versions(database: Database) -> list[str]:
    with database.engine().connect() as connection:
        found = connection.exec_driver_sql("SELECT version_num FROM lockledger_schema_version")
        return list(found.scalars())
