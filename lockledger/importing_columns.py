"""What a row of a lock table says: where in it something is, and how a database's values become ours."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from enum import Enum
from string import Formatter
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lockledger.domain.errors import InvalidMetadata, shown
from lockledger.domain.holds import Metadata, plain_utc
from lockledger.domain.keys import MAX_LENGTH
from lockledger.domain.metadata import check_metadata
from lockledger.domain.past_holds import IMPORT, RowId
from lockledger.importing_values import Values
from lockledger.projections.columns import instant_to_text

Value = str | Callable[[Values], Any]
"""A column's name; a text with columns in braces, `"version:{version_id}"`; or a callable that is given the row."""

_FORMAT: Final = Formatter()
_NEVER: Final = "infinity"
"""As PostgreSQL has it."""
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_LONGEST_INSTANT: Final = instant_to_text(datetime.max.replace(tzinfo=UTC))


def columns_of(value: Value, field: str) -> list[str]:
    """The columns that are named. Raises `ValueError` for braces with more than a name in them, `TypeError`."""
    if callable(value):
        return []
    if not isinstance(value, str):
        raise TypeError(
            f"{field} is a column's name, a text with columns in braces, or a callable, not {shown(value)}"
        )
    if "{" not in value:
        return [value]
    try:
        parts = list(_FORMAT.parse(value))
    except ValueError as error:
        raise ValueError(f"{field}={value!r}: {error}") from None
    for _, name, form, conversion in parts:
        if name is not None and (not name.isidentifier() or form or conversion):
            raise ValueError(
                f"{field}={value!r}: only columns' names stand in braces; for anything else give a callable"
            )
    return [name for _, name, _, _ in parts if name]


def checked_zone(timezone: tzinfo | str | None) -> tzinfo | None:
    """A time zone, by its name or as it is. Raises `ValueError` or `TypeError`."""
    if isinstance(timezone, str):
        try:
            return ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(
                f"timezone={timezone!r} is no time zone that is known here; write Europe/Berlin or UTC"
            ) from error
    if timezone is not None and not isinstance(timezone, tzinfo):
        raise TypeError(f"timezone must be a name or a tzinfo, not {shown(timezone)}")
    return timezone


def value_of(wanted: Value | None, field: str, values: Values) -> Any:
    """What a row has there. A fault of a callable is a `ValueError` that names it."""
    if wanted is None:
        return None
    if not callable(wanted):
        return _formatted(wanted, values) if "{" in wanted else values[wanted]
    try:
        return wanted(values)
    except Exception as error:
        raise ValueError(f"{field} failed: {type(error).__name__}: {error}") from error


def text_of(wanted: Value | None, field: str, values: Values) -> Any:
    """A text, or what is no text; a UUID becomes one."""
    value = value_of(wanted, field, values)
    return str(value) if isinstance(value, UUID) else value


def row_id(found: Any, number: int) -> RowId:
    """A row's id as JSON can keep it; its place among those read, `#7`, where it has none."""
    if found is None:
        return f"#{number}"
    if isinstance(found, int) and not isinstance(found, bool) and abs(found) < 2**63:
        return int(found)
    return str(found)[:MAX_LENGTH].encode("utf-8", "replace").decode().replace("\0", "?")


def turn_of(row: RowId) -> float | str:
    """What orders rows by their ids: a number by its size, also one in a text."""
    return float(row) if isinstance(row, str) and _NUMBER.fullmatch(row) else row


def instant_of(wanted: Value | None, field: str, values: Values, zone: tzinfo | None) -> str | None:
    """An instant as fixed-width text in UTC. Raises `ValueError` or `TypeError` for what is none, or has no zone."""
    value = value_of(wanted, field, values)
    if value is None or (field == "expires_at" and value == _NEVER):
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(f"{field}: {shown(value)} is no instant in ISO 8601") from None
    if not isinstance(value, datetime):
        raise TypeError(
            f"{field}: {shown(value)} is no instant; give a callable that makes a datetime of it"
        )
    if value.utcoffset() is None:
        if zone is None:
            raise ValueError(
                f"{field}: {value.isoformat()} has no time zone; say which it is, timezone='Europe/Berlin'"
            )
        value = value.replace(tzinfo=zone)
    try:
        return instant_to_text(plain_utc(value))
    except OverflowError:
        raise ValueError(f"{field}: {value.isoformat()} has no date in UTC") from None


def metadata_of(wanted: Value | None, values: Values, source: str, row: RowId) -> Metadata:
    """The row's own metadata; with what the import adds to it, it has to be within the limits."""
    value = value_of(wanted, "metadata", values)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (json.JSONDecodeError, RecursionError):
            raise InvalidMetadata(f"metadata {shown(value)} is no JSON") from None
        except ValueError:  # more digits than Python converts
            raise InvalidMetadata(
                "metadata holds a number with too many digits; write it as a text"
            ) from None
    plain = check_metadata(value)
    if IMPORT in plain:
        raise InvalidMetadata(f"metadata says {IMPORT!r}, which the import itself says")
    mark = {"source": source, "row": row, "when": _LONGEST_INSTANT}
    check_metadata({**plain, IMPORT: mark})
    return plain


def why(fault: Exception) -> str:
    """What is wrong with a row, with the remedy that a mapping has."""
    text = str(fault).encode("utf-8", "backslashreplace").decode()
    if isinstance(fault, TypeError) and "must be a str" in text:
        what = "key" if text.startswith("a key") else "holder"
        return f'{text.partition("; ")[0]}; make a text of it, {what}="{what}:{{column}}"'
    return text


def _formatted(text: str, values: Values) -> str | None:
    """The text with the row's values in it; `None` when one of them is null."""
    made = ""
    for literal, name, _, _ in _FORMAT.parse(text):
        made += literal
        if name is None:
            continue
        value = values[name]
        if isinstance(value, Enum):
            value = value.value
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | UUID):
            raise TypeError(
                f"{text!r}: {name} is {shown(value)}; only text, int and UUID go into a text, for anything else"
                " give a callable"
            )
        made += str(value)
    return made
