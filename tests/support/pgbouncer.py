"""PgBouncer in transaction mode before an embedded PostgreSQL."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from support.postgres import EmbeddedPostgres, PostgresServer, ServerUnavailable, unprivileged

SERVER_CONNECTIONS = 3
SETTINGS = """
[databases]
* = host={server} port=5432 user=postgres
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
logfile = {folder}/pgbouncer.log
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
"""


def program() -> str:
    """Where PgBouncer is."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    found = shutil.which("pgbouncer", path=folders)
    if found is None:
        raise ServerUnavailable("These tests need PgBouncer, on Debian: apt-get install pgbouncer")
    return found


def tracks_statements() -> bool:
    """Whether it can keep track of prepared statements."""
    said = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True)
    major, minor = re.findall(r"\d+", said.stdout)[:2]
    return (int(major), int(minor)) >= (1, 21)


@contextmanager
def pgbouncer(server: EmbeddedPostgres, *, tracks: bool = False) -> Iterator[PostgresServer]:
    """The same databases behind a pooler that gives each transaction one of a few connections."""
    folder = Path(server.parameters["host"])
    settings = folder / "pgbouncer.ini"
    text = SETTINGS.format(server=folder, folder=folder, connections=SERVER_CONNECTIONS)
    if tracks_statements():
        text += f"max_prepared_statements = {100 if tracks else 0}\n"
    settings.write_text(text)
    quiet = subprocess.DEVNULL
    running = subprocess.Popen(
        [program(), settings], cwd="/", **unprivileged(), stdin=quiet, stdout=quiet, stderr=quiet
    )
    pooled = PostgresServer({"host": folder, "port": 6432, "user": "postgres"})
    try:
        _wait_for(pooled)
        yield pooled
    finally:
        running.terminate()
        running.wait()


def _wait_for(server: PostgresServer) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            server.connect().close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
