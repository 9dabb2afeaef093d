"""The how-to pages for hosts, run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.databases import Database
from support.documents import DOCS, run

URL = "postgresql+psycopg://localhost/host"


def on(database: Database) -> dict[str, str]:
    """What stands for the page's database."""
    if database.dialect == "postgresql":
        return {URL: database.url}
    return {
        f'create_engine("{URL}")': (
            f"__import__('lockledger').configure_sqlite(create_engine(\"{database.url}\"))"
        )
    }


def test_transactions(
    empty_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(DOCS / "how-to" / "transactions.md", instead=on(empty_database))
    refused, lost = capsys.readouterr().out.splitlines()
    assert refused.startswith("user:7 has it since 20")
    assert lost.startswith("takeover by user:8 at 20")
    assert lost.endswith("user:7 is on holiday")
    assert empty_database.logged_errors() == []
    assert [entry.action for entry in names["ledger"].history("version:17")] == [
        "LockTaken",
        "LockTakenOver",
        "LockReleased",
        "LockTaken",
        "LockReleased",
    ]
    names["engine"].dispose()
    names["local"].dispose()


def test_asyncio(
    empty_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = f'create_async_engine("{URL}", pool_size=5)'
    instead = {URL: empty_database.url}
    if empty_database.dialect == "sqlite":
        on_sqlite = f'create_async_engine("sqlite+aiosqlite:///{empty_database.path}", pool_size=5)'
        instead = {engine: f"__import__('lockledger').configure_sqlite({on_sqlite})"}
    run(
        DOCS / "how-to" / "asyncio.md",
        instead=instead,
        at_the_end="await engine.dispose()",
    )

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("user:7 has it until 20")
    assert lines[1] == "takeover by user:8: user:7 is on holiday"
    assert [line.split()[1:] for line in lines[2:]] == [
        ["LockTaken", "version:17"],
        ["LockTakenOver", "version:17"],
        ["LockReleased", "version:17"],
    ]


def test_policy(empty_database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    names = run(DOCS / "how-to" / "policy.md", instead=on(empty_database))
    names["engine"].dispose()

    assert capsys.readouterr().out.splitlines() == [
        "VERSION_CANCELLED version:18",
        "there is no version:99",
    ]
    assert empty_database.logged_errors() == []
