r"""Characters of people's texts made visible: what a screen could obey, or what could hide or turn text around.

Names, reasons and metadata may hold what keys may not: controls (C1 too), lone surrogates, bidirectional overrides, line
separators.
"""

import re
from typing import Final
from unicodedata import category

SUSPICIOUS: Final = re.compile(r"[^ -~]")
"""Whatever may have to be escaped."""

JOINERS: Final = (
    "\u200c\u200d"  # letters of Persian and of Indic scripts, and emoji, are joined by these two
)


def visible(character: str, also: str = "") -> str:
    r"""The character, or `\x1b` or `\u202e` in its place when it is such a one, or one of `also`."""
    if character in JOINERS:
        return character
    if character in also or category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return ascii(character)[1:-1]
    return character
