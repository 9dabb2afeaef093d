"""How far a call that goes through a whole ledger has come, on a line of a terminal that is drawn over."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lockledger.cli.output import animates
from lockledger.cli.progress import duration
from lockledger.verification import Advance, OnAdvance

_SECONDS_BETWEEN_DRAWINGS: Final = 0.2


@contextmanager
def drawn(what: str = "events") -> Iterator[OnAdvance]:
    """Something to call on every advance, which counts `what`; `None` unless standard error is a terminal.

    The line is empty afterwards.
    """
    if not animates(sys.stderr):
        yield None
        return
    newest = 0.0

    def draw(advance: Advance) -> None:
        nonlocal newest
        if time.monotonic() - newest >= _SECONDS_BETWEEN_DRAWINGS:
            newest = time.monotonic()
            sys.stderr.write(f"\r{_line(advance, what)}\x1b[K")
            sys.stderr.flush()

    try:
        yield draw
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _line(advance: Advance, what: str) -> str:
    line = f"{advance.done:,} of {advance.total:,} {what}  {advance.rate:,.0f}/s"
    left = advance.seconds_left
    return line if left is None else f"{line}  {duration(left)} left"
