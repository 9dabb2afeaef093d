"""The event store on SQLite: one writer at a time, waits with a bound, and files that cannot be written."""

from __future__ import annotations

import resource
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, OperationalError

from lockledger import ConcurrencyConflict, LockedByOther, LockLedger, OutcomeUnknown
from lockledger.adapters.engines import Source
from support.databases import Database
from support.in_the_way import in_the_way
from support.ledgers import Ledgers, sqlite_ledgers
from support.processes import all_at_once, rounds
from support.proof import count_rows, prove
from support.verbs import WRITING, Verb
from support.writers import take_over_patiently, take_with_little_room

__all__ = ["sqlite_ledgers"]
LARGE = {"note": "x" * 4000}


@pytest.fixture
def ledger(sqlite_ledgers: Ledgers) -> LockLedger:
    return sqlite_ledgers.open()


@pytest.fixture
def file(sqlite_ledgers: Ledgers) -> Path:
    path = sqlite_ledgers.database.path
    assert path is not None
    return path


# Files and their settings.


def test_a_file_is_set_to_write_ahead_logging_for_good(ledger: LockLedger, file: Path) -> None:
    with sqlite3.connect(file) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
def test_an_engine_of_the_ledgers_own_syncs_each_commit_unless_asked_for_less(
    file: Path, synchronous: str, number: int
) -> None:
    source = Source(f"sqlite:///{file}", busy_timeout=7, synchronous=synchronous)
    with source.connect() as connection:
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("synchronous", "foreign_keys", "busy_timeout")
        ]
    assert found == [number, 1, 7000]
    source.close()


def test_readers_do_not_wait_for_a_writer_nor_it_for_them(
    ledger: LockLedger, sqlite_ledgers: Ledgers
) -> None:
    ledger.take("k", "ann")
    impatient = sqlite_ledgers.open(busy_timeout=0)
    with in_the_way(sqlite_ledgers.database):
        assert impatient.holder_of("k") is not None
        assert [recorded.position for recorded in impatient.events()] == [1]
        assert len(impatient.audit_trail()) == 1
    with sqlite_ledgers.database.engine().connect() as reader:
        reader.exec_driver_sql("BEGIN")
        reader.exec_driver_sql("SELECT count(*) FROM lockledger_events").scalar()
        assert impatient.release("k", "ann")


def test_positions_have_no_gaps_and_survive_a_vacuum(ledger: LockLedger, file: Path) -> None:
    for number in range(5):
        ledger.take(f"k{number}", "ann")
        with pytest.raises(LockedByOther):
            ledger.take(f"k{number}", "ben")
    before = [(recorded.position, recorded.event.key) for recorded in ledger.events()]
    assert [position for position, _ in before] == [1, 2, 3, 4, 5]
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("VACUUM")
    other.close()
    assert [(recorded.position, recorded.event.key) for recorded in ledger.events()] == before
    assert ledger.take("after", "ann").created


# Waits.


def test_eight_processes_that_write_all_the_time_all_get_their_turn(
    sqlite_ledgers: Ledgers,
) -> None:
    """SQLite lets whoever asks first after a commit go first, so the waits are not even; but each ends."""
    turns = rounds(40)
    given = [(sqlite_ledgers.database.url, number, turns) for number in range(8)]
    longest = all_at_once(take_over_patiently, given)
    assert max(longest) < 20
    assert sum(lock.version for lock in prove(sqlite_ledgers.database.engine())) == 8 * turns


@pytest.mark.parametrize("busy_timeout", [0, 0.4])
@pytest.mark.parametrize("verb", WRITING.values(), ids=WRITING)
def test_a_write_waits_for_another_writer_for_as_long_as_it_may(
    sqlite_ledgers: Ledgers, ledger: LockLedger, verb: Verb, busy_timeout: float
) -> None:
    ledger.take("k", "run:1", ttl=30)
    ledger.take("run out", "run:1", ttl=0.001)
    time.sleep(0.01)
    impatient = sqlite_ledgers.open(busy_timeout=busy_timeout)
    # Something to record for each verb, and nothing that a look alone could answer.
    changing: dict[str, Verb] = {
        "take": lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
        "try_take": lambda ledger: ledger.try_take("k", "run:2", takeover_reason="urgent"),
    }
    name = next(name for name, each in WRITING.items() if each is verb)
    call = changing.get(name, verb)
    with in_the_way(sqlite_ledgers.database):
        began = time.monotonic()
        with pytest.raises(ConcurrencyConflict, match="busy timeout") as conflict:
            call(impatient)
        waited = time.monotonic() - began
    assert busy_timeout <= waited + 0.02
    assert waited < busy_timeout + 20
    assert "run it again" in str(conflict.value)
    call(impatient)


def test_an_answer_that_records_nothing_is_given_at_once(
    sqlite_ledgers: Ledgers, ledger: LockLedger
) -> None:
    grant = ledger.take("k", "ann")
    impatient = sqlite_ledgers.open(busy_timeout=0)
    with in_the_way(sqlite_ledgers.database):
        assert impatient.take("k", "ann").token == grant.token
        assert impatient.try_take("k", "ben") is None
        assert not impatient.release("free", "ann")
        assert impatient.force_release("free", actor="root", reason="order") is None


def test_a_transaction_that_began_to_read_too_early_is_told_to_begin_otherwise(
    sqlite_ledgers: Ledgers, ledger: LockLedger
) -> None:
    """SQLite does not let it wait: its snapshot is old for ever."""
    engine = create_engine(sqlite_ledgers.database.url)
    event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lockledger_events").scalar()
        ledger.take("another", "ann")
        began = time.monotonic()
        with pytest.raises(ConcurrencyConflict, match="BEGIN IMMEDIATE"):
            ledger.using(connection).take("k", "ann")
        assert time.monotonic() - began < 20
    engine.dispose()
    assert ledger.take("k", "ann").created


# Statements.


@pytest.mark.usefixtures("unhurried")
def test_a_change_is_one_write_transaction_of_few_statements(
    sqlite_ledgers: Ledgers, ledger: LockLedger
) -> None:
    said: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        said.append(" ".join(statement.split()[:3]))

    host = sqlite_ledgers.open(url_or_engine=sqlite_ledgers.database.engine())
    host.take("k", "ann")
    event.listen(Engine, "before_cursor_execute", note)
    try:
        host.take("k", "ben", takeover_reason="urgent")
        changed, said = [each for each in said if not each.startswith("PRAGMA")], []
        host.try_take("k", "cid")
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert changed == [
        "SELECT e.version, e.topic,",
        "BEGIN IMMEDIATE",
        "UPDATE lockledger_current_holders SET",
        "INSERT INTO lockledger_events",
        "INSERT INTO lockledger_audit_trail",
        "INSERT INTO lockledger_holds",
        "COMMIT",
    ]
    assert [each for each in said if not each.startswith("PRAGMA")] == [
        "SELECT e.version, e.topic,"
    ]


class OfPython312(sqlite3.Connection):
    """What sqlite3 has since Python 3.12: with `autocommit=True`, commit() and rollback() do nothing."""

    autocommit: Any = True

    def commit(self) -> None:
        if self.autocommit is not True:
            super().commit()

    def rollback(self) -> None:
        if self.autocommit is not True:
            super().rollback()


@pytest.mark.parametrize("call", ["take", "refused takeover"])
def test_a_driver_whose_commit_does_nothing_commits_all_the_same(
    sqlite_ledgers: Ledgers, ledger: LockLedger, file: Path, call: str
) -> None:
    engine = create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(
            file, factory=OfPython312, isolation_level=None, check_same_thread=False
        ),
    )
    host = sqlite_ledgers.open(url_or_engine=engine, busy_timeout=2)
    if call == "take":
        assert host.take("k", "ann").created
    else:
        ledger.take("k", "ann")
        with pytest.raises(LockedByOther):
            host.take("k", "ben")
    assert ledger.holder_of("k") is not None
    assert sqlite_ledgers.open(busy_timeout=0.5).take("other", "ben").created
    engine.dispose()


# Files that cannot be written.


def grow(connection: Connection, pages: int) -> int:
    """Lets the file grow by so many pages and no further; gives the limit that was set."""
    found = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    limit: int = connection.exec_driver_sql(f"PRAGMA max_page_count = {found + pages}").scalar_one()
    return limit


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
def test_a_disk_that_is_full_at_any_statement_is_its_own_error_and_changes_nothing(
    sqlite_database: Database, inside: bool
) -> None:
    """The table, the index or the log has no room left: page by page, until there is enough."""
    engine = sqlite_database.engine(pool_size=1, max_overflow=0)
    ledger, met = LockLedger(engine), set[str]()
    ledger.take("k", "ann", metadata=LARGE)
    for pages in range(60):
        before = count_rows(sqlite_database.engine())
        with engine.connect() as connection:
            grow(connection, pages)
        full = error_of(ledger, engine, inside)
        if full is None:
            break
        assert getattr(full.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        met.add(" ".join((full.statement or "").split()[:3]))
        assert count_rows(sqlite_database.engine()) == before
        holder = ledger.holder_of("k")
        assert holder is not None
        assert holder.holder == "ann"
    assert ledger.holder_of("k").holder == "ben"  # type: ignore[union-attr]
    assert len(met) > 1, "the disk was full at one statement only"
    prove(sqlite_database.engine())


def error_of(ledger: LockLedger, engine: Engine, inside: bool) -> OperationalError | None:
    """What a takeover fails with, `None` when it does not."""
    try:
        if not inside:
            ledger.take("k", "ben", takeover_reason="urgent", metadata=LARGE)
            return None
        with engine.begin() as connection:
            ledger.using(connection).take("k", "ben", takeover_reason="urgent", metadata=LARGE)
    except OperationalError as error:
        return error
    return None


def test_a_write_error_during_the_commit_leaves_the_outcome_unknown(
    sqlite_ledgers: Ledgers, ledger: LockLedger
) -> None:
    """The log may not grow by a page any more, which SQLite finds out when it commits."""
    ledger.take("k", "ann")
    (said,) = all_at_once(take_with_little_room, [(sqlite_ledgers.database.url,)])
    assert said == OutcomeUnknown.__name__
    assert ledger.holder_of("k").holder == "ann"  # type: ignore[union-attr]
    assert ledger.take("k", "ben", takeover_reason="again").token == 2


def read_only_file(path: Path) -> Engine:
    return create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")


def query_only(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA query_only = ON"))
    return engine


@pytest.mark.parametrize("opened", [read_only_file, query_only])
def test_a_file_that_may_only_be_read_is_read_and_its_refusal_comes_through(
    sqlite_ledgers: Ledgers, ledger: LockLedger, file: Path, opened: Callable[[Path], Engine]
) -> None:
    ledger.take("k", "ann")
    engine = opened(file)
    reader = sqlite_ledgers.open(url_or_engine=engine)
    assert reader.holder_of("k") is not None
    with pytest.raises(OperationalError, match="readonly database"):
        reader.release("k", "ann")
    with pytest.raises(OperationalError, match="readonly database"):
        reader.take("new", "ann")
    assert reader.try_take("k", "ben") is None
    assert ledger.release("k", "ann")
    engine.dispose()


def test_a_file_that_is_no_database_is_its_own_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but some text that is long enough to be looked at\n" * 20)
    with (
        LockLedger(f"sqlite:///{path}") as ledger,
        pytest.raises(DatabaseError, match="not a database"),
    ):
        ledger.take("k", "ann")
    assert path.read_text().startswith("not a database")


@pytest.fixture(autouse=True)
def limits_stay() -> Iterator[None]:
    """No test may leave this process with less room for files than it had."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
