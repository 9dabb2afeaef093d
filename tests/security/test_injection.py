"""No text that reaches SQL is ever SQL: it is refused, or a value, wherever it is given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Column, Connection, DateTime, MetaData, Table, Text, insert, inspect

from lockledger import LiveLocks, LockLedger, RecordedEvent
from lockledger.adapters.identifiers import qualified
from lockledger.cli.program import run
from support.databases import Database
from support.old_system import OldSystem
from support.stories import T0

TRICKS = [
    "'; DROP TABLE lockledger_events; --",
    "' OR '1'='1",
    '"; DELETE FROM lockledger_current_holders; --',
    "') ON CONFLICT DO NOTHING; --",
    "x' UNION SELECT state FROM lockledger_events --",
    "%(ledger)s",
    "%s%%s%",
    ":ledger ?1 @x $1 $$",
    "{heads} {0} {ledger!r}",
    "\\'; SELECT pg_sleep(9); --",
    "E'\\x27'",
    "*/ DROP TABLE lockledger_events /*",
    "[] ARRAY['a'] {a,b} NULL",
    "k%",
    "k_",
]


def _tables(database: Database) -> set[str]:
    return set(inspect(database.engine()).get_table_names())


def test_every_text_is_a_value(database: Database) -> None:
    tables = _tables(database)
    for trick in TRICKS:
        with LockLedger(database.url, name=trick) as ledger:
            ledger.take("other", "run:1")
            ledger.take(trick, trick, metadata={trick: [trick, {trick: trick}]})
            ledger.take(trick, "run:2", takeover_reason=trick, actor=trick)
            ledger.force_release(trick, actor=trick, reason=trick)
            chosen: dict[str, Any] = {"key_prefix": trick, "under": trick, "holder": trick}
            assert [entry.version for entry in ledger.audit_trail(**chosen)] == [1, 2]
            assert [entry.version for entry in ledger.audit_trail(actor=trick)] == [1, 2, 3]
            assert [hold.key for hold in ledger.holds(**chosen)] == [trick]
            assert list(ledger.current_holders(**chosen, after=trick)) == []
            assert ledger.history(trick)[0].metadata == {trick: [trick, {trick: trick}]}
            assert ledger.release_all(holder=trick, under=trick, actor=trick, reason=trick) == 0
            assert ledger.is_locked("other")
            counted = Counted(trick.replace(":", ""))
            assert ledger.replay(counted) > 0
            assert (ledger.replay(counted), counted.seen) == (ledger.settled_position(), 4)
            assert ledger.verify().ok
    assert _tables(database) == tables


class Counted:
    """A projection of a host's; its name is what its position is kept under."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen = 0

    def apply(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        self.seen += len(events)

    def reset(self, connection: Connection) -> None:
        self.seen = 0


SCHEMAS = [
    'public"; DROP TABLE lockledger_events; --',
    "a.b",
    "a b",
    "a'b",
    "a%sb",
    "a:b",
    "$user",
    "pg_temp",
    "pg_catalog",
    "information_schema",
    "a\0b",
    "",
    "x" * 64,
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_schema_is_a_plain_name_or_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="schema="):
        qualified("lockledger_events", "postgresql", schema)


def test_a_mapped_table_and_its_columns_are_quoted(database: Database) -> None:
    """Their names are the host's, and may be anything that the database takes."""
    name, column = 'a"b; DROP TABLE victim; --', "c'd]`;--"
    made, victim = MetaData(), MetaData()
    table = Table(name, made, Column(column, Text), Column("t", DateTime(timezone=True)))
    Table("victim", victim, Column("x", Text))
    victim.create_all(database.engine())
    made.create_all(database.engine())
    with database.engine().begin() as connection:
        connection.execute(insert(table), {column: "k", "t": T0})
    mapping = LiveLocks(table=name, key=column, holder=column, taken_at="t", timezone="UTC")
    with LockLedger(database.url) as ledger:
        assert ledger.import_locks(mapping).locks == 1
        for trick in TRICKS:
            with pytest.raises(ValueError, match="there is no table"):
                ledger.import_locks(replace(mapping, table=trick))
            with pytest.raises(ValueError, match="braces|no column|brace|format"):
                ledger.import_locks(replace(mapping, key=trick))
        assert ledger.history("k")[0].metadata["lockledger_import"]["source"] == name
    assert "victim" in _tables(database)


def test_nothing_on_the_command_line_is_sql(
    sqlite_database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = _tables(sqlite_database)
    OldSystem(sqlite_database)
    for trick in TRICKS[:6]:
        given = ["--database", sqlite_database.url, "--ledger", trick]
        filters = [f"--key-prefix={trick}", f"--under={trick}", f"--holder={trick}", "--json"]
        metadata = json.dumps({trick: trick})
        assert run([*given, "take", trick, trick, "--metadata", metadata]) == 0
        for command in (["holders"], ["holds"], ["audit"], ["export", "audit"]):
            capsys.readouterr()
            assert run([*given, *command, *filters]) == 0
            assert json.loads(capsys.readouterr().out)["key"] == trick
        columns = [f"--column={fact}=a" for fact in ("key", "holder", "taken_at")]
        assert run([*given, "import", f"--table={trick}", "--shape=live", *columns]) == 2
    assert _tables(sqlite_database) > tables
