"""What can be wrong with a ledger: each fault by its kind and its place, with what was expected and what was found."""

from typing import Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict

FaultKind = Literal[
    "event_missing",
    "event_hash",
    "event_unreadable",
    "event_foreign",
    "rule",
    "position",
    "head_missing",
    "head_extra",
    "head_different",
    "audit_missing",
    "audit_extra",
    "audit_different",
    "hold_missing",
    "hold_extra",
    "hold_different",
    "row_unreadable",
    "checkpoint",
]


MAX_FAULTS: Final = 1000
"""Faults that are kept; more are only counted."""


class Fault(BaseModel):
    """One thing that is not as it must be.

    `key` and `lock_id` name the lock, `key` null where no event or row tells it; `version` is the event's (of a hold its
    token), `position` its place in the ledger. `expected` and `found` are for a person to read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: FaultKind
    key: str | None = None
    lock_id: UUID | None = None
    version: int | None = None
    position: int | None = None
    expected: str
    found: str

    def __str__(self) -> str:
        place = [
            None if self.key is None else ascii(self.key),
            f"stream {self.lock_id}" if self.key is None and self.lock_id is not None else None,
            None if self.version is None else f"version {self.version}",
            None if self.position is None else f"position {self.position}",
        ]
        where = ", ".join(part for part in place if part is not None) or "the ledger"
        return f"{self.kind}: {where}: expected {self.expected}, found {self.found}"


class FaultCount:
    """Faults as they are found: all counted, the first 1,000 kept."""

    def __init__(self) -> None:
        self.kept: list[Fault] = []
        self.by_kind: dict[FaultKind, int] = {}

    def add(self, fault: Fault) -> None:
        """One more."""
        self.by_kind[fault.kind] = self.by_kind.get(fault.kind, 0) + 1
        if len(self.kept) < MAX_FAULTS:
            self.kept.append(fault)

    def extend(self, more: "FaultCount") -> None:
        """All of another count."""
        for kind, number in more.by_kind.items():
            self.by_kind[kind] = self.by_kind.get(kind, 0) + number
        self.kept += more.kept[: MAX_FAULTS - len(self.kept)]

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.by_kind.values())
