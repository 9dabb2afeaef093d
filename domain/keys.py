"""Keys and holders: exact texts, compared code point by code point, the same on every database."""

from enum import Enum
from functools import lru_cache
from unicodedata import category, is_normalized
from uuid import UUID, uuid4, uuid5

from lockledger.domain.errors import InvalidHolder, InvalidKey, shown

MAX_LENGTH = 255
MAX_LEDGER_NAME_LENGTH = 100
"""With it, ledger, holder and key fit into one entry of an index of PostgreSQL, at four bytes a character."""
SEPARATOR = ":"
MAX_PREFIX_LENGTH = MAX_LENGTH - len(SEPARATOR) - 32
"""Of a new holder, which has as many random digits behind it."""
_AFTER_SEPARATOR = chr(ord(SEPARATOR) + 1)
NAMESPACE = UUID("5f0c3a4e-8f0e-5d0b-9a3c-6c6f636b6c64")


def fault_of(text: str, longest: int = MAX_LENGTH) -> str | None:
    """Why a text can be neither key nor holder, or `None` when it can."""
    if not text:
        return "is empty"
    if len(text) > longest:
        return f"has {len(text)} characters, at most {longest} are allowed"
    if text != text.strip():
        return "is surrounded by white space; strip it"
    if text.isascii() and text.isprintable():
        return None
    for character in text:
        if category(character) in ("Cc", "Cs"):
            return f"holds the control character or surrogate {character!a}; remove it"
    if not is_normalized("NFC", text):
        return "is not in Unicode normal form C; use unicodedata.normalize('NFC', …)"
    return None


def _exact(value: str, what: str, remedy: str = "write str(…) or lock_key(…)") -> str:
    if not isinstance(value, str):
        raise TypeError(
            f"{what} must be a str, not {type(value).__name__} {shown(value)}; {remedy}"
        )
    return value if type(value) is str else str.__str__(value)


def check_key(key: str) -> str:
    """The key as plain `str`. Raises `InvalidKey` for a text outside the limits, `TypeError` for anything but a text."""
    key = _exact(key, "a key")
    if fault := fault_of(key):
        raise InvalidKey(f"the key {shown(key)} {fault}")
    return key


def check_under(under: str | None) -> str | None:
    """The key of a tree that is asked for as plain `str`; `None` where none is. Raises as `check_key` does."""
    if under is None:
        return None
    under = _exact(under, "under")
    if not under:
        raise InvalidKey("under='' is empty; leave it out, or give a key")
    if fault := fault_of(under):
        raise InvalidKey(f"under={shown(under)} {fault}")
    return under


def check_holder(holder: str, *, what: str = "holder") -> str:
    """The holder or actor as plain `str`; the limits are a key's. Raises `InvalidHolder` or `TypeError`."""
    holder = _exact(holder, f"{'an' if what == 'actor' else 'a'} {what}")
    if fault := fault_of(holder):
        raise InvalidHolder(f"the {what} {shown(holder)} {fault}")
    return holder


def check_ledger_name(name: str) -> str:
    """The ledger's name as plain `str`: at most 100 characters, else the limits of a key. Raises `ValueError` or `TypeError`."""
    name = _exact(name, "a ledger's name", "write str(…), or leave name out")
    if fault := fault_of(name, MAX_LEDGER_NAME_LENGTH):
        raise ValueError(f"the ledger's name {shown(name)} {fault}")
    return name


def lock_key(*parts: str | int | UUID | Enum) -> str:
    """Builds a key from parts, `lock_key("round", 5)` is `round:5`; the same in every process.

    Parts are str, int, UUID or an enum of these. Anything else is a `TypeError` (its text may differ from process to
    process); an empty part, or one with `:` inside, is an `InvalidKey`.
    """
    if not parts:
        raise InvalidKey("a key needs at least one part")
    return check_key(SEPARATOR.join(_part(part) for part in parts))


def _part(part: object) -> str:
    value = part.value if isinstance(part, Enum) else part
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise TypeError(
            f"a part of a key must be str, int, UUID or an enum of these, not {type(value).__name__} {shown(value)};"
            " pass the id that stays the same in every process"
        )
    if isinstance(value, int):
        if abs(value) >= 10**MAX_LENGTH:
            raise InvalidKey(f"the part {shown(value)} of a key has more than {MAX_LENGTH} digits")
        return int.__repr__(value)
    text = value if isinstance(value, str) else str(value)
    if not text or SEPARATOR in text:
        raise InvalidKey(
            f"the part {shown(text)} of a key must be non-empty and without {SEPARATOR!r}"
        )
    return text


def new_holder(prefix: str = "holder") -> str:
    """A holder id that nobody else has: the prefix, `:`, and 32 random hexadecimal digits.

    The prefix has at most 222 characters, else the limits of a holder. Raises `InvalidHolder` or `TypeError`.
    """
    prefix = _exact(prefix, "the prefix of a holder", "write str(…), or leave it out")
    if fault := fault_of(prefix, MAX_PREFIX_LENGTH):
        raise InvalidHolder(f"the prefix {shown(prefix)} of a holder {fault}")
    return f"{prefix}{SEPARATOR}{uuid4().hex}"


@lru_cache(maxsize=4096)
def lock_id(ledger: str, key: str) -> UUID:
    """The id of the lock: name-based, of ledger name and key, nested so that ("a", "b:c") and ("a:b", "c") differ."""
    return uuid5(uuid5(NAMESPACE, ledger), key)


def above(key: str) -> list[str]:
    """The keys under which this one lies, the topmost first: `round` and `round:5` for `round:5:band`."""
    ends = [place for place, character in enumerate(key) if character == SEPARATOR and place]
    return [key[:end] for end in ends]


def range_under(key: str) -> tuple[str, str]:
    """The keys strictly under `key` are those in [first, second), in code point order."""
    return key + SEPARATOR, key + _AFTER_SEPARATOR


def range_of_prefix(prefix: str) -> tuple[str, str | None]:
    """The keys that begin with `prefix` are those in [first, second), in code point order; `None`: no upper end."""
    for length in range(len(prefix), 0, -1):
        code = ord(prefix[length - 1])
        if code < 0x10FFFF:
            following = 0xE000 if code == 0xD7FF else code + 1
            return prefix, prefix[: length - 1] + chr(following)
    return prefix, None
