"""Rows into a table of PostgreSQL by COPY, which stays open while they are made: the server inserts meanwhile."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table
from sqlalchemy.util import await_only

from lockledger.adapters.scans import Row, named

_AT_ONCE: Final = 1 << 16
_SPECIAL: Final = re.compile(r"[\\\b\f\n\r\t\v]")
_ESCAPES: Final = {
    "\\": r"\\",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
}


class Copying:
    """One COPY into a table, in the open transaction of a connection that nothing else is asked of meanwhile.

    Errors are the driver's own.
    """

    def __init__(self, connection: Connection, table: Table, columns: Sequence[str]) -> None:
        driver: Any = connection.connection.driver_connection
        listed = ", ".join(f'"{name}"' for name in columns)
        self._asynchronous = connection.dialect.is_async
        self._context: Any = driver.cursor().copy(f"COPY {named(table)} ({listed}) FROM STDIN")
        self._copy: Any = self._done(self._enter)
        self._waiting: list[str] = []
        self._size = 0
        self.rows = 0
        self._over = False

    def write(self, row: Row) -> None:
        """One row, in the form in which rows are read."""
        line = "\t".join(map(_text, row)) + "\n"
        self._waiting.append(line)
        self._size += len(line)
        self.rows += 1
        if self._size >= _AT_ONCE:
            self._send()

    def write_all(self, rows: Iterable[Row]) -> None:
        """Several."""
        for row in rows:
            self.write(row)

    def close(self) -> None:
        """Waits until the server has all of them; only now does it tell what it refuses."""
        self._send()
        self._over = True
        self._leave(None)

    def abandon(self, error: BaseException) -> None:
        """Takes back what was sent; the transaction has failed."""
        if self._over:
            return
        self._over = True
        try:
            self._leave(error)
        except Exception as failure:  # noqa: BLE001 - what it is abandoned for is the news
            error.add_note(f"and while the COPY was taken back: {failure}")

    def _send(self) -> None:
        text, self._waiting, self._size = "".join(self._waiting), [], 0
        if text:
            self._done(lambda: self._copy.write(text.encode()))

    def _enter(self) -> Any:
        return self._context.__aenter__() if self._asynchronous else self._context.__enter__()

    def _leave(self, error: BaseException | None) -> None:
        kind = None if error is None else type(error)
        leave = self._context.__aexit__ if self._asynchronous else self._context.__exit__
        self._done(lambda: leave(kind, error, None))

    def _done(self, call: Callable[[], Any]) -> Any:
        return await_only(call()) if self._asynchronous else call()


def _text(value: Any) -> str:
    if value is None:
        return r"\N"
    if isinstance(value, str):
        return _SPECIAL.sub(_escaped, value) if _SPECIAL.search(value) else value
    return rf"\\x{value.hex()}" if isinstance(value, bytes) else str(value)


def _escaped(match: re.Match[str]) -> str:
    return _ESCAPES[match[0]]
