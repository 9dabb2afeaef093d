"""What the database says when it cannot, and what becomes of that: never "locked", never a guess."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError

from lockledger import ConcurrencyConflict, LockedByOther, LockLedger, OutcomeUnknown, Policy
from lockledger.adapters.failures import translated
from support.databases import Database
from support.hosts import Host, host_on
from support.in_the_way import in_the_way
from support.ledgers import Ledgers, ledgers, postgres_ledgers, sqlite_ledgers
from support.proof import count_rows
from support.roles import role_of
from support.verbs import WRITING, Verb

__all__ = ["ledgers", "postgres_ledgers", "sqlite_ledgers"]
CALLS: dict[str, Verb] = {
    "take": lambda ledger: ledger.take("k", "ben", takeover_reason="urgent"),
    "release": lambda ledger: ledger.release("k", "ann"),
    "extend": lambda ledger: ledger.extend("k", "ann", 7200),
    "force_release": lambda ledger: ledger.force_release("k", actor="root", reason="order"),
}


@pytest.fixture
def host(ledgers: Ledgers) -> Iterator[Host]:
    ledgers.may_log_errors = True
    with host_on(ledgers) as host:
        host.ledger.take("k", "ann", ttl=3600)
        yield host


@pytest.fixture
def postgres_host(postgres_ledgers: Ledgers) -> Iterator[Host]:
    postgres_ledgers.may_log_errors = True
    with host_on(postgres_ledgers) as host:
        host.ledger.take("k", "ann", ttl=3600)
        yield host


def engine_with(database: Database, **settings: str) -> Engine:
    """An engine whose sessions have these settings of the server."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return database.engine(connect_args={"options": options})


# Waits that have a bound.


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_wait_beyond_the_bound_that_the_host_has_set_is_a_conflict(
    host: Host, call: Verb
) -> None:
    impatient = host.impatient(150)
    impatient.holder_of("k")
    before = count_rows(host.database.engine())
    with in_the_way(host.database, "k"):
        began = time.monotonic()
        with pytest.raises(ConcurrencyConflict) as conflict:
            call(impatient)
        assert 0.1 < time.monotonic() - began < 20
    assert conflict.value.key == "k"
    cause = conflict.value.__cause__
    assert isinstance(cause, OperationalError)
    if host.postgres:
        assert isinstance(cause.orig, errors.LockNotAvailable)
    else:
        assert getattr(cause.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
    assert count_rows(host.database.engine()) == before
    assert call(impatient) is not None


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_wait_beyond_the_bound_in_a_callers_transaction_is_a_conflict(
    postgres_host: Host, call: Verb
) -> None:
    engine = engine_with(postgres_host.database, lock_timeout="150")
    with in_the_way(postgres_host.database, "k"), engine.connect() as connection:
        with pytest.raises(ConcurrencyConflict):
            call(postgres_host.ledger.using(connection))
        connection.rollback()
    with engine.begin() as connection:
        call(postgres_host.ledger.using(connection))


def test_a_statement_that_takes_too_long_is_its_own_error(postgres_host: Host) -> None:
    engine = engine_with(postgres_host.database, statement_timeout="150")
    ledger = postgres_host.ledgers.open(url_or_engine=engine)
    with in_the_way(postgres_host.database, "k"), pytest.raises(OperationalError) as cancelled:
        CALLS["take"](ledger)
    assert isinstance(cancelled.value.orig, errors.QueryCanceled)
    assert CALLS["take"](ledger).created


# Deadlocks and serialization failures.


def test_a_deadlock_between_two_hosts_that_break_the_order_is_a_conflict_for_one(
    postgres_host: Host,
) -> None:
    ledger, engine = postgres_host.ledger, postgres_host.engine
    ledger.take("a", "ann")
    ledger.take("b", "ann")
    barrier = threading.Barrier(2)

    def take_both(first: str, second: str) -> None:
        with engine.connect() as connection:
            bound = ledger.using(connection)
            bound.take(first, "ben", takeover_reason="urgent", if_mine="replace")
            barrier.wait(60)
            bound.take(second, "ben", takeover_reason="urgent", if_mine="replace")
            connection.commit()

    running = [
        postgres_host.meanwhile(lambda: take_both("a", "b")),
        postgres_host.meanwhile(lambda: take_both("b", "a")),
    ]
    (conflict,) = [fault for each in running if (fault := each.exception(timeout=60)) is not None]
    assert isinstance(conflict, ConcurrencyConflict)
    assert isinstance(getattr(conflict.__cause__, "orig", None), errors.DeadlockDetected)
    assert [entry.holder for entry in ledger.history("a")][1:] == ["ben"]
    assert [entry.holder for entry in ledger.history("b")][1:] == ["ben"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_change_since_the_callers_snapshot_is_a_conflict_and_never_a_second_grant(
    postgres_host: Host, level: Any, call: Verb
) -> None:
    ledger = postgres_host.ledger
    with postgres_host.engine.connect().execution_options(isolation_level=level) as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lockledger_events")
        ledger.take("k", "cid", takeover_reason="in between")
        with pytest.raises(ConcurrencyConflict) as conflict:
            call(ledger.using(connection))
        assert isinstance(
            getattr(conflict.value.__cause__, "orig", None), errors.SerializationFailure
        )
        connection.rollback()
    assert ledger.holder_of("k").holder == "cid"  # type: ignore[union-attr]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_first_take_since_the_callers_snapshot_is_a_conflict_too(
    postgres_host: Host, level: Any
) -> None:
    ledger = postgres_host.ledger
    with postgres_host.engine.connect().execution_options(isolation_level=level) as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lockledger_events")
        ledger.take("new", "cid")
        with pytest.raises(ConcurrencyConflict):
            ledger.using(connection).take("new", "ben")
        connection.rollback()
    assert ledger.history("new")[0].holder == "cid"


# What the host may not do.


REVOKED: dict[str, tuple[str, type[Exception]]] = {
    "no events": ("INSERT ON public.lockledger_events", ProgrammingError),
    "no audit trail": ("INSERT ON public.lockledger_audit_trail", ProgrammingError),
    "no holds": ("INSERT ON public.lockledger_holds", ProgrammingError),
    "no head rows": ("UPDATE ON public.lockledger_current_holders", ProgrammingError),
    "no reading": ("SELECT ON public.lockledger_events", ProgrammingError),
    # For who may not use it, its last value is null, which is refused as a position; older servers refuse to tell it.
    "no positions": ("ALL ON public.lockledger_position", DBAPIError),
}


@pytest.mark.parametrize(("revoked", "error"), REVOKED.values(), ids=REVOKED)
def test_a_missing_grant_is_its_own_error_and_changes_nothing(
    postgres_host: Host, revoked: str, error: type[Exception]
) -> None:
    database = postgres_host.database
    kind = "SEQUENCE " if "position" in revoked else ""
    with role_of(database) as role, database.server.connect(database.name) as admin:  # type: ignore[union-attr]
        admin.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}")
        admin.execute(f"GRANT ALL ON SEQUENCE public.lockledger_position TO {role}")
        engine = engine_with(database, role=role)
        ledger = postgres_host.ledgers.open(url_or_engine=engine)
        assert ledger.take("k", "cid", takeover_reason="first").created
        admin.execute(f"REVOKE {revoked.replace('ON ', 'ON ' + kind)} FROM {role}")
        before = count_rows(database.engine())
        with pytest.raises(error, match="permission denied|null value in column") as refused:
            ledger.take("k", "ben", takeover_reason="urgent")
        assert isinstance(refused.value, ProgrammingError | IntegrityError)
        assert count_rows(database.engine()) == before
        engine.dispose()


def test_a_policy_that_swallows_an_error_of_the_database_gets_no_grant(
    postgres_host: Host,
) -> None:
    """PostgreSQL answers such a transaction's COMMIT with ROLLBACK, and no error."""

    class Careless(Policy[Any]):
        def recorded(self, connection: Any, events: Any) -> None:
            with pytest.raises(ProgrammingError):
                connection.exec_driver_sql("SELECT * FROM nowhere")

    ledger = postgres_host.ledgers.open(policy=Careless())
    with pytest.raises(DBAPIError) as failed:
        ledger.take("new", "ben")
    assert isinstance(failed.value.orig, errors.InFailedSqlTransaction)
    assert postgres_host.ledger.holder_of("new") is None


# The one place where errors are recognised.


def raised(error: BaseException, **options: Any) -> BaseException:
    with pytest.raises(BaseException) as found, translated(**options):  # noqa: PT011
        raise error
    return found.value


def of_postgres(kind: type[psycopg.Error], *, lost: bool = False) -> DBAPIError:
    return OperationalError("SELECT 1", None, kind("said"), connection_invalidated=lost)


def of_sqlite(code: int) -> DBAPIError:
    cause = sqlite3.OperationalError("said")
    cause.sqlite_errorcode = code
    return OperationalError("SELECT 1", None, cause)


@pytest.mark.parametrize(
    "kind", [errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable]
)
def test_what_the_database_gives_up_is_a_conflict(kind: type[psycopg.Error]) -> None:
    error = of_postgres(kind)
    found = raised(error, key="k")
    assert isinstance(found, ConcurrencyConflict)
    assert (found.key, found.__cause__) == ("k", error)


@pytest.mark.parametrize(
    "code",
    [
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_BUSY_SNAPSHOT,
        sqlite3.SQLITE_BUSY_RECOVERY,
        sqlite3.SQLITE_BUSY_TIMEOUT,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_LOCKED_SHAREDCACHE,
    ],
)
def test_a_busy_file_is_a_conflict(code: int) -> None:
    assert isinstance(raised(of_sqlite(code), commits=True), ConcurrencyConflict)


@pytest.mark.parametrize("make", [of_postgres, None])
def test_a_connection_lost_during_a_commit_leaves_the_outcome_unknown_and_otherwise_not(
    make: Callable[..., DBAPIError] | None,
) -> None:
    error = (
        of_postgres(psycopg.OperationalError, lost=True)
        if make
        else of_sqlite(sqlite3.SQLITE_IOERR_WRITE)
    )
    assert isinstance(raised(error, commits=True), OutcomeUnknown)
    assert raised(error) is error


@pytest.mark.parametrize(
    "error",
    [
        of_postgres(errors.UniqueViolation),
        of_postgres(errors.QueryCanceled),
        of_postgres(errors.DiskFull),
        of_postgres(errors.InsufficientPrivilege),
        of_postgres(psycopg.OperationalError),
        of_sqlite(sqlite3.SQLITE_FULL),
        of_sqlite(sqlite3.SQLITE_READONLY),
        of_sqlite(sqlite3.SQLITE_CORRUPT),
        of_sqlite(sqlite3.SQLITE_CONSTRAINT_UNIQUE),
        LockedByOther.__new__(LockedByOther),
        KeyError("k"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(getattr(error, "orig", error)).__name__,
)
@pytest.mark.parametrize("commits", [True, False])
def test_everything_else_comes_through_as_itself(error: BaseException, commits: bool) -> None:
    assert raised(error, commits=commits) is error


def test_every_writing_verb_meets_an_unreachable_server_with_its_own_error() -> None:
    ledger = LockLedger("postgresql+psycopg://nobody@127.0.0.1:1/nothing?connect_timeout=2")
    for verb in WRITING.values():
        with pytest.raises(OperationalError):
            verb(ledger)
    ledger.close()


@pytest.mark.parametrize("call", CALLS)
def test_where_one_may_only_read_the_database_says_so_and_the_remedy_is_beside_it(
    host: Host, call: str
) -> None:
    if host.database.dialect == "sqlite":
        reading = LockLedger(f"sqlite:///file:{host.database.path}?mode=ro&uri=true")
    else:
        only_read = {"options": "-c default_transaction_read_only=on"}
        reading = LockLedger(host.database.engine(connect_args=only_read))
    with reading:
        assert reading.is_locked("k")
        with pytest.raises(DBAPIError, match="read-?only") as refusal:
            CALLS[call](reading)
        assert ["takes writes" in note for note in refusal.value.__notes__] == [True]
    assert [entry.action for entry in host.ledger.history("k", extensions=True)] == ["LockTaken"]
