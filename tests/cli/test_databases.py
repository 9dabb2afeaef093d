"""Databases that cannot be used: each a line that says so, the right exit code, and nothing changed."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockledger.cli import given as given_module
from support.databases import Database
from support.ledgers import Ledgers
from support.refusing import refusing_server
from support.roles import role_of

COMMANDS = [
    ("take", "k", "h"),
    ("release", "k", "h"),
    ("force-release", "k", "--actor", "a", "--reason", "r"),
    ("extend", "k", "h", "--ttl", "60"),
    ("holders",),
    ("holds",),
    ("at", "2024-05-14T10:00:00+00:00"),
    ("history", "k"),
    ("audit",),
    ("timeline",),
    ("doctor",),
]
names = [" ".join(command) for command in COMMANDS]


def one_line(ran: Any) -> str:
    """What a failed command said, which is one line and no traceback."""
    assert ran.err.startswith("lockledger: ")
    assert ran.err.count("\n") == 1, ran.err
    assert "Traceback" not in ran.err
    return str(ran.err)


def test_the_default_database_is_a_file_in_the_current_folder(lockledger: Any) -> None:
    assert lockledger("migrate").out == "lockledger.db has schema version lockledger_0001\n"
    lockledger.done("take", "k", "h")
    assert Path("lockledger.db").exists()


def test_the_option_wins_over_the_environment(lockledger: Any) -> None:
    lockledger.on("sqlite:///environment.db")
    ran = lockledger(
        "--database", "sqlite:///before.db", "migrate", "--database", "sqlite:///after.db", "--json"
    )
    assert ran.json == {"database": "after.db", "schema_version": "lockledger_0001"}
    assert [path.name for path in Path().glob("*.db")] == ["after.db"]


def test_a_migration_can_be_repeated(lockledger: Any, empty_database: Database) -> None:
    lockledger.on(empty_database.url)
    first, second = lockledger("migrate"), lockledger("migrate")
    assert (first.code, second.code) == (0, 0)
    assert first.out == second.out
    assert lockledger("holders").code == 0


@pytest.mark.parametrize("command", COMMANDS, ids=names)
def test_a_missing_file_is_named_and_not_made(lockledger: Any, command: tuple[str, ...]) -> None:
    ran = lockledger(*command, "--database", "sqlite:///typo.db")
    assert ran.code == 4
    said = one_line(ran)
    assert "run `lockledger migrate`" in said
    assert f"there is no file {Path.cwd() / 'typo.db'}" in said
    assert list(Path().iterdir()) == []


def test_a_file_in_a_missing_folder_cannot_be_migrated(lockledger: Any) -> None:
    ran = lockledger("migrate", "--database", "sqlite:///nowhere/file.db")
    assert ran.code == 4
    assert "unable to open database file; check that the folder exists" in one_line(ran)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("command", [("migrate",), *COMMANDS], ids=["migrate", *names])
def test_a_file_that_is_no_database_is_left_as_it_is(
    lockledger: Any, command: tuple[str, ...]
) -> None:
    path = Path("letter.txt")
    path.write_text("Dear customer,\n" * 200)
    before = path.read_bytes()
    ran = lockledger(*command, "--database", f"sqlite:///{path}")
    assert ran.code == 4
    assert "file is not a database; name a file that is an SQLite database" in one_line(ran)
    assert path.read_bytes() == before
    assert [each.name for each in Path().iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("command", COMMANDS, ids=names)
def test_a_database_of_something_else_is_left_as_it_is(
    lockledger: Any, command: tuple[str, ...]
) -> None:
    path = Path("photos.db")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (name TEXT)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    ran = lockledger(*command, "--database", f"sqlite:///{path}")
    assert ran.code == 4
    assert "lockledger's tables are missing; run `lockledger migrate`" in one_line(ran)
    assert path.read_bytes() == before


def test_a_folder_is_no_database(lockledger: Any, tmp_path: Path) -> None:
    for command in ("migrate", "holders"):
        ran = lockledger(command, "--database", f"sqlite:///{tmp_path}")
        assert ran.code == 4
        assert "unable to open database file" in one_line(ran)


def test_a_damaged_file_is_an_error_of_the_database(lockledger: Any) -> None:
    lockledger.done("migrate")
    content = bytearray(Path("lockledger.db").read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    Path("lockledger.db").write_bytes(content)
    ran = lockledger("take", "k", "h")
    assert ran.code == 4
    assert "restore it from a backup" in one_line(ran)


@pytest.mark.parametrize("folder_too", [False, True])
def test_a_read_only_file_refuses_changes(
    lockledger: Any, sqlite_database: Database, folder_too: bool
) -> None:
    path = sqlite_database.path
    assert path is not None
    lockledger.done("take", "k", "a", "--database", sqlite_database.url)
    with without_write_permission(path, folder_too) as run:
        taken = run("take", "k2", "b")
        assert taken.returncode == 4, taken.stderr
        assert "readonly database; make the file and its folder writable" in taken.stderr
        assert taken.stderr.count("\n") == 1
        looked = run("doctor")
        if folder_too:  # write-ahead logging needs files beside the database even to read
            assert (looked.returncode, looked.stdout) == (4, "")
            assert "make the file and its folder writable" in looked.stderr
        else:
            assert looked.returncode == 0, looked.stderr
            assert "this user may not write" in looked.stdout
            assert "k" in run("holders").stdout
    assert [
        each["key"]
        for each in lockledger("audit", "--json", "--database", sqlite_database.url).lines
    ] == ["k"]


@contextmanager
def without_write_permission(
    path: Path, folder_too: bool
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs commands on a copy of a file that may be read and not written, also when the tests are root's."""
    home = path.parent / "readable"
    home.mkdir()
    copy = home / "copy.db"
    shutil.copy(path, copy)
    copy.chmod(0o444)
    home.chmod(0o555 if folder_too else 0o777)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "lockledger",
            "--database",
            f"sqlite:///{copy}",
            *arguments,
        ]
        return subprocess.run(
            command, capture_output=True, text=True, preexec_fn=obey_permissions, cwd=path.parent
        )

    try:
        yield run
    finally:
        home.chmod(0o755)


def obey_permissions() -> None:
    """Takes the privilege to pass permission bits by from a process of root that is about to run a program."""
    if os.geteuid() == 0:
        bounding_set_drop, dac_override = 24, 1
        if ctypes.CDLL(None, use_errno=True).prctl(bounding_set_drop, dac_override, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot drop a capability")


def test_a_locked_file_is_waited_for_and_then_a_conflict(
    lockledger: Any, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(given_module, "BUSY_SECONDS", 0.1)
    lockledger.on(sqlite_database.url)
    lockledger.done("take", "other", "a")
    log = tmp_path / "log.jsonl"
    log.write_text('{"at": "2024-05-14T08:00:00Z", "do": "take", "key": "k", "holder": "h"}\n')
    assert sqlite_database.path is not None
    other = sqlite3.connect(sqlite_database.path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        taken = lockledger("take", "k", "h")
        applied = lockledger("apply", str(log))
        looked = lockledger("holders")
    finally:
        other.close()
    assert (taken.code, applied.code, looked.code) == (4, 4, 0)
    assert (
        "kept the SQLite file locked for longer than the busy timeout; nothing was changed"
        in one_line(taken)
    )
    assert "go on with --from-line 1" in one_line(applied)
    assert [line["key"] for line in lockledger("audit", "--json").lines] == ["other"]


@pytest.mark.parametrize("command", [("migrate",), *COMMANDS], ids=["migrate", *names])
def test_a_schema_from_the_future_is_left_as_it_is(
    cli: Any, ledgers: Ledgers, command: tuple[str, ...]
) -> None:
    version = "UPDATE lockledger_schema_version SET version_num = "
    with ledgers.database.engine().begin() as connection:
        connection.exec_driver_sql(f"{version} 'lockledger_9999'")
    before = ledgers.rows()
    ran = cli(*command)
    with ledgers.database.engine().begin() as connection:
        connection.exec_driver_sql(f"{version} 'lockledger_0001'")
    assert ran.code == 4
    assert (
        "at version 'lockledger_9999', which this library (lockledger_0001) does not know"
        in one_line(ran)
    )
    assert ledgers.rows() == before


@pytest.mark.parametrize("command", [("migrate",), *COMMANDS], ids=["migrate", *names])
def test_a_server_that_is_not_there_is_an_error_of_the_database(
    lockledger: Any, command: tuple[str, ...]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql://app:s3cret@127.0.0.1:{unused.getsockname()[1]}/locks"
        ran = lockledger(*command, "--database", url)
    assert ran.code == 4
    said = one_line(ran)
    assert "127.0.0.1" in said
    assert "check --database or LOCKLEDGER_DATABASE" in said
    assert "s3cret" not in said


def test_a_host_that_does_not_exist_is_an_error_of_the_database(lockledger: Any) -> None:
    ran = lockledger("holders", "--database", "postgresql://app:s3cret@no-such-host.invalid/locks")
    assert ran.code == 4
    assert "s3cret" not in one_line(ran)


def test_a_wrong_password_is_an_error_of_the_database_and_is_not_shown(lockledger: Any) -> None:
    with refusing_server() as port:
        for command in (["holders"], ["migrate"], ["doctor", "--json"]):
            ran = lockledger(
                *command, "--database", f"postgresql://app:s3cret@127.0.0.1:{port}/locks"
            )
            assert (ran.code, ran.out) == (4, "")
            assert "password authentication failed" in ran.err
            assert "s3cret" not in ran.err


def test_a_database_that_does_not_exist_is_an_error_of_the_database(
    lockledger: Any, postgres_database: Database
) -> None:
    assert postgres_database.server is not None
    ran = lockledger("holders", "--database", postgres_database.server.url("no_such_database"))
    assert ran.code == 4
    assert '"no_such_database" does not exist' in one_line(ran)


@pytest.mark.parametrize("command", COMMANDS[:5])
def test_missing_grants_are_named(
    lockledger: Any, postgres_database: Database, command: tuple[str, ...]
) -> None:
    with role_of(postgres_database) as role:
        with postgres_database.engine().begin() as connection:
            connection.exec_driver_sql(f"GRANT SELECT ON lockledger_schema_version TO {role}")
        ran = lockledger(*command, "--database", acting_as(postgres_database, role))
    assert ran.code == 4
    said = one_line(ran)
    assert "permission denied for" in said
    assert "docs/reference/schema.md" in said


def acting_as(database: Database, role: str) -> str:
    """The URL of the database with another role's privileges."""
    return f"{database.url}&options=-crole%3D{role}"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("lockledger.db", "is no URL; write sqlite:///file.db or postgresql://"),
        ("", "is no URL"),
        ("sqlite://", "in memory is gone when the command ends"),
        ("sqlite:///:memory:", "in memory is gone when the command ends"),
        ("sqlite:///file:x?mode=memory&uri=true", "in memory is gone when the command ends"),
        ("mysql://app:s3cret@host/locks", "not to mysql"),
        ("postgresql+asyncpg://app:s3cret@host/locks", "through asyncpg"),
        ("postgresql://app:s3/cret@ho:st:po:rt/locks", "cannot be read"),
        ("postgresql://app:s3@cret@host/locks", "write the one in the password as %40"),
        ("://app:s3cret@host", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_used_is_bad_input_and_hides_the_password(
    lockledger: Any, url: str, said: str
) -> None:
    ran = lockledger("holders", "--database", url)
    assert ran.code == 2
    assert said in one_line(ran)
    for secret in ("s3cret", "cret@", "s3/", "s3@"):
        assert secret not in ran.err


def test_a_password_in_the_query_is_hidden_too(lockledger: Any) -> None:
    ran = lockledger(
        "holders",
        "--database",
        "postgresql://127.0.0.1:1/x?user=app&password=s3cret&nonsense=s3cret",
    )
    assert ran.code == 4
    assert "s3cret" not in one_line(ran)
