"""`lockledger import`: an exported audit trail, or another system's lock table, with its past."""

import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lockledger.cli.command import command
from lockledger.cli.failures import BadInput
from lockledger.cli.given import Given

if TYPE_CHECKING:
    from lockledger.importing import ImportReport
    from lockledger.importing_export import AuditExport
    from lockledger.importing_rows import Refusal
    from lockledger.importing_tables import LiveLocks, LocksWithHistory

_COUNTED: Final = ("rows", "locks", "events", "unchanged")


class Shape(StrEnum):
    """What a row of the table is."""

    LIVE = "live"
    HISTORY = "history"


def add_to(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "import")(import_)


def import_(
    given: Given,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="What `export audit --extensions --format jsonl` wrote, plain or gzip; - for standard input.",
            show_default=False,
        ),
    ] = None,
    from_ledger: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The ledger that the file was exported from, if it had another name.",
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="Import this lock table instead of a file.")
    ] = None,
    from_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The database with the table, if it is another one."),
    ] = None,
    from_schema: Annotated[
        str | None, typer.Option(metavar="NAME", help="The table's schema there.")
    ] = None,
    shape: Annotated[
        Shape | None,
        typer.Option(help="Locks held now, or holds with their history.", show_default=False),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FACT=COLUMN",
            help="Where a fact is: key=lock_key, or with text around it, holder=user:{locked_by}.",
        ),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="Of times that name none, Europe/Berlin or UTC."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What the audit trail calls the table; its name by default."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; tell what would be done.")
    ] = False,
) -> None:
    """Import an exported audit trail, or another system's lock table, with its past and at its own times.

    Each lock is imported as a whole or not at all. What does not fit is told, with the row and the reason, and is no
    error. Run again it leaves alone what is there.
    """
    of_table = {
        "--from-url": from_url,
        "--from-schema": from_schema,
        "--shape": shape,
        "--column": column or None,
        "--timezone": timezone,
        "--source": source,
    }
    if (file is None) == (table is None):
        raise BadInput("name either a file or, with --table, a table to import")
    what: AuditExport | LiveLocks | LocksWithHistory
    if file is not None:
        _refuse(of_table, "only with --table")
        what = _export(file, from_ledger)
    else:
        _refuse({"--from-ledger": from_ledger}, "only with a file")
        more = {"timezone": timezone, "source": source, "schema": from_schema}
        what = _mapping(shape, {"table": table, **more}, column or ())
    url = None
    if from_url is not None:
        given.other_urls.append(from_url)
        url = Given(database=from_url).url()
    began = time.monotonic()
    report = _imported(given, what, url, dry_run)
    _tell(given, report, time.monotonic() - began)


def _imported(given: Given, what: Any, url: Any, dry_run: bool) -> "ImportReport":
    from lockledger.cli.advancing import drawn
    from lockledger.cli.output import safe

    def refused(refusal: "Refusal") -> None:
        if not given.json:
            print(safe(str(refusal)))

    with given.opened() as ledger, drawn("rows") as progress:
        try:
            return ledger.import_locks(
                what, database=url, dry_run=dry_run, refused=refused, progress=progress
            )
        except KeyboardInterrupt as interrupt:
            interrupt.add_note("what was imported stays: run it again to go on")
            raise


def _tell(given: Given, report: "ImportReport", seconds: float) -> None:
    from lockledger.cli.output import message, print_json

    message(
        f"{report.rows} rows in {seconds:.1f} s, {report.rows / max(seconds, 1e-9):.0f} a second"
    )
    if report.dry_run:
        message("a dry run: nothing was changed")
    if given.json:
        print_json({"ok": report.ok, **report.model_dump(mode="json")})
        return
    for name in _COUNTED:
        print(f"{name:<9} {getattr(report, name):>8}")
    print(f"{'refused':<9} {report.refused_count:>8}")


def _refuse(options: dict[str, Any], why: str) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise BadInput(f"{' and '.join(given)}: {why}")


def _export(file: str, ledger: str | None) -> "AuditExport":
    from lockledger.importing_export import AuditExport

    return AuditExport(sys.stdin.buffer if file == "-" else file, ledger=ledger)


def _mapping(
    shape: Shape | None, facts: dict[str, Any], columns: Sequence[str]
) -> "LiveLocks | LocksWithHistory":
    from lockledger.importing_tables import LiveLocks, LocksWithHistory

    if shape is None:
        raise BadInput("--shape is missing: live, or history")
    kind = LiveLocks if shape is Shape.LIVE else LocksWithHistory
    mandatory = ("key", "holder", "taken_at", *(["ended_at"] if shape is Shape.HISTORY else []))
    for text in columns:
        fact, equals, column = text.partition("=")
        if not equals or fact not in kind.fields:
            raise BadInput(
                f"--column {text!a}: write FACT=COLUMN, where the fact is one of {', '.join(kind.fields)}"
            )
        if fact in facts:
            raise BadInput(f"--column {text!a}: {fact} is given twice")
        facts[fact] = column
    missing = [name for name in mandatory if name not in facts]
    if missing:
        raise BadInput(f"--column is missing for {', '.join(missing)}; write {missing[0]}=COLUMN")
    return kind(**facts)
