"""Many appends in a row on SQLite: not every one reaches the disk by itself, and at the end all of them have."""

from typing import Final

from sqlalchemy import Connection

from lockledger.adapters.statements import run

SYNCHRONOUS: Final = "NORMAL"
"""For `Source`: a crash of the machine may take back the newest commits, and never leaves half of one."""

_PAGES_BETWEEN_CHECKPOINTS = 16_384
_CACHE_KIBIBYTES = 16_384


def prepare(connection: Connection) -> None:
    """Lets the write-ahead log of this connection grow to 64 MiB before it is checkpointed, with a larger cache."""
    run(connection, f"PRAGMA wal_autocheckpoint = {_PAGES_BETWEEN_CHECKPOINTS}").all()
    run(connection, f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}")


def checkpoint(connection: Connection) -> bool:
    """Brings everything committed to the disk and empties the log; `False` when a reader held that up.

    Waits for readers and writers up to the busy timeout.
    """
    busy = run(connection, "PRAGMA wal_checkpoint(TRUNCATE)").scalar()
    return not busy
