"""Ledgers whose past is asked for, and whose tables are proven against their events after each test."""

from __future__ import annotations

from support.ledgers import clock, ledger, ledgers, postgres_ledgers, sqlite_ledgers

__all__ = ["clock", "ledger", "ledgers", "postgres_ledgers", "sqlite_ledgers"]
