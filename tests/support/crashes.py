"""Everything that writes, each as an operation whose process is killed between any two of its writes."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Engine, create_engine, text

from lockledger import Checkpoint, LiveLocks, LockLedger
from lockledger.adapters.schema import found_version
from lockledger.cli.program import run
from support.databases import Database
from support.killed import CALLS
from support.tampering import APPEND_ONLY, tamper

KEYS = ("a", "b", "c")
LATER = datetime.now(UTC) + timedelta(days=30)
State = frozenset[Any]


@dataclass(frozen=True)
class Place:
    """Where an operation works: a database, keys that begin with a mark, and a folder for files."""

    url: str
    mark: str
    folder: Path

    def key(self, name: str) -> str:
        return f"{self.mark}:{name}"

    @property
    def keys(self) -> list[str]:
        return [self.key(name) for name in KEYS]

    @property
    def file(self) -> Path:
        return self.folder / self.mark / "written"

    @property
    def source(self) -> str:
        return f"sqlite:///{self.folder / self.mark / 'source.db'}"


@dataclass(frozen=True)
class Site:
    """A place, as the test sees it that looks at what is left there."""

    place: Place
    ledger: LockLedger
    database: Database
    engine: Engine


@dataclass(frozen=True)
class Operation:
    """What goes before, what is killed and repeated, and what it is known by to have done.

    `batched`: it commits more than once. `fresh`: on a database of its own each time. `sound`: what it leaves can be proven. `many`: rows of all tables are one
    kind of write in the table. `turns` is the write by which it, or a batch of it, becomes true.
    """

    before: Callable[[Site], object]
    call: Callable[[LockLedger, Place], object]
    state: Callable[[Site], State]
    batched: bool = False
    fresh: Literal["", "migrated", "empty"] = ""
    sound: bool = True
    many: bool = False
    turns: str = r"commit|append"

    @property
    def writes_a_file(self) -> bool:
        """Whether that is all it writes."""
        return self.turns in ("link", "replace")


# What it is known by.


def _trail(site: Site) -> State:
    """What the audit trail says of these keys."""
    query = "SELECT key, version, action, holder FROM lockledger_audit_trail WHERE key LIKE :mine"
    return _rows(site, query)


def _own_rows(site: Site) -> State:
    query = "SELECT key, version FROM own_rows WHERE key LIKE :mine"
    return _rows(site, query)


def _rows(site: Site, query: str) -> State:
    with site.engine.connect() as connection:
        rows = connection.execute(text(query), {"mine": f"{site.place.mark}:%"})
        return frozenset((key.partition(":")[2], *facts) for key, *facts in rows)


def _checkpoint_there(site: Site) -> State:
    if not site.place.file.exists():
        return frozenset()
    with suppress(ValueError):
        Checkpoint.from_json(site.place.file.read_bytes())
        return frozenset(["whole"])
    return frozenset(["torn"])


def _export_there(site: Site) -> State:
    """How many entries are not in the file."""
    if not site.place.file.exists():
        return frozenset()
    lines = site.place.file.read_text("utf-8").splitlines()
    assert all(json.loads(line) for line in lines)
    with site.engine.connect() as connection:
        count = int(
            connection.execute(text("SELECT count(*) FROM lockledger_audit_trail")).scalar_one()
        )
    return frozenset([count - len(lines)])


def _differences(site: Site) -> State:
    assert _count_triggers(site) > 0
    return frozenset((fault.kind, fault.version) for fault in site.ledger.verify().faults)


def _count_triggers(site: Site) -> int:
    """How many refuse a change; one for each table that lost one, and the others with it, is a fault."""
    query = (
        "SELECT count(*) FROM sqlite_master WHERE type = 'trigger'"
        if site.database.dialect == "sqlite"
        else "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'lockledger%' AND tgenabled = 'A'"
    )
    with site.engine.connect() as connection:
        found = int(connection.execute(text(query)).scalar_one())
    assert found == len(APPEND_ONLY) * (3 if site.database.dialect == "sqlite" else 2)
    return found


def _schema(site: Site) -> State:
    with site.engine.connect() as connection:
        facts: list[Any] = [found_version(connection, None)]
        if site.database.dialect == "sqlite":
            facts.append(connection.exec_driver_sql("PRAGMA journal_mode").scalar())
        connection.rollback()
        tables = (
            "SELECT name FROM sqlite_master"
            if site.database.dialect == "sqlite"
            else "SELECT relname FROM pg_class WHERE relname LIKE 'lockledger%'"
        )
        return frozenset([*facts, *connection.execute(text(tables)).scalars()])


# What goes before.


def _take_each(site: Site) -> None:
    for key in site.place.keys:
        site.ledger.take(key, "ann")


def _run_out_each(site: Site) -> None:
    for key in site.place.keys:
        site.ledger.take(key, "ann", ttl=0.001)
    time.sleep(0.01)


def _release_each(site: Site) -> None:
    _take_each(site)
    for key in site.place.keys:
        site.ledger.release(key, "ann")


def _damage(site: Site) -> None:
    """Something to do for each way in which a rebuild repairs."""
    _release_each(site)
    a, b, c = site.place.keys
    tamper(
        site.database,
        "DELETE FROM lockledger_audit_trail WHERE lock_id = :a",
        "UPDATE lockledger_holds SET end_reason = 'forged' WHERE lock_id = :b",
        "DELETE FROM lockledger_holds WHERE lock_id = :c",
        "UPDATE lockledger_current_holders SET holder = 'eve' WHERE lock_id = :b",
        "DELETE FROM lockledger_current_holders WHERE lock_id = :c",
        a=a,
        b=b,
        c=c,
    )


def _nothing(*_: Any) -> None:
    pass


def _a_file_is_there(site: Site) -> None:
    site.ledger.export_audit_trail(site.place.file, format="jsonl")
    _release_each(site)


def _own_table(site: Site) -> None:
    with site.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS own_rows (key TEXT, version INTEGER, UNIQUE (key, version))"
        )
    site.ledger.take(site.place.key("first"), "ann")
    site.ledger.replay(OwnRows())
    _take_each(site)


def _other_table(site: Site) -> None:
    engine = create_engine(site.place.source)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE run_lock (lock_key TEXT, owner TEXT, taken TEXT)")
        for key in site.place.keys:
            connection.exec_driver_sql(
                "INSERT INTO run_lock VALUES (?, 'run:1', '2026-03-14 09:00:00')", (key,)
            )
    engine.dispose()


# What is killed.


class OwnRows:
    """A projection of a host's: a row for each event."""

    name = "own rows"

    def apply(self, connection: Any, events: Any) -> None:
        for recorded in events:
            values = {"key": recorded.event.key, "version": recorded.event.originator_version}
            connection.execute(text("INSERT INTO own_rows VALUES (:key, :version)"), values)

    def reset(self, connection: Any) -> None:
        connection.execute(text("DELETE FROM own_rows"))


def _checkpoint(_ledger: LockLedger, place: Place) -> None:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = run(["checkpoint", str(place.file), "--database", place.url])
    assert code == 0 or "is there already" in said.getvalue()


def _export(ledger: LockLedger, place: Place) -> None:
    with suppress(FileExistsError):
        ledger.export_audit_trail(place.file, format="jsonl")


def _import(ledger: LockLedger, place: Place) -> None:
    source = LiveLocks(
        table="run_lock", key="lock_key", holder="owner", taken_at="taken", timezone="UTC"
    )
    assert ledger.import_locks(source, database=place.source).ok


def _of_one_lock(name: str) -> Operation:
    before, call = CALLS[name]
    return Operation(
        lambda site: before(site.ledger, site.place.key("a")),
        lambda ledger, place: call(ledger, place.key("a")),
        _trail,
    )


OPERATIONS: dict[str, Operation] = {
    "First take": _of_one_lock("first take"),
    "Take": _of_one_lock("take"),
    "Take after an expiry": _of_one_lock("take of a lock that ran out"),
    "Takeover": _of_one_lock("takeover"),
    "Extension": replace(
        _of_one_lock("extension"),
        call=lambda ledger, place: ledger.extend(place.key("a"), "ben", LATER),
    ),
    "Release": _of_one_lock("release"),
    "Forced release": Operation(
        _take_each,
        lambda ledger, place: ledger.force_release(place.key("a"), actor="root", reason="order"),
        _trail,
    ),
    "Take of several": Operation(
        _nothing, lambda ledger, place: ledger.take_all(place.keys, "ben"), _trail
    ),
    "Release of several": Operation(
        _take_each,
        lambda ledger, place: ledger.release_all(under=place.mark, actor="root", reason="order"),
        _trail,
        batched=True,
        many=True,
    ),
    "Sweep": Operation(
        _run_out_each, lambda ledger, _: ledger.expire_due(), _trail, batched=True, many=True
    ),
    "Projection of the host": Operation(
        _own_table, lambda ledger, _: ledger.replay(OwnRows()), _own_rows, batched=True
    ),
    "Rebuild": Operation(
        _damage,
        lambda ledger, _: ledger.rebuild(),
        _differences,
        batched=True,
        fresh="migrated",
        sound=False,
    ),
    "Import": Operation(_other_table, _import, _trail, batched=True, many=True),
    "Migration": Operation(
        _nothing,
        lambda ledger, _: ledger.migrate(),
        _schema,
        batched=True,
        fresh="empty",
        sound=False,
        turns=r"commit|PRAGMA journal_mode = WAL",
    ),
    "Checkpoint": Operation(_release_each, _checkpoint, _checkpoint_there, turns="link"),
    "Export": Operation(_release_each, _export, _export_there, turns="link"),
    "Export over a file": Operation(
        _a_file_is_there,
        lambda ledger, place: ledger.export_audit_trail(place.file, overwrite=True, format="jsonl"),
        _export_there,
        turns="replace",
    ),
}
