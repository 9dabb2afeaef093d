"""Roles for the tests: they belong to the whole server, so each has a name of its own and is dropped again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from support.databases import Database

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
