"""Options and arguments that several commands take, and how their texts are read."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from lockledger.cli.failures import BadInput

Key = Annotated[str, typer.Argument(help="The lock's key, exactly.", show_default=False)]
Holder = Annotated[
    str, typer.Argument(help="Stable id of the holder, such as run:42.", show_default=False)
]
ByHolder = Annotated[str | None, typer.Option("--holder", metavar="ID", help="Only this holder's.")]
KeyPrefix = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only keys that begin with this text.")
]
Under = Annotated[
    str | None, typer.Option(metavar="KEY", help="Only this key and all keys under it.")
]
Since = Annotated[
    str | None,
    typer.Option(metavar="INSTANT", help="From this instant on, 2026-11-30T09:00:00+00:00."),
]
Until = Annotated[str | None, typer.Option(metavar="INSTANT", help="Before this instant.")]
Extensions = Annotated[bool, typer.Option("--extensions", help="Extensions too.")]
AtMost = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many; all by default.")
]
Actor = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Who acts, when it is not the holder."),
]
MetadataText = Annotated[
    str | None,
    typer.Option("--metadata", metavar="JSON", help="A JSON object that the audit trail keeps."),
]
Token = Annotated[
    int | None,
    typer.Option(metavar="N", help="Only the hold with this token."),
]
ExpectedToken = Annotated[
    int | None,
    typer.Option(metavar="N", help="Only if the live hold has this token; 0: nobody holds it."),
]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TTL = "give seconds (90), a number with s, m, h, d or w (8h), or an instant with its offset"


def read_instant(text: str | None, option: str) -> datetime | None:
    """An instant in ISO 8601 with its offset from UTC; a naive one is refused, whatever this machine's zone is."""
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadInput(
            f"{option} {text!a} is no instant; write 2026-11-30T09:00:00+00:00"
        ) from None
    if instant.utcoffset() is None:
        raise BadInput(
            f"{option} {text!a} has no time zone; add its offset, as in {instant.isoformat()}+00:00"
        )
    return instant


def read_ttl(text: str | None) -> int | float | datetime | None:
    """Seconds, a number with a unit, or an aware instant; whether it is within the limits is judged at the door."""
    if text is None:
        return None
    plain = text.strip()
    try:
        if plain[-1:] in _UNITS:
            return float(plain[:-1]) * _UNITS[plain[-1]]
        return int(plain) if plain.isdecimal() else float(plain)
    except ValueError:
        pass
    if "-" not in plain[1:]:
        raise BadInput(f"--ttl {text!a} is no ttl; {_TTL}")
    return read_instant(plain, "--ttl")


def read_metadata(text: str | None) -> Mapping[str, Any] | None:
    """A JSON object."""
    if text is None:
        return None
    from lockledger.cli.strict_json import NotStrict, decoded

    try:
        metadata = decoded(text)
    except NotStrict as fault:
        raise BadInput(f"--metadata is no JSON: {fault}") from None
    if not isinstance(metadata, dict):
        raise BadInput('--metadata is no JSON object; write {"request": "…"}')
    return metadata
