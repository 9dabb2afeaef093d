"""Whatever somebody puts into the tables, reading it is an answer or a `TamperedLedger`, and verify finds it."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lockledger import EventFormatMismatch, LockLedger, LockLedgerError, TamperedLedger
from lockledger.domain.keys import lock_id
from support.databases import Database
from support.fuzzing import altered, damaged, dumped, endless, fuzzing, json_values, texts
from support.tampering import put_aside
from support.verbs import BOUND, Verb

EVENTS, TRAIL = "lockledger_events", "lockledger_audit_trail"
HEADS = "lockledger_current_holders"
CHANGING = ("guard", "expire_due", "force_release")
CALLS: dict[str, Verb] = {
    **{name: verb for name, verb in BOUND.items() if name not in CHANGING},
    "events": lambda ledger: list(ledger.events()),
    "export": lambda ledger: ledger.export_audit_trail(io.BytesIO(), format="jsonl"),
    "export holds": lambda ledger: ledger.export_holds(io.BytesIO(), format="csv"),
    "expire_due": lambda ledger: ledger.expire_due(),
    "checkpoint": lambda ledger: ledger.checkpoint(),
}
"""What reads rows. None of them changes the lock `k`, which is somebody else's."""


def _stored(data: bytes) -> str:
    """Bytes as text of a database: no NUL and no halves of characters, which no database takes."""
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def _as_it_was(connection: Connection, column: str, table: str) -> str:
    found = connection.exec_driver_sql(
        f"SELECT {column} FROM {table} WHERE version = 2"
    ).scalar_one()
    return found if isinstance(found, str) else json.dumps(found)


def test_any_state_and_topic_is_tampering(database: Database) -> None:
    with LockLedger(database.url) as ledger:
        ledger.take("k", "run:7", metadata={"n": [1, {"deep": None}]})
        ledger.take("k", "run:8", takeover_reason="x")
        kept = ledger.checkpoint()
        with database.engine().connect() as connection:
            put_aside(connection)
            connection.commit()
            state = _as_it_was(connection, "state", EVENTS)
            whole = json.loads(state)
            states = st.one_of(
                altered(whole).map(dumped),
                damaged(state.encode()),
                json_values.map(dumped),
                endless,
            )

            @fuzzing(25)
            @given(states.map(_stored), st.sampled_from([None, None, "lockledger.LockTaken", "x"]))
            def is_found(changed: str, topic: str | None) -> None:
                values = (changed, topic or "lockledger.LockTakenOver")
                _write(connection, database, EVENTS, ("state", "topic"), values)
                try:
                    _reads_without_a_raw_error(ledger)
                    if values != (state, "lockledger.LockTakenOver"):
                        with suppress(EventFormatMismatch):
                            assert not ledger.verify(checkpoint=kept).ok
                finally:
                    as_it_was = (state, "lockledger.LockTakenOver")
                    _write(connection, database, EVENTS, ("state", "topic"), as_it_was)

            is_found()
            assert ledger.verify(checkpoint=kept).ok


def _write(
    connection: Connection,
    database: Database,
    table: str,
    columns: tuple[str, ...],
    values: tuple[Any, ...],
) -> None:
    mark = "%s" if database.dialect == "postgresql" else "?"
    changes = ", ".join(f'"{column}" = {mark}' for column in columns)
    stream = lock_id("default", "k")
    key = stream if database.dialect == "postgresql" else stream.hex
    sql = f"UPDATE {table} SET {changes} WHERE lock_id = {mark} AND version = 2"
    connection.exec_driver_sql(sql, (*values, key))
    connection.commit()


def _reads_without_a_raw_error(ledger: LockLedger) -> None:
    for call in CALLS.values():
        with suppress(LockLedgerError):
            call(ledger)
    with suppress(EventFormatMismatch, TamperedLedger):
        ledger.verify()


JSON_COLUMNS = [(TRAIL, "metadata"), (TRAIL, "after"), (TRAIL, "before"), (HEADS, "metadata")]
TEXT_COLUMNS = [(TRAIL, "reason"), (TRAIL, "action"), (TRAIL, "holder"), (HEADS, "takeover_reason")]


def test_any_row_of_a_projection_is_read_or_tampering(database: Database) -> None:
    with LockLedger(database.url) as ledger:
        ledger.take("k", "run:7", metadata={"n": 1})
        ledger.take("k", "run:8", takeover_reason="why", metadata={"n": [2, {"deep": None}]})
        with database.engine().connect() as connection:
            put_aside(connection)
            connection.commit()
            sound = {
                place: _as_it_was(connection, f'"{place[1]}"', place[0])
                for place in (*JSON_COLUMNS, *TEXT_COLUMNS)
            }

            @fuzzing(25)
            @given(
                st.one_of(
                    st.tuples(st.sampled_from(JSON_COLUMNS), json_values.map(dumped) | endless),
                    st.tuples(st.sampled_from(TEXT_COLUMNS), texts.map(_bytes)),
                )
            )
            def is_read(change: tuple[tuple[str, str], bytes]) -> None:
                (table, column), data = change
                try:
                    _write(connection, database, table, (column,), (_stored(data),))
                except DBAPIError:  # a PostgreSQL column takes no such JSON
                    connection.rollback()
                    return
                try:
                    _reads_without_a_raw_error(ledger)
                    with suppress(TamperedLedger):
                        ledger.rebuild()
                finally:
                    put_aside(connection)  # a rebuild brings them back
                    before = (sound[table, column],)
                    _write(connection, database, table, (column,), before)

            is_read()
            assert ledger.verify().ok


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
