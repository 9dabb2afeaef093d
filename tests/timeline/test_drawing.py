"""The drawing tells of every hold what is true of it."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockledger import Hold, draw_timeline
from lockledger.timeline.axis import EARLIEST, LATEST
from support.drawings import HTML, NINE, NOW, SVG, bars, drawn, hold, page, rows

ENDS = ("release", "forced", "takeover", "expiry")


@st.composite
def pasts(draw: st.DrawFn) -> list[Hold]:
    """Some locks, each with holds that follow one another, the last perhaps still live."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, 300_000_000))
        before = None
        for token in range(1, draw(st.integers(1, 6)) + 1):
            begin = at + (0 if before else draw(st.integers(0, 10_000_000_000)))
            at = begin + draw(st.integers(0, 10_000_000_000))
            holder = draw(st.sampled_from(["ana", "ben", "cleo", "run:1"]))
            ended_by = draw(st.sampled_from([*ENDS, None]))
            facts: dict[str, Any] = {"key": f"lock:{number}", "holder": holder, "token": token}
            facts["taken_at"] = NINE + timedelta(microseconds=begin)
            if before:
                facts |= {"taken_over_from": before, "takeover_reason": "urgent"}
            if ended_by is None:
                found.append(Hold(**facts))
                break
            facts |= {"ended_at": NINE + timedelta(microseconds=at), "ended_by": ended_by}
            found.append(Hold(**facts))
            before = holder if ended_by == "takeover" else None
    return found


@given(pasts())
def test_every_hold_has_a_bar_where_it_was_and_a_row_that_says_so(past: list[Hold]) -> None:
    since, until = NINE, NOW + timedelta(hours=40)
    whole = Hold(key="~", holder="all", token=1, taken_at=since, ended_at=until, ended_by="release")
    shown = [*past, whole]
    random.Random(len(past)).shuffle(shown)
    found = page(*shown, now=until, since=since, until=until)
    bar_of = bars(found)
    left, right = bar_of["~", 1].x1, bar_of["~", 1].x2
    assert len(bar_of) == len(shown)
    for each in past:
        bar = bar_of[each.key, each.token]
        begin, end = (
            left + (right - left) * ((instant - since) / (until - since))
            for instant in (each.taken_at, each.ended_at or until)
        )
        least = 9 if each.ended_at is None else 3
        assert bar.x1 == pytest.approx(min(begin, right - least), abs=0.01)
        assert bar.x2 == pytest.approx(max(end, bar.x1 + least), abs=0.02)
        marks = {
            "taken-over": each.taken_over_from is not None,
            "forced": each.ended_by == "forced",
            "expired": each.ended_by == "expiry",
        }
        assert bar.marks == {mark for mark, wanted in marks.items() if wanted}
        assert len(bar.points) == (5 if each.ended_at is None else 4)  # a point, or two corners
    assert [(row[0], int(row[-1])) for row in rows(found)] == sorted(bar_of)


def test_the_same_holds_give_the_same_text_in_any_order() -> None:
    told = [hold(0, 5), hold(5, 9, token=2, holder="b"), hold(1, key="a"), hold(2, 3, key="b")]
    for form in ("svg", "html"):
        texts = {
            draw_timeline(order, now=NOW, format=form) for order in (told, told[::-1], iter(told))
        }
        assert len(texts) == 1


def test_a_bar_says_everything_that_is_known_of_its_hold() -> None:
    bar_of = bars(
        drawn(
            hold(
                0,
                90,
                holder="user:7",
                ended_by="takeover",
                ended_by_actor="user:8",
                end_reason="urgent",
            ),
            hold(
                90,
                token=2,
                holder="user:8",
                taken_over_from="user:7",
                takeover_reason="urgent",
                expires_at=NOW + timedelta(hours=1),
            ),
            names={"user:7": "Anna"},
        )
    )
    assert bar_of["k", 1].title.splitlines() == [
        "k",
        "held by user:7 (Anna), token 1",
        "from 2026-03-02T09:00:00Z until 2026-03-02T10:30:00Z, 1 h 30 min",
        "taken",
        "taken over by user:8: urgent",
    ]
    assert bar_of["k", 2].title.splitlines() == [
        "k",
        "held by user:8, token 2",
        "from 2026-03-02T10:30:00Z",
        "taken over from user:7 (Anna): urgent",
        "still held, until 2026-03-02T18:00:00Z",
    ]
    assert bar_of["k", 1].label == "Anna"


def test_the_table_tells_how_each_hold_ended() -> None:
    found = page(
        hold(0, 1.5, ended_by_actor="h", end_reason="done"),
        hold(2, 3, token=2, ended_by_actor="boss"),
        hold(4, 5, token=3, ended_by="forced", ended_by_actor="boss", end_reason="lunch"),
        hold(6, 7, token=4, ended_by="expiry"),
        hold(8, 8.0041, token=5),
        hold(9, token=6),
    )
    assert [row[4:7] for row in rows(found)] == [
        ["1 min 30 s", "taken", "released: done"],
        ["1 min", "taken", "released by boss"],
        ["1 min", "taken", "released by force by boss: lunch"],
        ["1 min", "taken", "expired"],
        ["0.246 s", "taken", "released"],
        ["", "taken", "still held, without expiry"],
    ]
    heads = [head.text for head in found.iter(f"{HTML}th") if head.get("scope") == "col"]
    assert heads == ["Lock", "Holder", "From", "Until", "Lasted", "Began", "Ended", "Token"]
    assert sum(head.get("scope") == "row" for head in found.iter(f"{HTML}th")) == 6
    times = [time.attrib["datetime"] for time in found.iter(f"{HTML}time")]
    assert "2026-03-02T09:08:00.246000Z" in times


def test_a_hold_that_has_run_out_is_drawn_as_expired_recorded_or_not() -> None:
    unrecorded = hold(0, expires_at=NINE + timedelta(hours=1))
    assert bars(drawn(unrecorded, now=NINE + timedelta(hours=1)))["k", 1].marks == {"expired"}
    assert bars(drawn(unrecorded, now=NINE + timedelta(minutes=59)))["k", 1].marks == set()


def test_a_period_shows_what_was_live_in_it_and_tears_what_goes_on() -> None:
    since, until = NINE + timedelta(minutes=10), NINE + timedelta(minutes=20)
    found = drawn(
        hold(0, 10, key="before"),
        hold(5, 15, key="begins earlier"),
        hold(15, 25, key="ends later"),
        hold(10, 10, key="instant"),
        hold(20, 30, key="after"),
        since=since,
        until=until,
    )
    bar_of = bars(found)
    assert {key for key, _ in bar_of} == {"begins earlier", "ends later", "instant"}
    assert len(bar_of["begins earlier", 1].points) == 7
    assert len(bar_of["ends later", 1].points) == 7
    assert "goes on outside this period" in "".join(found.itertext())


def test_a_second_stays_visible_beside_ten_years() -> None:
    years = timedelta(days=3652)
    long = hold(0).ended(NINE + years, "release", actor=None, reason=None)
    begun = NINE + years / 2
    short = Hold(key="s", holder="h", token=1, taken_at=begun).ended(
        begun + timedelta(seconds=1), "forced", actor="b", reason="r"
    )
    bar_of = bars(drawn(long, short, now=NINE + years))
    assert bar_of["s", 1].x2 - bar_of["s", 1].x1 == 3
    assert bar_of["s", 1].marks == {"forced"}
    middle = (bar_of["k", 1].x1 + bar_of["k", 1].x2) / 2
    assert bar_of["s", 1].x1 == pytest.approx(middle, abs=0.02)


def test_a_short_hold_is_not_hidden_by_the_next() -> None:
    found = drawn(hold(0, 0, ended_by="forced"), hold(0, 600, token=2))
    assert list(bars(found)) == [("k", 2), ("k", 1)]  # the later lies above


def test_without_an_end_it_goes_to_now_unless_nothing_has_changed_for_long() -> None:
    def last(*holds: Hold, now: datetime) -> float:
        found = drawn(*holds, now=now)
        return sum("now" in path.get("class", "") for path in found.iter(f"{SVG}path"))

    assert last(hold(0, 60), hold(60, token=2), now=NINE + timedelta(hours=3)) == 1
    assert last(hold(0, 60), hold(60, token=2), now=NINE + timedelta(days=900)) == 0
    assert last(hold(0, 60), now=NINE + timedelta(minutes=61)) == 1  # within the margin
    assert last(hold(0, 60), now=NINE + timedelta(hours=3)) == 0
    assert last(hold(0), now=NINE + timedelta(days=900)) == 1


def test_holders_who_follow_one_another_differ_and_each_keeps_its_fill() -> None:
    told = [
        hold(10 * place, 10 * place + 10, key=f"k{lock}", token=place + 1, holder=f"h{who}")
        for lock in range(4)
        for place, who in enumerate(random.Random(lock).sample(range(8), 8))
    ]
    bar_of = bars(drawn(*told))
    fills: dict[str, set[str]] = {}
    for each in told:
        fills.setdefault(each.holder, set()).add(bar_of[each.key, each.token].fill)
    assert all(len(of_holder) == 1 for of_holder in fills.values())
    for one, other in pairwise(told):
        if one.key == other.key:
            assert bar_of[one.key, one.token].fill != bar_of[other.key, other.token].fill


def test_a_ninth_holder_does_not_get_the_fill_of_its_neighbours() -> None:
    told = [hold(each, each + 1, token=each + 1, holder=f"h{each % 9}") for each in range(10)]
    fills = [bar.fill for bar in bars(drawn(*told)).values()]
    assert len(set(fills)) == 8
    assert fills[0] == fills[9] != fills[8]


@pytest.mark.parametrize(
    ("length", "labels"),
    [
        (timedelta(milliseconds=40), ["09:00:00.000", "09:00:00.005"]),
        (timedelta(seconds=9), ["09:00:00", "09:00:01"]),
        (timedelta(minutes=9), ["09:00", "09:01"]),
        (timedelta(hours=9), ["09:00", "10:00"]),
        (timedelta(days=3), ["12:00", "18:00"]),
        (timedelta(days=9), ["2026-03-03", "2026-03-04"]),
        (timedelta(days=90), ["2026-03-16", "2026-03-30"]),
        (timedelta(days=400), ["2026-04", "2026-05"]),
        (timedelta(days=3652), ["2027", "2028"]),
        (timedelta(days=365_000), ["2100", "2200"]),
    ],
)
def test_ticks_stand_at_whole_times_and_are_labelled(length: timedelta, labels: list[str]) -> None:
    found = drawn(hold(0), since=NINE, until=NINE + length)
    (axis,) = (group for group in found.iter(f"{SVG}g") if group.get("class") == "axis")
    ticks = [text for text in axis if text.get("font-weight") is None]
    assert [text.text for text in ticks][: len(labels)] == labels
    places = [float(text.attrib["x"]) for text in ticks]
    assert all(other - one > 60 for one, other in pairwise(places))
    assert 5 <= len(ticks) <= 18


def test_times_at_the_edges_of_the_calendar_are_drawn() -> None:
    first, last = EARLIEST, LATEST
    whole = Hold(key="k", holder="h", token=1, taken_at=first, ended_at=last, ended_by="release")
    for options in ({}, {"since": first, "until": last}):
        assert len(bars(drawn(whole, now=last, **options))) == 1
    assert len(bars(drawn(Hold(key="k", holder="h", token=1, taken_at=last), now=last))) == 1
    assert bars(drawn(whole, now=last, until=first)) == {}
    assert len(bars(drawn(hold(0), now=last, since=last - timedelta(microseconds=1)))) == 1


def test_nothing_is_said_to_be_nothing() -> None:
    assert "No lock was held." in "".join(drawn().itertext())
    found = page(since=NINE, until=NOW)
    assert "No lock was held from 2026-03-02T09:00:00Z to 2026-03-02T17:00:00Z." in "".join(
        found.itertext()
    )
    assert not list(found.iter(f"{HTML}table"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"now": NINE.replace(tzinfo=None)},
            ValueError,
            "now=2026-03-02T09:00:00 has no time zone",
        ),
        ({"now": None}, TypeError, "now must be an aware datetime, not None"),
        ({"since": NOW, "until": NOW}, ValueError, "is not later than since="),
        ({"since": LATEST}, ValueError, "is the last instant there is; give a period"),
        ({"until": "2026"}, TypeError, "until must be an aware datetime, not '2026'"),
        ({"format": "png"}, ValueError, "format='png': use svg or html"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        draw_timeline([hold(0)], **{"now": NOW, **options})


def test_only_holds_are_drawn() -> None:
    with pytest.raises(TypeError, match="from Hold models, not 'k'"):
        draw_timeline("k", now=NOW)  # type: ignore[arg-type]


def test_ten_thousand_holds_are_all_there() -> None:
    told = [
        hold(place, place + 1, key=f"k:{lock}", token=place + 1, holder=f"h{place % 60}")
        for lock in range(200)
        for place in range(50)
    ]
    text = draw_timeline(told, now=NOW)
    assert text.count('<path class="bar"') == len(told)
    assert "10,000 holds of 200 locks" in text
