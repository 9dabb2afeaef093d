"""A lock as an aggregate of `eventsourcing`, imported only where it is measured: importing it patches dataclasses."""

from __future__ import annotations

from eventsourcing.domain import Aggregate, event


class StockLock(Aggregate):
    """Takes and releases, without rules: what the library does for any aggregate."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.holder: str | None = None

    @event("Taken")
    def take(self, holder: str) -> None:
        self.holder = holder

    @event("Released")
    def release(self) -> None:
        self.holder = None
