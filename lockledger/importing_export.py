"""An audit trail that another ledger exported: the very same events again, each held against its hash."""

import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, cast
from uuid import UUID

from pydantic import ConfigDict, Field, ValidationError

from lockledger.adapters.encoding import FIRST, encode, event_hash
from lockledger.adapters.store import EventStore
from lockledger.domain.errors import InvalidKey, shown
from lockledger.domain.events import (
    LockEvent,
    LockExpired,
    LockExtended,
    LockReleased,
    LockTaken,
    LockTakenOver,
    PreviousHold,
)
from lockledger.domain.holds import AuditEntry, Hold
from lockledger.domain.keys import check_key, check_ledger_name, lock_id
from lockledger.domain.lock import Lock, evolve
from lockledger.domain.past_holds import Unfit
from lockledger.domain.succession import misfit
from lockledger.importing_rows import Origin, Refusal, Row, Told
from lockledger.projections import audit_trail

MAX_LINE_BYTES: Final = 1024 * 1024
"""Several times what an entry within the limits takes with every character escaped."""

_GZIP: Final = b"\x1f\x8b"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class _Line(AuditEntry):
    """An entry as a line has it; names that were added for a reader are passed over."""

    model_config = ConfigDict(extra="ignore")

    position: Annotated[int, Field(ge=1, lt=2**63)]
    version: Annotated[int, Field(ge=1, lt=2**63)]


@dataclass(frozen=True, slots=True)
class AuditExport:
    """A file that `lockledger export audit --extensions` wrote: JSON Lines, plain or gzip; a path or an open binary file.

    `ledger` is the name of the ledger that it was exported from, the importing one's own unless given: the hash of each
    event is made anew and held against the exported one, and covers the name.
    """

    file: str | os.PathLike[str] | BinaryIO
    ledger: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.file, io.TextIOBase) or not (
            isinstance(self.file, str | os.PathLike) or hasattr(self.file, "readline")
        ):
            raise TypeError(f"file={self.file!r}: give a path, or a file open for bytes, 'rb'")
        if self.ledger is not None:
            check_ledger_name(self.ledger)

    def origin(self) -> Origin:
        """How it is read."""
        return ExportOrigin(self)


class ExportOrigin(Origin):
    """Reads an exported audit trail."""

    events_of_a_row = 1

    def __init__(self, export: AuditExport) -> None:
        self._export = export
        self.name = _name(export.file)

    def rows(self) -> Iterator[Row | Refusal]:
        with _opened(self._export.file) as lines:
            for number, line in lines:
                entry = _entry(number, line)
                try:
                    check_key(entry.key)
                except InvalidKey as fault:
                    yield Refusal(row=number, key=None, reason=str(fault))
                else:
                    yield Row(entry.key, entry.version, entry.position, number, line.decode())

    def told(
        self,
        store: EventStore,
        key: str,
        rows: Sequence[Row],
        there: Sequence[LockEvent],
        now: datetime,
    ) -> Told:
        ledger = store.ledger if self._export.ledger is None else self._export.ledger
        events = list(_events(ledger, key, rows, now))
        if ledger != store.ledger:
            mine = store.lock_id(key)
            events = [event.model_copy(update={"originator_id": mine}) for event in events]
        return Told(events, [row.rank for row in rows], len(events))


def _events(ledger: str, key: str, rows: Sequence[Row], now: datetime) -> Iterator[LockEvent]:
    """The events as the exporting ledger has them."""
    lock, previous = Lock(lock_id(ledger, key), key), FIRST
    for row in rows:
        _expect_version(lock.version + 1, row)
        entry = _Line.model_validate_json(row.text)
        if entry.recorded_at > now:
            raise Unfit(row.id, f"it is of {entry.recorded_at.isoformat()}, which is in the future")
        event, previous = _hashed(ledger, lock.id, entry, row, previous)
        _expect_no_other_words(ledger, entry, event, previous, row)
        if fault := misfit(lock, event):
            raise Unfit(row.id, f"{event.action} cannot be version {entry.version}: {fault}")
        yield event
        lock = evolve(event)


def _expect_version(expected: int, row: Row) -> None:
    version = cast(int, row.place)
    if version == expected:
        return
    if version < expected:
        raise Unfit(row.id, f"version {version} comes twice; import one export at a time")
    missing = (
        f"version {expected} is"
        if version == expected + 1
        else f"versions {expected} to {version - 1} are"
    )
    raise Unfit(
        row.id,
        f"it is version {version}, but {missing} missing: export all of the audit trail, with extensions"
        " (lockledger export audit --extensions, without filters)",
    )


def _hashed(
    ledger: str, stream: UUID, entry: AuditEntry, row: Row, previous: bytes
) -> tuple[LockEvent, bytes]:
    """The event that has the entry's hash, and the hash: an entry leaves open whether a release was forced."""
    try:
        candidates = list(_candidates(entry, stream))
    except (ValidationError, ValueError, TypeError, KeyError) as fault:
        raise Unfit(
            row.id, f"it is no {shown(entry.action)}: {str(fault).partition(chr(10))[0]}"
        ) from fault
    for event in candidates:
        topic, state = encode(event)
        made = event_hash(previous, ledger, stream, entry.version, topic, state)
        if made.hex() == entry.event_hash:
            return event, made
    raise Unfit(
        row.id,
        f"version {entry.version} does not have the hash that follows from it: it was changed after the export, or"
        f" exported from another ledger than {shown(ledger)}; say which, ledger= or --from-ledger",
    )


def _expect_no_other_words(
    ledger: str, entry: AuditEntry, event: LockEvent, made: bytes, row: Row
) -> None:
    """What an entry says besides its event follows from the event, and no hash covers it."""
    said = audit_trail.row(ledger, event, made)
    said |= {"before": event.before(), "after": event.after()}
    for name in _FOLLOWS:
        if getattr(entry, name) != said[name]:
            raise Unfit(
                row.id,
                f"version {entry.version} has another {name} than the event that its hash belongs to: it was changed"
                " after the export",
            )


def _candidates(entry: AuditEntry, stream: UUID) -> Iterator[LockEvent]:
    """The events that may have made the entry, the likelier one first."""
    said: dict[str, Any] = {
        "originator_id": stream,
        "originator_version": entry.version,
        "timestamp": entry.recorded_at,
        "actor": entry.actor,
        "metadata": entry.metadata,
    }
    if entry.action == LockTaken.__name__:
        yield LockTaken(**said, **_facts(entry.after))
    elif entry.action == LockTakenOver.__name__:
        before = _facts(entry.before)
        del before["key"]
        previous = PreviousHold(metadata=before.pop("hold_metadata"), **before)
        yield LockTakenOver(**said, **_facts(entry.after), reason=entry.reason, previous=previous)
    elif entry.action == LockExtended.__name__:
        expiry = _facts(entry.before)["expires_at"]
        yield LockExtended(**said, **_facts(entry.after), previous_expires_at=expiry)
    elif entry.action == LockReleased.__name__:
        held = _facts(entry.before)
        forced = entry.actor != entry.holder
        for each in (forced, not forced):
            yield LockReleased(**said, **held, forced=each, reason=entry.reason)
    elif entry.action == LockExpired.__name__:
        held = _facts(entry.before)
        yield LockExpired(**said, **held, expired_at=entry.occurred_at, recorded_during="take")
        yield LockExpired(**said, **held, expired_at=entry.occurred_at, recorded_during="sweep")
    else:
        raise ValueError("this release knows no such event; upgrade lockledger")


_FOLLOWS: Final = (
    *("actor", "holder", "previous_holder", "token", "occurred_at", "recorded_at"),
    *("reason", "before", "after"),
)
_FACTS: Final = (
    *("key", "holder", "token", "taken_at", "expires_at", "taken_over_from", "takeover_reason"),
)


def _facts(hold: Hold | None) -> dict[str, Any]:
    if hold is None:
        raise ValueError("it does not say which hold it is about")
    return {name: getattr(hold, name) for name in _FACTS} | {"hold_metadata": hold.metadata}


def _entry(number: int, line: bytes) -> _Line:
    try:
        return _Line.model_validate_json(line)
    except ValidationError as fault:
        first = fault.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"line {number} is no entry of an audit trail: {where and f'{where}: '}{first['msg']};"
            " it has to be JSON Lines, as of export audit --extensions --format jsonl: nothing was imported"
        ) from None


def _name(file: object) -> str:
    named = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    return Path(named).name if isinstance(named, str | os.PathLike) else "export"


@contextmanager
def _opened(file: str | os.PathLike[str] | BinaryIO) -> Iterator[Iterator[tuple[int, bytes]]]:
    if isinstance(file, str | os.PathLike):
        with Path(file).open("rb") as raw:
            yield _lines(raw)
    elif hasattr(file, "peek"):
        yield _lines(file)
    else:
        buffered = io.BufferedReader(cast(Any, file))
        try:
            yield _lines(cast(BinaryIO, buffered))
        finally:
            buffered.detach()  # or it would close what is the caller's


def _lines(raw: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, and their numbers. Raises `ValueError` where it cannot be read on."""
    packed = cast(Any, raw).peek(len(_GZIP))[: len(_GZIP)] == _GZIP
    lines = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
    number = 0
    while True:
        number += 1
        try:
            line = lines.readline(MAX_LINE_BYTES + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as fault:
            raise ValueError(
                f"line {number} cannot be unpacked ({fault}); get the file anew: nothing was imported"
            ) from None
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(
                f"line {number} has more than {MAX_LINE_BYTES} bytes; no entry is that long: nothing was imported"
            )
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.strip():
            yield number, line
