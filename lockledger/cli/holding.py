"""The commands that change who holds what: take, release, force-release, extend."""

from enum import StrEnum
from typing import Annotated

import typer

from lockledger.cli.command import command
from lockledger.cli.given import Given
from lockledger.cli.options import (
    Actor,
    ExpectedToken,
    Holder,
    Key,
    MetadataText,
    Token,
    read_metadata,
    read_ttl,
)


class IfMine(StrEnum):
    """What a hold of the same holder means."""

    RETURN = "return"
    EXTEND = "extend"
    REFUSE = "refuse"
    REPLACE = "replace"


TtlText = Annotated[
    str | None,
    typer.Option(
        "--ttl",
        metavar="TTL",
        help="How long the hold lives: seconds, 30m, 8h, 2d, 1w, or an instant with its offset. Without it, for ever.",
    ),
]
NewTtl = Annotated[
    str,
    typer.Option(
        "--ttl",
        metavar="TTL",
        help="From now: seconds, 30m, 8h, 2d, 1w; or an instant.",
        show_default=False,
    ),
]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; the audit trail keeps it.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    command(app, "take")(take)
    command(app, "release")(release)
    command(app, "force-release")(force_release)
    command(app, "extend")(extend)


def take(
    given: Given,
    key: Key,
    holder: Holder,
    ttl: TtlText = None,
    takeover_reason: Annotated[
        str | None,
        typer.Option(
            "--takeover-reason",
            "--reason",
            metavar="TEXT",
            help="Take it over from another holder, because of this.",
        ),
    ] = None,
    if_mine: Annotated[
        IfMine, typer.Option(help="What a hold of the same holder means.")
    ] = IfMine.RETURN,
    expected_token: ExpectedToken = None,
    actor: Actor = None,
    metadata: MetadataText = None,
) -> None:
    """Take a lock, or take it over with a reason. Exit code 1 when somebody else holds it."""
    from lockledger.cli.answers import print_hold

    with given.opened() as ledger:
        grant = ledger.take(
            key,
            holder,
            ttl=read_ttl(ttl),
            takeover_reason=takeover_reason,
            if_mine=if_mine.value,
            expected_token=expected_token,
            actor=actor,
            metadata=read_metadata(metadata),
        )
        if not grant.created:
            what = "already taken"
        elif grant.taken_over_from is None:
            what = "taken"
        else:
            what = f"taken over from {grant.taken_over_from}"
        print_hold(given, ledger, grant, what)


def release(
    given: Given,
    key: Key,
    holder: Holder,
    token: Token = None,
    reason: Reason = None,
    actor: Actor = None,
    metadata: MetadataText = None,
) -> None:
    """Release one's own hold. Exit code 1 when somebody else holds the lock, 0 when nobody does."""
    from lockledger.cli.output import print_json, safe

    with given.opened() as ledger:
        released = ledger.release(
            key, holder, token=token, reason=reason, actor=actor, metadata=read_metadata(metadata)
        )
    if given.json:
        print_json({"key": key, "released": released})
    else:
        print(safe(f"released: {key}" if released else f"nothing to release: {key} is not held"))


def force_release(
    given: Given,
    key: Key,
    actor: Annotated[str, typer.Option(metavar="ID", help="Who forces this.", show_default=False)],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why.", show_default=False)],
    expected_token: ExpectedToken = None,
    metadata: MetadataText = None,
) -> None:
    """End whoever's hold. Exit code 0 also when there was none."""
    from lockledger.cli.answers import print_hold
    from lockledger.cli.output import print_json, safe

    with given.opened() as ledger:
        ended = ledger.force_release(
            key,
            actor=actor,
            reason=reason,
            expected_token=expected_token,
            metadata=read_metadata(metadata),
        )
        if ended is not None:
            print_hold(given, ledger, ended, "released by force")
        elif given.json:
            print_json(None)
        else:
            print(safe(f"nothing to release: {key} is not held"))


def extend(
    given: Given,
    key: Key,
    holder: Holder,
    ttl: NewTtl,
    token: Token = None,
    actor: Actor = None,
    metadata: MetadataText = None,
) -> None:
    """Move the expiry of one's own hold to a later instant. Exit code 1 when the holder does not hold the lock."""
    from lockledger.cli.answers import print_hold

    with given.opened() as ledger:
        grant = ledger.extend(
            key, holder, read_ttl(ttl), token=token, actor=actor, metadata=read_metadata(metadata)
        )
        print_hold(given, ledger, grant, "extended")
