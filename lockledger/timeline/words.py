"""Text in a drawing: made harmless, measured, and cut to the room there is."""

from datetime import datetime, timedelta
from typing import Final
from unicodedata import combining, east_asian_width
from xml.sax.saxutils import escape

from lockledger.visible import JOINERS, SUSPICIOUS, visible

_NO_XML: Final = "\ufffe\uffff"
_BREAKS: Final = "\n\t"
_ISOLATE: Final = "\u2068"
_END_ISOLATE: Final = "\u2069"

# The advance widths of a wide face (DejaVu Sans), in thousandths of the size, so that what fits there fits in any.
_NARROW: Final = dict.fromkeys("iljI.,:;'|!", 360) | dict.fromkeys('ftr()[]/\\- "', 420)
_WIDE: Final = dict.fromkeys("mwMW@%&—…", 1000) | dict.fromkeys("GOQDHNU_+=<>#", 840)
_WIDTHS: Final = _NARROW | _WIDE
_LOWER, _UPPER, _FULL = 640, 760, 1100


def plain(text: str, keep: str = "") -> str:
    r"""The text with everything written as `\x1b` or `\u202e` that could hide or turn text around, or is no XML.

    Names and reasons may hold what keys may not: controls, lone surrogates, bidirectional overrides.
    """
    if text.isascii() and text.isprintable():
        return text
    return SUSPICIOUS.sub(
        lambda each: each[0] if each[0] in keep else visible(each[0], _NO_XML), text
    )


def xml(text: str, keep: str = "") -> str:
    """The text made harmless, as content or attribute of XML and of HTML."""
    return escaped(plain(text, keep))


def escaped(text: str) -> str:
    """Text that is plain, as content or attribute of XML and of HTML."""
    return escape(text, {'"': "&quot;", "'": "&#39;"})


def xml_lines(text: str) -> str:
    """The same for content in which line breaks stay."""
    return xml(text, _BREAKS)


def isolated(text: str) -> str:
    """The text as a part of a sentence, whose direction it does not change whatever its own is."""
    text = plain(text, _BREAKS)
    return text if text.isascii() else f"{_ISOLATE}{text}{_END_ISOLATE}"


def measured(text: str, size: float) -> float:
    """How wide the text may be at this size, in the same unit; rather too wide than too narrow."""
    return size * sum(map(_thousandths, text)) / 1000


def _thousandths(character: str) -> int:
    known = _WIDTHS.get(character)
    if known is not None:
        return known
    if character in JOINERS or combining(character):
        return 0
    if character.isascii():
        return _UPPER if character.isupper() else _LOWER
    return _FULL if east_asian_width(character) in "WF" else 850


def cut(text: str, size: float, room: float) -> str:
    """The text, or as much of its beginning as there is room for; nothing when that says nothing."""
    if measured(text, size) <= room:
        return text
    kept = _fitting(text, size, room)
    return f"{kept.rstrip()}…" if len(kept) > 2 else ""


def cut_middle(text: str, size: float, room: float) -> str:
    """The text, or its two ends: with a key both say something."""
    if measured(text, size) <= room:
        return text
    begin = _fitting(text, size, room * 0.55)
    end = _fitting(text[::-1], size, room - measured(begin, size))[::-1]
    return f"{begin}…{end}"


def _fitting(text: str, size: float, room: float) -> str:
    """As much of the text as leaves room for an ellipsis."""
    left = room - measured("…", size)
    for place, character in enumerate(text):
        left -= measured(character, size)
        if left < 0:
            return text[:place]
    return text


def wrapped(text: str, size: float, room: float) -> list[str]:
    """The text in lines that fit."""
    lines: list[str] = []
    line = ""
    for word in plain(text).split():
        longer = f"{line} {word}" if line else word
        if line and measured(longer, size) > room:
            lines.append(line)
            line = word
        else:
            line = longer
    return [cut(each, size, room) for each in [*lines, line] if each]


def exact(instant: datetime) -> str:
    """An instant in UTC as ISO 8601, to the microsecond where it has any."""
    return f"{instant.replace(tzinfo=None).isoformat()}Z"


def moment(instant: datetime) -> str:
    """An instant in UTC as ISO 8601, to the second."""
    return exact(instant.replace(microsecond=0))


def lasting(length: timedelta) -> str:
    """A length of time in its two largest units."""
    if length < timedelta(minutes=1):
        return f"{length.total_seconds():.6f}".rstrip("0").rstrip(".") + " s"
    seconds = round(length.total_seconds())
    units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")]
    largest = next(place for place, (size, _) in enumerate(units) if seconds >= size)
    parts = []
    for size, unit in units[largest : largest + 2]:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts)


def counted(number: int, what: str) -> str:
    """`1 lock`, `2 locks`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
