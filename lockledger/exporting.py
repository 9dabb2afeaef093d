"""The verbs that write the past to a file: the audit trail and the holds, page by page out of one snapshot."""

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from io import TextIOBase
from pathlib import Path
from typing import Any, BinaryIO, Final
from uuid import uuid4

from sqlalchemy import Connection

from lockledger.adapters.failures import readable, translated
from lockledger.adapters.snapshots import snapshot
from lockledger.adapters.statements import ask
from lockledger.adapters.store import EventStore
from lockledger.domain.errors import TamperedLedger
from lockledger.domain.holds import AuditEntry, Hold
from lockledger.formats import (
    Columns,
    Format,
    Kind,
    Row,
    Stream,
    checked_format,
    format_of,
    writing,
)
from lockledger.past import Past, past_filter, place_of
from lockledger.projections import audit_trail, past
from lockledger.queries import audit_filter
from lockledger.workings import Workings

Destination = str | os.PathLike[str] | BinaryIO
OnRows = Callable[[int], None] | None
Pages = Iterator[Sequence[AuditEntry]] | Iterator[Sequence[Hold]]

ROWS_IN_A_PAGE: Final = 500
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a write to a file fails with. It names no file."""

ENTRY: Final[Columns] = {
    "position": "count",
    "key": "text",
    "version": "count",
    "action": "text",
    "actor": "text",
    "holder": "text",
    "previous_holder": "text",
    "token": "count",
    "occurred_at": "instant",
    "recorded_at": "instant",
    "reason": "text",
    "before": "json",
    "after": "json",
    "metadata": "json",
    "event_hash": "text",
}
"""The columns of the audit trail: the facts of an `AuditEntry`."""
HOLD: Final[Columns] = {
    "key": "text",
    "holder": "text",
    "token": "count",
    "taken_at": "instant",
    "expires_at": "instant",
    "taken_over_from": "text",
    "takeover_reason": "text",
    "metadata": "json",
    "ended_at": "instant",
    "ended_by": "text",
    "end_reason": "text",
    "ended_by_actor": "text",
}
"""The columns of the holds: the facts of a `Hold`."""
_NAMES: Final = {
    "holder": "holder_name",
    "previous_holder": "previous_holder_name",
    "taken_over_from": "previous_holder_name",
    "actor": "actor_name",
    "ended_by_actor": "actor_name",
}
"""What the name of an id's owner is called, which stands behind it."""
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


class ExportingVerbs(ABC):
    """Write audit trail and holds to a file. They need a snapshot of their own, so none runs in a caller's transaction."""

    _workings: Workings

    @abstractmethod
    def _connection(
        self, *, busy_timeout: float | None = None
    ) -> AbstractContextManager[Connection]:
        """A connection in AUTOCOMMIT, the schema looked at."""

    def export_audit_trail(
        self,
        file: Destination,
        *,
        format: Format | None = None,  # noqa: A002 - what everybody calls it
        overwrite: bool = False,
        progress: OnRows = None,
        key: str | None = None,
        key_prefix: str | None = None,
        under: str | None = None,
        holder: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        extensions: bool = False,
    ) -> int:
        """Writes the entries that `audit_trail` gives for these filters, in position order, and tells how many.

        All of one moment, whatever is recorded meanwhile: none is missing and none comes twice. Without `key` it ends
        where an open transaction may still bring an entry before what follows, as `audit_trail` does. Nothing is
        locked and nobody waits, memory stays flat; the snapshot is open for as long as it takes.

        `file`: a path, or a stream that takes bytes, which is left open. What is at a path is there as a whole or not
        at all: it is written beside it and renamed at the end. A file that is there already is a `FileExistsError`
        unless `overwrite`. `format`: `csv`, `jsonl` or `parquet`, which needs the extra of that name (`ImportError`);
        left out, a path's ending says it (`trail.jsonl`), and CSV is written to any other name and to a stream. Columns
        and forms are in the reference. With `names` the host's names stand behind the ids. `progress` is called after
        each page with the rows so far.
        """
        wanted = audit_filter(
            key=key,
            key_prefix=key_prefix,
            under=under,
            holder=holder,
            actor=actor,
            action=action,
            since=since,
            until=until,
            extensions=extensions,
        )
        target = Target(file, format, overwrite, progress)
        with self._connection() as connection:
            store = self._workings.store
            # Before the snapshot, or a position could settle that the snapshot does not see.
            with translated(key=key):
                upto = store.settled(connection) if wanted.key is None else None
            with translated(key=key), snapshot(connection):
                pages = _entries(connection, store, wanted, upto)
                return target.write(connection, self._workings, ENTRY, pages)

    def export_holds(
        self,
        file: Destination,
        *,
        format: Format | None = None,  # noqa: A002 - what everybody calls it
        overwrite: bool = False,
        progress: OnRows = None,
        key: str | None = None,
        key_prefix: str | None = None,
        under: str | None = None,
        holder: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> int:
        """Writes the holds that `holds` gives for these filters, by key, then token, and tells how many.

        All as they were at one moment, when it began: whether a hold has run out is judged by that time too. `file`,
        `format`, `overwrite` and `progress` are those of `export_audit_trail`, which says what is guaranteed.
        """
        wanted = past_filter(
            key=key, key_prefix=key_prefix, under=under, holder=holder, since=since, until=until
        )
        target = Target(file, format, overwrite, progress)
        with self._connection() as connection, translated(key=key), snapshot(connection):
            now = self._workings.clock(connection)
            pages = _holds(connection, Past(self._workings.store, lambda: now), wanted)
            return target.write(connection, self._workings, HOLD, pages)


class Target:
    """Where an export goes and in which format, checked before anything is read."""

    def __init__(
        self, file: Destination, form: Format | None, overwrite: bool, told: OnRows
    ) -> None:
        self._form = checked_format(_fitting(file) if form is None else form)
        self._destination = _destination(file, overwrite)
        self._told = told

    def write(
        self, connection: Connection, workings: Workings, facts: Columns, pages: Pages
    ) -> int:
        """Writes the pages, with the names that the host gives now, and counts the rows."""
        columns = dict(_with_names(facts)) if workings.has_names else facts
        count = 0
        with self._destination as stream, _encodable(), writing(self._form, stream, columns) as add:
            for page in pages:
                add(list(_rows(connection, workings, page)))
                count += len(page)
                if self._told is not None and (page or not count):
                    self._told(count)
        return count


def _entries(
    connection: Connection, store: EventStore, wanted: audit_trail.Filter, upto: int | None
) -> Iterator[Sequence[AuditEntry]]:
    after, table = 0, store.tables.audit_trail
    while True:
        query = audit_trail.entries(
            table, store.ledger, wanted, after=after, upto=upto, limit=ROWS_IN_A_PAGE
        )
        with readable(key=wanted.key):
            page = [audit_trail.entry_of(row) for row in ask(connection, query)]
        yield page
        if len(page) < ROWS_IN_A_PAGE:
            return
        after = page[-1].position


def _holds(connection: Connection, reader: Past, wanted: past.Filter) -> Iterator[Sequence[Hold]]:
    after = None
    while True:
        page = reader.holds(
            connection,
            wanted,
            after=None if after is None else place_of(after),
            limit=ROWS_IN_A_PAGE,
        )
        yield page
        after = page.next_after
        if after is None:
            return


def _with_names(facts: Columns) -> Iterator[tuple[str, Kind]]:
    for fact, kind in facts.items():
        yield fact, kind
        if fact in _NAMES:
            yield _NAMES[fact], "text"


def _rows(
    connection: Connection, workings: Workings, page: Sequence[AuditEntry] | Sequence[Hold]
) -> Iterator[Row]:
    rows = [each.model_dump(mode="json") for each in page]
    if not workings.has_names:
        yield from rows
        return
    owned = [fact for fact in _NAMES if rows and fact in rows[0]]
    ids = {row[fact] for row in rows for fact in owned if row[fact] is not None}
    names = workings.display_names(connection, ids)
    for row in rows:
        yield row | {_NAMES[fact]: _name(names.get(row[fact])) for fact in owned}


def _name(name: object) -> str | None:
    """A name as every format can keep it and any terminal can show it.

    A half of a character, which is in no encoding, becomes a question mark, and so does a control character.
    """
    if name is None:
        return None
    return _CONTROLS.sub("?", str(name)).encode("utf-8", "replace").decode()


@contextmanager
def _encodable() -> Iterator[None]:
    """SQLite keeps text that is none, and the snapshot lets it through."""
    try:
        yield
    except UnicodeEncodeError as fault:
        raise TamperedLedger(None, f"a text in its tables is no UTF-8 ({fault})") from fault


def _fitting(file: Any) -> Format:
    """The format where none is asked for: a path's name says it, a stream has none."""
    return format_of(os.fsdecode(file)) if isinstance(file, str | os.PathLike) else "csv"


def _destination(file: Any, overwrite: bool) -> AbstractContextManager[Stream]:
    if isinstance(file, str | os.PathLike):
        return written_beside(_checked_path(file, overwrite), overwrite=overwrite)
    if isinstance(file, TextIOBase) or not callable(getattr(file, "write", None)):
        raise TypeError(f"file={file!r}: give a path, or a stream that takes bytes, open(…, 'wb')")
    return nullcontext(file)


def _checked_path(file: str | os.PathLike[str], overwrite: bool) -> Path:
    """The file that a path means in the end. Raises `FileExistsError` for one that is there and may not be replaced."""
    path = Path(os.path.realpath(os.fsdecode(file)))
    if path.exists() and not (overwrite and path.is_file()):
        raise _there(path)
    return path


def _there(path: Path) -> FileExistsError:
    remedy = (
        "name another, or let it be overwritten"
        if path.is_file()
        else "it is no file that could be overwritten"
    )
    return FileExistsError(errno.EEXIST, f"there is one already; {remedy}", str(path))


@contextmanager
def written_beside(path: Path, *, overwrite: bool) -> Iterator[Stream]:
    """A new file in the same folder, which gets the name at the end, on the disk before that; nothing after an error."""
    part = path.with_name(f".{path.name[:40]}.{uuid4().hex}.part")
    try:
        with part.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if overwrite:
            part.replace(path)
        else:
            _rename_to_a_new_name(part, path)
        _sync_names(path.parent)
    except OSError as fault:
        named = fault.filename
        if isinstance(named, str | os.PathLike):
            is_ours = Path(named) == part
        else:
            is_ours = named is None and fault.errno in _NO_ROOM
        if is_ours:
            fault.filename = str(path)  # the name that the caller knows
        raise
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _sync_names(folder: Path) -> None:
    """Lets the new name outlast a power cut, where the system can sync a folder."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _rename_to_a_new_name(part: Path, path: Path) -> None:
    """A rename would replace a file that was made there meanwhile; a link is refused."""
    try:
        path.hardlink_to(part)
    except FileExistsError:
        raise _there(path) from None
    except OSError:  # a file system without links
        if path.exists():
            raise _there(path) from None
        part.rename(path)
