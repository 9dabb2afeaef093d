"""Nobody's password, and nothing of what is recorded, stands where it does not belong: errors, tracebacks, reprs."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from lockledger import AsyncLockLedger, LockLedger
from lockledger.adapters.factory import SQLAlchemyFactory
from lockledger.cli.program import run
from support.databases import Database
from support.refusing import refusing_server

SECRET, OTHER = "s3cr%25et/", "t0ps3cret"
PARTS = ("s3cr", "t0ps")
URLS = [
    f"postgresql://app:{SECRET}@127.0.0.1:1/locks",
    f"postgresql://app@127.0.0.1:1/locks?password={OTHER}&sslpassword={OTHER}",
    f"postgresql://app:{SECRET}@127.0.0.1:1/locks?nonsense=1",
    f"postgresql://app:{SECRET}@127.0.0.1:port/locks",
    f"postgresql://app:{SECRET}@@127.0.0.1/locks",
    f"postgresql+asyncpg://app:{SECRET}@127.0.0.1/locks",
    f"mysql://app:{SECRET}@127.0.0.1/locks",
    f"app:{SECRET}@127.0.0.1",
]


def told(error: BaseException) -> str:
    """Everything that a log may show of an error."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize("url", URLS)
def test_no_error_of_the_library_shows_a_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", OTHER)

    def take() -> None:
        with LockLedger(url) as ledger:
            assert SECRET not in repr(ledger)
            ledger.take("k", "run:1")

    with pytest.raises(Exception) as found:  # noqa: PT011 - of any kind
        take()
    assert not any(part in told(found.value) for part in PARTS)

    async def takes() -> None:
        async with AsyncLockLedger(url) as ledger:
            await ledger.take("k", "run:1")

    with pytest.raises(Exception) as found:  # noqa: PT011 - of any kind
        asyncio.run(takes())
    assert not any(part in told(found.value) for part in PARTS)
    with pytest.raises(Exception) as found:  # noqa: PT011 - of any kind
        SQLAlchemyFactory({"LOCKLEDGER_URL": url}).application_recorder().max_notification_id()
    assert not any(part in told(found.value) for part in PARTS)


@pytest.mark.parametrize("url", URLS)
def test_the_command_line_shows_no_password(
    url: str, sqlite_database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [f"--column={fact}=a" for fact in ("key", "holder", "taken_at")]
    for arguments in (
        ["--database", url, "holders"],
        ["--database", url, "doctor", "--json"],
        [
            "--database",
            sqlite_database.url,
            "import",
            "--table=t",
            "--shape=live",
            *columns,
            "--from-url",
            url,
        ],
    ):
        assert run(arguments) in (2, 4)
        printed = capsys.readouterr()
        assert printed.err
        assert not any(part in printed.out + printed.err for part in PARTS)


def test_a_server_that_repeats_the_password_is_not_believed(
    sqlite_database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [f"--column={fact}=a" for fact in ("key", "holder", "taken_at")]
    with refusing_server() as port:
        url = f"postgresql://app:{OTHER}@127.0.0.1:{port}/locks"
        given = ["--database", sqlite_database.url, "import", "--table=t", "--shape=live"]
        assert run([*given, *columns, "--from-url", url]) == 4
    printed = capsys.readouterr()
    assert "password authentication failed" in printed.err
    assert OTHER not in printed.err


def test_a_database_error_shows_nothing_of_what_was_to_be_recorded(database: Database) -> None:
    """Reasons and metadata may be about people; the host's log is read by others."""
    with LockLedger(database.url) as ledger:
        ledger.take("k", "run:1")
        with database.engine().begin() as connection:
            connection.exec_driver_sql("ALTER TABLE lockledger_holds RENAME TO elsewhere")
        takes: list[dict[str, Any]] = [
            {"takeover_reason": "of a person"},
            {"takeover_reason": "why", "metadata": {"of": "of a person"}},
        ]
        for take in takes:
            with pytest.raises(DBAPIError) as found:
                ledger.take("k", "run:2", **take)
            assert "of a person" not in told(found.value)
            assert "of a person" not in told(found.value.orig or found.value)
