"""`lockledger rebuild`: makes what is derived from the events what follows from them."""

import typer

from lockledger.cli.command import command
from lockledger.cli.failures import DONE, TAMPERED
from lockledger.cli.given import Given


def add_to(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "rebuild")(rebuild)


def rebuild(given: Given) -> int:
    """Repair current holders, audit trail and ended holds from the events, while takes go on.

    Rows that are missing any role can insert; wrong ones of the audit trail and of ended holds need the tables' owner.
    Stopped at any moment, it can be run again. Exit code 3 when something is left.
    """
    from lockledger.cli import output
    from lockledger.cli.advancing import drawn
    from lockledger.cli.proving import tell_faults

    with given.opened() as ledger, drawn() as progress:
        done = ledger.rebuild(progress=progress)
    rate = done.events / max(done.seconds, 1e-9)
    output.message(f"{done.events} events in {done.seconds:.1f} s, {rate:.0f} a second")
    if given.json:
        output.print_json({"ok": done.ok, **done.model_dump(mode="json")})
    else:
        tell_faults(done.left, done.left_count)
        left = f", {done.left_count} left" if done.left_count else ""
        print(
            f"{done.inserted} rows inserted, {done.corrected} corrected, {done.removed} removed{left}"
        )
    if done.needs_owner:
        output.message("some of it needs the role that owns the tables: run it again as that role")
    return DONE if done.ok else TAMPERED
