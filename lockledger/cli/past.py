"""The commands that look back: holds, at."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lockledger.cli.command import command
from lockledger.cli.failures import BadInput
from lockledger.cli.given import Given
from lockledger.cli.options import AtMost, ByHolder, KeyPrefix, Since, Under, Until, read_instant
from lockledger.cli.reading import live_columns, name_of

if TYPE_CHECKING:
    from datetime import datetime

    from lockledger.domain.holds import Hold, Page
    from lockledger.ledger import LockLedger

ByKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this lock.")]
AfterKey = Annotated[
    str | None, typer.Option("--after", metavar="KEY", help="Only keys after this one.")
]


def add_to(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    command(app, "holds", only_prints=True)(holds)
    command(app, "at", only_prints=True)(at)


def holds(
    given: Given,
    key: ByKey = None,
    key_prefix: KeyPrefix = None,
    under: Under = None,
    holder: ByHolder = None,
    since: Since = None,
    until: Until = None,
    limit: AtMost = None,
) -> None:
    """Show every hold there was, by key, then token, and how it ended; with --json one object a line.

    --since and --until: those that were live at an instant between.
    """
    from lockledger.cli.answers import moment_of, pages, print_all, text_of

    wanted: dict[str, Any] = {
        "key": key,
        "key_prefix": key_prefix,
        "under": under,
        "holder": holder,
        "since": read_instant(since, "--since"),
        "until": read_instant(until, "--until"),
    }
    columns = [
        ("KEY", text_of("key")),
        ("HOLDER", text_of("holder")),
        ("NAME", name_of("holder")),
        ("FROM", moment_of("taken_at")),
        ("UNTIL", moment_of("ended_at", "still held")),
        ("ENDED BY", text_of("ended_by")),
        ("ACTOR", text_of("ended_by_actor")),
        ("REASON", text_of("end_reason")),
        ("TOKEN", text_of("token")),
    ]
    with given.opened() as ledger:

        def read(after: str | None, limit: int) -> "Page[Hold, str]":
            return ledger.holds(**wanted, after=after, limit=limit)

        print_all(given, ledger, pages(read, None, limit), _facts, columns)


def at(
    given: Given,
    when: Annotated[
        str,
        typer.Argument(
            metavar="INSTANT",
            help="2026-03-14T12:00:00+00:00, not later than now.",
            show_default=False,
        ),
    ],
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="Only this lock.", show_default=False)
    ] = None,
    holder: ByHolder = None,
    key_prefix: KeyPrefix = None,
    under: Under = None,
    after: AfterKey = None,
    limit: AtMost = None,
) -> None:
    """Show who held what at an instant, by key, as it was then; with --json one object a line."""
    from lockledger.cli.answers import hold_facts, pages, print_all

    instant = cast("datetime", read_instant(when, "the instant"))
    narrowed = (holder, key_prefix, under, after, limit)
    if key is not None and any(each is not None for each in narrowed):
        raise BadInput("give a KEY, or options that choose among all locks, not both")
    with given.opened() as ledger:

        def read(after: str | None, limit: int) -> "Page[Hold, str]":
            return ledger.holders_at(
                instant, holder=holder, key_prefix=key_prefix, under=under, after=after, limit=limit
            )

        found = pages(read, after, limit) if key is None else _one(ledger, key, instant)
        print_all(given, ledger, found, hold_facts, live_columns())


def _one(ledger: "LockLedger", key: str, when: "datetime") -> "Iterator[Page[Hold, str]]":
    """The hold of one lock, as a page."""
    from lockledger.cli.output import message
    from lockledger.domain.holds import Page

    hold = ledger.holder_at(key, when)
    if hold is None:
        message(f"nobody held {key} then")
    else:
        yield Page([hold])


def _facts(hold: "Hold") -> dict[str, Any]:
    """Every fact, null where there is none: the end is what is asked for here."""
    return hold.model_dump(mode="json")
