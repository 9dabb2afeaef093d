"""`lockledger export`: the audit trail or the holds as a file of rows."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from lockledger.cli.command import command
from lockledger.cli.failures import BadInput
from lockledger.cli.given import Given
from lockledger.cli.options import ByHolder, KeyPrefix, Since, Under, Until, read_instant
from lockledger.cli.past import ByKey
from lockledger.cli.streams import only_printing

_SECONDS_BETWEEN_DRAWINGS: Final = 0.2


class What(StrEnum):
    """What is written."""

    AUDIT = "audit"
    HOLDS = "holds"


class FileFormat(StrEnum):
    """How it is written."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


def add_to(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "export")(export)


def export(
    given: Given,
    what: Annotated[
        What, typer.Argument(help="The audit trail, or the holds.", show_default=False)
    ],
    file_format: Annotated[
        FileFormat | None,
        typer.Option("--format", help="As the file's name ends, else csv.", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="Else standard output."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there already.")
    ] = False,
    key: ByKey = None,
    key_prefix: KeyPrefix = None,
    under: Under = None,
    holder: ByHolder = None,
    actor: Annotated[
        str | None, typer.Option(metavar="ID", help="Of the audit: only what this one did.")
    ] = None,
    action: Annotated[
        str | None, typer.Option(metavar="EVENT", help="Of the audit: only this event.")
    ] = None,
    since: Since = None,
    until: Until = None,
    extensions: Annotated[
        bool, typer.Option("--extensions", help="Of the audit: extensions too.")
    ] = False,
) -> None:
    """Write the audit trail or the holds as CSV, JSON Lines or Parquet, all of one moment, however many there are.

    The same filters as of the commands audit and holds. A file is there as a whole, or not at all.
    """
    wanted: dict[str, Any] = {
        "key": key,
        "key_prefix": key_prefix,
        "under": under,
        "holder": holder,
        "since": read_instant(since, "--since"),
        "until": read_instant(until, "--until"),
    }
    of_audit = {"actor": actor, "action": action, "extensions": extensions or None}
    if what is What.AUDIT:
        wanted |= of_audit
    elif narrowed := [f"--{name}" for name, value in of_audit.items() if value is not None]:
        raise BadInput(f"{' and '.join(narrowed)}: only for the audit; leave it out for holds")
    form = _format(given, file_format, output)
    began = time.monotonic()
    with only_printing(output is None), given.opened() as ledger, _drawn(output) as progress:
        write = ledger.export_audit_trail if what is What.AUDIT else ledger.export_holds
        where = sys.stdout.buffer if output is None else output
        count = write(where, format=form, overwrite=overwrite, progress=progress, **wanted)
    _tell(given, output, form, count, time.monotonic() - began)


def _format(given: Given, named: FileFormat | None, output: str | None) -> Any:
    """The format that is asked for, checked: a library that is missing is bad input."""
    from lockledger.formats import checked_format, format_of

    if named is not None:
        form = named.value
    elif output is None:
        form = "jsonl" if given.json else "csv"
    else:
        form = format_of(output)
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise BadInput("Parquet is nothing for a terminal; name a file with --output, or redirect")
    try:
        return checked_format(form)
    except ImportError as missing:
        raise BadInput(str(missing)) from missing


def _tell(given: Given, output: str | None, form: str, count: int, seconds: float) -> None:
    from lockledger.cli.output import message, print_json, safe

    message(f"{count} rows in {seconds:.1f} s, {count / max(seconds, 1e-9):.0f} a second")
    if output is None:
        return
    if given.json:
        print_json({"file": output, "format": form, "rows": count})
    else:
        print(safe(f"{output}: {count} rows"))


@contextmanager
def _drawn(output: str | None) -> Iterator[Callable[[int], None] | None]:
    """Draws how many rows there are, where the rows themselves do not go to the terminal."""
    from lockledger.cli.output import animates

    if not animates(sys.stderr) or (output is None and sys.stdout.isatty()):
        yield None
        return
    began = drawn = time.monotonic()

    def draw(rows: int) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn >= _SECONDS_BETWEEN_DRAWINGS:
            drawn = now
            sys.stderr.write(f"\r{rows:,} rows  {rows / (now - began):,.0f}/s\x1b[K")
            sys.stderr.flush()

    try:
        yield draw
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
