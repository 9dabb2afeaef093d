"""What the fuzzers have in common: how many examples, and values that somebody hostile or broken could have made."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from support.processes import SOAK, rounds

SURPRISING = [
    *("", " ", "\0", "\x1b]0;title\x07", "\x1b[2J", "\u202e", "\u2066", "\u2028", "\ud800", "e\u0301"),
    *("'", '"', "';--", "%s", "%(key)s", ":key", "{key}", "\\", "$1", "NULL", "NaN", "Infinity"),
    *("k", "a:b", ":", "Z", "İ", "😀" * 255, "x" * 256, "x" * 3000, "[" * 5000, "1" * 5000),
    *("2026-11-30T09:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "-infinity"),
]  # fmt: skip
NUMBERS = [0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**400, 0.1, 1e300, float("nan"), True]

texts = st.one_of(st.sampled_from(SURPRISING), st.text(max_size=40))
numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(), st.floats())
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)

endless = st.sampled_from(
    [b"[" * 100_000, b'{"a":' * 50_000, b'{"class_version":1,"key":' + b"[" * 100_000, b"1" * 5000]
)
"""JSON that no reader gets to the end of."""


def fuzzing(examples: int) -> settings:
    """So many examples, the same ones each time; with `LOCKLEDGER_SOAK` so many times more, and others each time."""
    return settings(
        max_examples=rounds(examples),
        derandomize=SOAK <= 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def dumped(value: Any) -> bytes:
    """JSON as Python would write it, halves of characters and all."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes with a few of them changed, removed or put in, or the end cut off."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        how = draw(st.sampled_from(["flip", "set", "remove", "insert", "cut", "repeat"]))
        if how == "flip" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "set" and data:
            data[place] = draw(st.integers(0, 255))
        elif how == "remove":
            del data[place : place + draw(st.integers(1, 8))]
        elif how == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=8))
        elif how == "cut":
            del data[place:]
        else:
            data[place:place] = data[place : place + 40]
    return bytes(data)


@st.composite
def altered(draw: st.DrawFn, whole: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with a few of its facts changed, gone, renamed or added."""
    value = dict(whole)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*whole, "new"]))
        how = draw(st.sampled_from(["change", "change", "remove", "rename", "deeper"]))
        if how == "remove":
            value.pop(name, None)
        elif how == "rename":
            value[draw(texts)] = value.pop(name, None)
        elif how == "deeper" and isinstance(value.get(name), dict) and value[name]:
            value[name] = draw(altered(value[name]))
        else:
            value[name] = draw(json_values)
    return value
