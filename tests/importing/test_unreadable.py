"""A value that cannot be read is the fault of its row, and only where it is asked for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column, MetaData, Table, Text, func, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.types import UserDefinedType

from lockledger import LiveLocks, LockLedger, Refusal
from support.colours import Loop, asynchronous, running_loop
from support.ledgers import Ledgers, SettableClock
from support.old_system import OldSystem
from support.stories import at

ODD_IN_SQLITE = {
    "JSON": "''",
    "DATE": "'2026-01-01 10:00:00'",
    "TIME": "'x'",
    "NUMERIC(10, 2)": "'abc'",
}
ODD_IN_POSTGRESQL = {
    "time": "'24:00'",
    "tstzrange": "'[2026-01-01,infinity]'",
    "timestamptz[]": "'{infinity}'",
    "timestamp[]": "'{0044-03-15 BC}'",
    "daterange": "'[0044-03-15 BC,)'",
    "interval": "'1000000000 days'",
    "jsonb": f"'{'9' * 5000}'",
}


def by_key(row: Any) -> Any:
    return row["k"]


def by_odd(row: Any) -> Any:
    return f"{row['k']}{row['o']}"[:4]


def live(**facts: Any) -> LiveLocks:
    given = {"key": "k", "holder": "h", "taken_at": "tt", "timezone": "UTC"} | facts
    return LiveLocks(table="t", **given)


def fill(old: OldSystem, kind: str, odd: str, good: str = "NULL") -> None:
    old.run(f"CREATE TABLE t (k TEXT, h TEXT, tt TEXT, o {kind})")
    old.run(
        f"INSERT INTO t VALUES ('good', 'h', '{at(0)}', {good}), ('bad', 'h', '{at(0)}', {odd})"
    )


def refused_for_odd(ledger: LockLedger, mapping: LiveLocks, **more: Any) -> Refusal:
    report = ledger.import_locks(mapping, dry_run=True, **more)
    assert (report.rows, report.locks, report.refused_count) == (2, 1, 1)
    return report.refused[0]


def expect_odd_in_its_row_only(ledger: LockLedger, old: OldSystem) -> None:
    def check(mapping: LiveLocks, row: str, key: str | None) -> None:
        refusal = refused_for_odd(ledger, mapping, database=old.engine)
        assert (refusal.row, refusal.key) == (row, key)
        assert "column o: " in refusal.reason
        assert " cannot be read: " in refusal.reason

    check(live(metadata="o"), "bad", "bad")
    check(live(holder=by_odd), "bad", "bad")
    check(live(key=by_odd), "#2", None)
    for unused in (live(key=by_key), live(row="o")):
        for database in (None, old.engine):
            assert ledger.import_locks(unused, database=database, dry_run=True).locks == 2


@pytest.mark.parametrize("kind", ODD_IN_SQLITE)
def test_on_sqlite(sqlite_ledgers: Ledgers, clock: SettableClock, kind: str) -> None:
    clock.set(100)
    old = OldSystem(sqlite_ledgers.database)
    fill(old, kind, ODD_IN_SQLITE[kind])
    expect_odd_in_its_row_only(sqlite_ledgers.open(clock=clock), old)


@pytest.mark.parametrize("kind", ODD_IN_POSTGRESQL)
def test_on_postgresql(postgres_ledgers: Ledgers, clock: SettableClock, kind: str) -> None:
    clock.set(100)
    old = OldSystem(postgres_ledgers.database)
    fill(old, kind, ODD_IN_POSTGRESQL[kind])
    expect_odd_in_its_row_only(postgres_ledgers.open(clock=clock), old)


@pytest.mark.parametrize("fact", ["key", "holder", "metadata", "expires_at"])
def test_text_of_any_bytes_on_sqlite(
    sqlite_ledgers: Ledgers, clock: SettableClock, fact: str
) -> None:
    clock.set(100)
    old = OldSystem(sqlite_ledgers.database)
    fill(old, "TEXT", "CAST(x'ff' AS TEXT)", "'good'")
    ledger = sqlite_ledgers.open(clock=clock)
    for database in (None, old.engine):
        assert ledger.import_locks(live(key=by_key), database=database, dry_run=True).locks == 2
        refused = ledger.import_locks(live(**{fact: "o"}), database=database, dry_run=True).refused
        reasons = {refusal.row: refusal.reason for refusal in refused}
        assert reasons["#2" if fact == "key" else "bad"].isprintable()


def test_a_reason_names_row_column_and_value(sqlite_ledgers: Ledgers, clock: SettableClock) -> None:
    clock.set(100)
    fill(OldSystem(sqlite_ledgers.database), "JSON", "'{'", "'{\"a\": 1}'")
    ledger = sqlite_ledgers.open(clock=clock)
    told = "column o: '{' cannot be read: JSONDecodeError: Expecting property name"
    direct = str(refused_for_odd(ledger, live(metadata="o")))
    assert direct.startswith(f"row 'bad' of 'bad': {told}")
    called = str(refused_for_odd(ledger, live(metadata=lambda row: row["o"])))
    assert called.startswith(f"row 'bad' of 'bad': metadata failed: ValueError: {told}")
    unpacked = str(refused_for_odd(ledger, live(holder=lambda row: dict(row)["h"])))
    assert told in unpacked
    assert ledger.import_locks(live(holder=lambda row: row.get("h", len(row))), dry_run=True).ok


def test_a_date_without_end_is_no_expiry(postgres_ledgers: Ledgers, clock: SettableClock) -> None:
    clock.set(100)
    old = OldSystem(postgres_ledgers.database)
    fill(old, "DATE", "'0044-03-15 BC'", "'infinity'")
    old.run(f"ALTER DATABASE {old.engine.url.database} SET DateStyle = 'German'")
    ledger = postgres_ledgers.open(clock=clock)
    url = postgres_ledgers.database.url
    refusal = refused_for_odd(ledger, live(expires_at="o"), database=url)
    assert refusal.reason == "expires_at: '0044-03-15 BC' is no instant in ISO 8601"
    assert ledger.import_locks(live(key=by_key), dry_run=True).locks == 2
    assert ledger.import_locks(live(expires_at="o"), database=url).locks == 1
    assert ledger.current_holders()[0].expires_at is None


ORDINARY: dict[str, dict[str, tuple[str, Any]]] = {
    "sqlite": {
        "DATE": ("'2026-01-01'", dt.date(2026, 1, 1)),
        "TIME": ("'10:00:00.5'", dt.time(10, 0, 0, 500000)),
        "NUMERIC(10, 2)": ("'1.50'", Decimal("1.50")),
        "JSON": ("'[1]'", [1]),
        "BOOLEAN": ("1", True),
        "TEXT": ("'ü'", "ü"),
        "BLOB": ("x'ff'", b"\xff"),
        "INTEGER": ("7", 7),
    },
    "postgresql": {
        "date": ("'2026-01-01'", dt.date(2026, 1, 1)),
        "time": ("'10:00:00.5'", dt.time(10, 0, 0, 500000)),
        "numeric(10, 2)": ("1.5", Decimal("1.50")),
        "jsonb": ("'[1]'", [1]),
        "boolean": ("true", True),
        "text": ("'ü'", "ü"),
        "bytea": (r"'\xff'", b"\xff"),
        "bigint": ("7", 7),
        "uuid": ("'00000000-0000-0000-0000-000000000007'", UUID(int=7)),
        "interval": ("'1 hour'", dt.timedelta(hours=1)),
        "date[]": ("'{2026-01-01}'", [dt.date(2026, 1, 1)]),
    },
}


@pytest.mark.parametrize("kept", [None, "odd"])
def test_ordinary_values_reach_a_callable_as_ever(
    ledgers: Ledgers, ledger: LockLedger, old: OldSystem, kept: str | None
) -> None:
    """Beside a column that cannot be read too."""
    ordinary = ORDINARY[ledgers.database.dialect]
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(ordinary))
    values = ", ".join(literal for literal, _ in ordinary.values())
    kind, odd = ("JSON", "''") if ledgers.database.dialect == "sqlite" else ("time", "'24:00'")
    old.run(f"CREATE TABLE t (k TEXT, h TEXT, tt TEXT, {columns}, o {kind})")
    odd = "NULL" if kept is None else odd
    old.run(f"INSERT INTO t VALUES ('k', 'h', '{at(0)}', {values}, {odd})")
    told: list[Any] = []

    def holder(row: Any) -> str:
        told.extend(row[f"c{number}"] for number in range(len(ordinary)))
        return "h"

    assert ledger.import_locks(live(holder=holder)).ok
    expected = [value for _, value in ordinary.values()]
    assert told == expected
    assert list(map(type, told)) == list(map(type, expected))
    if ledgers.database.dialect == "postgresql":
        with old.engine.connect() as connection:
            metadata = MetaData()
            table = Table("t", metadata, autoload_with=connection)
            plain = connection.execute(select(*list(table.c)[3:-1])).one()
        assert told == list(plain)


class Loud(UserDefinedType[str]):
    """A host's own type that makes values of its own."""

    cache_ok = True

    def result_processor(self, dialect: Any, coltype: object) -> Callable[[Any], str]:
        return lambda value: value + "!"


class Upper(Loud):
    """And says what is selected."""

    cache_ok = True

    def column_expression(self, colexpr: Any) -> Any:
        return func.upper(colexpr, type_=self)


def test_a_table_of_the_hosts_own_types(ledger: LockLedger, old: OldSystem) -> None:
    old.run("CREATE TABLE t (k TEXT, h TEXT, tt TEXT)")
    old.run(f"INSERT INTO t VALUES ('k', 'h', '{at(0)}'), ('l', NULL, '{at(0)}')")
    table = Table("t", MetaData(), Column("k", Upper), Column("h", Loud), Column("tt", Text))
    report = ledger.import_locks(LiveLocks(table=table, key="k", holder="h", taken_at="tt"))
    assert [(hold.key, hold.holder) for hold in ledger.current_holders()] == [("K!", "h!")]
    assert [refusal.key for refusal in report.refused] == ["L!"]
    assert report.refused[0].reason.startswith("column h: None cannot be read: TypeError")


def test_awaited_and_on_a_hosts_connection(ledgers: Ledgers, old: OldSystem) -> None:
    odd = {"sqlite": ("TEXT", "CAST(x'ff' AS TEXT)"), "postgresql": ("time", "'24:00'")}
    fill(old, *odd[ledgers.database.dialect])
    mapping = live(key=by_key)
    with old.engine.connect() as host:
        assert ledgers.open().import_locks(mapping, database=host, dry_run=True).locks == 2
        with pytest.raises(Exception, match=r"24:00|UTF-8"):  # as ever for the host
            host.exec_driver_sql("SELECT o FROM t").all()
    with running_loop() as loop:
        _awaited(ledgers, loop, mapping)


def _awaited(ledgers: Ledgers, loop: Loop, mapping: LiveLocks) -> None:
    ledger = asynchronous(loop, ledgers.database.url)
    engine = create_async_engine(ledgers.database.url.replace("sqlite:", "sqlite+aiosqlite:"))
    assert ledger.import_locks(mapping, database=engine, dry_run=True).locks == 2
    assert ledger.import_locks(mapping).locks == 2
    ledger.close()
    loop.run(engine.dispose())
