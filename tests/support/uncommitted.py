"""A take that has written everything and not committed, in another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from lockledger import Policy
from support.ledgers import Ledgers

SOON = 20.0


@contextmanager
def uncommitted_take(ledgers: Ledgers, key: str, holder: str = "A") -> Iterator[None]:
    """Inside, a take of the key is written and not yet committed; afterwards it is."""
    written, over = threading.Event(), threading.Event()

    class Slow(Policy[Connection]):
        def recorded(self, connection: Connection, events: object) -> None:
            written.set()
            assert over.wait(SOON)

    slow = ledgers.open(policy=Slow())
    taking = threading.Thread(target=slow.take, args=(key, holder))
    taking.start()
    try:
        assert written.wait(SOON)
        yield
    finally:
        over.set()
        taking.join()
