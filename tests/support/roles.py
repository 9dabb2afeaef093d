"""Roles for the tests: they belong to the whole server, so each has a name of its own and is dropped again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from support.databases import Database

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "schema.md"

_numbers = count(1)


@contextmanager
def role_of(database: Database) -> Iterator[str]:
    """A new role without any privilege, for one PostgreSQL database; gives its name."""
    server = database.server
    assert server is not None
    role = f"{database.name}_role_{next(_numbers)}"
    with server.connect(database.name) as connection:
        connection.execute(f"CREATE ROLE {role} NOLOGIN")
        try:
            yield role
        finally:
            connection.execute(f"DROP OWNED BY {role} CASCADE")
            connection.execute(f"DROP ROLE {role}")


def documented_grants(role: str) -> list[str]:
    """The statements of the reference, for a role."""
    (block,) = re.findall(
        r"^## Grants$.*?^```sql\n(.*?)^```$", REFERENCE.read_text(), re.DOTALL | re.MULTILINE
    )
    return [statement.replace(" TO app", f" TO {role}") for statement in block.strip().split(";\n")]


@contextmanager
def application_of(database: Database) -> Iterator[Engine]:
    """An engine of a role with the documented grants and nothing else."""
    with role_of(database) as role:
        with database.engine().begin() as connection:
            for statement in documented_grants(role):
                connection.exec_driver_sql(statement)
        engine = database.engine()

        @event.listens_for(engine, "connect")
        def become(connection: Any, _record: object) -> None:
            connection.cursor().execute(f"SET ROLE {role}")
            connection.commit()

        yield engine
        engine.dispose()
