"""Options and arguments that several commands take, and how their texts are read."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from lockledger.cli.failures import BadInput

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""As a person writes them. Python would also take `1_000`, blanks around, and the digits of any script."""


def whole(least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """Reads an option that is a whole number within its bounds, which count themselves."""

    def number(given: str) -> int:
        text = str(given)  # a default comes as the number that it is
        if not _WHOLE.fullmatch(text):
            raise typer.BadParameter(f"{text[:60]!a} is no whole number; write digits, as in 100")
        found = int(text)
        if least is not None and found < least:
            raise typer.BadParameter(f"{found} is less than {least}, the least that it can be")
        if most is not None and found > most:
            raise typer.BadParameter(f"{found} is more than {most}, the most that it can be")
        return found

    return number


def read_seconds(given: str) -> float:
    """Reads an option that is a number of seconds."""
    if not _NUMBER.fullmatch(given):
        raise typer.BadParameter(f"{given[:60]!a} is no number of seconds; write 600 or 1.5")
    return float(given)


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
    int | None,
    typer.Option("--limit", metavar="N", parser=whole(1), help="At most so many; all by default."),
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
    typer.Option(metavar="N", parser=whole(), help="Only the hold with this token."),
]
ExpectedToken = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole(),
        help="Only if the live hold has this token; 0: nobody holds it.",
    ),
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
    try:
        if text[-1:] in _UNITS:
            return _number(text[:-1]) * _UNITS[text[-1]]
        return _number(text)
    except ValueError:
        pass
    if "-" not in text[1:]:
        raise BadInput(f"--ttl {text!a} is no ttl; {_TTL}")
    return read_instant(text, "--ttl")


def _number(text: str) -> int | float:
    if not _NUMBER.fullmatch(text):
        raise ValueError
    return int(text) if text.isdecimal() else float(text)


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
