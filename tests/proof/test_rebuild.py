"""A rebuild makes every projection what follows from the events, touches nothing else, and believes no forgery."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from lockledger import Advance, LockLedger
from lockledger.adapters import postgres_mending
from lockledger.rebuilding import EVENTS_IN_A_PART, parts
from support.colours import asynchronous, running_loop
from support.crowd import life, record
from support.databases import Database
from support.forgeries import EXTRA_ROWS, HEADS, HOLDS, ROW_EDITS, TRAIL, apply, live
from support.ledgers import SettableClock
from support.proof import prove
from support.roles import role_of
from support.tampering import APPEND_ONLY, tamper

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "schema.md"
EMPTIED = [f"DELETE FROM {table}" for table in (TRAIL, HOLDS, HEADS)]


def is_whole(database: Database, ledger: LockLedger) -> None:
    """All tables agree with the events, by two proofs, and history is protected again."""
    prove(database.engine())
    assert ledger.verify().faults == ()
    for table in APPEND_ONLY:
        with (
            pytest.raises(DBAPIError, match="append-only"),
            database.engine().begin() as connection,
        ):
            connection.exec_driver_sql(f"DELETE FROM {table}")


@pytest.mark.parametrize("edit", ROW_EDITS)
def test_a_changed_row(database: Database, ledger: LockLedger, edit: str) -> None:
    apply(database, ROW_EDITS[edit][0])
    done = ledger.rebuild()
    assert done.ok
    expected = 2 if edit == "audit version" else 1
    assert done.inserted + done.corrected + done.removed == expected
    is_whole(database, ledger)
    assert ledger.release("k", "run:4")


@pytest.mark.parametrize("row", EXTRA_ROWS)
def test_a_row_that_follows_from_no_event(database: Database, ledger: LockLedger, row: str) -> None:
    apply(database, EXTRA_ROWS[row][0])
    done = ledger.rebuild()
    assert (done.inserted, done.corrected, done.removed, done.left) == (0, 0, 1, ())
    is_whole(database, ledger)


def test_everything_was_emptied(database: Database, ledger: LockLedger) -> None:
    tamper(database, *EMPTIED)
    done = ledger.rebuild()
    assert (done.events, done.inserted, done.corrected, done.removed) == (12, 12 + 5 + 3, 0, 0)
    is_whole(database, ledger)


def test_a_sound_ledger_is_only_read(database: Database, ledger: LockLedger) -> None:
    done = ledger.rebuild()
    assert done.ok
    assert (done.inserted, done.corrected, done.removed) == (0, 0, 0)
    assert done.seconds > 0
    is_whole(database, ledger)


def test_awaited(database: Database, ledger: LockLedger) -> None:
    tamper(database, *EMPTIED)
    with running_loop() as loop:
        other = asynchronous(loop, database.url)
        assert other.rebuild().inserted == 20
        tamper(database, f"UPDATE {TRAIL} SET holder = 'x' WHERE version = 1")
        assert other.rebuild().corrected == 3
        other.close()
    is_whole(database, ledger)


def test_what_follows_from_a_forgery_is_left_alone(database: Database, ledger: LockLedger) -> None:
    """Event 7 is changed, and its audit entry is removed: no entry is made of what the event says now."""
    apply(
        database,
        "UPDATE lockledger_events SET state = replace(state, 'run:4', 'run:9') WHERE lock_id = :k AND version = 7",
        f"DELETE FROM {TRAIL} WHERE lock_id = :k AND version IN (2, 7)",
    )
    done = ledger.rebuild()
    assert not done.ok
    assert [(each.kind, each.version) for each in done.left] == [("event_hash", 7)]
    assert done.inserted == 1
    assert [entry.version for entry in ledger.history("k", extensions=True)] == [1, 2, 3, 4, 5, 6]


def test_texts_that_a_copy_must_escape(database: Database, clock: SettableClock) -> None:
    with LockLedger(database.url, clock=clock) as ledger:
        odd = {"tab\t": "\\N \\. \\t \n \r \b \v \f \x7f", "😀": ["\u2028", "'", '"', "\\"]}
        ledger.take("k\\N", "run\\.", metadata=odd)
        ledger.take("k\\N", "run:2", takeover_reason="line\n\ttab \\ ' \" \\n\n\\.\n")
        ledger.release("k\\N", "run:2", reason="\\N", metadata=odd)
        before = ledger.history("k\\N")
        tamper(database, *EMPTIED)
        assert ledger.rebuild().ok
        assert ledger.history("k\\N") == before
        is_whole(database, ledger)


def test_in_parts(database: Database) -> None:
    """More events than one part has; some locks long, and each part with something to do."""
    chance = random.Random(1)
    with LockLedger(database.url) as ledger:
        events = record(
            database.engine(),
            (
                life(f"k:{number}", 900 if number < 3 else 100, chance, lambda _: "run:1")
                for number in range(230)
            ),
        )
        assert events > EVENTS_IN_A_PART
        tamper(
            database,
            f"DELETE FROM {TRAIL} WHERE version % 3 = 0",
            f"UPDATE {HEADS} SET holder = 'x', token = 0 WHERE key LIKE 'k:%7'",
            f"UPDATE {HOLDS} SET holder = 'x' WHERE key = 'k:1' AND token < 50",
        )
        told: list[Advance] = []
        done = ledger.rebuild(progress=told.append)
        assert (done.ok, done.events) == (True, events)
        assert ledger.verify().ok
    assert [each.done for each in told] == sorted(each.done for each in told)
    assert told[-1].done == told[-1].total == events


@pytest.mark.parametrize("events", [0, 1, EVENTS_IN_A_PART, 3 * EVENTS_IN_A_PART + 1])
def test_parts_are_all_locks(events: int) -> None:
    whole = list(parts(events))
    assert len(whole) == max(1, -(-events // EVENTS_IN_A_PART))
    assert whole[0].after is None
    assert whole[-1].upto is None
    assert [part.upto for part in whole[:-1]] == [part.after for part in whole[1:]]


@pytest.fixture
def application(postgres_database: Database) -> Iterator[Engine]:
    """An engine of a role with the documented grants, which owns nothing."""
    (grants,) = re.findall(
        r"^## Grants$.*?^```sql\n(.*?)^```$", REFERENCE.read_text(), re.DOTALL | re.MULTILINE
    )
    with role_of(postgres_database) as role:
        with postgres_database.engine().begin() as connection:
            for statement in grants.strip().split(";\n"):
                connection.exec_driver_sql(statement.replace(" TO app", f" TO {role}"))
        engine = postgres_database.engine()

        @event.listens_for(engine, "connect")
        def become(connection: object, _record: object) -> None:
            connection.cursor().execute(f"SET ROLE {role}")  # type: ignore[attr-defined]
            connection.commit()  # type: ignore[attr-defined]

        yield engine
        engine.dispose()


def test_the_applications_role_inserts_what_is_missing_and_leaves_the_rest_to_the_owner(
    postgres_database: Database, application: Engine, clock: SettableClock
) -> None:
    ledger = LockLedger(application, clock=clock)
    live(ledger, clock)
    apply(
        postgres_database,
        f"DELETE FROM {TRAIL} WHERE lock_id = :other",
        EXTRA_ROWS["hold"][0],
        f"DELETE FROM {HOLDS} WHERE token <> 2",
        f"UPDATE {HEADS} SET holder = 'x' WHERE lock_id = :k",
        f"DELETE FROM {HEADS} WHERE lock_id = :other",
        f"UPDATE {TRAIL} SET holder = 'x' WHERE lock_id = :k AND version = 3",
    )
    done = ledger.rebuild()
    assert (done.ok, done.needs_owner) == (False, True)
    assert (done.inserted, done.corrected, done.removed) == (3 + 5 + 1, 1, 0)
    assert done.by_kind == {"audit_different": 1, "hold_extra": 1}
    assert ledger.release("k", "run:4")
    with LockLedger(postgres_database.url, clock=clock) as owners:
        again = owners.rebuild()
        assert (again.ok, again.corrected, again.removed) == (True, 1, 1)
        is_whole(postgres_database, owners)
    ledger.close()


def test_a_table_that_stays_in_use_is_given_up_after_a_while(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_mending, "PATIENCE_SECONDS", 0.5)
    with LockLedger(postgres_database.url) as ledger:
        ledger.take("k", "run:1")
        ledger.take("k", "run:1", if_mine="replace")
        tamper(postgres_database, f"UPDATE {TRAIL} SET holder = 'x' WHERE version = 1")
        with postgres_database.engine().connect() as connection:
            ledger.using(connection).take("other", "run:1")
            done = ledger.rebuild()
            assert (done.ok, done.needs_owner) == (False, False)
            assert done.by_kind == {"audit_different": 1}
            connection.commit()
        assert ledger.rebuild().corrected == 1
        is_whole(postgres_database, ledger)


@pytest.mark.parametrize(
    "change", ["holder = CAST(x'ff00fe' AS TEXT)", "holder = x'ff'", "recorded_at = 5"]
)
def test_what_only_sqlite_keeps(sqlite_database: Database, change: str) -> None:
    with LockLedger(sqlite_database.url) as ledger:
        ledger.take("k", "run:1")
        ledger.release("k", "run:1")
        tamper(sqlite_database, f"UPDATE {TRAIL} SET {change} WHERE version = 1")
        done = ledger.rebuild()
        assert (done.ok, done.corrected) == (True, 1)
        is_whole(sqlite_database, ledger)
