"""The commands that look: holders, history, audit."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockledger.cli import output
from lockledger.cli.command import command
from lockledger.cli.given import Given
from lockledger.cli.options import (
    AtMost,
    ByHolder,
    Extensions,
    Key,
    KeyPrefix,
    Since,
    Under,
    Until,
    read_instant,
    whole,
)

if TYPE_CHECKING:
    from lockledger.domain.holds import AuditEntry, Page

AfterPosition = Annotated[
    int | None,
    typer.Option(
        "--after", metavar="POSITION", parser=whole(0), help="Only entries after this position."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    command(app, "holders", only_prints=True)(holders)
    command(app, "history", only_prints=True)(history)
    command(app, "audit", only_prints=True)(audit)


def holders(
    given: Given,
    holder: ByHolder = None,
    key_prefix: KeyPrefix = None,
    under: Under = None,
    after: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only keys after this one.")
    ] = None,
    limit: AtMost = None,
) -> None:
    """Show who holds what now, by key; with --json one object a line."""
    from lockledger.cli.answers import hold_facts, pages, print_all

    with given.opened() as ledger:
        found = pages(
            lambda after, limit: ledger.current_holders(
                holder=holder, key_prefix=key_prefix, under=under, after=after, limit=limit
            ),
            after,
            limit,
        )
        print_all(given, ledger, found, hold_facts, live_columns())


def history(
    given: Given,
    key: Key,
    extensions: Extensions = False,
    after: AfterPosition = None,
    limit: AtMost = None,
) -> None:
    """Show what happened to one lock, oldest first; with --json one object a line."""
    shown = _print_entries(given, {"key": key, "extensions": extensions}, after, limit)
    if not shown and after is None:
        output.message(f"there was never a lock with the key {key!r} in this ledger")


def audit(
    given: Given,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only this lock.")] = None,
    key_prefix: KeyPrefix = None,
    under: Under = None,
    holder: Annotated[
        str | None, typer.Option(metavar="ID", help="Only what this holder gained or lost.")
    ] = None,
    actor: Annotated[str | None, typer.Option(metavar="ID", help="Only what this one did.")] = None,
    action: Annotated[
        str | None, typer.Option(metavar="EVENT", help="Only this event, such as LockTakenOver.")
    ] = None,
    since: Since = None,
    until: Until = None,
    extensions: Extensions = False,
    after: AfterPosition = None,
    limit: AtMost = None,
) -> None:
    """Show who did what to which lock, in the order it was recorded; with --json one object a line."""
    wanted = {
        "key": key,
        "key_prefix": key_prefix,
        "under": under,
        "holder": holder,
        "actor": actor,
        "action": action,
        "since": read_instant(since, "--since"),
        "until": read_instant(until, "--until"),
        "extensions": extensions,
    }
    _print_entries(given, wanted, after, limit)


def _print_entries(
    given: Given, wanted: dict[str, Any], after: int | None, limit: int | None
) -> int:
    """Prints the entries, and counts them."""
    from lockledger.cli.answers import entry_facts, moment_of, pages, print_all, text_of

    columns = [
        ("POSITION", text_of("position")),
        ("WHEN", moment_of("occurred_at")),
        ("ACTION", text_of("action")),
        ("KEY", text_of("key")),
        ("HOLDER", text_of("holder")),
        ("NAME", name_of("holder")),
        ("FROM", text_of("previous_holder")),
        ("ACTOR", text_of("actor")),
        ("TOKEN", text_of("token")),
        ("UNTIL", _until),
        ("REASON", text_of("reason")),
    ]
    shown = 0

    def read(after: int | None, limit: int) -> "Page[AuditEntry, int]":
        nonlocal shown
        page = ledger.audit_trail(**wanted, after=after, limit=limit)
        shown += len(page)
        return page

    with given.opened() as ledger:
        print_all(given, ledger, pages(read, after, limit), entry_facts, columns)
    return shown


def live_columns() -> list[tuple[str, Callable[[dict[str, Any]], str]]]:
    """The columns of a table of live holds."""
    from lockledger.cli.answers import moment_of, text_of

    return [
        ("KEY", text_of("key")),
        ("HOLDER", text_of("holder")),
        ("NAME", name_of("holder")),
        ("SINCE", moment_of("taken_at")),
        ("UNTIL", moment_of("expires_at", "no expiry")),
        ("TOKEN", text_of("token")),
        ("TAKEN OVER FROM", text_of("taken_over_from")),
        ("REASON", text_of("takeover_reason")),
    ]


def _until(row: dict[str, Any]) -> str:
    """The expiry that a hold has after the event."""
    from lockledger.cli.answers import moment_of

    return moment_of("expires_at")(row["after"] or {"expires_at": None})


def name_of(fact: str) -> Callable[[dict[str, Any]], str]:
    """A column with the host's name of an id."""
    return lambda row: row.get(f"{fact}_name") or "-"
