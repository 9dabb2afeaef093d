"""What a diagnosis finds: one thing looked at, a verdict, and what to do about it."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection

from lockledger.adapters import schema as names
from lockledger.adapters.statements import run

Verdict = Literal["ok", "warning", "fault"]

APPEND_ONLY = (names.EVENTS, names.AUDIT_TRAIL, names.HOLDS)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. A fault is a ledger that contradicts itself; a warning names what to do about it."""

    check: str
    verdict: Verdict
    text: str


def history_is_protected(wanted: set[str], found: set[str]) -> Finding:
    """Whether all triggers that refuse changes of history are there."""
    missing = sorted(wanted - found)
    if missing:
        return Finding(
            "append-only",
            "warning",
            f"history is not protected: {', '.join(missing)} missing or disabled; somebody changed the schema",
        )
    return Finding("append-only", "ok", "the database refuses to change history")


def value(connection: Connection, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
    """The first value of the first row."""
    return run(connection, sql, parameters).scalar()
