"""`lockledger sweep`: records expiries that have passed, once or every so often."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockledger.cli import output
from lockledger.cli.command import command, report
from lockledger.cli.failures import BadInput
from lockledger.cli.given import Given
from lockledger.cli.interrupts import heard
from lockledger.cli.options import read_seconds, whole

if TYPE_CHECKING:
    from lockledger.ledger import LockLedger

BATCH: Final = 1000
"""Expiries that a signal waits for at most."""
LONGEST_PAUSE: Final = 86_400


def add_to(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "sweep")(sweep)


def sweep(
    given: Given,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            parser=read_seconds,
            help="Again and again, so many seconds after each turn.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", parser=whole(1), help="At most so many a turn; all by default."),
    ] = None,
) -> None:
    """Record expiries that have passed, the longest due first.

    No answer about who holds or held a lock depends on it, and any number may run at once: each expiry is recorded
    once. With --every it goes on until it is told to end: SIGTERM ends it with 0, Ctrl-C with 130.
    """
    if every is not None and not 0 < every <= LONGEST_PAUSE:
        raise BadInput(f"--every {every:g}: give more than 0 and at most {LONGEST_PAUSE} seconds")
    turns = _Turns(given, limit)
    with given.opened() as ledger, heard(turns.interrupt):
        if every is None:
            turns.take(ledger)
            return
        with _terminated_by(turns.end):
            try:
                _go_on(turns, ledger, every)
            except _Ended:
                output.message(f"ended; {turns.recorded} expiries recorded in {turns.count} turns")


def _go_on(turns: "_Turns", ledger: "LockLedger", every: float) -> None:
    from sqlalchemy.exc import InterfaceError, OperationalError

    from lockledger.domain.errors import ConcurrencyConflict, OutcomeUnknown

    while True:
        try:
            turns.take(ledger)
        except (OperationalError, InterfaceError, ConcurrencyConflict, OutcomeUnknown) as error:
            if (
                not turns.count
            ):  # nothing has worked yet: more likely a wrong address than a fault that passes
                raise
            turns.failed(error, every)
        turns.rest(every)


class _Ended(Exception):
    """No error: somebody asked for the end."""


class _Turns:
    """Sweeps a ledger. A signal waits until the batch under way is recorded, the second Ctrl-C does not."""

    def __init__(self, given: Given, limit: int | None) -> None:
        self._given = given
        self._limit = limit
        self.count = self.recorded = 0
        self._busy = True
        self._asked: type[BaseException] | None = None

    def take(self, ledger: "LockLedger") -> None:
        """Records what is due, until a batch finds nothing, and says how much that was."""
        at, began, recorded = datetime.now(UTC), time.monotonic(), 0
        with _drawn() as draw:
            while left := BATCH if self._limit is None else min(BATCH, self._limit - recorded):
                swept = ledger.expire_due(left)
                self.recorded += swept
                recorded += swept
                draw(recorded)
                if self._asked or not swept:
                    break
        self.count += 1
        self._tell(at, recorded, time.monotonic() - began)
        if self._asked:
            raise self._asked

    def _tell(self, at: datetime, recorded: int, seconds: float) -> None:
        if self._given.json:
            moment = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            facts = {"at": moment, "recorded": recorded, "seconds": round(seconds, 3)}
            output.print_json(facts)
        else:
            print(
                f"{output.moment(at)} {recorded} {'expiry' if recorded == 1 else 'expiries'} recorded"
            )
        sys.stdout.flush()

    def failed(self, error: BaseException, every: float) -> None:
        """Tells of a turn that the database did not let through, and counts it."""
        self.count += 1
        error.add_note(f"the next turn, in {every:g} s, tries again")
        report(self._given, error)
        if self._asked:
            raise self._asked

    def rest(self, seconds: float) -> None:
        """Waits for the next turn; a signal ends it at once."""
        self._busy = False
        if self._asked:
            raise self._asked
        time.sleep(seconds)
        self._busy = True

    def interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        """What Ctrl-C does."""
        if not self._busy or self._asked is KeyboardInterrupt:
            raise KeyboardInterrupt
        self._asked = KeyboardInterrupt

    def end(self, _signal: int, _frame: FrameType | None) -> None:
        """What SIGTERM does."""
        if not self._busy:
            raise _Ended
        self._asked = self._asked or _Ended


@contextmanager
def _terminated_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _drawn() -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how far a turn has come, from its second batch on."""
    if not output.animates(sys.stderr):
        yield lambda _recorded: None
        return
    began, shown = time.monotonic(), False

    def draw(recorded: int) -> None:
        nonlocal shown
        if recorded >= BATCH:
            shown = True
            rate = recorded / max(time.monotonic() - began, 1e-9)
            sys.stderr.write(f"\r{recorded:,} expiries  {rate:,.0f}/s\x1b[K")
            sys.stderr.flush()

    try:
        yield draw
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
