"""Where the tables are, and how they are reached."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import create_engine, text
from sqlalchemy.pool import StaticPool

from lockledger import LockLedger
from support.databases import Database
from support.ledgers import Ledgers, SettableClock
from support.old_system import OldSystem
from support.stories import at

MANY = 2500
"""More than one page of what is read, and of what is appended."""


def test_many_rows_by_engine_and_connection_with_and_without_a_transaction(
    ledgers: Ledgers, clock: SettableClock, old: OldSystem
) -> None:
    with old.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO version_lock (id, version_id, locked_by, locked_at) VALUES (:i, :i, 1, :t)"
            ),
            [{"i": number, "t": old.stored(number)} for number in range(MANY)],
        )
    alone = old.engine.execution_options(isolation_level="AUTOCOMMIT")
    with old.engine.connect() as host, alone.connect() as autocommitting:
        for number, database in enumerate(
            (None, ledgers.database.url, old.engine, alone, host, autocommitting)
        ):
            ledger = ledgers.open(clock=clock, name=f"ledger {number}")
            dry = ledger.import_locks(old.history, database=database, dry_run=number > 0)
            assert (dry.locks, dry.refused_count) == (MANY, 0)
        assert host.scalar(text("SELECT count(*) FROM version_lock")) == MANY
    assert ledgers.open(name="ledger 0").verify().ok
    times = [entry.occurred_at for entry in ledgers.open(name="ledger 0").audit_trail(limit=1000)]
    assert times == [at(number) for number in range(1000)]


def test_in_a_hosts_engine_with_one_connection(
    ledgers: Ledgers, clock: SettableClock, old: OldSystem
) -> None:
    old.hold(1, 7, 1, 0)
    engine = ledgers.database.engine(pool_size=1, max_overflow=0, pool_timeout=1)
    ledger = ledgers.open(url_or_engine=engine, clock=clock)
    assert ledger.import_locks(old.history).locks == 1
    assert ledger.import_locks(old.history, database=engine).unchanged == 1


def test_in_memory(clock: SettableClock) -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    database = Database("sqlite://", "sqlite", "memory", _engines=[engine])
    database.engine = lambda **options: engine  # type: ignore[method-assign]
    clock.set(100)
    with LockLedger(engine, clock=clock) as ledger:
        ledger.migrate()
        OldSystem(database).hold(1, 7, 1, 0)
        assert ledger.import_locks(OldSystem(database).history).locks == 1
    engine.dispose()


def test_a_callable_is_given_datetimes(ledger: LockLedger, old: OldSystem) -> None:
    old.lock("k", "run:1", 10)
    hour = timedelta(hours=1)
    mapping = replace(old.live, expires_at=lambda row: row["taken_at"] + hour)
    assert ledger.import_locks(mapping).ok
    assert ledger.holds(key="k")[0].expires_at == at(3610)


def test_an_instant_that_no_calendar_has_is_the_fault_of_its_row(
    postgres_ledgers: Ledgers, clock: SettableClock
) -> None:
    clock.set(100)
    old = OldSystem(postgres_ledgers.database)
    old.lock("for ever", "run:1", 10, 20)
    old.run("UPDATE run_lock SET expires_at = 'infinity'")
    old.lock("always", "run:1", 10)
    old.run("UPDATE run_lock SET taken_at = '-infinity' WHERE lock_key = 'always'")
    old.lock("at last", "run:1", 10)
    old.run("UPDATE run_lock SET expires_at = '12026-01-01' WHERE lock_key = 'at last'")
    old.run(f"ALTER DATABASE {old.engine.url.database} SET DateStyle = 'German'")
    ledger = postgres_ledgers.open(clock=clock)
    report = ledger.import_locks(old.live, database=postgres_ledgers.database.url)
    assert [(refusal.key, refusal.reason[:24]) for refusal in report.refused] == [
        ("always", "taken_at: '-infinity' is"),
        ("at last", "expires_at: '12026-01-01"),
    ]
    held = ledger.current_holders()[0]
    assert (held.key, held.taken_at, held.expires_at) == ("for ever", at(10), None)
