"""The bars of a lane, with their marks, labels and titles."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from lockledger.domain.holds import Hold
from lockledger.timeline.facts import Telling
from lockledger.timeline.fills import EDGE, INK, PAPER
from lockledger.timeline.period import Period
from lockledger.timeline.words import cut, escaped, measured, xml

BAR_TOP: Final = 9
BAR: Final = 17
SIZE: Final = 11
HATCH_OF_LEGEND: Final = "lockledger-hatch"

NARROWEST: Final = 3.0
"""The width of a bar that would be narrower, if drawn as long as it lasted."""
NARROWEST_LIVE: Final = 9.0
_TIP = 7
_TOOTH = 3
_INSIDE, _BESIDE, _FAR = 5, 5, 14
_LEAST_LABEL = 26


@dataclass(frozen=True)
class Plot:
    """Where the time of a period stands, from left to right."""

    left: float
    right: float
    period: Period

    @property
    def width(self) -> float:
        """How wide the axis is."""
        return self.right - self.left

    def x(self, instant: datetime) -> float:
        """Where an instant stands."""
        return self.left + self.width * self.period.part(instant)


@dataclass
class _Placed:
    """A hold's bar from `x1` to `x2`, and how its sides look."""

    hold: Hold
    x1: float
    x2: float
    begins: str
    ends: str
    widened: bool
    label: str = ""
    at: float = 0.0
    anchor: str = "start"
    inside: bool = True


def number(value: float) -> str:
    """A coordinate, to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def hatching(name: str) -> str:
    """The pattern that lies over the bars of holds that expired."""
    return (
        f'<defs><pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse"'
        f' patternTransform="rotate(45)"><path d="M3 0V6" stroke="{EDGE}" stroke-width="1.3"/></pattern></defs>'
    )


def lane(
    holds: Sequence[Hold], plot: Plot, telling: Telling, fills: Mapping[str, str], hatch: str
) -> Iterator[str]:
    """A bar for each hold of a lock; those too short to be seen at their length lie above the others."""
    placed = [_place(hold, plot) for hold in holds]
    _put_labels(placed, plot, telling)
    for bar in sorted(placed, key=lambda each: each.widened):
        yield _drawn(bar, telling, fills[bar.hold.holder], hatch)


def _place(hold: Hold, plot: Plot) -> _Placed:
    since, until, now = plot.period.since, plot.period.until, plot.period.now
    end = hold.ended_at
    x1 = plot.x(hold.taken_at)
    x2 = plot.x(max(now, hold.taken_at) if end is None else end)
    least = NARROWEST_LIVE if end is None else NARROWEST
    widened = x2 - x1 < least
    if widened:
        x1 = min(x1, plot.right - least)
        x2 = x1 + least
    ends = "point" if end is None else "torn" if end > until else "square"
    return _Placed(hold, x1, x2, "torn" if hold.taken_at < since else "square", ends, widened)


def _put_labels(placed: Sequence[_Placed], plot: Plot, telling: Telling) -> None:
    """Each label goes into its bar, beside it where nothing is, or is cut to what the bar has room for."""
    free_from = plot.left - _FAR
    for place, bar in enumerate(placed):
        text = telling.label(bar.hold.holder)
        width = _measured(text)
        free_to = placed[place + 1].x1 if place + 1 < len(placed) else plot.right + _FAR
        room = bar.x2 - bar.x1 - 2 * _INSIDE - (_TIP if bar.ends == "point" else 0)
        bar.at = bar.x1 + _INSIDE + (_TOOTH if bar.begins == "torn" else 0)
        reached = bar.x2
        if width <= room:
            bar.label = text
        elif bar.x2 + _BESIDE + width + _FAR <= free_to:
            bar.label, bar.at, bar.inside = text, bar.x2 + _BESIDE, False
            reached = bar.at + width
        elif bar.x1 - _BESIDE - width - _FAR >= free_from:
            bar.label, bar.at, bar.anchor, bar.inside = text, bar.x1 - _BESIDE, "end", False
        elif room >= _LEAST_LABEL:
            bar.label = cut(text, SIZE, room)
        free_from = max(free_from, reached)


@lru_cache(maxsize=1000)
def _measured(label: str) -> float:
    return measured(label, SIZE)


def _drawn(bar: _Placed, telling: Telling, fill: str, hatch: str) -> str:
    hold = bar.hold
    shape = _outline(bar.x1, bar.x2, bar.begins, bar.ends)
    parts = [
        f'<g class="hold" data-key="{xml(hold.key)}" data-token="{hold.token}">',
        f"<title>{escaped(telling.title(hold))}</title>",
        f'<path class="bar" d="{shape}" fill="{fill}" stroke="{EDGE}"/>',
    ]
    if hold.ended_by == "expiry":
        parts.append(f'<path class="expired" d="{shape}" fill="url(#{hatch})"/>')
        if bar.label and bar.inside:
            parts.append(_plate(bar, fill))
    if bar.label:
        anchor = "" if bar.anchor == "start" else f' text-anchor="{bar.anchor}"'
        parts.append(
            f'<text x="{number(bar.at)}" y="{BAR_TOP + BAR / 2 + 4}" font-size="{SIZE}"{anchor}>{xml(bar.label)}</text>'
        )
    if hold.taken_over_from is not None and bar.begins == "square":
        parts.append(_taken_over(bar.x1))
    if hold.ended_by == "forced" and bar.ends == "square":
        parts.append(_forced(bar.x2))
    return "".join([*parts, "</g>"])


def _plate(bar: _Placed, fill: str) -> str:
    """What keeps the hatching off a label."""
    x1 = bar.x1 + 0.5 + (_TOOTH if bar.begins == "torn" else 0)
    width = bar.at + _measured(bar.label) - x1
    return (
        f'<rect x="{number(x1)}" y="{BAR_TOP + 0.5}" width="{number(width)}"'
        f' height="{BAR - 1}" fill="{fill}"/>'
    )


def _outline(x1: float, x2: float, begins: str, ends: str) -> str:
    """A closed path: up the left side, and down the right one."""
    top, bottom, middle = BAR_TOP, BAR_TOP + BAR, BAR_TOP + BAR / 2
    quarters = [top + BAR * part / 4 for part in range(5)]
    teeth = [(_TOOTH * (place % 2), y) for place, y in enumerate(quarters)]
    left = [(x1, float(bottom)), (x1, float(top))]
    if begins == "torn":
        left = [(x1 + depth, y) for depth, y in reversed(teeth)]
    right = [(x2, float(top)), (x2, float(bottom))]
    if ends == "torn":
        right = [(x2 - depth, y) for depth, y in teeth]
    elif ends == "point":
        right = [(x2 - _TIP, top), (x2, middle), (x2 - _TIP, bottom)]
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in [*left, *right]) + "Z"


def _taken_over(x: float) -> str:
    """A triangle above the instant, pointing at it."""
    top = BAR_TOP - 7
    shape = f"M{number(x - 4.5)} {top}H{number(x + 4.5)}L{number(x)} {top + 7}Z"
    return (
        f'<path class="taken-over" d="{shape}" fill="{INK}" stroke="{PAPER}" stroke-width="0.5"/>'
    )


def _forced(x: float) -> str:
    """A cross above the instant."""
    top, bottom, left, right = BAR_TOP - 8, BAR_TOP - 1, number(x - 3.5), number(x + 3.5)
    shape = f"M{left} {top}L{right} {bottom}M{right} {top}L{left} {bottom}"
    return f'<path class="forced" d="{shape}" stroke="{INK}" stroke-width="2"/>'


def sample(fill: str, ends: str = "square", above: str = "") -> str:
    """A small bar for the legend."""
    return f'<path d="{_outline(0, 26, "square", ends)}" fill="{fill}" stroke="{EDGE}"/>{above}'


def legend_of_marks(cut_bars: bool, now: bool) -> list[tuple[str, str]]:
    """Samples, and what they mean."""
    hatched = f'<path d="{_outline(0, 26, "square", "square")}" fill="url(#{HATCH_OF_LEGEND})"/>'
    rows = [
        (sample(PAPER), "held, then released"),
        (sample(PAPER, above=_taken_over(0)), "taken over"),
        (sample(PAPER, above=_forced(26)), "released by force"),
        (sample(PAPER, above=hatched), "expired"),
        (sample(PAPER, "point"), "still held"),
    ]
    if cut_bars:
        rows.append((sample(PAPER, "torn"), "goes on outside this period"))
    if now:
        line = f'<path d="M13 {BAR_TOP - 4}V{BAR_TOP + BAR + 4}" stroke="{EDGE}" stroke-dasharray="2 3"/>'
        rows.append((line, "now"))
    return rows
