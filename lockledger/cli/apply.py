"""`lockledger apply`: carries out a command log, each command at its own time."""

from collections import Counter
from typing import Annotated, Final

import typer

from lockledger.cli import output
from lockledger.cli.command import command
from lockledger.cli.given import Given
from lockledger.cli.options import whole

COUNTED: Final = (
    "LockTaken",
    "LockTakenOver",
    "LockReleased",
    "LockExpired",
    "LockExtended",
    "unchanged",
    "refused",
)


def add_to(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "apply")(apply)


def apply(
    given: Given,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="JSON Lines, plain or gzip; - for standard input.",
            show_default=False,
        ),
    ],
    from_line: Annotated[
        int,
        typer.Option(
            metavar="N", parser=whole(1), help="Begin at this line, where an earlier run stopped."
        ),
    ] = 1,
) -> None:
    """Carry out a command log, each line at its own time and in a transaction of its own.

    Refusals are counted. A bad line stops it with the line's number; what came before stays.
    """
    from lockledger.cli.command_log import opened_log
    from lockledger.cli.failures import BadInput
    from lockledger.cli.progress import Progress
    from lockledger.cli.run import opened_run

    counts: Counter[str] = Counter()
    progress = Progress()
    with opened_log(file) as log, opened_run(given, from_line) as run:
        try:
            for line in log.lines(from_line):
                counts.update(run.perform(line))
                progress.advance(log.fraction)
        except BaseException as error:
            progress.clear()
            if counts or type(error) is not BadInput:  # else --from-line itself is wrong
                error.add_note(run.where_to_go_on(error))
            raise
    progress.clear()
    output.message(
        f"{progress.done} commands in {progress.seconds:.1f} s, {progress.rate:.0f} a second"
    )
    if given.json:
        output.print_json({name: counts[name] for name in COUNTED})
    else:
        for name in COUNTED:
            print(f"{name:<13} {counts[name]:>8}")
