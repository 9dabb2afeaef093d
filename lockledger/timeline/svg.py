"""The drawing: a lane for each lock, a bar for each hold, time from left to right.

It needs nothing from outside, no style sheet and no script. Only presentation attributes are used, so that a page whose
policy forbids styles shows it as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lockledger.domain.holds import Hold
from lockledger.timeline import bars
from lockledger.timeline.axis import day
from lockledger.timeline.bars import BAR, BAR_TOP, SIZE, number
from lockledger.timeline.facts import Telling
from lockledger.timeline.fills import BAND, EDGE, FILLS, GRID, INK, PAPER, QUIET
from lockledger.timeline.period import Period
from lockledger.timeline.words import cut_middle, measured, plain, xml, xml_lines

WIDTH: Final = 1200
MARGIN: Final = 16
LANE: Final = 30
LANES_TOGETHER: Final = 20
"""So many lanes share an axis: what a screen shows, and a sheet of paper."""

_FACES = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_AXIS = 34
_KEY_SIZE = 12
_WIDEST_KEY = 250
_GAP = 12
_LEAST_LEFT = 60
_BETWEEN_LABELS, _HALF_LABEL = 32, 40


@dataclass(frozen=True)
class Part:
    """A piece of the drawing, and how high it is."""

    markup: str
    height: float


@dataclass(frozen=True)
class Picture:
    """Everything that a drawing is made from. `lanes`: the holds of each lock in order of time."""

    lanes: Mapping[str, Sequence[Hold]]
    period: Period
    telling: Telling
    fills: Mapping[str, str]

    @property
    def left(self) -> float:
        """Where the axis begins."""
        widest = max((measured(plain(key), _KEY_SIZE) for key in self.lanes), default=0)
        return max(_LEAST_LEFT, MARGIN + min(widest, _WIDEST_KEY) + _GAP)

    def panels(self) -> Iterator[tuple[Part, Sequence[str]]]:
        """The lanes, so many together under an axis of their own, and the keys in each panel."""
        keys = list(self.lanes)
        for first in range(0, len(keys), LANES_TOGETHER):
            shown = keys[first : first + LANES_TOGETHER]
            yield self._panel(shown, f"lockledger-hatch-{first // LANES_TOGETHER + 1}"), shown

    def _panel(self, keys: Sequence[str], hatch: str) -> Part:
        plot = bars.Plot(self.left, WIDTH - MARGIN, self.period)
        height = _AXIS + LANE * len(keys)
        lines = [bars.hatching(hatch)]
        lines += [
            f'<rect x="{MARGIN}" y="{_AXIS + LANE * lane}" width="{WIDTH - 2 * MARGIN}" height="{LANE}" fill="{BAND}"/>'
            for lane in range(0, len(keys), 2)
        ]
        lines += _axis(plot, height)
        for lane, key in enumerate(keys):
            lines.append(f'<g class="lane" transform="translate(0 {_AXIS + LANE * lane})">')
            lines.append(self._key(key))
            lines += bars.lane(self.lanes[key], plot, self.telling, self.fills, hatch)
            lines.append("</g>")
        lines.append(f'<path d="M{MARGIN} {height}H{WIDTH - MARGIN}" stroke="{GRID}"/>')
        return Part("\n".join(lines), height + 8)

    def _key(self, key: str) -> str:
        text = cut_middle(plain(key), _KEY_SIZE, _WIDEST_KEY)
        return (
            f"<g><title>{xml_lines(key)}</title>"
            f'<text x="{MARGIN + 4}" y="{BAR_TOP + BAR / 2 + 4}" font-size="{_KEY_SIZE}">{xml(text)}</text></g>'
        )

    def legend(self) -> Part:
        """What the marks mean, and whose fill is which as long as there is one for each."""
        rows = [bars.legend_of_marks(self._has_cut_bars(), self.period.shows_now)]
        if 0 < len(self.fills) <= len(FILLS):
            rows.append(
                [
                    (bars.sample(fill), self.telling.label(holder))
                    for holder, fill in self.fills.items()
                ]
            )
        lines, y = [], 4
        for row in rows:
            x: float = MARGIN
            for sample, text in row:
                shown = cut_middle(text, SIZE, WIDTH - 2 * MARGIN - 42)
                width = 42 + measured(shown, SIZE)
                if x > MARGIN and x + width > WIDTH - MARGIN:
                    x, y = MARGIN, y + 24
                lines.append(
                    f'<g transform="translate({number(x)} {y})">{sample}'
                    f'<text x="32" y="{BAR_TOP + BAR / 2 + 4}" font-size="{SIZE}">{xml(shown)}</text></g>'
                )
                x += width + 12
            y += 26
        hatch = bars.hatching(bars.HATCH_OF_LEGEND)
        return Part("\n".join([hatch, *lines]), y + 8)

    def _has_cut_bars(self) -> bool:
        return any(
            hold.taken_at < self.period.since
            or (hold.ended_at is not None and hold.ended_at > self.period.until)
            for of_lock in self.lanes.values()
            for hold in of_lock
        )


def image(parts: Sequence[Part], title: str, description: str) -> str:
    """One SVG image from parts that stand below each other."""
    height = sum(part.height for part in parts)
    size = f'width="{WIDTH}" height="{number(height)}" viewBox="0 0 {WIDTH} {number(height)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} fill="{INK}" font-family="{_FACES}">',
        f"<title>{xml_lines(title)}</title>",
        f"<desc>{xml_lines(description)}</desc>",
        f'<rect width="{WIDTH}" height="{number(height)}" fill="{PAPER}"/>',
    ]
    y = 0.0
    for part in parts:
        lines += [f'<g transform="translate(0 {number(y)})">', part.markup, "</g>"]
        y += part.height
    return "\n".join([*lines, "</svg>"]) + "\n"


def heading(title: str, lines: Sequence[str]) -> Part:
    """The title of an image, and lines below it that fit."""
    markup = [
        f'<text x="{MARGIN}" y="30" font-size="18" font-weight="bold">{xml(title)}</text>',
        *(
            f'<text x="{MARGIN}" y="{50 + 18 * place}" font-size="12" fill="{QUIET}">{xml(line)}</text>'
            for place, line in enumerate(lines)
        ),
    ]
    return Part("\n".join(markup), 46 + 18 * len(lines))


def _axis(plot: bars.Plot, height: float) -> Iterator[str]:
    """A line down at each tick, the ticks' labels, and above them the day where a new one begins."""
    step = plot.period.step(plot.width, lambda label: measured(label, SIZE) + _BETWEEN_LABELS)
    dated: datetime | None = None
    grid, labels = [], []
    for tick in step.ticks(plot.period.since, plot.period.until):
        x = number(plot.x(tick))
        grid.append(f"M{x} {_AXIS - 6}V{number(height)}")
        at = f'x="{x}"' if plot.x(tick) < WIDTH - _HALF_LABEL else f'x="{x}" text-anchor="end"'
        labels.append(f'<text {at} y="{_AXIS - 10}">{step.label(tick)}</text>')
        if not step.is_of_days and (dated is None or dated.date() != tick.date()):
            labels.append(f'<text {at} y="{_AXIS - 24}" font-weight="bold">{day(tick)}</text>')
            dated = tick
    yield f'<path class="grid" d="{"".join(grid)}" stroke="{GRID}"/>'
    if plot.period.shows_now:
        x = number(plot.x(plot.period.now))
        yield f'<path class="now" d="M{x} {_AXIS - 6}V{number(height)}" stroke="{EDGE}" stroke-dasharray="2 3"/>'
    yield f'<g class="axis" font-size="{SIZE}" fill="{QUIET}" text-anchor="middle">'
    yield from labels
    yield "</g>"
