"""Fixtures for every test: databases of each kind, made fresh, and servers to crash."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.databases import (
    KINDS,
    POSTGRES_KINDS,
    Database,
    Servers,
    migrate,
    new_database,
)
from support.postgres import EmbeddedPostgres, embedded_postgres

# Property tests are judged by what they find, not by how fast a busy machine finds or runs an example.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The servers of this run; a test asks for a database instead."""
    running = Servers(tmp_path_factory.mktemp("templates"))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(params=KINDS)
def database(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> Iterator[Database]:
    """A migrated database of each kind in turn."""
    with servers.database(request.param, tmp_path) as database:
        yield database


@pytest.fixture
def sqlite_database(servers: Servers, tmp_path: Path) -> Iterator[Database]:
    """A migrated SQLite file."""
    with servers.database("sqlite", tmp_path) as database:
        yield database


@pytest.fixture(params=POSTGRES_KINDS)
def postgres_database(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> Iterator[Database]:
    """A migrated database on each PostgreSQL server in turn."""
    with servers.database(request.param, tmp_path) as database:
        yield database


@pytest.fixture(params=KINDS)
def empty_database(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> Iterator[Database]:
    """A database of each kind in turn, without a schema."""
    with servers.database(request.param, tmp_path, migrated=False) as database:
        yield database


@pytest.fixture
def durable_server() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server of this test's own, which keeps what it acknowledged through `crash()` and `start()`."""
    with embedded_postgres(durable=True) as server:
        yield server


@pytest.fixture
def durable_database(durable_server: EmbeddedPostgres) -> Iterator[Database]:
    """A migrated database on `durable_server`."""
    database = new_database(durable_server)
    migrate(database)
    yield database
    database.close()


ONE_SERVER = ("acceptance", "cli", "docs", "fuzz", "http", "importing", "projections")
"""Folders of tests of what has no SQL of its own: one PostgreSQL shows as much of it as two."""


def pytest_configure() -> None:
    """Lets the processes that tests start be interrupted, also where the run was started in a shell's background."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what a second server would only repeat; refuses an id that workers would not agree on."""
    _refuse_addresses(items)
    folders = tuple(f"tests/{name}/" for name in ONE_SERVER)
    repeated = [
        item for item in items if item.nodeid.startswith(folders) and _is_on_second_server(item)
    ]
    config.hook.pytest_deselected(items=repeated)
    dropped = set(repeated)
    items[:] = [item for item in items if item not in dropped]


def _is_on_second_server(item: pytest.Item) -> bool:
    kinds = getattr(getattr(item, "callspec", None), "params", {}).values()
    return any(kind in kinds for kind in POSTGRES_KINDS[1:])


def _refuse_addresses(items: list[pytest.Item]) -> None:
    """An id that holds an address differs from worker to worker."""
    differing = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if differing:
        raise pytest.UsageError(
            "these ids differ in every process; give them with ids=[…]:\n" + "\n".join(differing)
        )
