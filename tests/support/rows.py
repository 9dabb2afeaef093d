"""Rows of the ledger's tables as a test needs them, past every rule of the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from lockledger.adapters.schema import Tables, declared

LOCK = UUID("5d0ea6e7-0d0b-5f0a-8f0e-2f5a4c1e9a01")
OTHER_LOCK = UUID("9f1c2d3e-4b5a-5c6d-8e7f-0a1b2c3d4e5f")
AT = datetime(2026, 11, 30, 9, 3, 22, 123456, tzinfo=UTC)


def tables(connection: Connection, schema: str | None = None) -> Tables:
    """The declared tables of the connection's database."""
    return declared(connection.dialect.name, schema)


def hold(**facts: Any) -> dict[str, Any]:
    """The hold of one holder, as current holders and ended holds both keep it."""
    return {
        "lock_id": LOCK,
        "ledger": "default",
        "key": "round:5",
        "holder": "run:42",
        "token": 1,
        "taken_at": AT,
        "expires_at": None,
        "metadata": {},
        **facts,
    }


def insert_event(connection: Connection, schema: str | None = None, **facts: Any) -> None:
    """One event; at position 1 unless told."""
    row = {
        "lock_id": LOCK,
        "version": 1,
        "position": 1,
        "ledger": "default",
        "topic": "lockledger.LockTaken",
        "state": "{}",
        "hash": bytes(32),
        **facts,
    }
    connection.execute(tables(connection, schema).events.insert(), row)


def insert_audit_entry(connection: Connection, schema: str | None = None, **facts: Any) -> None:
    """One entry of the audit trail."""
    row = {
        "lock_id": LOCK,
        "version": 1,
        "ledger": "default",
        "position": 1,
        "key": "round:5",
        "action": "LockTaken",
        "holder": "run:42",
        "token": 1,
        "occurred_at": AT,
        "recorded_at": AT,
        "metadata": {},
        "event_hash": bytes(32),
        **facts,
    }
    connection.execute(tables(connection, schema).audit_trail.insert(), row)


def insert_ended_hold(connection: Connection, schema: str | None = None, **facts: Any) -> None:
    """One hold that ended."""
    row = hold(ended_at=AT, ended_by="release") | facts
    connection.execute(tables(connection, schema).holds.insert(), row)


def insert_current_holder(connection: Connection, schema: str | None = None, **facts: Any) -> None:
    """One row of current holders."""
    row = hold(version=1, changed_at=AT) | facts
    connection.execute(tables(connection, schema).current_holders.insert(), row)
