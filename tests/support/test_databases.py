"""The tests' own databases: apart from each other, and gone with whoever asked for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from support.databases import Database, Servers
from support.postgres import EmbeddedPostgres, ServerUnavailable, named_postgres

TESTS = Path(__file__).parents[1]
A_RUN_OF_ITS_OWN = """
import sys, time
from support.postgres import EmbeddedPostgres
server = EmbeddedPostgres(durable=False)
with server.connect() as connection:
    print(*connection.execute("SHOW data_directory").fetchone(), server.log.parent, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("attempt", ["first", "second"])
def test_each_test_finds_its_database_without_tables_of_another(
    empty_database: Database, attempt: str
) -> None:
    with empty_database.engine().begin() as connection:
        connection.execute(text("CREATE TABLE left_behind (attempt varchar(10))"))
        connection.execute(text("INSERT INTO left_behind VALUES (:attempt)"), {"attempt": attempt})
        assert connection.execute(text("SELECT attempt FROM left_behind")).scalars().all() == [
            attempt
        ]


def test_an_error_in_the_servers_log_is_found_under_its_own_database(
    servers: Servers, tmp_path: Path
) -> None:
    with (
        servers.database("postgres", tmp_path, migrated=False) as faulty,
        servers.database("postgres", tmp_path, migrated=False) as clean,
    ):
        for database, statement in ((faulty, "SELECT 1/0"), (clean, "SELECT 1")):
            with database.engine().connect() as connection:
                if database is faulty:
                    with pytest.raises(DBAPIError):
                        connection.execute(text(statement))
                else:
                    connection.execute(text(statement))
        (line,) = faulty.logged_errors()
        assert line.endswith("ERROR:  division by zero")
        assert clean.logged_errors() == []


def test_what_a_durable_server_acknowledged_survives_its_crash(
    durable_server: EmbeddedPostgres,
) -> None:
    with durable_server.connect() as connection:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("INSERT INTO kept VALUES (1)")
        durable_server.crash()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    durable_server.start()
    with durable_server.connect() as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(1,)]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_server_is_gone_with_its_run_however_that_ends(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", A_RUN_OF_ITS_OWN],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as its_own:
        assert its_own.stdout is not None
        data, folder = (Path(path) for path in its_own.stdout.readline().split())
        process = int((data / "postmaster.pid").read_text().splitlines()[0])
        its_own.send_signal(how)
    deadline = time.monotonic() + 20
    while (data.exists() or folder.exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not data.exists()
    assert not folder.exists()
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True
    )
    assert state.stdout.strip()[:1] in {"", "Z"}  # a zombie is only unread, it runs no more


def test_a_dsn_that_nobody_answers_fails_with_the_remedy() -> None:
    with pytest.raises(ServerUnavailable, match="LOCKLEDGER_TEST_DSN=postgresql://user@host"):
        named_postgres("host=/nowhere port=1 dbname=postgres")
