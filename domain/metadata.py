"""Metadata: a JSON object that travels with an event and takes part in no comparison."""

import json
from collections.abc import Mapping
from math import isfinite

from lockledger.domain.errors import InvalidMetadata, shown
from lockledger.domain.holds import Metadata

MAX_METADATA_BYTES = 8 * 1024
MAX_METADATA_DEPTH = 32
MAX_METADATA_DIGITS = 640
"""Of an int. No setting of an interpreter keeps it from reading so many."""

_TOO_LARGE = 10**MAX_METADATA_DIGITS


def check_metadata(metadata: Mapping[str, object] | None) -> Metadata:
    """A plain copy of the metadata; `{}` for `None`.

    A JSON object with `str` keys, no NaN or infinity, no NUL or lone surrogate, ints of at most 640 digits, nested at
    most 32 levels deep, at most 8,192 bytes as compact JSON in UTF-8. Raises `InvalidMetadata`; `TypeError` when it is
    no mapping.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise TypeError(
            f"metadata must be a mapping, not {type(metadata).__name__} {shown(metadata)}; give a dict, as {{'ticket': 7}}"
        )
    if not metadata:
        return {}
    plain = _plain_object(metadata, 1)
    written = json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
    size = len(written.encode())
    if size > MAX_METADATA_BYTES:
        raise InvalidMetadata(
            f"metadata takes {size} bytes as JSON, at most {MAX_METADATA_BYTES} are allowed; store a reference"
        )
    return plain


def _plain_object(value: Mapping[str, object], depth: int) -> Metadata:
    plain: Metadata = {}
    for name, item in value.items():
        if not isinstance(name, str):
            raise InvalidMetadata(
                f"metadata keys must be str, not {type(name).__name__} {shown(name)}"
            )
        plain[_plain_text(name)] = _plain(item, depth)
    return plain


def _plain(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _plain_text(value)
    if isinstance(value, int):
        if not -_TOO_LARGE < value < _TOO_LARGE:
            raise InvalidMetadata(
                f"metadata holds an int of more than {MAX_METADATA_DIGITS} digits; write it as a text"
            )
        return int(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise InvalidMetadata(
                f"metadata holds {value!r}, which JSON cannot express; use None or a text"
            )
        return float(value)
    if depth >= MAX_METADATA_DEPTH:
        raise InvalidMetadata(f"metadata is nested more than {MAX_METADATA_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return _plain_object(value, depth + 1)
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    raise InvalidMetadata(
        f"metadata holds a {type(value).__name__} {shown(value)}; only JSON values are allowed: write str(…) of it"
    )


def _plain_text(text: str) -> str:
    plain = str.__str__(text)
    if plain.isascii() and "\0" not in plain:
        return plain
    if "\0" in plain or any("\ud800" <= character <= "\udfff" for character in plain):
        raise InvalidMetadata(
            f"metadata holds the text {shown(plain)} with a NUL or a lone surrogate; remove it"
        )
    return plain
