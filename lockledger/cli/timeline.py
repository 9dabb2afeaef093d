"""`lockledger timeline`: who held what when, drawn for a terminal."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from lockledger.cli import output
from lockledger.cli.command import command
from lockledger.cli.given import Given
from lockledger.cli.options import ByHolder, KeyPrefix, Since, Under, Until, read_instant

if TYPE_CHECKING:
    from lockledger.domain.events import LockEvent
    from lockledger.domain.holds import Hold

_WIDTH_OF_A_PIPE = 100
_NARROWEST = 40


def add_to(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "timeline")(timeline)


def timeline(
    given: Given,
    key_prefix: KeyPrefix = None,
    under: Under = None,
    holder: ByHolder = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many locks.")] = 50,
    width: Annotated[
        int | None,
        typer.Option(metavar="COLUMNS", min=_NARROWEST, help="The terminal's width by default."),
    ] = None,
) -> None:
    """Draw who held what when, a row for each lock; with --json one hold a line."""
    first, beyond = read_instant(since, "--since"), read_instant(until, "--until")
    with given.opened() as ledger:
        events = (recorded.event for recorded in ledger.events())
        found = [
            hold
            for hold in holds(events, datetime.now(UTC))
            if _is_wanted(hold, key_prefix, under, holder) and _was_live(hold, first, beyond)
        ]
        found.sort(key=lambda hold: (hold.key, hold.token))
        found, left_out = _first_locks(found, limit)
        names = ledger.display_names({hold.holder for hold in found})
    if left_out:
        output.message(
            f"{left_out} more locks are not shown; raise --limit, or narrow it with --under or --since"
        )
    if given.json:
        from lockledger.cli.answers import hold_facts, named

        for hold in found:
            output.print_json(named(given, hold_facts(hold), names))
    elif found:
        for line in _picture(found, first, beyond, names, width or _terminal_width()):
            print(line)


def holds(events: "Iterable[LockEvent]", now: datetime) -> "Iterator[Hold]":
    """Every hold that the events tell of, ended ones first; one that has run out by `now` has ended by expiry."""
    live: dict[str, Hold] = {}
    for event in events:
        ended, after = event.ended_hold(), event.after()
        if ended is not None:
            yield ended
        if after is None:
            live.pop(event.key, None)
        else:
            live[event.key] = after
    for hold in live.values():
        if hold.is_live(now) or hold.expires_at is None:
            yield hold
        else:
            yield hold.ended(hold.expires_at, "expiry", actor=None, reason=None)


def _is_wanted(hold: "Hold", key_prefix: str | None, under: str | None, holder: str | None) -> bool:
    return (
        hold.key.startswith(key_prefix or "")
        and (under is None or hold.key == under or hold.key.startswith(f"{under}:"))
        and holder in (None, hold.holder)
    )


def _was_live(hold: "Hold", since: datetime | None, until: datetime | None) -> bool:
    """Whether the hold was live at any instant of [since, until); an instantaneous one counts where it stands."""
    begins_before = until is None or hold.taken_at < until
    ends_after = (
        since is None or hold.ended_at is None or hold.ended_at > since or hold.taken_at >= since
    )
    return begins_before and ends_after


def _first_locks(found: "list[Hold]", limit: int) -> "tuple[list[Hold], int]":
    kept: list[Hold] = []
    locks = 0
    for _, of_lock in groupby(found, key=lambda hold: hold.key):
        locks += 1
        if locks <= limit:
            kept.extend(of_lock)
    return kept, max(0, locks - limit)


def _picture(
    found: "list[Hold]",
    since: datetime | None,
    until: datetime | None,
    names: Mapping[str, str | None],
    columns: int,
) -> Iterator[str]:
    from lockledger.cli import chart

    marks = chart.UNICODE if output.speaks_unicode(sys.stdout) else chart.ASCII
    key_columns = min(max(output.width(output.safe(hold.key)) for hold in found), columns // 3)
    begin = since or min(hold.taken_at for hold in found)
    # A hold that is still live would draw years until now over the day that is of interest.
    end = until or max(hold.ended_at or hold.taken_at for hold in found)
    if end <= begin:
        end = max(datetime.now(UTC), begin)
    axis = chart.Axis.over(begin, end, chart.axis_columns(columns, key_columns))
    indent = " " * (key_columns + 2)
    yield indent + axis.heading()
    yield indent + axis.labels()
    yield from chart.drawn(found, axis, marks, names, key_columns)
    yield marks.legend(len(indent), columns)


def _terminal_width() -> int:
    if not sys.stdout.isatty():
        return _WIDTH_OF_A_PIPE
    return max(_NARROWEST, shutil.get_terminal_size().columns)
