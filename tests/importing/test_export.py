"""An exported audit trail becomes the same events again, in a ledger on any database."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockledger import AuditEntry, AuditExport, ImportReport, LockLedger
from support.databases import Database, Kind, Servers
from support.ledgers import Ledgers, SettableClock, proven, unchanged
from support.turmoil import tell

Lines = list[dict[str, Any]]


@pytest.fixture
def lines(database: Database, clock: SettableClock) -> Lines:
    """The export of a ledger in which everything has happened."""
    with LockLedger(database.url, clock=clock) as ledger:
        tell(ledger, clock, random.Random(7), steps=120)
        ledger.take("forced", "run:1", metadata={"z": 1, "a": [1.0, 1e22, 10**30, "é\u2028"]})
        ledger.force_release("forced", actor="run:1", reason="by its own holder")
        ledger.take("given back", "run:1", ttl=60)
        ledger.release("given back", "run:1", actor="root", reason="unforced")
        ledger.take("ran out", "run:1", ttl=1)
        clock.forward(10)
        ledger.take("ran out", "run:2", ttl=1)
        clock.forward(10)
        ledger.expire_due()
        return exported(ledger, extensions=True)


@pytest.fixture
def target(database: Database, servers: Servers, tmp_path: Path) -> Any:
    """Ledgers on a database of the other kind."""
    folder = tmp_path / "target"
    folder.mkdir()
    kind: Kind = "postgres" if database.dialect == "sqlite" else "sqlite"
    with servers.database(kind, folder) as other, proven(other) as opened:
        yield opened


def exported(ledger: LockLedger, **wanted: Any) -> Lines:
    stream = io.BytesIO()
    ledger.export_audit_trail(stream, format="jsonl", **wanted)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def written(lines: Lines) -> io.BufferedReader:
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    return io.BufferedReader(io.BytesIO(text.encode()))


def trail(ledger: LockLedger, *, hashes: bool = True) -> list[AuditEntry]:
    found: list[AuditEntry] = []
    page = ledger.audit_trail(extensions=True, limit=1000)
    while True:
        found += page
        if page.next_after is None:
            break
        page = ledger.audit_trail(extensions=True, limit=1000, after=page.next_after)
    gone = {"position": 0} if hashes else {"position": 0, "event_hash": ""}
    return [entry.model_copy(update=gone) for entry in found]


def test_everything_is_the_same_on_the_other_database(
    database: Database, clock: SettableClock, lines: Lines, target: Ledgers
) -> None:
    there = target.open(clock=clock)
    report = there.import_locks(AuditExport(written(lines)))
    assert report.ok
    assert (report.rows, report.events) == (len(lines), len(lines))
    assert report.locks == len({line["key"] for line in lines})
    with LockLedger(database.url, clock=clock) as here:
        assert trail(there) == trail(here)
        assert list(there.holds(limit=1000)) == list(here.holds(limit=1000))
        assert list(there.current_holders()) == list(here.current_holders())
    assert there.verify().ok
    with unchanged(target):
        again = there.import_locks(AuditExport(written(lines)))
    assert (again.events, again.unchanged) == (0, report.locks)


def test_a_later_export_brings_what_happened_since_unless_both_ledgers_went_on(
    database: Database, clock: SettableClock, lines: Lines, target: Ledgers
) -> None:
    there = target.open(clock=clock)
    there.import_locks(AuditExport(written(lines)))
    with LockLedger(database.url, clock=clock) as here:
        here.take("new", "run:1")
        here.take("forced", "run:1")
        here.take("given back", "run:1")
        there.take("given back", "run:2")
        later = exported(here, extensions=True)
    report = there.import_locks(AuditExport(written(later)))
    assert (report.locks, report.events) == (2, 2)
    (refusal,) = report.refused
    assert refusal.key == "given back"
    assert "the lock has other events already: its version 3 is a LockTaken by 'run:2'" in (
        refusal.reason
    )
    assert there.is_locked("new")


def test_into_a_ledger_of_another_name_the_name_before_has_to_be_given(
    clock: SettableClock, lines: Lines, target: Ledgers
) -> None:
    there = target.open(clock=clock, name="tenant")
    with unchanged(target):
        wrong = there.import_locks(AuditExport(written(lines)))
    (why,) = {refusal.reason for refusal in wrong.refused}
    assert why == (
        "version 1 does not have the hash that follows from it: it was changed after the export, or exported from"
        " another ledger than 'tenant'; say which, ledger= or --from-ledger"
    )
    assert there.import_locks(AuditExport(written(lines), ledger="default")).events == len(lines)
    named = target.open(clock=clock)
    named.import_locks(AuditExport(written(lines)))
    assert trail(there, hashes=False) == trail(named, hashes=False)
    assert trail(there) != trail(named)
    assert there.verify().ok


def edited(number: int, **changes: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[number].update(changes)


CHANGED: dict[str, tuple[Callable[[Lines], Any], int, str]] = {
    "actor": (edited(0, actor="root"), 0, "does not have the hash"),
    "hash": (edited(1, event_hash="00" * 32), 1, "does not have the hash"),
    "reason": (edited(1, reason="I had to"), 1, "does not have the hash"),
    "holder": (lambda lines: lines[0]["after"].update(holder="x"), 0, "does not have the hash"),
    "first gone": (lambda lines: lines.pop(0), 0, "it is version 2, but version 1 is missing"),
    "one gone": (lambda lines: lines.pop(1), 1, "it is version 3, but version 2 is missing"),
    "twice": (lambda lines: lines.insert(1, lines[0]), 1, "version 1 comes twice"),
    "action": (edited(0, action="LockStolen"), 0, "knows no such event; upgrade"),
    "token": (edited(1, token=99), 1, "has another token than the event"),
    "when": (edited(0, occurred_at="2020-01-01T00:00:00Z"), 0, "has another occurred_at than"),
    "whose": (edited(1, holder="x"), 1, "has another holder than"),
    "from whom": (edited(2, previous_holder="x"), 2, "has another previous_holder than"),
    "why": (edited(2, reason="x"), 2, "has another reason than"),
    "not over": (lambda lines: lines[1].update(after=lines[0]["after"]), 1, "has another after"),
    "no hold": (edited(0, after=None), 0, "does not say which hold it is about"),
}


def test_a_changed_or_incomplete_lock_is_refused(
    sqlite_ledgers: Ledgers, clock: SettableClock
) -> None:
    ledger = sqlite_ledgers.open(clock=clock, name="from")
    for holder in ("a", "b"):
        ledger.take("k", holder)
        ledger.release("k", holder, reason="done")
    there = sqlite_ledgers.open(clock=clock)
    for change, (edit, place, why) in CHANGED.items():
        lines = exported(ledger)
        edit(lines)
        report = there.import_locks(AuditExport(written(lines), ledger="from"))
        (refusal,) = report.refused
        assert (refusal.row, refusal.key, report.events) == (place + 1, "k", 0), change
        assert why in refusal.reason, change
    assert there.import_locks(AuditExport(written(exported(ledger)), ledger="from")).events == 4


def test_an_export_without_extensions_is_refused_with_the_remedy(
    sqlite_ledgers: Ledgers, clock: SettableClock
) -> None:
    ledger = sqlite_ledgers.open(clock=clock)
    ledger.take("k", "a", ttl=60)
    ledger.extend("k", "a", 600)
    ledger.release("k", "a")
    there = sqlite_ledgers.open(clock=clock, name="there")
    (refusal,) = there.import_locks(
        AuditExport(written(exported(ledger)), ledger="default")
    ).refused
    assert str(refusal) == (
        "row 2 of 'k': it is version 3, but version 2 is missing: export all of the audit trail, with extensions"
        " (lockledger export audit --extensions, without filters)"
    )


def test_what_is_still_to_come_is_refused(sqlite_ledgers: Ledgers, clock: SettableClock) -> None:
    ledger = sqlite_ledgers.open(clock=clock)
    ledger.take("k", "a")
    lines = exported(ledger)
    clock.forward(-1)
    there = sqlite_ledgers.open(clock=clock, name="there")
    (refusal,) = there.import_locks(AuditExport(written(lines), ledger="default")).refused
    assert "which is in the future" in refusal.reason


def imported(there: LockLedger, content: bytes, folder: Path) -> ImportReport:
    file = folder / "audit.jsonl"
    file.write_bytes(content)
    return there.import_locks(AuditExport(file, ledger="from"))


def test_a_file_is_read_plain_or_packed_and_to_its_end_before_anything_is_imported(
    sqlite_ledgers: Ledgers, clock: SettableClock, tmp_path: Path
) -> None:
    source = sqlite_ledgers.open(clock=clock, name="from")
    for number in range(50):
        source.take(f"k:{number}", "a")
    whole = written(exported(source)).read()
    there = sqlite_ledgers.open(clock=clock)
    with unchanged(sqlite_ledgers):
        for content, why in (
            (whole + b"{", "line 51 is no entry of an audit trail: Invalid JSON"),
            (
                whole + b'{"key": "k"}',
                "line 51 is no entry of an audit trail: position: Field required",
            ),
            (gzip.compress(whole)[:-20], "cannot be unpacked"),
            (whole + b"x" * (1 << 20) + b"x", "line 51 has more than 1048576 bytes"),
            (whole.replace(b'"k:7"', b'"\xff"'), "line 8 is no entry of an audit trail"),
            (
                whole.replace(b'"position": ', b'"position": 9999999999999999999'),
                "line 1 is no entry",
            ),
        ):
            with pytest.raises(ValueError, match=why):
                imported(there, content, tmp_path)
        with pytest.raises(TypeError, match="database= is for tables"):
            there.import_locks(AuditExport("x"), database="sqlite:///x")
        with pytest.raises(TypeError, match="a file open for bytes"):
            AuditExport(io.StringIO(whole.decode()))  # type: ignore[arg-type]
    names = b"".join(
        b"\n" + line[:1] + b'"holder_name":"A",' + line[1:] for line in whole.splitlines()
    )
    report = imported(there, b"\xef\xbb\xbf" + names, tmp_path)
    assert (report.source, report.locks) == ("audit.jsonl", 50)
    assert imported(there, gzip.compress(whole), tmp_path).unchanged == 50
    stream = io.BytesIO(whole)
    assert there.import_locks(AuditExport(stream, ledger="from")).unchanged == 50
    assert not stream.closed
