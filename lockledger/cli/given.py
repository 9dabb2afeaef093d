"""What every command is given: which database, ledger and schema, and how names and answers are shown."""

import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lockledger.cli.failures import BadInput

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection

    from lockledger.domain.errors import LockLedgerError
    from lockledger.ledger import LockLedger

DATABASE: Final = "LOCKLEDGER_DATABASE"
NAMES: Final = "LOCKLEDGER_NAMES"
DEFAULT_DATABASE: Final = "sqlite:///lockledger.db"
BUSY_SECONDS = 30.0

_CONNECT_SECONDS = "10"
_SHORTEST_SECRET = 3  # to blot out a single letter would leave no message
_URLS = "write sqlite:///file.db or postgresql://user@host/database"


@dataclass(frozen=True)
class Given:
    """The options that may stand before or after a command's name; the later ones count."""

    database: str | None = None
    ledger: str | None = None
    schema: str | None = None
    names: str | None = None
    json: bool = False
    other_urls: list[str] = field(default_factory=list)
    """URLs that a command was given besides, whose passwords no message may show either."""

    def over(self, earlier: "Given") -> "Given":
        """These options, and the earlier ones where these say nothing."""
        return Given(
            earlier.database if self.database is None else self.database,
            earlier.ledger if self.ledger is None else self.ledger,
            earlier.schema if self.schema is None else self.schema,
            earlier.names if self.names is None else self.names,
            self.json or earlier.json,
        )

    @property
    def database_text(self) -> str:
        """The URL as it was given."""
        given = self.database
        return os.environ.get(DATABASE) or DEFAULT_DATABASE if given is None else given

    def url(self) -> "URL":
        """The database's URL. Raises `BadInput`, which never shows what could be a part of a password."""
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        from lockledger.adapters.engines import checked_url
        from lockledger.adapters.sqlite_engines import in_memory

        text = self.database_text
        if "://" not in text:
            raise BadInput(f"the database is no URL; {_URLS}")
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):
            raise BadInput(
                f"the database's URL cannot be read; {_URLS}, special characters as %40"
            ) from None
        if "@" in (url.host or ""):
            raise BadInput("the database's URL has two @; write the one in the password as %40")
        url = checked_url(url)
        if url.get_backend_name() == "postgresql":
            return _patient(url)
        if in_memory(url):
            raise BadInput(
                "a database in memory is gone when the command ends; write sqlite:///file.db"
            )
        return url

    @contextmanager
    def opened(self) -> "Iterator[LockLedger]":
        """The ledger, closed at the end."""
        from lockledger.domain.errors import LockLedgerError
        from lockledger.ledger import LockLedger

        with LockLedger(
            self.url(),
            name=self.ledger_name,
            schema=self.schema,
            busy_timeout=self.busy_seconds,
            names=None if self.names_text is None else load_names(self.names_text),
        ) as ledger:
            try:
                yield ledger
            except LockLedgerError as refusal:
                if refusal.current is not None and self.names_text is not None:
                    _name_holder(ledger, refusal, refusal.current.holder)
                raise

    @property
    def ledger_name(self) -> str:
        """The ledger's name."""
        return "default" if self.ledger is None else self.ledger

    @property
    def busy_seconds(self) -> float:
        """How long a write waits for another connection's write on SQLite."""
        return BUSY_SECONDS

    @property
    def names_text(self) -> str | None:
        """`module:callable`, when the host has display names."""
        return os.environ.get(NAMES) or None if self.names is None else self.names

    def without_secrets(self, text: str) -> str:
        """The text with the passwords of all URLs blotted out, whoever wrote them there."""
        secrets = set[str]().union(*map(_secrets, (self.database_text, *self.other_urls)))
        # The longest first: one may be a part of another.
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def place(url: "URL") -> str:
    """The database as messages name it: never a user, a password or an option."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    host = url.host or url.query.get("host") or ""
    port_number = url.port or url.query.get("port")
    port = f":{port_number}" if port_number else ""
    if isinstance(host, str) and host.startswith("/"):  # a socket, which is no host in a URL
        return f"postgresql://{port}/{url.database or ''}?host={host}"
    return f"postgresql://{host}{port}/{url.database or ''}"


def load_names(text: str) -> "Callable[[Connection, Collection[str]], Mapping[str, str]]":
    """The host's `names(connection, ids)`, from `module:callable`; the current folder's modules count too."""
    module, _, path = text.partition(":")
    if not module or not path:
        raise BadInput(f"--names {text!a}: write module:callable")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise BadInput(f"--names {text!a} cannot be loaded: {error}") from error
    from sqlalchemy.exc import SQLAlchemyError

    if not callable(found):
        raise BadInput(f"--names {text!a} is no callable; it is called as names(connection, ids)")

    def names(connection: "Connection", ids: Collection[str]) -> Mapping[str, str]:
        try:
            known = found(connection, ids)
        except SQLAlchemyError:
            raise
        except Exception as error:
            raise BadInput(f"--names {text!a} failed: {type(error).__name__}: {error}") from error
        if not isinstance(known, Mapping):
            raise BadInput(
                f"--names {text!a} gave {type(known).__name__}; it must give a mapping of ids to names"
            )
        return {each: str(known[each]) for each in ids if known.get(each) is not None}

    return names


def _name_holder(ledger: "LockLedger", refusal: "LockLedgerError", holder: str) -> None:
    """The name of whoever is in the way, as it is now; without one the refusal stands as it is."""
    name = None
    with suppress(Exception):
        name = ledger.display_names([holder])[holder]
    refusal.__dict__["holder_name"] = name
    if name is not None:
        refusal.noted(f"{holder} is {name}")


def _patient(url: "URL") -> "URL":
    """Libpq waits for minutes on a server that does not answer; a person does not."""
    defaults = {"connect_timeout": _CONNECT_SECONDS, "fallback_application_name": "lockledger"}
    return url.update_query_dict(
        {name: value for name, value in defaults.items() if name not in url.query}
    )


def _secrets(text: str) -> set[str]:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    raw = text.partition("://")[2].rpartition("@")[0].partition(":")[2]
    secrets = {raw}
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        pass
    else:
        secrets.add(str(url.password or ""))
        secrets.update(str(value) for name, value in url.query.items() if "pass" in name)
    return {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
