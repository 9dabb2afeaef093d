"""Standard output and standard error: they are always there, and what they do not take ends no work."""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO


class Outlet(io.RawIOBase):
    """Where a stream's bytes go. What cannot be written is lost, and `error` keeps the first reason.

    Only while `stopping` is that reason raised, once, and `stopped` tells so.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream
        self._raw: Any = getattr(stream.buffer, "raw", stream.buffer)
        self.error: OSError | None = None
        self.stopping = self.stopped = False

    def write(self, data: Any, /) -> int:
        """Writes what the stream takes; all the rest is gone when it takes none."""
        try:
            while (written := self._raw.write(data)) is None:  # somebody made it non-blocking
                select.select([], [self], [])
        except OSError as error:
            if self.error is None:
                self.error = error
                self.stopped = self.stopping
                if self.stopping:
                    raise
            return len(data)
        return int(written)

    def writable(self) -> bool:
        """As every stream of this kind."""
        return True

    def isatty(self) -> bool:
        """As the stream beneath."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """As the stream beneath."""
        return self._stream.fileno()


@contextmanager
def dependable() -> Iterator[None]:
    """While it lasts, both streams are there and raise nothing; text they cannot encode comes out escaped."""
    before = sys.stdout, sys.stderr
    _fill_gaps()
    with ExitStack() as stack:
        sys.stdout, sys.stderr = (_dependable(stream, stack) for stream in before)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.stdout, sys.stderr = before


@contextmanager
def only_printing(only: bool = True) -> Iterator[None]:
    """While it lasts, output that cannot be written ends the command: it has nothing else to go on for."""
    outlet = _outlet()
    if outlet is None or not only:
        yield
        return
    outlet.stopping = True
    try:
        yield
        sys.stdout.flush()
    finally:
        outlet.stopping = False


def stopped() -> bool:
    """Whether output that could not be written ended the command."""
    outlet = _outlet()
    return outlet is not None and outlet.stopped


def lost() -> OSError | None:
    """Why standard output did not take all that was printed; a reader who has gone away is no such reason."""
    sys.stdout.flush()
    outlet = _outlet()
    if outlet is None or isinstance(outlet.error, BrokenPipeError):
        return None
    return outlet.error


def _outlet() -> Outlet | None:
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw if isinstance(raw, Outlet) else None


def _fill_gaps() -> None:
    """So that no file or database is opened with the number of a closed stream, to which libraries may write."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)


def _dependable(stream: TextIO | None, stack: ExitStack) -> TextIO:
    if stream is None:  # the process was started with it closed
        return stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(Outlet(stream)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering or stream.write_through,
    )
