"""Dots, bars and curves as SVG, for the report: plain text, the same bytes for the same figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 900
_COLOURS: Final = (
    "#0b5fa5",
    "#d1730f",
    "#3f8f3f",
    "#9c4aa0",
    "#b5323b",
    "#6b6b6b",
    "#1f9a96",
    "#a98600",
)
_LABELS: Final = 300
"""Pixels for the names beside the bars."""
_ROOM: Final = 150
"""Pixels for the figures behind the bars."""
_BAR: Final = 20


@dataclass(frozen=True)
class Dot:
    """One figure: the median, from where to where it varied."""

    name: str
    value: float
    least: float
    most: float
    colour: int


@dataclass(frozen=True)
class Panel:
    """Dots under one heading."""

    heading: str
    dots: Sequence[Dot]


def dots(title: str, unit: str, panels: Sequence[Panel]) -> str:
    """Dots along a logarithmic axis that all panels share, with whiskers from the least to the most of the rounds."""
    every = [dot for panel in panels for dot in panel.dots]
    low, high = _decades([value for dot in every for value in (dot.least, dot.most)])
    left, right = float(_LABELS), float(WIDTH - _ROOM)

    def x(value: float) -> float:
        return left + (math.log10(value) - low) / (high - low) * (right - left)

    parts, y = [], 66.0
    for panel in panels:
        parts.append(_text(16, y + 6, panel.heading, weight="bold"))
        end = y + 14 + 22 * len(panel.dots)
        for power in range(low, high + 1):
            at = x(10.0**power)
            parts.append(f'<path d="M{at:.1f} {y + 12:.1f}V{end:.1f}" stroke="#e2e2e2"/>')
            parts.append(_text(at, y + 6, figure(10.0**power), "middle", "#555555"))
        for number, dot in enumerate(panel.dots):
            middle = y + 26 + 22 * number
            parts += _dotted(dot, middle, (x(dot.least), x(dot.value), x(dot.most)))
        y = end + 24
    return _page(title, f"{unit}, logarithmic; whiskers: least and most of the rounds", y, parts)


def _dotted(dot: Dot, y: float, at: tuple[float, float, float]) -> Iterator[str]:
    least, value, most = at
    colour = _COLOURS[dot.colour % len(_COLOURS)]
    yield _text(_LABELS - 8, y + 4, dot.name, anchor="end")
    yield (
        f'<path d="M{least:.1f} {y:.1f}H{most:.1f}M{least:.1f} {y - 4:.1f}v8M{most:.1f} {y - 4:.1f}v8"'
        f' stroke="{colour}" stroke-width="1.5" fill="none"/>'
        f'<circle cx="{value:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
    )
    yield _text(most + 10, y + 4, figure(dot.value))


def stacks(
    title: str, unit: str, names: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]
) -> str:
    """Horizontal bars of parts that add up."""
    scale = (WIDTH - _LABELS - _ROOM) / max((sum(values) for _, values in rows), default=1.0)
    parts, y = [*_legend(names, 62)], 84.0
    for name, values in rows:
        x = float(_LABELS)
        parts.append(_text(_LABELS - 8, y + _BAR / 2 + 4, name, anchor="end"))
        for number, value in enumerate(values):
            parts.append(_rect(x, y, value * scale, _COLOURS[number]))
            if value * scale > 34:
                parts.append(
                    _text(
                        x + value * scale / 2, y + _BAR / 2 + 4, figure(value), "middle", "#ffffff"
                    )
                )
            x += value * scale
        parts.append(_text(x + 8, y + _BAR / 2 + 4, figure(sum(values))))
        y += _BAR + 4
    return _page(title, unit, y + 10, parts)


Curve = Sequence[tuple[float, float, float, float]]
"""Where, and there the median, the least and the most."""


def curves(title: str, across: str, upward: str, lines: Mapping[str, Curve]) -> str:
    """Lines on logarithmic axes, with whiskers."""
    left, right, top, bottom = 70.0, WIDTH - 300.0, 66.0, 400.0
    points = [point for curve in lines.values() for point in curve]
    x_low, x_high = _decades([point[0] for point in points])
    y_low, y_high = _decades([value for point in points for value in point[2:]])

    def x(value: float) -> float:
        return left + (math.log10(value) - x_low) / (x_high - x_low) * (right - left)

    def y(value: float) -> float:
        return bottom - (math.log10(value) - y_low) / (y_high - y_low) * (bottom - top)

    parts = []
    for power in range(x_low, x_high + 1):
        at = x(10.0**power)
        parts.append(f'<path d="M{at:.1f} {top}V{bottom}" stroke="#e2e2e2"/>')
        parts.append(_text(at, bottom + 18, figure(10.0**power), "middle", "#555555"))
    for power in range(y_low, y_high + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{left} {at:.1f}H{right}" stroke="#e2e2e2"/>')
        parts.append(_text(left - 8, at + 4, figure(10.0**power), "end", "#555555"))
    parts.append(_text((left + right) / 2, bottom + 38, across, "middle", "#555555"))
    for number, (name, curve) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value, _, _ in curve)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for at, value, least, most in curve:
            parts.append(
                f'<path d="M{x(at):.1f} {y(least):.1f}V{y(most):.1f}" stroke="{colour}"/>'
                f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="3.5" fill="{colour}"/>'
            )
        beside = top + 10 + 22 * number
        parts.append(f'<path d="M{right + 20} {beside}h22" stroke="{colour}" stroke-width="3"/>')
        parts.append(_text(right + 48, beside + 4, name))
    return _page(title, f"{upward}; whiskers: least and most of the rounds", bottom + 56, parts)


def figure(value: float) -> str:
    """A number with three digits that matter, or whole with commas."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _legend(names: Sequence[str], y: float) -> Iterator[str]:
    x = 16.0
    for number, name in enumerate(names):
        yield f'<rect x="{x:.1f}" y="{y - 9}" width="12" height="12" fill="{_COLOURS[number]}"/>'
        yield _text(x + 18, y + 1, name)
        x += 40 + 6.6 * len(name)


def _rect(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{_BAR}" fill="{colour}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
    fill: str = "#1a1a1a",
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="{fill}"'
        f' font-weight="{weight}">{escape(text)}</text>'
    )


def _page(title: str, subtitle: str, height: float, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}" font-family="system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif">
<title>{escape(title)}</title>
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="16" y="26" font-size="17" font-weight="bold" fill="#1a1a1a">{escape(title)}</text>
<text x="16" y="44" font-size="12" fill="#555555">{escape(subtitle)}</text>
{inside}
</svg>
"""
