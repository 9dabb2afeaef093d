"""Fuzzers: a few examples in CI, the same ones each time; `LOCKLEDGER_SOAK=100` makes them a hundred times more."""

from __future__ import annotations
