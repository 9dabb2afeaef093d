"""Anybody can read a drawing, and nothing in a name, key or reason can do anything in it."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest

from lockledger import Hold, draw_timeline
from lockledger.timeline.words import cut, cut_middle, lasting, measured, wrapped
from support.drawings import HTML, NOW, SVG, bars, drawn, hold, page, rows

TRICKS = (
    "</title><script>alert(1)</script>",
    "'\" onload='alert(1)' x=\"",
    "]]><!-- &amp; &#60;b>",
    "\x00\x07\x1b[31m\x9b\ud800\udfff\ufffe\uffff\u2028",
    "a\u202egpj.exe\u2066\u2069\u200f",
    "</style></svg></table><img src=x onerror=alert(1)>",
)


def luminance(colour: str) -> float:
    """Of `#rrggbb`, as WCAG 2 defines it: what is left of it in grey."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """From 1, the same, to 21."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_text_and_marks_can_be_read_in_grey() -> None:
    told = [hold(10 * each, 10 * each + 9, token=each + 1, holder=f"h{each}") for each in range(8)]
    told += [hold(90, token=9), hold(0, 5, key="e", ended_by="expiry")]
    found = drawn(*told)
    papers = {rect.attrib["fill"] for rect in found.iter(f"{SVG}rect")}
    fills = {bar.fill for bar in bars(found).values()}
    inks = {text.get("fill", found.attrib["fill"]) for text in found.iter(f"{SVG}text")}
    inks |= {
        group.attrib["fill"] for group in found.iter(f"{SVG}g") if group.get("class") == "axis"
    }
    assert (len(fills), len(inks)) == (8, 2)
    for paper in papers - fills:
        assert all(contrast(ink, paper) >= 4.5 for ink in inks)
    edges = {
        path.attrib["stroke"] for path in found.iter(f"{SVG}path") if path.get("class") == "bar"
    }
    edges |= {path.attrib["stroke"] for each in found.iter(f"{SVG}pattern") for path in each}
    for fill in fills:
        assert contrast(found.attrib["fill"], fill) >= 4.5
        assert all(contrast(edge, each) >= 3 for edge in edges for each in (fill, *papers))
    # No two holders look the same in grey either.
    assert all(contrast(one, other) >= 1.06 for one, other in combinations(fills, 2))


@pytest.mark.parametrize("trick", TRICKS)
def test_what_others_wrote_stays_text(trick: str) -> None:
    names = {"h": trick, trick: trick, "b": trick}
    tricky: dict[str, Any] = {
        "key": trick,
        "holder": trick,
        "token": 1,
        "taken_at": hold(0).taken_at,
    }
    told = [
        Hold(**tricky).ended(hold(5).taken_at, "takeover", actor=trick, reason=trick),
        Hold(**tricky | {"token": 2, "taken_over_from": trick, "takeover_reason": trick}),
        hold(0, 90, end_reason=trick, ended_by="forced", ended_by_actor="b"),
    ]
    plain = [hold(0, 5, key="a"), hold(0, key="a", token=2), hold(0, 90)]
    for form, allowed in (
        ("svg", {each.tag for each in drawn(*plain).iter()}),
        ("html", {each.tag for each in page(*plain).iter()}),
    ):
        draw = drawn if form == "svg" else page
        found = draw(*told, names=names, heading=trick, note=trick)
        assert {each.tag for each in found.iter()} - allowed <= {f"{SVG}pattern", f"{SVG}defs"}
        assert not [name for each in found.iter() for name in each.attrib if name.startswith("on")]
        said = "".join(found.itertext())
        assert not set("\x00\x07\x1b\x9b\ufffe\u2028\u202e\u2066\u200f") & set(said)
        if trick.isascii() and trick.isprintable():
            assert said.count(trick) >= 8
        text = draw_timeline(told, now=NOW, names=names, heading=trick, note=trick)
        assert text.encode("utf-8")


def test_a_name_written_from_right_to_left_turns_nothing_around_it() -> None:
    found = page(hold(0, 5, holder="user:1"), names={"user:1": "עברית"})
    (row,) = found.iter(f"{HTML}tbody")
    assert "עברית" in [each.text for each in row.iter(f"{HTML}bdi")]
    assert "user:1 (\u2068עברית\u2069), token 1" in bars(found)["k", 1].title
    assert rows(found)[0][1] == "user:1 (עברית)"


def test_a_drawing_stands_alone() -> None:
    told = [hold(5 * each, key=f"k:{each:02}") for each in range(45)]
    told += [hold(0, 4, key="k:00", ended_by="expiry", token=9)]
    for form in ("svg", "html"):
        text = draw_timeline(told, now=NOW, format=form)
        outside = re.sub(r'xmlns="[^"]*"', "", text)
        assert not re.search(r"https?:|//|@import|<script|<link|src=|href=", outside)
        names = re.findall(r' id="([^"]*)"', text)
        assert len(names) == len(set(names))
        assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(names)
    image = draw_timeline(told, now=NOW)
    assert "<style" not in image
    assert "style=" not in image  # so that no policy of a host's page can forbid it


def test_a_drawing_says_what_it_is_to_who_cannot_see_it() -> None:
    image = drawn(hold(0, 5), hold(6, token=2), heading="A day", note="Only k.")
    assert image.get("role") == "img"
    assert image.findtext(f"{SVG}title") == "A day"
    assert image.findtext(f"{SVG}desc") == (
        "2 holds of 1 lock from 2026-03-02T09:00:00Z to 2026-03-02T09:06:00Z,"
        " 1 still held at 2026-03-02T17:00:00Z. Times are UTC. Only k."
    )
    found = page(*(hold(0, 5, key=f"k:{each:02}") for each in range(45)))
    titles = [svg.findtext(f"{SVG}title") for svg in found.iter(f"{SVG}svg")]
    assert titles == [
        "What the marks mean",
        "Timeline: k:00 to k:19",
        "Timeline: k:20 to k:39",
        "Timeline: k:40 to k:44",
    ]
    assert found.get("lang") == "en"


def test_a_long_key_is_cut_in_the_middle_and_told_in_full() -> None:
    key = "consolidation:" + "x" * 200 + ":version:7"
    found = drawn(hold(0, 5, key=key))
    titles = [title.text for title in found.iter(f"{SVG}title")]
    assert key in titles
    shown = [text.text or "" for text in found.iter(f"{SVG}text") if "…" in (text.text or "")]
    assert len(shown) == 1
    assert shown[0].startswith("consolidation:x")
    assert shown[0].endswith(":version:7")


def test_a_label_stands_in_its_bar_or_beside_it_or_is_cut() -> None:
    def label(*holds: Hold) -> str | None:
        return bars(drawn(*holds, since=hold(0).taken_at, until=hold(100).taken_at))["k", 1].label

    long = "somebody with a name"
    assert label(hold(10, 60, holder=long)) == long
    assert label(hold(10, 11, holder=long)) == long
    assert label(hold(20, 28, holder=long), hold(28, 99, token=2)) == long  # to its left
    assert label(hold(0, 8, holder=long), hold(8, 99, token=2)) == "somebody…"
    assert label(hold(0, 2, holder=long), hold(2, 99, token=2)) is None
    # The left of the first has room for a label, but not beside that of the one before it.
    before = hold(10, 11, token=0, holder=long)
    assert label(before, hold(30, 31, holder=long), hold(31, 99, token=2)) is None


def test_text_is_cut_to_the_room_it_has() -> None:
    for text in ("short", "a rather long name", "日本語の名前", "e\u0301" * 30):
        for room in range(20, 200, 7):
            assert measured(cut(text, 11, room), 11) <= room
            assert measured(cut_middle(text, 11, room), 11) <= room
    lines = wrapped("one two three four " + "x" * 300, 12, 90)
    assert all(measured(line, 12) <= 90 for line in lines)
    assert lines[:2] == ["one two", "three four"]


def test_a_length_of_time_is_said_in_two_units() -> None:
    told = [0, 0.000001, 1.5, 59.999999, 60, 3599, 3600, 3661, 86_399.7, 90_000, 3652 * 86_400]
    assert [lasting(hold(each / 60).taken_at - hold(0).taken_at) for each in told] == [
        *("0 s", "0.000001 s", "1.5 s", "59.999999 s", "1 min", "59 min 59 s", "1 h", "1 h 1 min"),
        *("1 d", "1 d 1 h", "3652 d"),
    ]
