"""Spans: together they hold exactly the keys that are asked for, in order, and none twice."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockledger.projections.spans import Span, forms, spans

KEYS = ["".join(each) for length in (1, 2, 3) for each in product("a:;~", repeat=length)]
KEYS += ["a\U0010ffff", "a\U0010ffff\U0010ffff", "\U0010ffff", "\ud7ffa", "\ue000", "a:\U0010ffff"]
KEYS.sort()
TEXTS = st.sampled_from(KEYS)


def selected(key: str, only: str | None, prefix: str | None, under: str | None) -> bool:
    return (
        only in (None, key)
        and key.startswith(prefix or "")
        and (under is None or key == under or key.startswith(f"{under}:"))
    )


@given(st.none() | TEXTS, st.none() | st.just("") | TEXTS, st.none() | TEXTS)
def test_spans_hold_what_is_selected_once_and_in_order(
    only: str | None, prefix: str | None, under: str | None
) -> None:
    found = spans(only, prefix, under)
    within = [[key for key in KEYS if key in span] for span in found]
    assert [key for each in within for key in each] == [
        key for key in KEYS if selected(key, only, prefix, under)
    ]
    assert all(earlier[-1:] < later[:1] or not later for earlier, later in pairwise(within))


@given(st.none() | TEXTS, st.none() | TEXTS, st.none() | TEXTS, TEXTS)
def test_where_a_page_goes_on_only_spans_are_left_that_may_have_more(
    only: str | None, prefix: str | None, under: str | None, after: str
) -> None:
    found = spans(only, prefix, under)
    left, _ = forms(found, after)
    over = [span for span in found if span.ends_before(after)]
    assert len(left) == len(found) - len(over)
    assert not any(key in span for span in over for key in KEYS if key >= after)
    assert [form.goes_on for form in left] == [after in span for span in found if span not in over]


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        ((None, None, None), {}),
        ((None, "", None), {}),
        (("k", "k", "k"), {"only_0": "k"}),
        ((None, "k", None), {"first_0": "k", "beyond_0": "l"}),
        ((None, None, "k"), {"only_0": "k", "first_1": "k:", "beyond_1": "k;"}),
        ((None, "k:1", "k"), {"first_0": "k:1", "beyond_0": "k:2"}),
        ((None, "\U0010ffff", None), {"first_0": "\U0010ffff"}),
        (("a", "b", None), {}),
    ],
)
def test_each_key_of_a_span_is_a_parameter(
    asked: tuple[str | None, str | None, str | None], values: dict[str, str]
) -> None:
    assert forms(spans(*asked), None)[1] == values


def test_spans_of_one_form_differ_in_their_parameters_only() -> None:
    one, _ = forms([Span(only="a"), Span(first="a:", beyond="a;")], None)
    other, _ = forms([Span(only="b"), Span(first="b:", beyond="b;")], None)
    assert one == other
