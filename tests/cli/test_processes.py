"""The command line as a process: terminals, pipes, signals, and how it is started."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import pty
import re
import select
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.databases import Database

Process = Callable[..., subprocess.CompletedProcess[str]]
LINES = 3000
LOCKLEDGER = [sys.executable, "-m", "lockledger"]
# However late a busy machine lets its main thread hear a signal.
PATIENT = [
    sys.executable,
    "-c",
    "from lockledger.cli import interrupts, main; interrupts.GRACE_SECONDS = 300; main()",
]
# Says so before it waits for SQLite's write lock.
TELLING = """
from sqlalchemy import event
from sqlalchemy.pool import Pool
from lockledger.cli import main

def tell(statement):
    if statement.startswith("BEGIN IMMEDIATE"):
        print("begins", flush=True)

event.listen(Pool, "connect", lambda connection, _: connection.set_trace_callback(tell))
main()
"""


@pytest.fixture
def long_log(tmp_path: Path) -> Path:
    """A log that takes a second or two."""
    lines = (
        {"at": "2024-05-14T08:00:00Z", "do": "take", "key": f"k:{number}", "holder": "h"}
        for number in range(LINES)
    )
    path = tmp_path / "long.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines)))
    return path


class Terminal:
    """A process on a terminal of its own, for standard error alone or for both streams."""

    def __init__(
        self,
        *arguments: str,
        out: Any = None,
        program: list[str] = LOCKLEDGER,
        stdin: int = subprocess.DEVNULL,
        **environment: str,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 72, 0, 0))
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=stdin,
            stdout=slave if out is None else out,
            stderr=slave,
            # A width in the environment would count more than the terminal's.
            env={
                **{name: value for name, value in os.environ.items() if name != "COLUMNS"},
                "TERM": "xterm",
                "PYTHONIOENCODING": "utf-8",
                **environment,
            },
        )
        os.close(slave)
        self.shown = ""

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """Reads until the pattern is shown, or to the end."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.shown) and time.monotonic() < end:
            if not select.select([self._master], [], [], 0.1)[0]:
                continue
            try:
                part = os.read(self._master, 65536)
            except OSError:
                break
            self.shown += part.decode(errors="replace")
        return self.shown

    def finish(self) -> int:
        """Reads to the end and gives the exit code."""
        self.wait_for("(?!)")
        os.close(self._master)
        return self.process.wait(timeout=60)


def test_it_runs_as_a_module_and_as_a_program(process: Process, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'file.db'}"
    assert process("migrate", "--database", url).returncode == 0
    program = Path(sys.executable).with_name("lockledger")
    if program.exists():
        ran = subprocess.run(
            [program, "holders", "--database", url], capture_output=True, text=True
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_help_and_version_need_no_database(process: Process, tmp_path: Path) -> None:
    ran = process("--help", cwd=tmp_path)
    assert ran.returncode == 0
    assert "Commands:" in ran.stdout
    assert re.fullmatch(r"lockledger \S+\n", process("--version", cwd=tmp_path).stdout)
    assert list(tmp_path.iterdir()) == []


def test_no_command_shows_the_help(process: Process) -> None:
    ran = process()
    assert ran.returncode == 2
    assert "Usage: lockledger" in ran.stdout + ran.stderr


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['typer'] = None; from lockledger.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "pip install 'lockledger[cli]'" in ran.stderr


def test_without_libpq_it_says_what_to_install(process: Process) -> None:
    # This implementation is in none of the packages that the project installs.
    ran = process("holders", "--database", "postgresql://127.0.0.1/x", env={"PSYCOPG_IMPL": "c"})
    assert (ran.returncode, ran.stdout) == (4, "")
    assert "pip install 'psycopg[binary]'" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_looking_around_imports_no_alembic_and_no_rich(sqlite_database: Database) -> None:
    code = (
        "import sys; from lockledger.cli.program import run; code = run(['holders']);"
        "print([name for name in ('rich', 'alembic', 'fastapi', 'psycopg') if name in sys.modules]); sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "LOCKLEDGER_DATABASE": sqlite_database.url},
    )
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr


def test_progress_is_drawn_on_a_terminal_and_data_stays_on_standard_output(
    sqlite_database: Database, long_log: Path, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("w") as out:
        terminal = Terminal(
            "apply", str(long_log), "--json", out=out, LOCKLEDGER_DATABASE=sqlite_database.url
        )
        assert terminal.finish() == 0
    assert re.search(r"\r[\d,]+ commands  [\d,]+/s  \d+%  \d+ s left\x1b\[K", terminal.shown)
    assert re.search(
        rf"\r\x1b\[Klockledger: {LINES} commands in [\d.]+ s, \d+ a second\r\n$", terminal.shown
    )
    assert json.loads((tmp_path / "out").read_text())["LockTaken"] == LINES


def test_a_dumb_terminal_and_a_pipe_get_no_animation(
    process: Process, sqlite_database: Database, long_log: Path
) -> None:
    terminal = Terminal(
        "apply", str(long_log), LOCKLEDGER_DATABASE=sqlite_database.url, TERM="dumb"
    )
    assert terminal.finish() == 0
    piped = process("apply", str(long_log), "--database", sqlite_database.url)
    for shown in (terminal.shown, piped.stdout + piped.stderr):
        assert "\x1b" not in shown
        assert "left" not in shown
    assert "\r" not in piped.stderr


def test_no_color_means_no_color(sqlite_database: Database) -> None:
    for arguments in (
        ["--help"],
        ["take", "k", "h"],
        ["take", "k", "x"],
        ["holders"],
        ["doctor"],
        ["nonsense"],
    ):
        terminal = Terminal(*arguments, LOCKLEDGER_DATABASE=sqlite_database.url, NO_COLOR="1")
        terminal.finish()
        assert terminal.shown
        assert "\x1b" not in terminal.shown


def test_a_timeline_fits_the_terminal(sqlite_database: Database, process: Process) -> None:
    process("take", "k", "h", "--database", sqlite_database.url)
    terminal = Terminal("timeline", LOCKLEDGER_DATABASE=sqlite_database.url)
    assert terminal.finish() == 0
    lines = terminal.shown.splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= 72


def test_a_reader_that_goes_away_is_no_error(
    sqlite_database: Database, long_log: Path, process: Process
) -> None:
    assert process("apply", str(long_log), "--database", sqlite_database.url).returncode == 0
    for form in ([], ["--json"]):
        running = subprocess.Popen(
            [sys.executable, "-m", "lockledger", "audit", *form, "--database", sqlite_database.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert running.stdout is not None
        assert running.stdout.readline()
        running.stdout.close()
        assert running.stderr is not None
        said = running.stderr.read()
        running.stderr.close()
        assert (running.wait(), said) == (0, b"")


def test_an_error_that_nobody_reads_keeps_its_exit_code(sqlite_database: Database) -> None:
    for form in ([], ["--json"]):
        running = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "lockledger",
                "holders",
                *form,
                "--database",
                "sqlite:///nowhere.db",
            ],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert running.stderr is not None
        running.stderr.close()
        assert running.wait() == 4


def test_output_that_cannot_be_written_is_an_error(
    sqlite_database: Database, process: Process
) -> None:
    process("take", "k", "h", "--database", sqlite_database.url)
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    with full.open("w") as out:
        ran = subprocess.run(
            [sys.executable, "-m", "lockledger", "holders", "--database", sqlite_database.url],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ran.returncode == 2
    assert "No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_text_that_the_output_cannot_encode_comes_out_escaped(
    sqlite_database: Database, process: Process
) -> None:
    environment = {"PYTHONIOENCODING": "ascii", "LOCKLEDGER_DATABASE": sqlite_database.url}
    assert process("take", "schlüssel", "日本", env=environment).returncode == 0
    assert r"schl\xfcssel  \u65e5\u672c" in process("holders", env=environment).stdout
    assert json.loads(process("holders", "--json", env=environment).stdout)["key"] == "schlüssel"
    assert process("timeline", env=environment).stdout.isascii()


@contextmanager
def under_way(log: Path, database: Database) -> Iterator[tuple[Terminal, threading.Event]]:
    """A run of a log in the midst of it: it gets the last of the lines only when the event is set, and at the end."""
    terminal = Terminal(
        "apply", "-", program=PATIENT, stdin=subprocess.PIPE, LOCKLEDGER_DATABASE=database.url
    )
    rest = threading.Event()

    def feed() -> None:
        assert terminal.process.stdin is not None
        lines = gzip.decompress(log.read_bytes()).splitlines(keepends=True)
        with suppress(BrokenPipeError), terminal.process.stdin as pipe:
            pipe.write(b"".join(lines[:-100]))
            pipe.flush()
            rest.wait()
            pipe.write(b"".join(lines[-100:]))

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        terminal.wait_for("commands")
        yield terminal, rest
    finally:
        rest.set()
        feeding.join()


def test_an_interrupt_ends_a_run_between_two_commands_and_says_how_to_go_on(
    sqlite_database: Database, long_log: Path, process: Process
) -> None:
    with under_way(long_log, sqlite_database) as (terminal, _):
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == 130
    assert "Traceback" not in terminal.shown
    said = re.search(r"lockledger: interrupted; .* go on with --from-line (\d+)", terminal.shown)
    assert said is not None, terminal.shown
    line = int(said[1])
    done = process("audit", "--json", "--database", sqlite_database.url).stdout.splitlines()
    assert len(done) == line - 1
    ran = process(
        "apply",
        str(long_log),
        "--from-line",
        str(line),
        "--json",
        "--database",
        sqlite_database.url,
    )
    assert json.loads(ran.stdout)["LockTaken"] == LINES - line + 1


def test_an_interrupt_while_waiting_for_input_ends_it_at_once(sqlite_database: Database) -> None:
    running = subprocess.Popen(
        [*PATIENT, "apply", "-", "--database", sqlite_database.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdin is not None
    running.stdin.write('{"at": "2024-05-14T08:00:00Z", "do": "take", "key": "k", "holder": "h"}\n')
    running.stdin.flush()
    engine = sqlite_database.engine()
    for _ in range(600):
        with engine.connect() as connection:
            if connection.exec_driver_sql("SELECT count(*) FROM lockledger_events").scalar():
                break
        time.sleep(0.05)
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert said.count("\n") == 1
    assert "go on with --from-line 2" in said


@pytest.mark.parametrize("command", ["take k h", "apply log.jsonl"])
def test_an_interrupt_is_heard_while_another_keeps_the_file_locked(
    sqlite_database: Database, tmp_path: Path, command: str
) -> None:
    (tmp_path / "log.jsonl").write_text(
        '{"at": "2024-05-14T08:00:00Z", "do": "take", "key": "k", "holder": "h"}\n'
    )
    assert sqlite_database.path is not None
    other = sqlite3.connect(sqlite_database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        running = subprocess.Popen(
            [sys.executable, "-c", TELLING, "--database", sqlite_database.url, *command.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        assert running.stdout is not None
        assert running.stdout.readline() == "begins\n"
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(timeout=2)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=20)
    finally:
        other.close()
    assert running.returncode == 130
    assert said.startswith("lockledger: interrupted")
    assert ("go on with --from-line 1" in said) is command.startswith("apply")


def test_a_server_that_ends_a_run_leaves_it_to_go_on(
    postgres_database: Database, long_log: Path, process: Process
) -> None:
    url = postgres_database.url
    with under_way(long_log, postgres_database) as (terminal, rest):
        with postgres_database.engine().connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'lockledger' AND datname = current_database()"
            )
        rest.set()
        assert terminal.finish() == 4
    said = re.search(r"go on with --from-line (\d+)", terminal.shown)
    assert said is not None, terminal.shown
    assert "Traceback" not in terminal.shown
    ran = process("apply", str(long_log), "--from-line", said[1], "--json", "--database", url)
    assert ran.returncode == 0
    keys = [
        json.loads(line)["key"]
        for line in process("audit", "--json", "--database", url).stdout.splitlines()
    ]
    assert keys == [f"k:{number}" for number in range(LINES)]


def test_a_run_does_not_grow_with_its_log(sqlite_database: Database, tmp_path: Path) -> None:
    """A repeated take records nothing, so that only reading could need memory."""
    line = b'{"at": "2024-05-14T08:00:00Z", "do": "take", "key": "k", "holder": "h"}\n'
    peaks = []
    for lines in (500, 20_000):
        log = tmp_path / f"{lines}.jsonl"
        log.write_bytes(line * lines)
        code = (
            "import resource, sys; from lockledger.cli.program import run; code = run(sys.argv[1:]);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
        )
        ran = subprocess.run(
            [
                sys.executable,
                "-c",
                code,
                "apply",
                str(log),
                "--json",
                "--database",
                sqlite_database.url,
            ],
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        peaks.append(int(ran.stderr.split()[-1]))
    assert peaks[1] < peaks[0] * 1.1
