"""Crashes: of processes, at each of their steps, and of the database server."""

from __future__ import annotations

from support.ledgers import ledgers, postgres_ledgers, sqlite_ledgers

__all__ = ["ledgers", "postgres_ledgers", "sqlite_ledgers"]
