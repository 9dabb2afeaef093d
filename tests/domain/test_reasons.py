"""Reasons: stripped, limited, and for people to read."""

from __future__ import annotations

import pytest

from lockledger.domain.errors import InvalidReason
from lockledger.domain.reasons import check_reason


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("urgent", "urgent"),
        ("  urgent \n", "urgent"),
        ("line one\nline two\tindented", "line one\nline two\tindented"),
        ("\u3000全角\u3000", "全角"),
        ("я" * 2000, "я" * 2000),
        ("😀" * 2000, "😀" * 2000),
        (" " * 5000 + "x", "x"),
        ("e\u0301", "e\u0301"),
        ("x\u200by", "x\u200by"),
    ],
    ids=range(9),
)
def test_a_reason_is_kept_without_the_space_around_it(reason: str, kept: str) -> None:
    assert check_reason(reason) == kept
    assert check_reason(reason, mandatory=True) == kept


@pytest.mark.parametrize("blank", [None, "", "   ", "\n\t", "\u2003\u00a0"], ids=ascii)
def test_a_blank_reason_is_none_and_refused_where_one_is_mandatory(blank: str | None) -> None:
    assert check_reason(blank) is None
    with pytest.raises(InvalidReason) as refusal:
        check_reason(blank, mandatory=True)
    assert str(refusal.value) == f"a reason is mandatory here, {blank!a} was given; say why"


@pytest.mark.parametrize("character", ["\r", "\0", "\x1b", "\x7f", "\x85", "\x9b", "\ud800", "\v", "\f"], ids=ascii)  # fmt: skip
def test_a_reason_holds_no_control_characters_but_newline_and_tab(character: str) -> None:
    with pytest.raises(InvalidReason) as refusal:
        check_reason(f"a{character}b")
    text = f"a{character}b"
    assert str(refusal.value) == (
        f"the reason {text!a} holds {character!a}; only newline and tab are allowed"
    )


@pytest.mark.parametrize("letter", ["x", "я", "😀"])
def test_a_reason_has_at_most_2000_characters(letter: str) -> None:
    with pytest.raises(InvalidReason, match=r"has 2001 characters, at most 2000 are allowed"):
        check_reason(letter * 2001)


@pytest.mark.parametrize("value", [5, b"urgent", ["urgent"], True, 0, False], ids=repr)
def test_anything_but_a_text_is_a_type_error(value: str) -> None:
    with pytest.raises(TypeError, match=r"^a reason must be a str, not "):
        check_reason(value)


def test_a_text_of_a_class_of_its_own_becomes_a_plain_one() -> None:
    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            return self.upper()

    assert check_reason(Loud(" urgent ")) == "urgent"
    assert type(check_reason(Loud("urgent"))) is str
