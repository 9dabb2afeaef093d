"""Who held what when, drawn as SVG or as an HTML page that stands alone."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import groupby
from typing import Literal

from lockledger.domain.errors import shown
from lockledger.domain.holds import Hold
from lockledger.queries import checked_instant
from lockledger.timeline import svg
from lockledger.timeline.axis import LATEST
from lockledger.timeline.facts import Telling
from lockledger.timeline.fills import fills_of
from lockledger.timeline.page import page
from lockledger.timeline.period import Period, as_of, was_live
from lockledger.timeline.words import counted, moment, wrapped

__all__ = ["draw_timeline"]


def draw_timeline(
    holds: Iterable[Hold],
    *,
    now: datetime,
    since: datetime | None = None,
    until: datetime | None = None,
    names: Mapping[str, str | None] | None = None,
    format: Literal["svg", "html"] = "svg",  # noqa: A002 -- as in `str.format`, what the answer is made in
    heading: str = "Who held what when",
    note: str | None = None,
) -> str:
    """A drawing of holds: a lane for each lock by key, a bar for each hold, all times in UTC.

    Shows the holds that were live at any instant of [since, until), as `LockLedger.holds` gives them. Without `since` it
    begins with the first of them. Without `until` it ends `now`, when a hold is still live, and with the last change
    otherwise; also when nothing has changed for more than three times as long as all before. A hold that has run out
    by `now` has ended at its expiry. `names`: display names by id of holders and actors. `heading` and `note` stand
    above the drawing; say there what was left out.

    `format="svg"`: one image. `"html"`: a page with the same, and a table of the holds below. Both need nothing from
    outside, run no script, and show keys, names and reasons as the text that they are. The same arguments give the
    same text. Encode it as UTF-8. Its length and the time it takes grow with the number of holds; ten thousand of
    them are some 3 MB as an image and 7 MB as a page.

    Raises `TypeError` for what is no hold or no aware instant, `ValueError` for a naive one, for an `until` not later
    than `since`, and for another format.
    """
    if format not in ("svg", "html"):
        raise ValueError(f"format={shown(format)}: use svg or html")
    as_of_now = checked_instant(now, "now")
    if as_of_now is None:
        raise TypeError("now must be an aware datetime, not None; give datetime.now(UTC)")
    first, beyond = checked_instant(since, "since"), checked_instant(until, "until")
    if first is not None and beyond is not None and beyond <= first:
        raise ValueError(
            f"until={beyond.isoformat()} is not later than since={first.isoformat()}; give a period"
        )
    if first == LATEST:
        raise ValueError(f"since={LATEST.isoformat()} is the last instant there is; give a period")
    found = [as_of(_checked(hold), as_of_now) for hold in holds]
    found = [hold for hold in found if was_live(hold, first, beyond)]
    found.sort(key=lambda hold: (hold.key, hold.taken_at, hold.token))
    picture = svg.Picture(
        {key: list(of_lock) for key, of_lock in groupby(found, key=lambda hold: hold.key)},
        Period.of(found, first, beyond, as_of_now),
        Telling(names or {}),
        fills_of(found),
    )
    lines = [_summary(picture), *([note] if note else [])]
    return page(picture, heading, lines) if format == "html" else _image(picture, heading, lines)


def _checked(hold: Hold) -> Hold:
    if not isinstance(hold, Hold):
        raise TypeError(f"a timeline is drawn from Hold models, not {shown(hold)}")
    return hold


def _image(picture: svg.Picture, heading: str, lines: list[str]) -> str:
    room = svg.WIDTH - 2 * svg.MARGIN
    shorter = [part for line in lines for part in wrapped(line, 12, room)]
    parts = [svg.heading(" ".join(wrapped(heading, 18, room)[:1]), shorter)]
    parts += [part for part, _ in picture.panels()]
    if picture.lanes:
        parts.append(picture.legend())
    return svg.image(parts, heading, " ".join(lines))


def _summary(picture: svg.Picture) -> str:
    of_locks = picture.lanes.values()
    number = sum(map(len, of_locks))
    period = f"from {moment(picture.period.first)} to {moment(picture.period.last)}"
    if not number:
        whole = picture.period.first == picture.period.last
        return "No lock was held." if whole else f"No lock was held {period}."
    live = sum(hold.ended_at is None for of_lock in of_locks for hold in of_lock)
    still = f", {live:,} still held at {moment(picture.period.now)}" if live else ""
    return f"{counted(number, 'hold')} of {counted(len(of_locks), 'lock')} {period}{still}. Times are UTC."
