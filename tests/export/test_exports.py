"""Exports of a ledger: what the queries give, the same in every format, of one moment, and whole files only."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from sqlalchemy.orm import Session

from lockledger import AuditEntry, AuditExport, Hold, LockLedger, TamperedLedger, exporting
from lockledger.exporting import ENTRY, HOLD
from lockledger.formats import Columns
from support.colours import asynchronous, running_loop
from support.databases import Database
from support.documents import DOCS, run
from support.exports import FORMATS, FORMULA, Rows, exported, read
from support.ledgers import Ledgers, SettableClock
from support.stories import T0
from support.tampering import tamper
from support.turmoil import tell

PAGE = 7
NAMES = {"run:1": FORMULA, "run:2": "Ben \u2028 Ü", "user:9": "half \ud800"}
SHOWN = NAMES | {"user:9": "half ?"}


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short story has many."""
    monkeypatch.setattr(exporting, "ROWS_IN_A_PAGE", PAGE)


@pytest.fixture
def told(ledger: LockLedger, clock: SettableClock) -> LockLedger:
    """A ledger in which much has happened, some of it written to trick a spreadsheet; some holds are live at the end."""
    tell(ledger, clock, random.Random(3), steps=120, steady=True)
    clock.forward(3600)
    ledger.take(FORMULA, "@holder", ttl=0.25, metadata={"-": ["=1;=2", None, 1.5]})
    ledger.take(FORMULA, "-1", takeover_reason='+1\n=2\t\'3;"=4"', actor="user:9")
    ledger.take('"a", b\'s \\ 😀 <b>%s</b>', "שלום:1", metadata={"é😀": "\u202e\r\n\x01"})
    ledger.take(
        '"a", b\'s \\ 😀 <b>%s</b>', "=1", takeover_reason='=1\n"עברית", 👩\u200d👧\n\n\t-- \' \\n'
    )
    ledger.take("last", "run:1", ttl=60)
    return ledger


def everything(ask: Any, **wanted: Any) -> Rows:
    """What a query gives, page after page."""
    rows, after = [], None
    while True:
        page = ask(**wanted, after=after, limit=1000)
        rows += [each.model_dump(mode="json") for each in page]
        after = page.next_after
        if after is None:
            return rows


def both(ledger: LockLedger) -> Iterator[tuple[Any, Any, Columns]]:
    yield ledger.export_audit_trail, ledger.audit_trail, ENTRY
    yield ledger.export_holds, ledger.holds, HOLD


def test_every_format_has_the_rows_that_the_query_gives(told: LockLedger) -> None:
    assert (list(ENTRY), list(HOLD)) == (list(AuditEntry.model_fields), list(Hold.model_fields))
    for write, ask, columns in both(told):
        expected = everything(ask)
        assert len(expected) > 40
        for form in FORMATS:
            count, data = exported(write, form)
            assert count == len(expected)
            rows = read(form, data, columns)
            assert rows == expected, form
            assert [list(row) for row in rows] == [list(columns)] * count


def test_every_filter_is_that_of_the_query(told: LockLedger) -> None:
    instants = sorted(each["occurred_at"] for each in everything(told.audit_trail))
    middle = datetime.fromisoformat(instants[len(instants) // 2])
    questions: list[dict[str, Any]] = [
        *({"key": "round:5"}, {"key_prefix": "round"}, {"under": "round:5"}, {"holder": "run:2"}),
        *({"since": middle}, {"until": middle}, {"since": middle, "under": "round:5"}),
        {"key": "no such lock"},
    ]
    of_audit: list[dict[str, Any]] = [
        *({"extensions": True}, {"action": "LockExpired"}, {"actor": "user:9"}),
        {"key": "round:5", "extensions": True},
    ]
    for write, ask, columns in both(told):
        for wanted in questions + (of_audit if ask == told.audit_trail else []):
            expected = everything(ask, **wanted)
            assert expected or wanted == {"key": "no such lock"}
            assert read("jsonl", exported(write, "jsonl", **wanted)[1], columns) == expected, wanted


def test_names_stand_behind_the_ids_and_are_asked_once_a_page(
    ledgers: Ledgers, told: LockLedger, clock: SettableClock
) -> None:
    asked = list[list[str]]()

    def names(connection: Any, ids: Any) -> Any:
        asked.append(list(ids))
        with Session(connection) as session:
            session.connection().exec_driver_sql("SELECT 1").one()
        return {each: NAMES[each] for each in ids if each in NAMES}

    named = ledgers.open(clock=clock, names=names)
    for write, ask, columns in both(named):
        owners = ("holder", "previous_holder", "actor")
        ids = owners if columns is ENTRY else ("holder", "taken_over_from", "ended_by_actor")
        rows = everything(ask)
        for row in rows:
            for fact, owner in zip(ids, owners, strict=True):
                row[f"{owner}_name"] = SHOWN.get(row[fact])
        for form in FORMATS:
            asked.clear()
            found = read(form, exported(write, form)[1], columns)
            assert found == rows, form
            assert len(asked) == -(-len(rows) // PAGE)
            assert all(len(page) == len(set(page)) for page in asked)
            order = list(found[0])
            for fact, owner in zip(ids, owners, strict=True):
                assert order.index(f"{owner}_name") == order.index(fact) + 1


def test_an_empty_ledger_is_a_file_with_columns_and_no_rows(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    for write, _, columns in both(ledger):
        assert exported(write, "csv") == (0, (",".join(columns) + "\r\n").encode())
        assert exported(write, "jsonl") == (0, b"")
        table = pyarrow.parquet.read_table(io.BytesIO(exported(write, "parquet")[1]))
        assert (table.num_rows, table.column_names) == (0, list(columns))


def test_all_rows_are_of_one_moment_and_nobody_waits(
    ledgers: Ledgers, told: LockLedger, clock: SettableClock
) -> None:
    writer = ledgers.open(clock=clock, busy_timeout=0)
    for write, ask, columns in both(told):
        told.take("~last", "run:1", ttl=60)
        expected, told_of = everything(ask), list[int]()

        def meanwhile(rows: int, told_of: list[int] = told_of) -> None:
            told_of.append(rows)
            clock.forward(45)  # in the middle of it, the last hold runs out
            key = f"a:{clock.now:%H%M%S}"
            writer.take(key, "run:1")
            writer.take(key, "run:2", takeover_reason="now")
            writer.take("z", "run:1", if_mine="replace")

        count, data = exported(write, "jsonl", progress=meanwhile)
        assert read("jsonl", data, columns) == expected
        assert told_of == [*range(PAGE, count, PAGE), count]
    assert told.holder_of("~last") is None


def test_the_trail_ends_before_what_an_open_transaction_may_bring(ledgers: Ledgers) -> None:
    if ledgers.database.dialect == "sqlite":
        return  # it has one writer at a time
    ledger = ledgers.open()
    ledger.take("a", "run:1")
    engine = ledgers.database.engine()
    with engine.begin() as connection:
        ledger.using(connection).take("b", "run:1")
        ledger.take("c", "run:1")
        keys = [row["key"] for row in read("jsonl", exported_trail(ledger), ENTRY)]
        assert keys == ["a"]
        assert exported(ledger.export_audit_trail, "jsonl", key="c")[0] == 1
        assert exported(ledger.export_holds, "jsonl")[0] == 2
    keys = [row["key"] for row in read("jsonl", exported_trail(ledger), ENTRY)]
    assert keys == ["a", "b", "c"]


def exported_trail(ledger: LockLedger) -> bytes:
    return exported(ledger.export_audit_trail, "jsonl")[1]


def test_an_exported_trail_is_imported_again(
    ledgers: Ledgers, told: LockLedger, clock: SettableClock, tmp_path: Path
) -> None:
    named = ledgers.open(clock=clock, names=lambda _, ids: dict.fromkeys(ids, "a name"))
    file = tmp_path / "trail.jsonl"
    count = named.export_audit_trail(file, format="jsonl", extensions=True)
    copy = ledgers.open(name="copy", clock=clock)
    report = copy.import_locks(AuditExport(file, ledger="default"))
    assert (report.ok, report.events) == (True, count)
    assert everything(copy.holds) == everything(told.holds)
    here, there = (
        [
            entry | {"position": 0, "event_hash": ""}
            for entry in everything(each.audit_trail, extensions=True)
        ]
        for each in (told, copy)
    )
    assert here == there


def test_a_format_that_is_not_named_is_what_the_paths_name_ends_in(
    database: Database, told: LockLedger, tmp_path: Path
) -> None:
    with running_loop() as loop:
        other = asynchronous(loop, database.url, clock=lambda: T0 + timedelta(days=30))
        for ledger in (told, other):
            for write in (ledger.export_audit_trail, ledger.export_holds):
                expected = {form: exported(write, form)[1] for form in FORMATS}
                files: tuple[tuple[str | Path, Any, str], ...] = (
                    ("trail.jsonl", None, "jsonl"),
                    (tmp_path / "trail.Parquet", None, "parquet"),
                    (tmp_path / "trail.csv", None, "csv"),
                    (tmp_path / "trail.txt", None, "csv"),
                    (tmp_path / "jsonl", None, "csv"),
                    (tmp_path / "trail.jsonl", "csv", "csv"),
                )
                for file, named, form in files:
                    path = tmp_path / file
                    write(
                        str(path) if isinstance(file, str) else path, format=named, overwrite=True
                    )
                    assert path.read_bytes() == expected[form], (file, named)
                stream = io.BytesIO()
                write(stream)
                assert stream.getvalue() == expected["csv"]
                with (tmp_path / "stream.jsonl").open("w+b") as named_stream:
                    write(named_stream)
                assert (tmp_path / "stream.jsonl").read_bytes() == expected["csv"]
        other.close()


def test_awaited(database: Database, told: LockLedger, tmp_path: Path) -> None:
    with running_loop() as loop:
        other = asynchronous(loop, database.url, clock=lambda: T0 + timedelta(days=30))
        assert exported(other.export_audit_trail, "csv") == exported(told.export_audit_trail, "csv")
        count = other.export_holds(tmp_path / "holds.parquet", format="parquet")
        assert count == pyarrow.parquet.read_table(tmp_path / "holds.parquet").num_rows
        other.close()


def test_a_file_is_there_as_a_whole_or_not_at_all(told: LockLedger, tmp_path: Path) -> None:
    path = tmp_path / "trail.parquet"

    def broken(rows: int) -> None:
        assert len(list(tmp_path.glob(".*.part"))) == 1
        if rows > PAGE:
            raise KeyboardInterrupt

    for before in (None, b"old"):
        if before is not None:
            path.write_bytes(before)
        with pytest.raises(KeyboardInterrupt):
            told.export_audit_trail(path, format="parquet", overwrite=True, progress=broken)
        assert (path.read_bytes() if path.exists() else None) == before
        assert list(tmp_path.glob(".*")) == []
    count = told.export_audit_trail(str(path), format="parquet", overwrite=True)
    assert pyarrow.parquet.read_table(path).num_rows == count
    assert list(tmp_path.glob(".*")) == []


def test_a_file_that_is_there_is_kept(told: LockLedger, tmp_path: Path) -> None:
    path = tmp_path / "trail.csv"
    path.write_text("old")
    with pytest.raises(FileExistsError, match="there is one already; name another") as refused:
        told.export_audit_trail(path)
    assert refused.value.filename == str(path)

    # One that somebody makes meanwhile, too.
    other = tmp_path / "other.csv"

    def make_it(_: int) -> None:
        other.write_text("theirs")

    with pytest.raises(FileExistsError, match="there is one already"):
        told.export_holds(other, progress=make_it)
    assert (path.read_text(), other.read_text()) == ("old", "theirs")

    folder = tmp_path / "folder"
    folder.mkdir()
    for kept in (folder, Path("/dev/null")):
        with pytest.raises(FileExistsError, match="it is no file that could be overwritten"):
            told.export_audit_trail(kept, overwrite=True)
    with pytest.raises(FileNotFoundError):
        told.export_audit_trail(tmp_path / "nowhere" / "trail.csv")

    link = tmp_path / "link.csv"
    link.symlink_to(path)
    told.export_audit_trail(link, overwrite=True)
    assert link.is_symlink()
    assert path.read_text().startswith("position,")
    assert list(tmp_path.glob(".*")) == []


def test_what_cannot_be_is_refused_before_anything_is_written(
    told: LockLedger, tmp_path: Path
) -> None:
    path = tmp_path / "trail.csv"
    refused: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "format='xlsx': use one of csv, jsonl, parquet", {"format": "xlsx"}),
        (ValueError, "action='Taken': use one of", {"action": "Taken"}),
        (ValueError, "has no time zone", {"since": datetime(2026, 1, 1)}),  # noqa: DTZ001
        (TypeError, "a stream that takes bytes", {"file": io.StringIO()}),
        (TypeError, "give a path", {"file": 7}),
    ]
    for kind, message, wanted in refused:
        with pytest.raises(kind, match=message):
            told.export_audit_trail(**{"file": path} | wanted)
    with pytest.raises(ValueError, match="is before since="):
        told.export_holds(path, since=T0, until=T0 - timedelta(1))
    assert not path.exists()


def test_what_nobody_can_read_is_an_altered_ledger(database: Database, tmp_path: Path) -> None:
    with LockLedger(database.url) as ledger:
        ledger.take("k", "run:1")
        ledger.release("k", "run:1")
        bad = "holder = CAST(x'ff' AS TEXT)", "holder = CAST(x'ff' AS TEXT)"
        if database.dialect == "postgresql":
            bad = "occurred_at = 'infinity'", "ended_at = 'infinity'"
        for table, change in zip(("audit_trail", "holds"), bad, strict=True):
            tamper(database, f"UPDATE lockledger_{table} SET {change}")
        for form in FORMATS:
            for write in (ledger.export_audit_trail, ledger.export_holds):
                with pytest.raises(TamperedLedger):
                    write(tmp_path / "file", format=form)
                assert list(tmp_path.glob("*file*")) == []


def test_the_reference_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(DOCS / "reference" / "export.md", instead={})
