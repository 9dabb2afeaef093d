"""Command logs: JSON Lines, plain or gzip, one command a line, each at its own time."""

import gzip
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from lockledger.cli.failures import BadInput
from lockledger.cli.strict_json import NotStrict, decoded
from lockledger.domain.errors import shown
from lockledger.door import Door
from lockledger.wishes import Command

MAX_LINE_BYTES: Final = 64 * 1024
"""Twice what a command within the limits takes with every character escaped."""

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = "\ufeff"
_MANDATORY = ("at", "do", "key", "holder")
_OPTIONAL = {
    "take": ("reason", "ttl"),
    "release": ("reason",),
    "force_release": ("reason",),
    "extend": ("reason", "ttl"),
}
_FIELDS = frozenset((*_MANDATORY, "reason", "ttl"))


class BadLine(BadInput):
    """A line that is no command; what came before it stays done."""

    def __init__(self, number: int, fault: str) -> None:
        self.number = number
        super().__init__(f"line {number} {fault}")


@dataclass(frozen=True, slots=True)
class Line:
    """One command of the log, and when it was given."""

    number: int
    at: datetime
    do: str
    key: str
    holder: str
    reason: str | None
    ttl: float | None

    def command(self, door: Door) -> Command[Any]:
        """The checked command. Raises what the door raises for keys, holders, reasons and ttls outside their limits."""
        if self.do == "take":
            return door.take(self.key, self.holder, ttl=self.ttl, takeover_reason=self.reason)
        if self.do == "release":
            return door.release(self.key, self.holder, reason=self.reason)
        if self.do == "force_release":
            # A missing reason is refused at the door as a blank one is.
            return door.force_release(self.key, actor=self.holder, reason=self.reason or "")
        # An extension has no reason of its own; what the log says must not be lost.
        metadata = {"reason": self.reason} if self.reason else None
        return door.extend(self.key, self.holder, self.ttl, metadata=metadata)


class CommandLog:
    """The lines of an open log, read as they are asked for; memory does not grow with the log."""

    def __init__(self, raw: BinaryIO, name: str) -> None:
        self.name = name
        packed = cast(Any, raw).peek(len(_GZIP))[: len(_GZIP)] == _GZIP
        self._bytes = _bytes(raw, packed)
        self._lines = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
        self._read = self._bytes_read = 0

    @property
    def fraction(self) -> float | None:
        """How much of the log has been read, 0 to 1; `None` for one without an end in sight."""
        if self._bytes is None or self._bytes_read > self._bytes:
            return None
        return self._bytes_read / max(1, self._bytes)

    def lines(self, first: int = 1) -> Iterator[Line]:
        """The commands from line `first` on. Blank lines are none.

        Raises `BadLine`, also for a line that is earlier than the line before it or later than this machine's clock.
        """
        before = self._skip_to(first)
        while raw := self._next():
            line = parsed(self._read, raw)
            if line is None:
                continue
            if line.at > (now := datetime.now(UTC)):
                raise BadLine(
                    line.number,
                    f"is from {line.at.isoformat()}, but it is {now.isoformat()} on this machine",
                )
            if before is not None and line.at < before.at:
                raise BadLine(
                    line.number,
                    f"is from {line.at.isoformat()}, earlier than line {before.number} ({before.at.isoformat()});"
                    " put the lines in the order of their times",
                )
            before = line
            yield line

    def _skip_to(self, first: int) -> Line | None:
        """Passes by the lines before `first`; gives the one right before it, if it is a command."""
        raw = b""
        while self._read < first - 1:
            raw = self._next()
            if not raw:
                raise BadInput(
                    f"--from-line {first}: {self.name} has {self._read} lines; nothing was done"
                )
        try:
            return parsed(self._read, raw) if raw else None
        except BadLine:
            return None

    def _next(self) -> bytes:
        """The next line; empty at the end."""
        number = self._read + 1
        try:
            raw = self._lines.readline(MAX_LINE_BYTES + 1)
        except EOFError:
            raise BadLine(
                number, "is cut off: the gzip file ends in the middle; get it anew"
            ) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise BadLine(number, f"cannot be unpacked ({error}); get the file anew") from None
        if len(raw) > MAX_LINE_BYTES:
            raise BadLine(number, f"has more than {MAX_LINE_BYTES} bytes; no command is that long")
        self._read += bool(raw)
        self._bytes_read += len(raw)
        return raw


@contextmanager
def opened_log(path: str) -> Iterator[CommandLog]:
    """The log in a file, or on standard input for `-`. Raises `BadInput` when it cannot be read."""
    if path == "-":
        yield CommandLog(sys.stdin.buffer, "standard input")
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
            log = CommandLog(file, path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(f"the log {path!a} cannot be opened: {reason}") from None
        yield log


def parsed(number: int, raw: bytes) -> Line | None:
    """The command in a line, `None` in a blank one. Checks names and types; limits are the door's. Raises `BadLine`."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as fault:
        raise BadLine(number, f"is not UTF-8 at byte {fault.start + 1}") from None
    if number == 1:
        text = text.removeprefix(_BYTE_ORDER_MARK)
    if not text.strip():
        return None
    try:
        command = decoded(text)
    except NotStrict as fault:
        raise BadLine(number, f"is no JSON: {fault}") from None
    if not isinstance(command, dict):
        raise BadLine(
            number, 'is no JSON object; a command is {"at": …, "do": …, "key": …, "holder": …}'
        )
    return _line(number, command)


def _line(number: int, command: dict[str, Any]) -> Line:
    for name in _MANDATORY:
        if name not in command:
            raise BadLine(number, f"has no {name!r}; a command has {', '.join(_MANDATORY)}")
        if not isinstance(command[name], str):
            raise BadLine(number, f"has {shown(command[name])} as {name!r}; it must be a text")
    do = command["do"]
    if do not in _OPTIONAL:
        raise BadLine(number, f"has {shown(do)} as 'do'; it is one of {', '.join(_OPTIONAL)}")
    if not command.keys() <= _FIELDS:
        unknown = min(command.keys() - _FIELDS)
        raise BadLine(
            number,
            f"has the unknown field {shown(unknown)}; a command has {', '.join(_MANDATORY)}, reason, ttl",
        )
    reason, ttl = command.get("reason"), command.get("ttl")
    if reason is not None and not isinstance(reason, str):
        raise BadLine(number, f"has {shown(reason)} as 'reason'; it must be a text")
    if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, int | float)):
        raise BadLine(number, f"has {shown(ttl)} as 'ttl'; it must be a number of seconds")
    if ttl is not None and "ttl" not in _OPTIONAL[do]:
        raise BadLine(number, f"has a ttl, which a {do} cannot use; remove it")
    return Line(
        number, _instant(number, command["at"]), do, command["key"], command["holder"], reason, ttl
    )


def _instant(number: int, text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
        if instant.utcoffset() is None:
            raise BadLine(
                number,
                f"has the time {shown(text)} without a time zone; add its offset, as in +00:00",
            )
        return instant.astimezone(UTC)
    except (ValueError, OverflowError) as fault:
        if isinstance(fault, BadLine):
            raise
        raise BadLine(
            number, f"has {shown(text)} as 'at'; write it as 2012-10-12T15:02:56+00:00"
        ) from None


def _bytes(raw: BinaryIO, packed: bool) -> int | None:
    """How many bytes of lines a file has; a pipe does not say, and gzip only up to 4 GiB and in one piece."""
    try:
        found = os.fstat(raw.fileno())
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    if not packed:
        return found.st_size
    begin = raw.tell()
    raw.seek(-min(4, found.st_size), os.SEEK_END)
    size = int.from_bytes(raw.read(4), "little")
    raw.seek(begin)
    return size
