"""Who held what when, as a drawing and as JSON."""

from __future__ import annotations

import re
import resource
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import lockledger.timeline
from lockledger.cli import output
from lockledger.cli.chart import ASCII, UNICODE, Axis, drawn
from lockledger.domain.holds import Hold
from lockledger.timeline.axis import Step
from support.drawings import bars
from support.ledgers import Ledgers, SettableClock

TEN_MINUTES = Step(timedelta(minutes=10))
EIGHT = datetime(2024, 5, 14, 8, tzinfo=UTC)


@pytest.fixture
def told(cli: Any, ledgers: Ledgers) -> Any:
    """An hour: a hold that ran out, one taken over and released by force, one released, one still held."""
    clock = SettableClock()
    ledger = ledgers.open(clock=clock)
    ledger.take("desk:1", "ana", ttl=600)
    ledger.take("desk:2", "ben")
    clock.set(1200)
    ledger.take("desk:2", "cleo", takeover_reason="urgent")
    clock.set(2400)
    ledger.force_release("desk:2", actor="boss", reason="lunch")
    ledger.take("room", "ana")
    clock.set(3000)
    ledger.release("room", "ana")
    ledger.take("room:1", "ana")
    clock.set(3600)
    ledger.take("room:2", "dora")
    return cli


def test_a_timeline_draws_how_holds_began_and_ended(told: Any) -> None:
    assert told("timeline", "--width", "80").out.splitlines() == [
        "        2026-03-02 09:00 to 2026-03-02 10:00 UTC",
        "        09:00       09:10       09:20       09:30       09:40       09:50",
        "desk:1  ┣ ana ━━━━━━┋",
        "desk:2  ┣ ben ━━━━━━━━━━━━━━━━━━╋ cleo ━━━━━━━━━━━━━━━━━x",
        "room                                                    ┣ ana ━━━━━━┫",
        "room:1                                                              ┣ ana ━━━━━▶",
        "room:2                                                                         ┣",
        "┣ taken  ╋ taken over  ▶ still held  ┫ released  x released by force  ┋ expired",
    ]


def test_holds_as_json_are_one_object_a_line_by_key_and_token(told: Any) -> None:
    lines = told("timeline", "--json").lines
    assert [(each["key"], each["holder"], each.get("ended_by")) for each in lines] == [
        ("desk:1", "ana", "expiry"),
        ("desk:2", "ben", "takeover"),
        ("desk:2", "cleo", "forced"),
        ("room", "ana", "release"),
        ("room:1", "ana", None),
        ("room:2", "dora", None),
    ]
    assert lines[0]["ended_at"] == "2026-03-02T09:10:00Z"
    assert "ended_at" not in lines[-1]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--under", "room"], ["room", "room:1", "room:2"]),
        (["--key-prefix", "desk"], ["desk:1", "desk:2"]),
        (["--holder", "ana"], ["desk:1", "room", "room:1"]),
        (["--since", "2026-03-02T09:40:00Z"], ["room", "room:1", "room:2"]),
        (["--until", "2026-03-02T09:40:00Z"], ["desk:1", "desk:2"]),
        (["--since", "2026-03-02T09:10:00Z", "--until", "2026-03-02T09:20:00Z"], ["desk:2"]),
        (["--limit", "2"], ["desk:1", "desk:2"]),
    ],
)
def test_a_timeline_can_be_narrowed(told: Any, options: list[str], found: list[str]) -> None:
    shown = [each["key"] for each in told("timeline", *options, "--json").lines]
    assert list(dict.fromkeys(shown)) == found


def test_what_is_left_out_is_said(told: Any) -> None:
    ran = told("timeline", "--limit", "2")
    assert (
        ran.err
        == "lockledger: the locks after desk:2 are not shown; raise --limit, or narrow it with --under, --since and --until\n"
    )
    assert len(ran.out.splitlines()) == 5
    assert told("timeline", "--limit", "5").err == ""


@pytest.mark.parametrize("form", ["svg", "html"])
def test_a_drawing_shows_the_same_holds_and_says_what_it_leaves_out(
    told: Any, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def holds(*options: str) -> list[tuple[str, int]]:
        text = told.done("timeline", "--format", form, *options).out
        drawing = text.partition("\n")[2] if form == "html" else text
        return sorted(bars(ET.fromstring(drawing)))

    lines = told("timeline", "--json").lines
    assert holds() == sorted((each["key"], each["token"]) for each in lines)
    assert holds("--under", "room", "--holder", "dora") == [("room:2", 1)]
    assert (
        "Only under room, held by dora."
        in told(*("timeline", "--format", form, "--under", "room", "--holder", "dora")).out
    )
    assert (
        "Not shown: the locks after desk:2."
        in told("timeline", "--format", form, "--limit", "2").out
    )
    monkeypatch.setattr("lockledger.cli.timeline.MOST_HOLDS", 2)
    assert holds() == [("desk:1", 1), ("desk:2", 1)]
    said = "the holds after the first 2, that of desk:2 from 2026-03-02T09:00:00Z"
    ran = told("timeline", "--format", form)
    assert f"Not shown: {said}." in ran.out
    assert f"lockledger: {said}, are not shown; narrow it with --under" in ran.err


def test_a_file_is_written_in_the_form_that_its_name_says(told: Any) -> None:
    shown = told.done("timeline", "--output", "t.svg")
    assert shown.out == "t.svg: 6 holds of 5 locks\n"
    assert Path("t.svg").read_text("utf-8").startswith("<svg ")
    assert told.done("timeline", "--output", "t.HTM", "--json").json == {
        "file": "t.HTM",
        "locks": 5,
        "holds": 6,
    }
    assert Path("t.HTM").read_text("utf-8").startswith("<!DOCTYPE html>")
    told.done("timeline", "--output", "t.svg", "--format", "html", "--limit", "1")
    assert Path("t.svg").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_a_drawing_that_has_no_room_leaves_what_was_there(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, most = lockledger.timeline.draw_timeline, resource.getrlimit(resource.RLIMIT_FSIZE)

    def until_there_is_no_room(*arguments: Any, **options: Any) -> str:
        text = draw(*arguments, **options)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most[1]))
        return text

    monkeypatch.setattr("lockledger.timeline.draw_timeline", until_there_is_no_room)
    for before in (None, "old"):
        if before is not None:
            Path("t.svg").write_text(before)
        try:
            ran = told("timeline", "--output", "t.svg")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
        assert ran.code == 2
        assert ran.err == f"lockledger: {Path('t.svg').resolve()}: File too large\n"
        assert (Path("t.svg").read_text() if Path("t.svg").exists() else None) == before
        assert not list(Path().glob(".*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "t.png"], "--output 't.png' ends neither in .svg nor in .html; say --format"),
        (["--format", "png"], "--format 'png': write svg or html"),
        (["--output", "t.svg", "--width", "80"], "--width is for the terminal"),
        (["--width", "10001"], "10001 is more than 10000, the most that it can be"),
        (["--format", "svg", "--json"], "--json and --format exclude each other"),
        (["--output", "no/t.svg"], "no/t.svg: No such file or directory"),
    ],
)
def test_what_cannot_be_drawn_is_refused_and_nothing_written(
    cli: Any, options: list[str], message: str
) -> None:
    ran = cli("timeline", *options)
    assert ran.code == 2
    assert message in ran.err
    assert not list(Path.cwd().glob("t*"))


def test_one_is_one(cli: Any) -> None:
    cli.done("take", "k", "ana")
    assert cli.done("timeline", "--output", "t.svg").out == "t.svg: 1 hold of 1 lock\n"


def test_a_drawing_shows_names_also_where_the_output_knows_only_ascii(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("people.py").write_text(
        "def names(connection, ids):\n    return dict.fromkeys(ids, 'Zoë')\n", encoding="utf-8"
    )
    monkeypatch.setattr(output, "speaks_unicode", lambda stream: False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    shown = told.done("timeline", "--format", "svg", "--names", "people:names").out
    assert shown.isascii()
    labels = {bar.label for bar in bars(ET.fromstring(shown)).values()}
    assert labels == {"Zoë"}


@pytest.mark.parametrize("name", ["office-day", "ticket"])
def test_the_example_in_the_documentation_is_what_is_drawn(lockledger: Any, name: str) -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / name
    lockledger.done("migrate")
    lockledger.done("apply", str(example.with_suffix(".jsonl")))
    shown = lockledger.done("timeline", "--format", "svg").out
    as_of = re.compile(r"(?<=still held at )[0-9TZ:-]+")
    assert as_of.sub("", shown) == as_of.sub("", example.with_suffix(".svg").read_text("utf-8"))


def test_holds_of_25_hours_and_of_40_days_are_told_as_such(lockledger: Any) -> None:
    lockledger.done("migrate")
    lockledger.done("apply", str(Path(__file__).parents[2] / "docs" / "examples" / "ticket.jsonl"))
    lasted = {}
    for each in lockledger("holds", "--json").lines:
        begin, end = (datetime.fromisoformat(each[name]) for name in ("taken_at", "ended_at"))
        lasted[each["token"]] = end - begin
    assert (lasted[1], lasted[3]) == (timedelta(hours=25), timedelta(days=40))

    bar_of = bars(ET.fromstring(lockledger("timeline", "--format", "svg").out))
    assert "2025-01-16T09:12:40Z, 1 d 1 h\n" in bar_of["ticket:2207", 1].title
    assert "2025-02-25T15:40:05Z, 40 d\n" in bar_of["ticket:2207", 3].title
    widths = {token: bar.x2 - bar.x1 for (_, token), bar in bar_of.items()}
    assert widths[3] / widths[1] == pytest.approx(40 * 24 / 25, abs=0.05)


def hold(begin: int, end: int | None, **facts: Any) -> Hold:
    """From and to minutes after eight."""
    given: dict[str, Any] = {
        "key": "k",
        "holder": "h",
        "token": 1,
        "taken_at": EIGHT + timedelta(minutes=begin),
    }
    if end is not None:
        given |= {"ended_at": EIGHT + timedelta(minutes=end), "ended_by": "release"}
    return Hold(**given | facts)


def row(*holds: Hold, columns: int = 60, **names: str) -> str:
    axis = Axis(EIGHT, EIGHT + timedelta(hours=1), TEN_MINUTES, columns)
    (line,) = drawn(holds, axis, UNICODE, names, 1)
    return line[3:]


def test_a_label_is_cut_to_the_room_it_has() -> None:
    assert row(hold(0, 20, holder="somebody")) == "┣ somebody ━━━━━━━━━┫"
    assert row(hold(0, 9, holder="somebody")) == "┣somebody┫"
    assert row(hold(0, 8, holder="somebody")) == "┣somebo…┫"
    assert row(hold(0, 2, holder="somebody")) == "┣…┫"
    assert row(hold(0, 1, holder="somebody")) == "┣┫"
    assert row(hold(0, 0, holder="somebody")) == "┣"


def test_wide_characters_keep_the_columns() -> None:
    assert row(hold(0, 20, holder="日本語")) == "┣ 日本語 ━━━━━━━━━━━┫"
    assert row(hold(0, 4, holder="日本語")) == "┣日…┫"
    assert row(hold(0, 20, holder="日本語"), hold(3, 6, token=2)) == "┣  ┣h━┫  ━━━━━━━━━━━┫"


def test_a_hold_before_the_window_begins_at_its_edge_and_one_after_ends_there() -> None:
    assert row(hold(-30, 10)) == "┣ h ━━━━━━┫"
    assert row(hold(50, 500)) == " " * 50 + "┣ h ━━━━━┫"


@pytest.mark.parametrize(
    ("length", "labels"),
    [
        (timedelta(0), ["08:00:00"]),
        (timedelta(seconds=5), ["08:00:00", "08:00:01", "08:00:02", "08:00:03", "08:00:04"]),
        (timedelta(minutes=1), ["08:00:00", "08:00:10", "08:00:20"]),
        (timedelta(hours=9), ["08:00", "09:00", "10:00"]),
        (timedelta(days=1), ["06:00", "09:00", "12:00"]),
        (timedelta(days=3), ["00:00", "12:00", "00:00"]),
        (timedelta(days=365), ["2024-05", "2024-07", "2024-09"]),
        (timedelta(days=36_500), ["2020", "2030", "2040"]),
        (timedelta(days=36_500 * 20), ["2000", "2200", "2400"]),
    ],
)
def test_the_axis_has_the_finest_steps_whose_labels_fit(
    length: timedelta, labels: list[str]
) -> None:
    axis = Axis.over(EIGHT, EIGHT + length, 80)
    assert axis.labels().split()[: len(labels)] == labels
    assert axis.since <= EIGHT
    assert axis.until >= EIGHT + length
    assert len(axis.labels()) <= 80


def test_a_terminal_without_these_characters_gets_others() -> None:
    axis = Axis(EIGHT, EIGHT + timedelta(hours=1), TEN_MINUTES, 60)
    (line,) = drawn([hold(0, 20), hold(30, None, token=2)], axis, ASCII, {}, 1)
    assert line == "k  [ h ----------------]         [ h ------------------------->"
    assert all(character.isascii() for character in ASCII.legend(0, 100))
