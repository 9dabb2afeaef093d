"""Who held what when, as a drawing and as JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockledger.cli.chart import ASCII, UNICODE, Axis, drawn
from lockledger.domain.holds import Hold
from support.ledgers import Ledgers, SettableClock

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
        == "lockledger: 3 more locks are not shown; raise --limit, or narrow it with --under or --since\n"
    )
    assert len(ran.out.splitlines()) == 5


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
    axis = Axis(EIGHT, EIGHT + timedelta(hours=1), timedelta(minutes=10), columns)
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
    ("length", "step"),
    [
        (timedelta(0), timedelta(seconds=1)),
        (timedelta(seconds=5), timedelta(seconds=1)),
        (timedelta(minutes=1), timedelta(seconds=10)),
        (timedelta(hours=9), timedelta(hours=1)),
        (timedelta(days=1), timedelta(hours=3)),
        (timedelta(days=3), timedelta(hours=12)),
        (timedelta(days=365), timedelta(days=91)),
        (timedelta(days=36_500), timedelta(days=3640)),
        (timedelta(days=36_500 * 20), timedelta(days=3640)),
    ],
)
def test_the_axis_has_the_finest_steps_whose_labels_fit(length: timedelta, step: timedelta) -> None:
    axis = Axis.over(EIGHT, EIGHT + length, 80)
    assert axis.step == step
    assert axis.since <= EIGHT
    assert axis.until >= EIGHT + length
    assert len(axis.labels()) <= 80


def test_a_terminal_without_these_characters_gets_others() -> None:
    axis = Axis(EIGHT, EIGHT + timedelta(hours=1), timedelta(minutes=10), 60)
    (line,) = drawn([hold(0, 20), hold(30, None, token=2)], axis, ASCII, {}, 1)
    assert line == "k  [ h ----------------]         [ h ------------------------->"
    assert all(character.isascii() for character in ASCII.legend(0, 100))
