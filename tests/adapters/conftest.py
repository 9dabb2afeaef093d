"""Fixtures for the tests of adapters."""

from __future__ import annotations

from support.recorders import recorder, transactions

__all__ = ["recorder", "transactions"]
