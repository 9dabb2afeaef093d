"""The formats by themselves: formulas in CSV, what JSON hides, groups of Parquet, and files that are no files."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockledger import formats
from lockledger.formats import Columns, Format, guarded, json_text, writing
from support.exports import FORMULA, plain

COLUMNS: Columns = {"n": "count", "text": "text", "at": "instant", "facts": "json"}
SIGNS = "=+-@＝＋－＠"
TRICKS = [
    *(FORMULA, "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "\tplain", "\rplain", "\nplain"),
    *(f'"{FORMULA}"', '""=1', " =1", "\u00a0=1", "\u200b=1", "\ufeff@x", "\x00=1", "＝1", "＋1"),
    *("'", "'=1", "''", "'plain", "a\n=1", "a;=1", 'a;"=1', "a\t+1", "a\r\n@x", "a;'b", ";;=1"),
]
HARMLESS = ["", "plain", "a=1", "a-b", "a;b", "1;2\n3", "{=1}", "O'Neil", "a@b.c", "ü", "_", "(=1)"]


def is_formula(cell: str) -> bool:
    """Whether a spreadsheet could compute it: one that skips blanks, quotation marks and what cannot be seen."""
    visible = re.sub(r"^[\s\"\x00-\x20\u200b\ufeff]+", "", cell)
    return visible[:1] in tuple(SIGNS) or cell[:1] in ("\t", "\r", "\n")


def row(**facts: Any) -> dict[str, Any]:
    return {"n": 1, "text": "t", "at": "2026-11-30T09:00:00Z", "facts": {}} | facts


def written(form: Format, rows: list[dict[str, Any]]) -> bytes:
    stream = io.BytesIO()
    with writing(form, stream, COLUMNS) as add:
        add(rows)
    return stream.getvalue()


@pytest.mark.parametrize("text", TRICKS, ids=ascii)
def test_no_cell_of_a_spreadsheet_begins_with_a_formula(text: str) -> None:
    data = written("csv", [row(text=text, facts={text: [f"x;{text}"]})]).decode()
    _, cells = csv.reader(io.StringIO(data, newline=""))
    assert not any(is_formula(cell) for cell in cells), cells
    # A spreadsheet whose list separator is another one splits there, inside quotation marks too.
    parts = re.split(r"[;\t\r\n]", cells[1] + ";" + cells[3])
    assert not [part for part in parts if re.match(rf'[\s"]*[{SIGNS}]', part)], parts
    assert plain(cells[1]) == text
    assert json.loads(plain(cells[3])) == {text: [f"x;{text}"]}


@pytest.mark.parametrize("text", HARMLESS, ids=ascii)
def test_a_harmless_text_stays_as_it_is(text: str) -> None:
    assert guarded(text) == text


@given(st.text(st.sampled_from("'\"=+-@;,\t\r\n a\u00a0\ufeff＝")))
def test_every_text_can_be_had_back(text: str) -> None:
    cell = guarded(text)
    assert plain(cell) == text
    assert not is_formula(cell)
    assert not any(re.match(r'[\s"]*[=+\-@]', part) for part in re.split(r"[;\t\r\n]", cell))


def test_csv_tells_null_from_an_empty_text_and_texts_from_numbers() -> None:
    data = written("csv", [row(text=None, at=None, facts=None), row(n=2, text="", facts={"a": 1})])
    assert data.decode() == ('n,text,at,facts\r\n1,,,\r\n2,"",2026-11-30T09:00:00Z,"{""a"":1}"\r\n')


def test_json_shows_letters_and_hides_nothing() -> None:
    text = "Grüße 日本\u2028\u202e\x7f\x9b31m\ufeff\n\x00"
    shown = json_text({"a": text})
    assert shown == ('{"a":"Grüße 日本\\u2028\\u202e\\u007f\\u009b31m\\ufeff\\n\\u0000"}')
    assert json.loads(shown) == {"a": text}
    assert len(written("jsonl", [row(text=text)]).decode().splitlines()) == 1


def test_groups_of_parquet_end_with_rows_and_with_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(formats, "ROWS_IN_A_GROUP", 4)
    monkeypatch.setattr(formats, "CHARACTERS_IN_A_GROUP", 100)
    rows = [row(n=n) for n in range(9)] + [row(text="x" * 150), *[row(text="y" * 60)] * 3]
    file = pyarrow.parquet.ParquetFile(io.BytesIO(written("parquet", rows)))
    sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert sizes == [4, 4, 2, 2, 1]
    assert file.read()["text"].to_pylist() == [each["text"] for each in rows]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_stream_may_take_a_part_at_a_time_and_need_not_seek(form: Format) -> None:
    class Slow(io.RawIOBase):
        taken = b""

        def write(self, data: Any) -> int:
            self.taken += bytes(data[:7])
            return min(7, len(data))

    slow = Slow()
    with writing(form, slow, COLUMNS) as add:
        add([row()])
    assert slow.taken == written(form, [row()])


def test_what_was_broken_off_is_no_parquet() -> None:
    stream = io.BytesIO()
    rows = [row()] * formats.ROWS_IN_A_GROUP
    with pytest.raises(KeyError), writing("parquet", stream, COLUMNS) as add:
        add([*rows, {}])
    assert len(stream.getvalue()) > 100
    with pytest.raises(pyarrow.ArrowInvalid):
        pyarrow.parquet.ParquetFile(io.BytesIO(stream.getvalue()))


def test_a_stream_that_fails_tells_so_itself() -> None:
    class Gone(io.RawIOBase):
        def write(self, data: Any) -> int:
            raise BrokenPipeError

    for form in ("csv", "parquet"):
        with pytest.raises(BrokenPipeError), writing(form, Gone(), COLUMNS) as add:
            add([row()])


def test_without_its_library_parquet_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pip install 'lockledger\[parquet\]'"):
        formats.checked_format("parquet")
    assert formats.checked_format("csv") == "csv"
    with pytest.raises(ValueError, match="format='xlsx': use one of csv, jsonl, parquet"):
        formats.checked_format("xlsx")
