"""The program: its commands, and the options that may stand before them."""

from typing import Annotated

import typer

from lockledger.cli import (
    apply,
    doctor,
    export,
    holding,
    import_,
    migrate,
    past,
    proving,
    reading,
    rebuild,
    streams,
    sweep,
    timeline,
)
from lockledger.cli.command import Database, Ledger, NamesOption, Schema, settled
from lockledger.cli.failures import DONE, INTERRUPTED
from lockledger.cli.given import Given

app = typer.Typer(
    name="lockledger",
    help="Business locks as immutable events: who holds what, since when and why.",
    epilog="Exit codes: 0 done, 1 refused, 2 bad input, 3 tampered ledger, 4 database, 74 answer not written, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    migrate,
    holding,
    reading,
    past,
    timeline,
    apply,
    sweep,
    proving,
    rebuild,
    export,
    import_,
    doctor,
):
    module.add_to(app)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"lockledger {version('lockledger')}")
        raise typer.Exit


@app.callback()
def given_before(
    context: typer.Context,
    database: Database = None,
    ledger: Ledger = None,
    schema: Schema = None,
    names: NamesOption = None,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Business locks as immutable events: who holds what, since when and why."""
    context.obj = Given(database, ledger, schema, names)


def run(arguments: list[str] | None = None) -> int:
    """Runs one command and gives its exit code; `None`: the process's own arguments."""
    with streams.dependable():
        return _ran(arguments) or settled(Given(), DONE)  # help, too, may find a full disk


def _ran(arguments: list[str] | None) -> int:
    try:
        app(args=arguments, prog_name="lockledger")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 2
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
