"""A run of a command log against a ledger: one connection, one transaction for each line, each line's own time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import FrameType

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from lockledger.adapters import bulk
from lockledger.adapters.engines import Source
from lockledger.adapters.identifiers import SQLITE
from lockledger.cli import output
from lockledger.cli.command_log import BadLine, Line
from lockledger.cli.given import Given
from lockledger.cli.interrupts import heard
from lockledger.domain.errors import (
    HoldChanged,
    LockedByOther,
    LockLedgerError,
    NotHolding,
    NotLockable,
)
from lockledger.workings import Workings

_REFUSALS = (LockedByOther, HoldChanged, NotHolding, NotLockable)


class Run:
    """Carries out lines. An interrupt waits until the command under way is done, so that its outcome is known."""

    def __init__(self, given: Given, connection: Connection, first_line: int) -> None:
        self._connection = connection
        self._now = datetime.min.replace(tzinfo=UTC)
        self._workings = Workings(
            connection.dialect.name,
            name=given.ledger_name,
            schema=given.schema,
            clock=lambda: self._now,
            policy=None,
            names=None,
        )
        self._workings.check(connection)
        self._door = self._workings.door()
        self._next_line = first_line
        self._busy = self._interrupted = False

    def perform(self, line: Line) -> Sequence[str]:
        """Carries out one line and commits it. Gives the events' names, or `unchanged`, or `refused`.

        Raises `BadLine` for a command outside the limits; nothing is recorded for it.
        """
        self._busy = True
        try:
            happened = self._carried_out(line)
            self._next_line = line.number + 1
        finally:
            self._busy = False
        if self._interrupted:
            raise KeyboardInterrupt
        return happened

    def _carried_out(self, line: Line) -> Sequence[str]:
        self._now = line.at
        try:
            performed = self._workings.perform_alone(self._connection, line.command(self._door))
        except _REFUSALS:
            return ("refused",)
        except LockLedgerError as error:
            if not isinstance(error, ValueError):
                raise
            raise BadLine(line.number, f"cannot be carried out: {error}") from error
        return [each.event.action for each in performed.events] or ("unchanged",)

    def interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        """What Ctrl-C does; the second one does not wait."""
        if not self._busy or self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def last_words(self) -> str:
        """What is said when the database does not let an interrupt through."""
        return f"interrupted; {self.where_to_go_on(KeyboardInterrupt())}"

    def where_to_go_on(self, error: BaseException) -> str:
        """What is done, and how to go on."""
        if isinstance(error, BadLine):
            return (
                f"what came before it is done: repair it and go on with --from-line {error.number}"
            )
        return f"what came before line {self._next_line} is done: go on with --from-line {self._next_line}"


@contextmanager
def opened_run(given: Given, first_line: int) -> Iterator[Run]:
    """A run on a connection of its own. On SQLite a full checkpoint ends it, however it ends."""
    source = Source(given.url(), busy_timeout=given.busy_seconds, synchronous=bulk.SYNCHRONOUS)
    try:
        with source.connect() as connection:
            run = Run(given, connection, first_line)
            with heard(run.interrupt, run.last_words):
                if source.dialect == SQLITE:
                    with _checkpointed(connection):
                        yield run
                else:
                    yield run
    finally:
        source.close()


@contextmanager
def _checkpointed(connection: Connection) -> Iterator[None]:
    bulk.prepare(connection)
    try:
        yield
    except BaseException:
        # What stopped the run is the news, not a file that cannot be checkpointed because of it.
        with suppress(SQLAlchemyError):
            bulk.checkpoint(connection)
        raise
    if not bulk.checkpoint(connection):
        output.message("a reader held up the final checkpoint; the next one will finish it")
