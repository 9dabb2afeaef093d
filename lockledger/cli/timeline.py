"""`lockledger timeline`: who held what when, drawn for a terminal, as an image or as a page."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, cast

import typer

from lockledger.cli import output
from lockledger.cli.command import command
from lockledger.cli.failures import BadInput
from lockledger.cli.given import Given
from lockledger.cli.options import ByHolder, KeyPrefix, Since, Under, Until, read_instant, whole
from lockledger.cli.streams import only_printing

if TYPE_CHECKING:
    from lockledger.domain.holds import Hold, Page
    from lockledger.ledger import LockLedger

Format = Literal["svg", "html"]

MOST_HOLDS: Final = 10_000
"""What a drawing shows at most: more is nothing that a browser likes to open."""
_HEADING: Final = "Who held what when"
_WIDTH_OF_A_PIPE = 100
_NARROWEST = 40
_WIDEST: Final = 10_000
_SUFFIXES: Final[Mapping[str, Format]] = {".svg": "svg", ".html": "html", ".htm": "html"}
_NARROW = "narrow it with --under, --since and --until"


class _LeftOut(NamedTuple):
    """What a timeline does not show, and how it would."""

    what: str
    remedy: str


def add_to(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "timeline")(timeline)


def timeline(
    given: Given,
    key_prefix: KeyPrefix = None,
    under: Under = None,
    holder: ByHolder = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int, typer.Option(metavar="N", parser=whole(1), help="At most so many locks.")
    ] = 50,
    width: Annotated[
        int | None,
        typer.Option(
            metavar="COLUMNS",
            parser=whole(_NARROWEST, _WIDEST),
            help="The terminal's width by default.",
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="FILE", help="Draw into this file, .svg or .html; replaces it."
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORM",
            help="svg or html: to standard output, or whatever FILE is called.",
        ),
    ] = None,
) -> None:
    """Draw who held what when, a row for each lock; with --json one hold a line."""
    drawing = _form_of(file, form)
    if drawing is not None and width is not None:
        raise BadInput("--width is for the terminal; leave it out, a drawing scales")
    if drawing is not None and file is None and given.json:
        raise BadInput("--json and --format exclude each other; give --output FILE too")
    wanted: dict[str, Any] = {
        "key_prefix": key_prefix,
        "under": under,
        "holder": holder,
        "since": read_instant(since, "--since"),
        "until": read_instant(until, "--until"),
    }
    with given.opened() as ledger:
        found, left_out = _read(ledger, wanted, limit, None if drawing is None else MOST_HOLDS)
        names = ledger.display_names(_people(found))
    if left_out:
        output.message(f"{left_out.what} are not shown; {left_out.remedy}")
    with only_printing(file is None):
        if drawing is not None:
            _write(given, _drawn(given, drawing, found, wanted, names, left_out), found, file)
        elif given.json:
            from lockledger.cli.answers import hold_facts, named

            for hold in found:
                output.print_json(named(given, hold_facts(hold), names))
        elif found:
            period = wanted["since"], wanted["until"]
            for line in _picture(found, *period, names, width or _terminal_width()):
                print(line)


def _form_of(file: str | None, form: str | None) -> Format | None:
    """What is to be drawn; `None` for text."""
    if form is not None:
        if form not in _SUFFIXES.values():
            raise BadInput(f"--format {form!a}: write svg or html")
        return cast("Format", form)
    if file is None:
        return None
    known = _SUFFIXES.get(Path(file).suffix.lower())
    if known is None:
        raise BadInput(f"--output {file!a} ends neither in .svg nor in .html; say --format")
    return known


def _read(
    ledger: "LockLedger", wanted: Mapping[str, Any], locks: int, most: int | None
) -> "tuple[list[Hold], _LeftOut | None]":
    """The holds of the first locks, and what comes after them unread, when there is more."""
    from lockledger.cli.answers import pages

    def page(after: str | None, limit: int) -> "Page[Hold, str]":
        return ledger.holds(**wanted, after=after, limit=limit)

    found: list[Hold] = []
    shown = 0
    for hold in (each for holds in pages(page, None, None) for each in holds):
        if not found or hold.key != found[-1].key:
            if shown == locks:
                return found, _LeftOut(
                    f"the locks after {found[-1].key}", f"raise --limit, or {_NARROW}"
                )
            shown += 1
        if len(found) == most:
            last = found[-1]
            begun = output.moment(last.taken_at)
            return found, _LeftOut(
                f"the holds after the first {most:,}, that of {last.key} from {begun},", _NARROW
            )
        found.append(hold)
    return found, None


def _people(found: "Iterable[Hold]") -> set[str]:
    """Everybody whom the holds name."""
    named = ((hold.holder, hold.taken_over_from, hold.ended_by_actor) for hold in found)
    return {each for people in named for each in people if each is not None}


def _drawn(
    given: Given,
    drawing: Format,
    found: "Sequence[Hold]",
    wanted: Mapping[str, Any],
    names: Mapping[str, str | None],
    left_out: _LeftOut | None,
) -> str:
    from lockledger.timeline import draw_timeline

    chosen = [
        f"{what} {wanted[name]}"
        for name, what in (("key_prefix", "keys from"), ("under", "under"), ("holder", "held by"))
        if wanted[name] is not None
    ]
    notes = [f"Only {', '.join(chosen)}."] if chosen else []
    notes += [f"Not shown: {left_out.what.rstrip(',')}."] if left_out else []
    return draw_timeline(
        found,
        now=datetime.now(UTC),
        since=wanted["since"],
        until=wanted["until"],
        names=names,
        format=drawing,
        heading=_HEADING if given.ledger is None else f"{_HEADING}: ledger {given.ledger}",
        note=" ".join(notes) or None,
    )


def _write(given: Given, drawn: str, found: "Sequence[Hold]", file: str | None) -> None:
    if file is None:
        speaks = output.speaks_unicode(sys.stdout)
        print(drawn if speaks else drawn.encode("ascii", "xmlcharrefreplace").decode(), end="")
        return
    _replace(file, drawn.encode())
    locks = len({hold.key for hold in found})
    if given.json:
        output.print_json({"file": file, "locks": locks, "holds": len(found)})
    else:
        from lockledger.timeline.words import counted

        shows = f"{counted(len(found), 'hold')} of {counted(locks, 'lock')}"
        print(output.safe(f"{file}: {shows}"))


def _replace(file: str, drawn: bytes) -> None:
    """A file that is there stays as it is until the new one is whole; what is no file is written into."""
    from lockledger.exporting import written_beside

    path = Path(os.path.realpath(file))
    if path.exists() and not path.is_file():
        path.write_bytes(drawn)
        return
    with written_beside(path, overwrite=True) as stream:
        stream.write(drawn)


def _picture(
    found: "list[Hold]",
    since: datetime | None,
    until: datetime | None,
    names: Mapping[str, str | None],
    columns: int,
) -> Iterator[str]:
    from lockledger.cli import chart

    marks = chart.UNICODE if output.speaks_unicode(sys.stdout) else chart.ASCII
    key_columns = min(max(output.width(output.safe(hold.key)) for hold in found), columns // 3)
    begin = since or min(hold.taken_at for hold in found)
    # A hold that is still live would draw years until now over the day that is of interest.
    end = until or max(hold.ended_at or hold.taken_at for hold in found)
    if end <= begin:
        end = max(datetime.now(UTC), begin)
    axis = chart.Axis.over(begin, end, chart.axis_columns(columns, key_columns))
    indent = " " * (key_columns + 2)
    yield indent + axis.heading()
    yield indent + axis.labels()
    yield from chart.drawn(found, axis, marks, names, key_columns)
    yield marks.legend(len(indent), columns)


def _terminal_width() -> int:
    if not sys.stdout.isatty():
        return _WIDTH_OF_A_PIPE
    return max(_NARROWEST, shutil.get_terminal_size().columns)
