"""What goes to standard output and standard error: data and messages, safe for any terminal."""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TextIO
from unicodedata import combining, east_asian_width

from lockledger.visible import JOINERS, SUSPICIOUS, visible

_PAGE = 1000


def safe(text: str) -> str:
    """The text with everything escaped that a terminal could obey or that could hide or turn text around.

    Names and metadata may hold what keys may not: controls (C1 too), bidirectional overrides, line separators.
    """
    return text if text.isascii() and text.isprintable() else SUSPICIOUS.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return visible(match[0])


def json_text(value: Any) -> str:
    """One line of JSON in the order given, with what `safe` escapes written as JSON escapes, which read back the same."""
    return SUSPICIOUS.sub(_json_escaped, json.dumps(value, ensure_ascii=False))


def _json_escaped(match: re.Match[str]) -> str:
    escaped = _escaped(match)
    return escaped if escaped == match[0] else json.dumps(match[0])[1:-1]


def print_json(value: Any, stream: TextIO | None = None) -> None:
    """One JSON value on a line of its own, on standard output unless told."""
    stream = sys.stdout if stream is None else stream
    print(json_text(value) if speaks_unicode(stream) else json.dumps(value), file=stream)


def message(text: str) -> None:
    """A line for the person, on standard error; when nobody reads that, the exit code still tells."""
    print(f"lockledger: {safe(text)}", file=sys.stderr)


def speaks_unicode(stream: TextIO) -> bool:
    """Whether the stream can write any character."""
    return (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")


def animates(stream: TextIO) -> bool:
    """Whether a line on this stream may be drawn over: only on a terminal that can."""
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def moment(instant: datetime | None, *, otherwise: str = "-") -> str:
    """An instant for a person, to the second, in UTC."""
    return otherwise if instant is None else f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows in columns under their titles; nothing when there are none. The rows pass by a thousand at a time."""
    remaining = iter(rows)
    widths = [width(title) for title in titles]
    first = True
    while page := [[safe(cell) for cell in row] for row in islice(remaining, _PAGE)]:
        widths = [
            max(known, *map(width, cells))
            for known, cells in zip(widths, zip(*page, strict=True), strict=True)
        ]
        for row in ([list(titles)] if first else []) + page:
            print("  ".join(map(padded, row, widths)).rstrip())
        first = False


def padded(text: str, wanted: int) -> str:
    """The text, filled up with blanks to a width on the terminal."""
    return text + " " * (wanted - width(text))


def width(text: str) -> int:
    """The columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if combining(character) or character in JOINERS:
        return 0
    return 2 if east_asian_width(character) in "WF" else 1
