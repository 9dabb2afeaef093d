"""How holders are told apart: fills that differ in lightness, so that they also do in grey."""

from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from typing import Final

from lockledger.domain.holds import Hold

INK: Final = "#1a1a1a"
"""Text, and the marks on bars."""
QUIET: Final = "#555555"
"""Text that is not read first."""
EDGE: Final = "#333333"
"""Outlines of bars, and the hatching of those that expired."""
GRID: Final = "#d9d9d9"
BAND: Final = "#f6f6f6"
PAPER: Final = "#ffffff"

FILLS: Final = (
    "#d0ecff",
    "#cd9963",
    "#aadbae",
    "#82bfed",
    "#fcf2bb",
    "#66a67f",
    "#f9b1b7",
    "#bba5d2",
)
"""Each has its own lightness, at least 4 steps of 100 from the next; ink on each is read at 6:1, and its edge seen at 4:1."""


def fills_of(holds: Iterable[Hold]) -> Mapping[str, str]:
    """A fill for each holder: for those who follow one another on a lock different ones, as far as eight go.

    `holds` come by key, then time. The same holds give the same fills.
    """
    neighbours: dict[str, set[str]] = {}
    for _, of_lock in groupby(holds, key=lambda hold: hold.key):
        holders = [hold.holder for hold in of_lock]
        for holder in holders:
            neighbours.setdefault(holder, set())
        for one, other in pairwise(holders):
            if one != other:
                neighbours[one].add(other)
                neighbours[other].add(one)
    chosen: dict[str, int] = {}
    used = [0] * len(FILLS)
    for holder, beside in neighbours.items():
        taken = [chosen[other] for other in beside if other in chosen]
        fill = min(range(len(FILLS)), key=lambda each: (taken.count(each), used[each], each))
        chosen[holder] = fill
        used[fill] += 1
    return {holder: FILLS[fill] for holder, fill in chosen.items()}
