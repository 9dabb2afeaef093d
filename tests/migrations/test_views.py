"""The views for people with a SQL prompt: who holds what now, and every hold there was."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, delete, select

from lockledger.adapters.schema import Tables, declared
from support.databases import Database
from support.lasting import lasting, while_live
from support.rows import AT, OTHER_LOCK, insert_current_holder, insert_ended_hold

MICROSECOND = timedelta(microseconds=1)
SOON = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    """A connection to a migrated database."""
    with database.engine().connect() as connection:
        yield connection


@pytest.fixture
def tables(database: Database) -> Tables:
    """The declared tables and views of that database."""
    return declared(database.dialect)


def rows(connection: Connection, view: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(select(view)).mappings()]


def test_a_hold_without_expiry_is_live(connection: Connection, tables: Tables) -> None:
    insert_current_holder(connection, taken_over_from="run:41", takeover_reason="crashed")
    facts = {
        "ledger": "default",
        "key": "round:5",
        "holder": "run:42",
        "token": 1,
        "taken_at": AT,
        "expires_at": None,
        "taken_over_from": "run:41",
        "takeover_reason": "crashed",
        "metadata": {},
    }
    (live,) = rows(connection, tables.live_holders)
    assert {name: live[name] for name in facts} == facts
    (hold,) = rows(connection, tables.all_holds)
    ends = ("ended_at", "ended_by", "end_reason", "ended_by_actor")
    assert hold == live | dict.fromkeys(ends)


def test_a_free_lock_is_in_neither_view(connection: Connection, tables: Tables) -> None:
    insert_current_holder(connection, holder=None, token=None, taken_at=None, metadata=None)
    assert rows(connection, tables.live_holders) == rows(connection, tables.all_holds) == []


def test_a_hold_is_over_at_the_instant_of_its_expiry(
    connection: Connection, tables: Tables
) -> None:
    # The newest event's time is later than the clock, and so is the lock's now.
    insert_current_holder(connection, changed_at=SOON, expires_at=SOON)
    insert_current_holder(
        connection,
        lock_id=OTHER_LOCK,
        key="round:6",
        changed_at=SOON,
        expires_at=SOON + MICROSECOND,
    )
    assert [live["key"] for live in rows(connection, tables.live_holders)] == ["round:6"]
    ends = {h["key"]: (h["ended_at"], h["ended_by"]) for h in rows(connection, tables.all_holds)}
    assert ends == {"round:5": (SOON, "expiry"), "round:6": (None, None)}


def test_a_hold_that_runs_out_shows_its_expiry_as_its_end(
    database: Database, connection: Connection, tables: Tables
) -> None:
    def story(_key: str, seconds: float) -> None:
        connection.rollback()
        now = datetime.now(UTC)
        expires_at = now + timedelta(seconds=seconds)
        connection.execute(delete(tables.current_holders))
        insert_current_holder(connection, changed_at=now, expires_at=expires_at)
        connection.commit()
        with while_live(database, expires_at):
            live_holders = rows(connection, tables.live_holders)
            assert [live["expires_at"] for live in live_holders] == [expires_at]
            (hold,) = rows(connection, tables.all_holds)
            assert (hold["ended_at"], hold["ended_by"]) == (None, None)

        # In the same transaction: the clock moves on, though PostgreSQL's now() would stand still.
        time.sleep(seconds + 0.01)
        assert rows(connection, tables.live_holders) == []
        (hold,) = rows(connection, tables.all_holds)
        assert (hold["ended_at"], hold["ended_by"]) == (expires_at, "expiry")
        assert (hold["end_reason"], hold["ended_by_actor"]) == (None, None)

    lasting(story)


def test_ended_holds_stand_beside_the_live_one(connection: Connection, tables: Tables) -> None:
    insert_ended_hold(
        connection, ended_by="takeover", end_reason="urgent", ended_by_actor="user:8", ended_at=AT
    )
    insert_current_holder(connection, token=2, holder="user:8", version=2)
    holds = sorted(rows(connection, tables.all_holds), key=lambda hold: hold["token"])
    assert [(h["holder"], h["ended_by"], h["ended_at"]) for h in holds] == [
        ("run:42", "takeover", AT),
        ("user:8", None, None),
    ]
    assert (holds[0]["end_reason"], holds[0]["ended_by_actor"]) == ("urgent", "user:8")


def test_the_sessions_time_zone_changes_nothing(postgres_database: Database) -> None:
    tables = declared("postgresql")
    with postgres_database.engine().connect() as connection:
        insert_current_holder(connection, changed_at=SOON, expires_at=SOON + MICROSECOND)
        for zone in ("Asia/Tokyo", "America/New_York"):
            connection.exec_driver_sql(f"SET TIME ZONE '{zone}'")
            (live,) = rows(connection, tables.live_holders)
            assert live["expires_at"].isoformat() == (SOON + MICROSECOND).isoformat()
            assert len(rows(connection, tables.all_holds)) == 1


def test_the_views_look_only_into_their_own_schema(postgres_database: Database) -> None:
    with postgres_database.engine().connect() as connection:
        insert_current_holder(connection)
        connection.exec_driver_sql(
            "CREATE SCHEMA elsewhere"
            " CREATE TABLE lockledger_current_holders (holder text, expires_at timestamptz)"
        )
        connection.exec_driver_sql("SET LOCAL search_path = elsewhere, pg_catalog")
        assert len(rows(connection, declared("postgresql").live_holders)) == 1
