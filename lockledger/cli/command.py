"""How a command is made: the options that all take, and one place where its errors become messages and exit codes."""

import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from lockledger.cli import output, streams
from lockledger.cli.failures import DONE, FAULT, Unwritten, exit_code, sentence
from lockledger.cli.given import DATABASE, DEFAULT_DATABASE, NAMES, Given
from lockledger.cli.interrupts import heard

F = TypeVar("F", bound=Callable[..., int | None])

Database = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help=f"sqlite:///file.db or postgresql://user@host/database. [{DATABASE}; else {DEFAULT_DATABASE}]",
    ),
]
Ledger = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The ledger among several in one database. [default]"),
]
Schema = Annotated[
    str | None, typer.Option(metavar="NAME", help="PostgreSQL schema with the tables. [public]")
]
NamesOption = Annotated[
    str | None,
    typer.Option(
        "--names",
        metavar="MODULE:CALLABLE",
        help=f"names(connection, ids) gives display names of holders and actors. [{NAMES}]",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]

_COMMON = {"database": Database, "ledger": Ledger, "schema": Schema, "names": NamesOption}


def command(app: typer.Typer, name: str, *, only_prints: bool = False) -> Callable[[F], F]:
    """Makes a function that takes what is given, and options of its own, a command of the program.

    One that `only_prints` ends when its output cannot be written, as when the reader has gone away; any other goes on.
    """

    def register(function: F) -> F:
        def invoked(context: typer.Context, **values: Any) -> None:
            common = {option: values.pop(option) for option in _COMMON}
            given = Given(**common, json=values.pop("json")).over(context.obj or Given())
            raise typer.Exit(attempt(given, lambda: function(given, **values), only_prints))

        parameters = _parameters(function)
        invoked.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        invoked.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name, help=inspect.getdoc(function))(invoked)
        return function

    return register


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """What Typer is to see: the function's own parameters behind the first, and then the common ones."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = list(inspect.signature(function).parameters.values())[1:]
    return [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        *(parameter.replace(kind=keyword) for parameter in own),
        *(
            inspect.Parameter(option, keyword, default=None, annotation=annotation)
            for option, annotation in _COMMON.items()
        ),
        inspect.Parameter("json", keyword, default=False, annotation=Json),
    ]


def attempt(given: Given, work: Callable[[], int | None], only_prints: bool) -> int:
    """Does the work and gives its exit code, which the work may name. A reader who has gone away, as `head`, is no error."""
    try:
        with heard(), streams.only_printing(only_prints):
            code = work()
    # The last resort: a fault of ours must not end the process with 1, which means refused.
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        if streams.stopped():
            return settled(given, DONE)
        code = exit_code(error)
        if code == FAULT:
            for line in given.without_secrets(traceback.format_exc()).splitlines():
                output.message(line)
        else:
            report(given, error)
        return code
    return settled(given, DONE if code is None else code)


def settled(given: Given, code: int) -> int:
    """The exit code in the end: when standard output did not take all of the answer, done is not all there is to say."""
    lost = streams.lost()
    if lost is None:
        return code
    text = f"the answer could not be written: {lost.strerror or lost}"
    error = Unwritten(text if streams.stopped() else f"{text}; the command itself was carried out")
    report(given, error)
    return code or exit_code(error)


def report(given: Given, error: BaseException) -> None:
    """One line on standard error; with --json an object there, with the error's code and the hold in the way."""
    text = given.without_secrets(sentence(error))
    if given.json:
        from lockledger.cli.answers import error_facts

        output.print_json(error_facts(given, error, text), sys.stderr)
    else:
        output.message(text)
