"""Sites with the router, in both colours, on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.ledgers import Ledgers, ledgers, postgres_ledgers, sqlite_ledgers
from support.sites import COLOURS, Site, site_on

__all__ = ["ledgers", "postgres_ledgers", "sqlite_ledgers"]


@pytest.fixture(params=COLOURS)
def bare_site(request: pytest.FixtureRequest, ledgers: Ledgers) -> Iterator[Site]:
    """A site without routes: a test mounts them, and starts it."""
    with site_on(ledgers, request.param) as site:
        yield site


@pytest.fixture
def site(bare_site: Site) -> Iterator[Site]:
    """A site with the router under `/locks`, answering."""
    bare_site.mount()
    with bare_site.running() as running:
        yield running


@pytest.fixture(params=COLOURS)
def postgres_site(request: pytest.FixtureRequest, postgres_ledgers: Ledgers) -> Iterator[Site]:
    """A site on each PostgreSQL server in turn, with the router under `/locks`, answering."""
    with site_on(postgres_ledgers, request.param) as site:
        site.mount()
        with site.running() as running:
            yield running


@pytest.fixture
def sqlite_site(sqlite_ledgers: Ledgers) -> Iterator[Site]:
    """A sync site on SQLite, with the router under `/locks`, answering."""
    with site_on(sqlite_ledgers, "sync") as site:
        site.mount()
        with site.running() as running:
            yield running
