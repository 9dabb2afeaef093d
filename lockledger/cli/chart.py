"""Holds drawn in plain text: a row for each lock, time from left to right."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from lockledger.cli.output import padded, safe, width
from lockledger.domain.holds import Hold
from lockledger.timeline.axis import STEPS, Step, day

_LEAST_CHART = 20
_GAP = 2
_SHORTEST_STEP = timedelta(seconds=1)


@dataclass(frozen=True)
class Marks:
    """The characters of a drawing."""

    taken: str
    taken_over: str
    released: str
    forced: str
    expired: str
    held: str
    fill: str
    cut: str

    def end_of(self, hold: Hold) -> str:
        """What stands where the hold ends."""
        ends = {
            "release": self.released,
            "forced": self.forced,
            "expiry": self.expired,
            "takeover": self.taken_over,
        }
        return self.held if hold.ended_by is None else ends[hold.ended_by]

    def legend(self, indent: int, columns: int) -> str:
        """What the marks mean: under the axis where there is room, else over the whole width, if need be in two lines."""
        begins = f"{self.taken} taken  {self.taken_over} taken over  {self.held} still held"
        ends = f"{self.released} released  {self.forced} released by force  {self.expired} expired"
        line = f"{begins}  {ends}"
        if indent + len(line) <= columns:
            return " " * indent + line
        return line if len(line) <= columns else f"{begins}\n{ends}"


UNICODE: Final = Marks("┣", "╋", "┫", "x", "┋", "▶", "━", "…")
ASCII: Final = Marks("[", "+", "]", "x", ":", ">", "-", "~")


@dataclass(frozen=True)
class Axis:
    """An interval of time on so many columns, cut at whole steps."""

    since: datetime
    until: datetime
    step: Step
    columns: int

    @classmethod
    def over(cls, since: datetime, until: datetime, columns: int) -> "Axis":
        """The axis with the finest steps whose labels fit."""
        axis = cls(since, until, STEPS[-1], columns)
        for step in STEPS:
            if step.length < _SHORTEST_STEP:
                continue
            begin = step.before(since)
            end = step.after(until)
            if end == begin:
                end = step.after(end + timedelta(microseconds=1))
            axis = cls(begin, end, step, columns)
            if columns * (step.length / (end - begin)) >= len(step.label(since)) + _GAP:
                break
        return axis

    def column(self, instant: datetime) -> int:
        """Where an instant stands; the end of the axis is its last column."""
        part = (instant - self.since) / (self.until - self.since)
        return max(0, min(self.columns - 1, int(part * self.columns)))

    def heading(self) -> str:
        """From when to when."""
        begin, end = (f"{day(each)} {each:%H:%M}" for each in (self.since, self.until))
        return f"{begin} to {end} UTC"

    def labels(self) -> str:
        """The times along the axis."""
        line = ""
        for tick in self.step.ticks(self.since, self.until):
            if tick < self.until:
                line = line.ljust(self.column(tick)) + self.step.label(tick)
        return line[: self.columns]


def drawn(
    holds: Sequence[Hold],
    axis: Axis,
    marks: Marks,
    names: Mapping[str, str | None],
    key_columns: int,
) -> Iterator[str]:
    """A row for each lock; holds come by key, then token."""
    for key, of_lock in groupby(holds, key=lambda hold: hold.key):
        row = _Row(axis.columns)
        for hold in of_lock:
            _draw(row, hold, axis, marks, safe(names.get(hold.holder) or hold.holder))
        yield f"{padded(cut(safe(key), key_columns, marks), key_columns)}  {row}".rstrip()


def axis_columns(wanted: int, key_columns: int) -> int:
    """What is left of a line's width for the axis."""
    return max(_LEAST_CHART, wanted - key_columns - 2)


def cut(text: str, wanted: int, marks: Marks) -> str:
    """The text, or as much of it as a width has room for."""
    if width(text) <= wanted:
        return text
    while text and width(text) > wanted - 1:
        text = text[:-1]
    return text + marks.cut


def _draw(row: "_Row", hold: Hold, axis: Axis, marks: Marks, label: str) -> None:
    begin = axis.column(hold.taken_at)
    end = axis.columns - 1 if hold.ended_at is None else axis.column(hold.ended_at)
    row.put(begin, marks.fill * (end - begin))
    row.put(end, marks.end_of(hold))
    row.put(begin, marks.taken if hold.taken_over_from is None else marks.taken_over)
    room = end - begin - 1
    if room >= width(label) + 2:
        row.put(begin + 1, f" {label} ")
    elif room > 0:
        row.put(begin + 1, cut(label, room, marks))


class _Row:
    """Columns of a line; a wide character takes two of them."""

    def __init__(self, columns: int) -> None:
        self._cells = [" "] * columns

    def put(self, column: int, text: str) -> None:
        for character in text:
            taken = width(character)
            if taken == 0:
                self._cells[column - 1] += character
                continue
            self._set(column, character)
            if taken == 2:
                self._set(column + 1, "")
            column += taken

    def _set(self, column: int, cell: str) -> None:
        if cell and self._cells[column] == "" and column:
            self._cells[column - 1] = " "
        if width(self._cells[column]) == 2 and cell:
            self._cells[column + 1] = " "
        self._cells[column] = cell

    def __str__(self) -> str:
        return "".join(self._cells)
