"""What the owner of the tables can do to them: the triggers are put aside, and are back afterwards."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection

from lockledger.domain.keys import lock_id
from support.databases import Database

APPEND_ONLY = ("lockledger_events", "lockledger_audit_trail", "lockledger_holds")


def tamper(database: Database, *statements: str, **keys: str) -> None:
    """Runs statements in one transaction; `:name` in them is the id of the lock whose key is given under that name."""
    with database.engine().begin() as connection:
        aside = put_aside(connection)
        for statement in statements:
            filled = statement
            for name, key in sorted(keys.items(), reverse=True):
                filled = filled.replace(f":{name}", _quoted(database, lock_id("default", key)))
            # No parameters, so that colons and percent signs are what they are.
            connection.connection.cursor().execute(filled)
        for statement in aside:
            connection.exec_driver_sql(statement)


def _quoted(database: Database, stream: UUID) -> str:
    return f"'{stream if database.dialect == 'postgresql' else stream.hex}'"


def put_aside(connection: Connection) -> list[str]:
    """The statements that bring the triggers back."""
    if connection.dialect.name == "postgresql":
        triggers = [
            (table, f"{table}_append_only{kind}")
            for table in APPEND_ONLY
            for kind in ("", "_truncate")
        ]
        for table, name in triggers:
            connection.exec_driver_sql(f"ALTER TABLE public.{table} DISABLE TRIGGER {name}")
        return [
            f"ALTER TABLE public.{table} ENABLE ALWAYS TRIGGER {name}" for table, name in triggers
        ]
    found = connection.exec_driver_sql(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    ).all()
    for name, _ in found:
        connection.exec_driver_sql(f"DROP TRIGGER {name}")
    return [made_by for _, made_by in found]
