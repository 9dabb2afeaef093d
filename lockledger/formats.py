"""The formats of an export: what rows become in CSV, in JSON Lines and in Parquet. A row has the same facts in each."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import PurePath
from typing import Any, Final, Literal, Protocol, get_args

Format = Literal["csv", "jsonl", "parquet"]
Kind = Literal["text", "count", "instant", "json"]
Columns = Mapping[str, Kind]
Row = Mapping[str, Any]
"""A fact for each column, as JSON has it."""
Add = Callable[[Sequence[Row]], None]

ROWS_IN_A_GROUP: Final = 10_000
CHARACTERS_IN_A_GROUP: Final = 16 << 20
"""Where a group of rows of Parquet ends; it is kept in memory until then."""

_END: Final = "\r\n"
_FORMULA: Final = re.compile(
    r"""
    ^(?=[\t\r\n])                                           # a cell may not begin with these
    | (?:^|(?<=[;\t\r\n]))                                  # where a cell begins, and where another program may let one begin
      (?= ' | [\s"\x00-\x20\u200b-\u200f\u2060\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20] )
    """,
    re.VERBOSE,
)
_PLAIN: Final = re.compile(r"[\w{][^;\t\r\n]*\Z")
"""Most texts, in which nothing has to be looked for."""
_UNSEEN: Final = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""What JSON lets stand in a text, and a terminal obeys, an editor hides or a program takes for the end of a line."""


class Stream(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> object:
        """Writes all of it, or as much as it says."""


def checked_format(given: str) -> Format:
    """One of the formats. Raises `ValueError` for another one, `ImportError` where Parquet's library is missing."""
    if given == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401 - only whether it is there
        except ImportError as missing:
            raise ImportError(
                f"Parquet needs pyarrow ({missing}): pip install 'lockledger[parquet]'"
            ) from missing
    for known in get_args(Format):
        if given == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"format={given!r}: use one of {', '.join(get_args(Format))}")


def format_of(file: str) -> Format:
    """The format that the name of a file ends in, in capitals too; CSV for any other name."""
    ending = PurePath(file).suffix[1:].lower()
    return next((known for known in get_args(Format) if ending == known), "csv")


def writing(form: Format, stream: Stream, columns: Columns) -> AbstractContextManager[Add]:
    """Gives something to call with rows, which are all written when the block has ended without an error."""
    writers = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
    return writers[form](_Sink(stream), columns)


def guarded(text: str) -> str:
    """The text with `'` wherever a spreadsheet could take what follows for a formula, and wherever one stands already.

    That is at the beginning, and after `;`, tab and line break. Remove one `'` at each such place to have the text back.
    """
    return text if _PLAIN.match(text) else _FORMULA.sub("'", text)


def json_text(value: Any) -> str:
    """JSON on one line, without blanks, readable in every script; what nobody can see is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _Sink:
    """A stream that takes everything, knows how much that was, and takes nothing more once it is abandoned."""

    closed = False

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._written = 0
        self.abandoned = False

    def write(self, data: bytes) -> int:
        left = bytes(data)
        size = len(left)
        while left and not self.abandoned:
            taken = self._stream.write(left)
            left = left[taken:] if isinstance(taken, int) else b""
        self._written += size
        return size

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """What is written is the stream's to keep."""


@contextmanager
def _csv(sink: _Sink, columns: Columns) -> Iterator[Add]:
    cells: list[tuple[str, Callable[[Any], str]]] = [
        (name, {"text": _quoted, "json": _quoted_json}.get(kind, str))
        for name, kind in columns.items()
    ]

    def line(row: Row) -> str:
        return ",".join("" if row[name] is None else cell(row[name]) for name, cell in cells)

    sink.write(f"{','.join(columns)}{_END}".encode())
    yield lambda rows: _write_lines(sink, map(line, rows), _END)


def _quoted(text: str) -> str:
    return '"' + guarded(text).replace('"', '""') + '"'


def _quoted_json(value: Any) -> str:
    return _quoted(json_text(value))


@contextmanager
def _jsonl(sink: _Sink, columns: Columns) -> Iterator[Add]:
    def line(row: Row) -> str:
        return json_text({name: row[name] for name in columns})

    yield lambda rows: _write_lines(sink, map(line, rows), "\n")


def _write_lines(sink: _Sink, lines: Iterator[str], end: str) -> None:
    sink.write("".join(f"{line}{end}" for line in lines).encode())


@contextmanager
def _parquet(sink: _Sink, columns: Columns) -> Iterator[Add]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    types = {"count": pa.int64(), "instant": pa.timestamp("us", tz="UTC")}
    schema = pa.schema([(name, types.get(kind, pa.string())) for name, kind in columns.items()])
    group, characters = list[list[Any]](), 0

    def write_group() -> None:
        arrays = map(pa.array, zip(*group, strict=True), schema.types)
        writer.write_batch(pa.record_batch(list(arrays), schema=schema))
        group.clear()

    def add(rows: Sequence[Row]) -> None:
        nonlocal characters
        for row in rows:
            values = [_value(row[name], kind) for name, kind in columns.items()]
            characters += sum(len(value) for value in values if isinstance(value, str))
            group.append(values)
            if len(group) >= ROWS_IN_A_GROUP or characters >= CHARACTERS_IN_A_GROUP:
                write_group()
                characters = 0

    with (
        _abandoned_on_error(sink),
        ParquetWriter(sink, schema) as writer,
        _abandoned_on_error(sink),
    ):
        yield add
        if group:
            write_group()


def _value(fact: Any, kind: Kind) -> Any:
    if fact is None:
        return None
    if kind == "instant":
        return datetime.fromisoformat(fact)
    return json_text(fact) if kind == "json" else fact


@contextmanager
def _abandoned_on_error(sink: _Sink) -> Iterator[None]:
    """Lets no writer that is closed after an error end a file as if it were whole."""
    try:
        yield
    except BaseException:
        sink.abandoned = True
        raise
