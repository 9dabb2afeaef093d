"""The commands that prove a ledger: verify, checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockledger.cli.command import command
from lockledger.cli.failures import DONE, TAMPERED, BadInput
from lockledger.cli.given import Given

if TYPE_CHECKING:
    from lockledger.checkpoints import Checkpoint
    from lockledger.domain.faults import Fault
    from lockledger.verification import Verification

_LARGEST_FILE: Final = 1 << 30


def add_to(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    command(app, "verify")(verify)
    command(app, "checkpoint")(checkpoint)


def verify(
    given: Given,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="What `checkpoint` wrote: also find what was removed since."
        ),
    ] = None,
) -> int:
    """Prove the ledger: every event, every lock's chain, the rules, and all that is derived from the events.

    Changes nothing and keeps nobody waiting. Exit code 3 when anything is wrong.
    """
    from lockledger.cli.advancing import drawn
    from lockledger.cli.output import print_json

    kept = None if checkpoint is None else _read(checkpoint)
    with given.opened() as ledger, drawn() as progress:
        found = ledger.verify(checkpoint=kept, progress=progress)
    if given.json:
        print_json({"ok": found.ok, **found.model_dump(mode="json")})
    else:
        _tell(found)
    return DONE if found.ok else TAMPERED


def checkpoint(
    given: Given,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="A file that does not exist yet.", show_default=False
        ),
    ] = None,
) -> None:
    """Write down a hash over all events so far, to be kept elsewhere and given to `verify` later."""
    from lockledger.cli.output import print_json, safe
    from lockledger.cli.streams import only_printing

    with given.opened() as ledger:
        made = ledger.checkpoint()
    if file is None:
        with only_printing():
            print(made.to_json(), end="")
        return
    _write(Path(file), made.to_json())
    if given.json:
        print_json({"file": file, **made.model_dump(mode="json", exclude={"subtrees"})})
    else:
        print(
            safe(
                f"{file}: {made.count} events up to position {made.position}, root {made.root.hex()}"
            )
        )


def tell_faults(faults: "tuple[Fault, ...]", count: int) -> None:
    """Each fault that was kept, a line each, and how many more there are."""
    from lockledger.cli.output import safe

    for fault in faults:
        print(safe(str(fault)))
    if count > len(faults):
        print(f"and {count - len(faults)} more")


def _tell(found: "Verification") -> None:
    from lockledger.cli.output import safe

    tell_faults(found.faults, found.fault_count)
    looked = (
        f"{found.events} events of {found.locks} locks up to position {found.position},"
        f" {found.audit_entries} audit entries, {found.ended_holds} ended holds"
    )
    if found.foreign_streams:
        looked += f", {found.foreign_streams} streams that are no locks"
    if found.checkpoint is not None:
        looked += f"; checkpoint at position {found.checkpoint}"
    verdict = "nothing is wrong" if found.ok else f"{found.fault_count} faults"
    print(safe(f"{looked}: {verdict}"))


def _read(file: str) -> "Checkpoint":
    from lockledger.checkpoints import Checkpoint

    path = Path(file)
    too_large = BadInput(
        f"{file}: a checkpoint is never that large; give the file it was written to"
    )
    if path.is_file() and path.stat().st_size > _LARGEST_FILE:
        raise too_large
    with path.open("rb") as stream:  # which may be a pipe or a device, without a size or an end
        text = stream.read(_LARGEST_FILE + 1)
    if len(text) > _LARGEST_FILE:
        raise too_large
    try:
        return Checkpoint.from_json(text)
    except ValueError as fault:
        raise BadInput(f"{file}: {fault}") from fault


def _write(path: Path, text: str) -> None:
    """Never over a file that is there, which may be an earlier checkpoint; and never half of it."""
    from lockledger.exporting import written_beside

    there = BadInput(f"{path} is there already; a checkpoint is kept: name another file")
    if path.exists():
        raise there
    try:
        with written_beside(path, overwrite=False) as file:
            file.write(text.encode())
    except FileExistsError:
        raise there from None
