"""What is measured: the names of the operations, what is there before them, and who can do which."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Final

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

TAKE: Final = "take and release"
NEW: Final = "take and release, a new lock each time"
IN_TURN: Final = "take and release, two in turn"
REFUSED: Final = "refused take"
TAKEOVER: Final = "takeover"
GUARD: Final = "guard in a host's transaction"
HOLDER: Final = "who holds a lock"
HISTORY: Final = "history of one lock, 100 entries"
HOLDER_AT: Final = "who held it then"

HELD: Final = "held"
"""A lock that the boss holds all the time."""
PAST: Final = "past"
"""A lock with a hundred entries in its history."""
BOSS: Final = "boss"
AT_ONCE: Final = 100
WHY: Final = "needed for the evening run"


def new_keys() -> Iterator[str]:
    """Keys that no round before had."""
    began = time.time_ns()
    return (f"new:{began}:{number}" for number in count())


def make_documents(url: str) -> None:
    """The rows that hosts edit."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(1)"))
        connection.execute(
            text("CREATE TABLE IF NOT EXISTS bench_document (id int PRIMARY KEY, edits int)")
        )
        connection.execute(
            text(
                "INSERT INTO bench_document SELECT id, 0 FROM generate_series(0, 63) id ON CONFLICT DO NOTHING"
            )
        )
    engine.dispose()


def edit(session: Session, number: int) -> None:
    """What a host does in its transaction beside the lock."""
    session.execute(
        text("UPDATE bench_document SET edits = edits + 1 WHERE id = :id"), {"id": number}
    )
