"""`eventsourcing`'s own recorder for PostgreSQL with a lock as its aggregate, imported only where it is measured.

Importing it patches dataclasses and silences psycopg's loggers, so only the processes of its own clients do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder  # noqa: TID251 - it is measured


class StockLock(Aggregate):
    """Takes and releases, without rules: what the library does for any aggregate."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.holder: str | None = None

    @event("Taken")
    def take(self, holder: str) -> None:
        self.holder = holder

    @event("Released")
    def release(self) -> None:
        self.holder = None


TABLES = """
CREATE TABLE IF NOT EXISTS stock_holder (
    lock_id uuid PRIMARY KEY, key text NOT NULL, holder text, changed_at timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS stock_audit (
    lock_id uuid, version bigint, key text NOT NULL, action text NOT NULL, actor text NOT NULL,
    at timestamptz NOT NULL, before jsonb, after jsonb, PRIMARY KEY (lock_id, version));
CREATE INDEX IF NOT EXISTS stock_audit_key ON stock_audit (key);
"""
_HOLDER = """
INSERT INTO stock_holder (lock_id, key, holder, changed_at) VALUES (%s, %s, %s, clock_timestamp())
ON CONFLICT (lock_id) DO UPDATE SET holder = excluded.holder, changed_at = excluded.changed_at
"""
_AUDIT = """
INSERT INTO stock_audit (lock_id, version, key, action, actor, at, before, after)
VALUES (%s, %s, %s, %s, %s, clock_timestamp(), %s, %s)
"""


class ProjectingRecorder(PostgresApplicationRecorder):
    """Writes the current holder and an audit row in the transaction, and the same round trip, of the events."""

    def _insert_events(
        self, curs: Any, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> None:
        key, actor, holder, before, after = kwargs["projected"]
        for stored in stored_events:
            curs.execute(_HOLDER, (stored.originator_id, key, holder), prepare=True)
            curs.execute(
                _AUDIT,
                (
                    stored.originator_id,
                    stored.originator_version,
                    key,
                    stored.topic.rpartition(".")[2],
                    actor,
                    before,
                    after,
                ),
                prepare=True,
            )
        super()._insert_events(curs, stored_events, **kwargs)


def application(environment: dict[str, str]) -> Application[Any]:
    """An application on the stock recorder, or on the one named in the environment."""
    return Application(environment)
