"""Metadata: a JSON object within limits, copied, and the same after any journey through JSON."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from math import copysign, inf, nan
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockledger.domain.errors import InvalidMetadata
from lockledger.domain.events import LockTaken
from lockledger.domain.metadata import MAX_METADATA_BYTES, MAX_METADATA_DEPTH, check_metadata
from support.stories import ID, KEY, T0


class Source(StrEnum):
    """A text."""

    API = "api"


class Level(IntEnum):
    """A number."""

    HIGH = 3


class Plain(Enum):
    """Neither."""

    ONE = 1


def alternating(depth: int) -> dict[str, Any]:
    """Objects and arrays nested so deep by turns, an object outermost and itself counted."""
    value: Any = 1
    for level in range(depth, 0, -1):
        value = {"a": value} if level % 2 else [value]
    return dict(value)


def nested(depth: int, innermost: object = 1) -> dict[str, Any]:
    """An object nested so deep, itself counted."""
    value: Any = innermost
    for _ in range(depth):
        value = {"a": value}
    return value if isinstance(value, dict) else {}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, {}),
        ({}, {}),
        ({"a": None, "b": True, "c": 1, "d": 1.5, "e": "x"}, None),
        ({"a": (1, (2, 3)), "b": [{"c": ()}]}, {"a": [1, [2, 3]], "b": [{"c": []}]}),
        ({"a": Source.API, "b": Level.HIGH}, {"a": "api", "b": 3}),
        ({Source.API: 1}, {"api": 1}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (MappingProxyType({"a": MappingProxyType({"b": 1})}), {"a": {"b": 1}}),
        ({"": "", "я": "😀", "a\nb\x01": "\t\x7f\x9b\u2028\ufffe"}, None),
        ({"a": 2**63, "b": -(2**64), "c": 10**639}, None),
        ({"a": 1e308, "b": 5e-324, "c": 1e16, "d": 0.1}, None),
    ],
    ids=range(11),
)
def test_what_json_can_say_is_kept_plain(
    given: Mapping[str, object] | None, kept: dict[str, Any] | None
) -> None:
    plain = check_metadata(given)

    assert plain == (given if kept is None else kept)
    assert plain == json.loads(json.dumps(plain))
    for value in plain.values():
        assert type(value) in (type(None), bool, int, float, str, list, dict)


def test_zero_keeps_its_sign_and_a_bool_stays_one() -> None:
    plain = check_metadata({"a": -0.0, "b": True, "c": 1})

    assert copysign(1, plain["a"]) == -1
    assert (plain["b"] is True, type(plain["c"])) == (True, int)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"a": nan}, "metadata holds nan, which JSON cannot express; use None or a text"),
        ({"a": [{"b": inf}]}, "metadata holds inf, which JSON cannot express; use None or a text"),
        ({"a": -inf}, "metadata holds -inf, which JSON cannot express; use None or a text"),
        (
            {"a": "x\0y"},
            r"metadata holds the text 'x\x00y' with a NUL or a lone surrogate; remove it",
        ),
        (
            {"x\0y": 1},
            r"metadata holds the text 'x\x00y' with a NUL or a lone surrogate; remove it",
        ),
        (
            {"a": ["я\ud83d"]},
            r"metadata holds the text 'я\ud83d' with a NUL or a lone surrogate; remove it",
        ),
        (
            {"\udfff": 1},
            r"metadata holds the text '\udfff' with a NUL or a lone surrogate; remove it",
        ),
        (
            {"a": "\ud800"},
            r"metadata holds the text '\ud800' with a NUL or a lone surrogate; remove it",
        ),
        ({1: 2}, "metadata keys must be str, not int 1"),
        ({"a": {None: 2}}, "metadata keys must be str, not NoneType None"),
        ({b"a": 2}, "metadata keys must be str, not bytes b'a'"),
        (
            {"a": {1}},
            "metadata holds a set {1}; only JSON values are allowed: write str(…) of it",
        ),
        (
            {"a": b"x"},
            "metadata holds a bytes b'x'; only JSON values are allowed: write str(…) of it",
        ),
        (
            {"a": Decimal("1.5")},
            "metadata holds a Decimal Decimal('1.5'); only JSON values are allowed: write str(…) of it",
        ),
        (
            {"a": Plain.ONE},
            "metadata holds a Plain <Plain.ONE: 1>; only JSON values are allowed: write str(…) of it",
        ),
    ],
    ids=range(15),
)
def test_what_json_cannot_say_is_refused_by_name(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidMetadata) as refusal:
        check_metadata(given)

    assert str(refusal.value) == complaint


@pytest.mark.parametrize(
    "value", [datetime(2026, 3, 2, tzinfo=UTC), UUID(int=1), range(2), object()]
)
def test_objects_are_refused(value: object) -> None:
    with pytest.raises(InvalidMetadata, match="only JSON values are allowed"):
        check_metadata({"a": value})


@pytest.mark.parametrize("value", [[], "", 0, False, [("a", 1)], "abc", 5], ids=repr)
def test_anything_but_a_mapping_is_a_type_error(value: Mapping[str, object]) -> None:
    with pytest.raises(TypeError, match=r"^metadata must be a mapping, not "):
        check_metadata(value)


@pytest.mark.parametrize("innermost", [1, "x", None])
def test_it_may_be_nested_32_levels_deep(innermost: object) -> None:
    assert MAX_METADATA_DEPTH == 32
    assert check_metadata(nested(32, innermost)) == nested(32, innermost)


def test_an_array_is_a_level_as_an_object_is() -> None:
    assert check_metadata(alternating(32)) == alternating(32)
    with pytest.raises(InvalidMetadata, match=r"^metadata is nested more than 32 levels deep$"):
        check_metadata(alternating(33))


@pytest.mark.parametrize("innermost", [{}, [], {"b": 1}, ()], ids=repr)
def test_it_may_not_be_nested_deeper(innermost: object) -> None:
    with pytest.raises(InvalidMetadata, match=r"^metadata is nested more than 32 levels deep$"):
        check_metadata(nested(32, innermost))


def test_an_object_that_holds_itself_is_too_deep() -> None:
    round_and_round: dict[str, object] = {}
    round_and_round["a"] = [round_and_round]

    with pytest.raises(InvalidMetadata, match="nested more than 32 levels"):
        check_metadata(round_and_round)


@pytest.mark.parametrize("letter", ["x", "я", "😀", '"', "\n"], ids=ascii)
def test_it_may_take_8192_bytes_as_json_and_not_one_more(letter: str) -> None:
    escaped = json.dumps(letter, ensure_ascii=False)[1:-1]
    letters, filler = divmod(MAX_METADATA_BYTES - len('{"a":""}'), len(escaped.encode()))
    full = {"a": letter * letters + "x" * filler}

    assert check_metadata(full) == full
    with pytest.raises(InvalidMetadata) as refusal:
        check_metadata({"a": full["a"] + "x"})

    assert str(refusal.value) == (
        "metadata takes 8193 bytes as JSON, at most 8192 are allowed; store a reference"
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_an_int_may_have_as_many_digits_as_every_python_reads(sign: int) -> None:
    """640 is the least that `sys.set_int_max_str_digits` takes, and what is written must be read everywhere."""
    longest = sign * (10**640 - 1)
    assert check_metadata({"a": [longest]}) == {"a": [longest]}
    for longer in (longest + sign, sign * 10**5000):
        with pytest.raises(InvalidMetadata) as refusal:
            check_metadata({"a": [longer]})
        assert str(refusal.value) == (
            "metadata holds an int of more than 640 digits; write it as a text"
        )


def test_it_is_a_copy() -> None:
    inner: list[object] = [1]
    given = {"a": inner}

    plain = check_metadata(given)
    inner.append(2)
    given["b"] = []

    assert plain == {"a": [1]}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abя", max_size=3), values, max_size=4))
def test_it_is_the_same_after_a_journey_through_an_events_json(given: dict[str, Any]) -> None:
    plain = check_metadata(given)
    event = LockTaken(
        originator_id=ID,
        originator_version=1,
        timestamp=T0,
        key=KEY,
        holder="run:1",
        token=1,
        taken_at=T0,
        actor="run:1",
        metadata=plain,
        hold_metadata=plain,
    )

    again = LockTaken.model_validate_json(event.model_dump_json())

    assert again == event
    assert json.dumps(again.metadata) == json.dumps(given)
