"""Keys, holders and ledger names: every limit from both sides, and ids that are the same in every process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from unicodedata import normalize
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockledger.domain.errors import InvalidHolder, InvalidKey
from lockledger.domain.keys import (
    above,
    check_holder,
    check_key,
    check_ledger_name,
    check_under,
    lock_id,
    lock_key,
    new_holder,
    range_of_prefix,
    range_under,
)

Check = Callable[[str], str]
CHECKS: dict[Check, type[ValueError]] = {
    check_key: InvalidKey,
    check_holder: InvalidHolder,
    check_ledger_name: ValueError,
}
LONGEST: dict[Check, int] = {check_key: 255, check_holder: 255, check_ledger_name: 100}
every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)

ALLOWED = {
    "one character": "k",
    "spaces inside": "round 5 of  spring",
    "a no-break space inside": "round\u00a05",
    "a line separator inside": "round\u20285",
    "punctuation": "a/b?c=d&e#f%00'\"\\;--",
    "separators anywhere": ":a::b:",
    "NFC": normalize("NFC", "é"),
    "a ligature, which only NFKC would change": "ﬁle:1",
    "a zero-width space, which is no white space": "\u200bk\u200b",
    "right to left": "שלום",
    "a private character": "\ue000",
    "the last code point": "\U0010ffff",
}
REFUSED = {
    "empty": ("", "is empty"),
    "NFD": (normalize("NFD", "é"), "normal form C"),
    "a combining sequence that NFC composes": ("a\u030a", "normal form C"),
    "the Ångström sign, which NFC replaces": ("\u212b", "normal form C"),
    "decomposed Hangul": ("\u1112\u1161\u11ab", "normal form C"),
    "NUL": ("a\0b", r"'\\x00'"),
    "newline inside": ("a\nb", r"'\\n'"),
    "tab inside": ("a\tb", r"'\\t'"),
    "delete": ("a\x7fb", r"'\\x7f'"),
    "C1 control": ("a\x9bb", r"'\\x9b'"),
    "control beside other scripts": ("я\x1bя", r"'\\x1b'"),
    "lone high surrogate": ("a\ud83d", r"'\\ud83d'"),
    "lone low surrogate": ("\ude00a", r"'\\ude00'"),
    "a surrogate pair in two characters": ("a\ud83d\ude00", r"'\\ud83d'"),
}
WHITE_SPACE = [chr(code) for code in range(0x110000) if chr(code).isspace()]


@every_check
@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED)
def test_an_exact_text_is_kept_as_it_is(check: Check, text: str) -> None:
    assert check(text) == text


@every_check
@pytest.mark.parametrize(("text", "complaint"), REFUSED.values(), ids=REFUSED)
def test_a_text_outside_the_limits_is_refused_by_name(
    check: Check, text: str, complaint: str
) -> None:
    with pytest.raises(CHECKS[check], match=complaint):
        check(text)


@every_check
@pytest.mark.parametrize("letter", ["x", "я", "😀"])
def test_a_text_is_as_long_as_its_limit_in_characters_and_no_longer(
    check: Check, letter: str
) -> None:
    longest = LONGEST[check]

    assert check(letter * longest) == letter * longest
    with pytest.raises(
        CHECKS[check], match=f"has {longest + 1} characters, at most {longest} are allowed$"
    ):
        check(letter * (longest + 1))


@every_check
@pytest.mark.parametrize("space", WHITE_SPACE, ids=lambda space: f"U+{ord(space):04X}")
def test_no_white_space_of_any_script_may_surround_it(check: Check, space: str) -> None:
    for text in (space, f"{space}k", f"k{space}", f"{space}k{space}"):
        with pytest.raises(CHECKS[check], match="white space"):
            check(text)


@every_check
@pytest.mark.parametrize("value", [42, 4.2, True, None, b"run:42", ["k"], UUID(int=1)], ids=repr)
def test_anything_but_a_text_is_a_type_error_that_names_the_remedy(
    check: Check, value: str
) -> None:
    with pytest.raises(TypeError, match=r"must be a str, not \w+ .+; write str\(…\)"):
        check(value)


@every_check
def test_a_text_of_a_class_of_its_own_becomes_a_plain_one(check: Check) -> None:
    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            return self.upper()

    class Round(StrEnum):
        FIVE = "round:5"

    assert (check(Loud("k")), type(check(Loud("k")))) == ("k", str)
    assert (check(Round.FIVE), type(check(Round.FIVE))) == ("round:5", str)


def test_an_actor_is_named_as_one() -> None:
    with pytest.raises(InvalidHolder, match=r"^the actor '' is empty$"):
        check_holder("", what="actor")
    with pytest.raises(TypeError, match=r"^an actor must be a str, not int 7"):
        check_holder(7, what="actor")  # type: ignore[arg-type]


def test_keys_that_look_alike_stay_apart() -> None:
    """S58: nothing is folded, so these are four locks."""
    keys = [check_key(key) for key in ("stock:1", "STOCK:1", "ﬁle:1", "file:1")]

    assert len({lock_id("default", key) for key in keys}) == 4


# lock_key


class Kind(Enum):
    """Members with values of each kind that a key may be built of."""

    TEXT = "round"
    NUMBER = 5
    ID = UUID("12345678-1234-5678-1234-567812345678")


class Band(IntEnum):
    """Numbers whose text differs between versions of Python."""

    SECOND = 2


class Number(int):
    """An int that prints as it likes."""

    def __str__(self) -> str:
        return "five"

    __repr__ = __str__


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        (("round", 5, "band", 2), "round:5:band:2"),
        (("round",), "round"),
        ((5,), "5"),
        ((-5, 0), "-5:0"),
        ((Kind.TEXT, Kind.NUMBER, Band.SECOND, Number(5)), "round:5:2:5"),
        ((Kind.ID,), "12345678-1234-5678-1234-567812345678"),
        ((UUID(int=0),), "00000000-0000-0000-0000-000000000000"),
        (("я", "😀"), "я:😀"),
        (("a" * 127, "b" * 127), "a" * 127 + ":" + "b" * 127),
        ((10**254,), "1" + "0" * 254),
    ],
)
def test_a_key_is_built_of_its_parts(parts: tuple[str | int | UUID | Enum, ...], key: str) -> None:
    assert lock_key(*parts) == key
    assert type(lock_key(*parts)) is str


@pytest.mark.parametrize(
    "part",
    [True, None, 5.0, Decimal(5), b"round", ("round",), ["a"], {"a": 1}, {"a"}, object()],
    ids=lambda part: type(part).__name__,
)
def test_a_part_whose_text_may_differ_between_processes_is_refused(part: str) -> None:
    with pytest.raises(TypeError, match="pass the id that stays the same in every process"):
        lock_key("round", part)


@pytest.mark.parametrize("part", ["", ":", "a:b", ":a", "a:"])
def test_a_part_without_text_or_with_a_separator_is_refused(part: str) -> None:
    with pytest.raises(InvalidKey, match="non-empty and without ':'"):
        lock_key("round", part)


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("a" * 128, "b" * 127),
        (" round", 5),
        ("round", "5\n"),
        (normalize("NFD", "é"),),
        (10**255,),
        (-(10**5000),),
    ],
    ids=["none", "long", "space", "newline", "NFD", "256 digits", "5,001 digits"],
)
def test_a_key_built_of_parts_is_within_the_limits_of_a_key(parts: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidKey):
        lock_key(*parts)


def test_who_gives_no_part_is_told_so() -> None:
    with pytest.raises(InvalidKey, match=r"^a key needs at least one part$"):
        lock_key()


@given(
    st.lists(
        st.one_of(st.integers(), st.uuids(), st.text("abc😀я", min_size=1, max_size=5)),
        min_size=1,
        max_size=4,
    ).filter(lambda parts: sum(len(str(part)) for part in parts) < 200)
)
def test_a_key_can_be_taken_apart_again(parts: list[str | int | UUID]) -> None:
    assert lock_key(*parts).split(":") == [str(part) for part in parts]


def test_two_processes_build_the_same_key_and_id() -> None:
    """S61: nothing of a process (hash seed, addresses, names in memory) enters a key."""
    program = """
from enum import Enum
from uuid import UUID
from lockledger.domain.keys import lock_id, lock_key

Kind = Enum("Kind", {"ROUND": "round", "ID": UUID(int=7)})
key = lock_key(Kind.ROUND, 5, Kind.ID, "я")
print(ascii(key), lock_id("default", key))
try:
    lock_key({"a", "b"})
except TypeError:
    print("refused")
"""
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(answers) == 1
    assert "refused" in answers.pop()


# ids


def test_the_id_of_a_lock_is_the_same_for_ever() -> None:
    """Stored events are found by these ids: a change of the formula would lose every lock."""
    assert lock_id("default", "round:5") == UUID("925f2e2a-ca06-5015-9d8c-f60f1d4913c2")
    assert lock_id("mandant-я", "😀") == UUID("ab4ce40e-f37b-5d06-8695-43a6c303e38a")


def test_the_id_of_a_lock_is_made_of_ledger_and_key_one_inside_the_other() -> None:
    namespace = UUID("5f0c3a4e-8f0e-5d0b-9a3c-6c6f636b6c64")

    assert lock_id("a", "b:c") == uuid5(uuid5(namespace, "a"), "b:c")
    assert lock_id("a", "b:c") != lock_id("a:b", "c")
    assert lock_id("a", "k") != lock_id("b", "k")


# ranges

exact = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@given(key=exact.filter(bool), rest=exact, other=exact)
def test_what_lies_under_a_key_is_one_range_in_code_point_order(
    key: str, rest: str, other: str
) -> None:
    first, second = range_under(key)

    assert first <= f"{key}:{rest}" < second
    assert (first <= other < second) == other.startswith(f"{key}:")


@pytest.mark.parametrize(
    ("other", "under"),
    [
        ("round", False),
        ("round9", False),
        ("round:", True),
        ("round:5", True),
        ("round:\U0010ffff", True),
        ("round;", False),
        ("round;5", False),
        ("rounds:5", False),
    ],
)
def test_what_only_resembles_a_key_does_not_lie_under_it(other: str, under: bool) -> None:
    first, second = range_under("round")

    assert (first <= other < second) is under


@given(prefix=exact, rest=exact, other=exact)
def test_what_begins_with_a_prefix_is_one_range_in_code_point_order(
    prefix: str, rest: str, other: str
) -> None:
    first, second = range_of_prefix(prefix)

    for text in (prefix + rest, other):
        assert (first <= text and (second is None or text < second)) == text.startswith(prefix)


@pytest.mark.parametrize(
    ("prefix", "second"),
    [
        ("", None),
        ("round:", "round;"),
        ("a\U0010ffff", "b"),
        ("\U0010ffff\U0010ffff", None),
        ("\ud7ff", "\ue000"),
        ("\uffff", "\U00010000"),
    ],
    ids=ascii,
)
def test_the_end_of_a_range_is_a_text_that_a_database_takes(
    prefix: str, second: str | None
) -> None:
    assert range_of_prefix(prefix) == (prefix, second)
    assert second is None or second.encode()


# trees


def test_under_is_a_key_and_named_by_its_own_name() -> None:
    assert check_under(None) is None
    assert check_under("round:5") == "round:5"
    for under, message in (
        ("", "under='' is empty; leave it out, or give a key"),
        (" a", "under=' a' is surrounded by white space; strip it"),
        ("x" * 256, "has 256 characters, at most 255 are allowed"),
    ):
        with pytest.raises(InvalidKey) as refused:
            check_under(under)
        assert message in str(refused.value)
    with pytest.raises(TypeError, match=r"under must be a str, not int 5; write str\(…\)"):
        check_under(5)  # type: ignore[arg-type]


# new holders


def test_a_new_holder_is_like_no_other() -> None:
    made = {new_holder("run") for _ in range(1000)}

    assert len(made) == 1000
    assert all(re.fullmatch(r"run:[0-9a-f]{32}", holder) for holder in made)
    assert new_holder().startswith("holder:")
    assert len(new_holder("x" * 222)) == 255


@pytest.mark.parametrize(
    ("prefix", "kind", "message"),
    [
        ("", InvalidHolder, "the prefix '' of a holder is empty"),
        (" run", InvalidHolder, "the prefix ' run' of a holder is surrounded by white space"),
        ("run\n:", InvalidHolder, r"the prefix 'run\\n:' of a holder holds the control character"),
        ("x" * 223, InvalidHolder, "of a holder has 223 characters, at most 222 are allowed"),
        (5, TypeError, r"the prefix of a holder must be a str, not int 5; write str\(…\)"),
        (None, TypeError, "the prefix of a holder must be a str, not NoneType None"),
        (b"run", TypeError, "the prefix of a holder must be a str, not bytes b'run'"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_the_prefix_of_a_new_holder_is_checked_by_itself(
    prefix: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        new_holder(prefix)


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("round", []),
        ("round:5:band:2", ["round", "round:5", "round:5:band"]),
        (":a:b", [":a"]),
        ("a::b", ["a", "a:"]),
        ("a:", ["a"]),
    ],
)
def test_above_a_key_are_its_beginnings_before_each_colon(key: str, keys: list[str]) -> None:
    """But for the empty one, which is no key."""
    assert above(key) == keys


@pytest.mark.parametrize("number", [10**255, -(10**255)])
def test_the_smallest_number_that_is_too_long_is_said_to_be_so(number: int) -> None:
    with pytest.raises(InvalidKey, match="more than 255 digits"):
        lock_key(number)
