"""Drawings read back: as XML, with what stands in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree as ET

from lockledger import Hold, draw_timeline

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
NOW = NINE + timedelta(hours=8)
SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"


def hold(begin: float, end: float | None = None, **facts: Any) -> Hold:
    """From and to minutes after nine; released unless told."""
    given: dict[str, Any] = {
        "key": "k",
        "holder": "h",
        "token": 1,
        "taken_at": NINE + timedelta(minutes=begin),
    }
    if end is not None:
        given |= {"ended_at": NINE + timedelta(minutes=end), "ended_by": "release"}
    return Hold(**given | facts)


@dataclass(frozen=True)
class Bar:
    """What is drawn of a hold."""

    key: str
    token: int
    points: list[tuple[float, float]]
    fill: str
    marks: set[str]
    title: str
    label: str | None

    @property
    def x1(self) -> float:
        """Its left side."""
        return min(x for x, _ in self.points)

    @property
    def x2(self) -> float:
        """Its right side."""
        return max(x for x, _ in self.points)


def drawn(*holds: Hold, **options: Any) -> ET.Element:
    """The image, parsed."""
    return ET.fromstring(draw_timeline(holds, **{"now": NOW, **options}))


def page(*holds: Hold, **options: Any) -> ET.Element:
    """The page, parsed."""
    text = draw_timeline(holds, **{"now": NOW, "format": "html", **options})
    head, _, rest = text.partition("\n")
    assert head == "<!DOCTYPE html>"
    return ET.fromstring(rest)


def bars(drawing: ET.Element) -> dict[tuple[str, int], Bar]:
    """The bars by key and token."""
    found = {}
    for group in drawing.iter(f"{SVG}g"):
        if group.get("class") != "hold":
            continue
        bar, *others = group.findall(f"{SVG}path")
        text, title = group.find(f"{SVG}text"), group.findtext(f"{SVG}title")
        numbers = [float(each) for each in re.findall(r"[\d.]+", bar.attrib["d"])]
        key, token = group.attrib["data-key"], int(group.attrib["data-token"])
        assert title is not None
        found[key, token] = Bar(
            key,
            token,
            list(zip(numbers[::2], numbers[1::2], strict=True)),
            bar.attrib["fill"],
            {other.attrib["class"] for other in others},
            title,
            None if text is None else text.text,
        )
    return found


def rows(drawing: ET.Element) -> list[list[str]]:
    """The table's rows, cell by cell."""
    (table,) = drawing.iter(f"{HTML}tbody")
    return [["".join(cell.itertext()) for cell in row] for row in table]
