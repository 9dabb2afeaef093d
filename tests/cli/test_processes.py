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
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lockledger import LockLedger
from support.company import until
from support.databases import Database
from support.tampering import tamper

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
    assert (ran.returncode, ran.stderr) == (
        74,
        "lockledger: the answer could not be written: No space left on device\n",
    )


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader has gone away."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def unread_run(unread: int, *arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code and standard error of a command whose output nobody reads."""
    ran = subprocess.run(
        [*LOCKLEDGER, *arguments],
        stdout=unread,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    return ran.returncode, ran.stderr


def redirected(how: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command under a shell that redirects it."""
    command = ["sh", "-c", f'exec "$@" {how}', "sh", *LOCKLEDGER, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("command", ["verify", "doctor", "rebuild"])
def test_a_fault_that_nobody_reads_keeps_its_exit_code(
    sqlite_database: Database, process: Process, unread: int, command: str, form: list[str]
) -> None:
    url = sqlite_database.url
    process("take", "k", "run:1", "--database", url)
    tamper(sqlite_database, "UPDATE lockledger_events SET state = replace(state, 'run:1', 'run:2')")
    code, said = unread_run(unread, command, *form, "--database", url)
    assert code == 3
    assert "Traceback" not in said
    assert "written" not in said


@pytest.mark.parametrize(
    "command", ["holders", "holds", "audit", "history k", "timeline", "export audit", "checkpoint"]
)
def test_a_list_that_nobody_reads_ends_with_0(
    sqlite_database: Database, process: Process, unread: int, command: str
) -> None:
    process("take", "k", "h", "--database", sqlite_database.url)
    ran = unread_run(unread, *command.split(), "--database", sqlite_database.url)
    assert ran == (0, "")


def test_help_that_nobody_reads_ends_with_0(unread: int) -> None:
    assert unread_run(unread, "--help") == (0, "")
    assert unread_run(unread, "take", "--help") == (0, "")


def test_an_import_goes_on_when_nobody_reads_of_its_refusals(
    sqlite_database: Database, unread: int
) -> None:
    assert sqlite_database.path is not None
    with sqlite3.connect(sqlite_database.path) as connection:
        connection.execute("CREATE TABLE old (k TEXT, h TEXT, t TEXT)")
        connection.executemany(
            "INSERT INTO old VALUES (?, ?, ?)",
            [("a", "h", "never"), ("b", "h", "2024-05-14T08:00:00Z")],
        )
    columns = [f"--column={fact}" for fact in ("key=k", "holder=h", "taken_at=t")]
    code, said = unread_run(
        unread,
        *("import", "--table=old", "--shape=live", *columns, "--database", sqlite_database.url),
        PYTHONUNBUFFERED="1",
    )
    assert (code, said.count("\n")) == (0, 1)
    with LockLedger(sqlite_database.url) as ledger:
        assert [hold.key for hold in ledger.current_holders()] == ["b"]


def test_a_sweep_goes_on_when_nobody_reads(sqlite_database: Database, unread: int) -> None:
    def expired() -> list[str]:
        return [entry.key for entry in ledger.audit_trail(action="LockExpired")]

    with LockLedger(sqlite_database.url) as ledger:
        sweeping = subprocess.Popen(
            [*LOCKLEDGER, "sweep", "--every", "0.1", "--database", sqlite_database.url],
            stdout=unread,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            ledger.take("a", "h", ttl=timedelta(milliseconds=1))
            until(lambda: expired() == ["a"], "the first turn")
            ledger.take("b", "h", ttl=timedelta(milliseconds=1))
            until(lambda: expired() == ["a", "b"], "another turn")
        finally:
            sweeping.send_signal(signal.SIGTERM)
            _, said = sweeping.communicate(timeout=60)
    assert sweeping.returncode == 0
    assert said.startswith("lockledger: ended; 2 expiries recorded")


def test_a_change_whose_answer_cannot_be_written_is_told_to_be_done(
    sqlite_database: Database, process: Process
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    given = ["--database", sqlite_database.url]
    told = "the answer could not be written: No space left on device; the command itself was carried out"
    ran = redirected(">/dev/full", "take", "k", "h", *given)
    assert (ran.returncode, ran.stderr) == (74, f"lockledger: {told}\n")
    assert json.loads(process("holders", "--json", *given).stdout)["key"] == "k"
    ran = redirected(">/dev/full", "take", "k", "other", *given)
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    ran = redirected(">/dev/full", "release", "k", "h", "--json", *given)
    assert ran.returncode == 74
    assert json.loads(ran.stderr) == {"error": "Unwritten", "message": told}
    assert process("holders", *given).stdout == ""
    assert redirected("2>/dev/full", "take", "k", "h", *given).returncode == 0


def test_an_answer_that_cannot_be_written_hides_no_fault(
    sqlite_database: Database, process: Process
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    process("take", "k", "run:1", "--database", sqlite_database.url)
    tamper(sqlite_database, "UPDATE lockledger_events SET state = replace(state, 'run:1', 'run:2')")
    ran = redirected(">/dev/full", "verify", "--database", sqlite_database.url)
    assert ran.returncode == 3
    assert "No space left on device" in ran.stderr


@pytest.mark.parametrize("how", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_fault(
    sqlite_database: Database, process: Process, tmp_path: Path, how: str
) -> None:
    given = ["--database", sqlite_database.url]
    commands = [
        (["take", "k", "h"], 0),
        (["take", "k", "other"], 1),
        (["take", "k", "other", "--json"], 1),
        (["holders"], 0),
        (["verify"], 0),
        (["export", "audit"], 0),
        (["export", "audit", "--output", str(tmp_path / "audit.csv")], 0),
        (["release", "k", "h"], 0),
        (["holders", "--limit", "x"], 2),
    ]
    for command, code in commands:
        ran = redirected(how, *command, *given)
        assert ran.returncode == code, (command, ran.stderr)
        assert "Traceback" not in ran.stderr
        if code:
            assert ran.stdout == ""
    assert (tmp_path / "audit.csv").read_text().count("\n") == 2
    assert process("holders", *given).stdout == ""


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    code = (
        "import sys; from lockledger.cli.streams import dependable\n"
        "with dependable(), open(sys.argv[1], 'w') as file: file.write(str(file.fileno()))"
    )
    told = tmp_path / "number"
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code, str(told)]
    assert subprocess.run(command).returncode == 0
    assert int(told.read_text()) > 2


@pytest.mark.parametrize("command", ["holders --nonsense", "nonsense"])
def test_bad_usage_that_nobody_reads_keeps_its_exit_code(unread: int, command: str) -> None:
    assert subprocess.run([*LOCKLEDGER, *command.split()], stderr=unread).returncode == 2


def test_a_pipe_that_another_made_non_blocking_gets_everything(
    sqlite_database: Database, long_log: Path, process: Process
) -> None:
    assert process("apply", str(long_log), "--database", sqlite_database.url).returncode == 0
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    listing = subprocess.Popen(
        [*LOCKLEDGER, "audit", "--json", "--database", sqlite_database.url],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    with pytest.raises(subprocess.TimeoutExpired):  # until the pipe is full
        listing.wait(timeout=3)
    with os.fdopen(reading) as pipe:
        assert len(pipe.readlines()) == LINES
    _, said = listing.communicate(timeout=60)
    assert (listing.returncode, said) == (0, "")


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
