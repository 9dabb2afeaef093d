"""Processes that stand still before a given step of a call, and are killed there.

A step is one thing that is asked of the database driver: a statement or a commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection as Pipe
from typing import Any

from sqlalchemy import Connection, create_engine
from sqlalchemy.engine.default import DefaultDialect

from lockledger import LockLedger, Policy, configure_sqlite
from lockledger.commands import Commands
from support.databases import Database
from support.processes import PATIENCE, processes

Call = Callable[[Any, str], Any]


def _run_out(ledger: Any, key: str) -> None:
    ledger.take(key, "ann", ttl=0.001)
    time.sleep(0.01)


CALLS: dict[str, tuple[Call, Call]] = {
    "first take": (lambda ledger, key: None, lambda ledger, key: ledger.take(key, "ben")),
    "take": (
        lambda ledger, key: (ledger.take(key, "ann"), ledger.release(key, "ann")),
        lambda ledger, key: ledger.take(key, "ben"),
    ),
    "take of a lock that ran out": (
        _run_out,
        lambda ledger, key: ledger.take(key, "ben"),
    ),
    "takeover": (
        lambda ledger, key: ledger.take(key, "ann"),
        lambda ledger, key: ledger.take(key, "ben", takeover_reason="urgent"),
    ),
    "extension": (
        lambda ledger, key: ledger.take(key, "ben", ttl=60),
        lambda ledger, key: ledger.extend(key, "ben", 120),
    ),
    "release": (
        lambda ledger, key: ledger.take(key, "ben"),
        lambda ledger, key: ledger.release(key, "ben"),
    ),
}
"""What goes before, and the call whose process is killed."""

WAYS = ("alone", "with a policy", "in a caller's transaction")


class Silent(Policy[Connection]):
    """A policy that has nothing to say, so that the call runs in one explicit transaction."""


@dataclass(frozen=True)
class Stopped:
    """A process that was killed: what it would have done next, and all steps that it had done."""

    before: str
    done: tuple[str, ...]


class Steps:
    """Counts steps in the process that is to be killed, and lets it stand still before one of them."""

    def __init__(self, stop_before: int, pipe: Pipe) -> None:
        self.stop_before = stop_before
        self.pipe = pipe
        self.done: list[str] = []

    def take(self, said: str, do: Callable[[], Any]) -> Any:
        """Does it and counts it, or stands still for good."""
        if len(self.done) + 1 == self.stop_before:
            self.stand_still(said)
        result = do()
        self.done.append(said)
        return result

    def stand_still(self, before: str) -> None:
        """Tells what comes next, and waits to be killed."""
        self.pipe.send(Stopped(before, tuple(self.done)))
        time.sleep(PATIENCE)

    def count_database(self, shown: Callable[[str, Any], str | None]) -> None:
        """From here on counts what is asked of the driver's connections, as `shown` calls it; `None` does not count."""

        def counted(name: str, what: Callable[..., str]) -> None:
            original = getattr(DefaultDialect, name)

            def stop_or_do(dialect: Any, *arguments: Any, **options: Any) -> Any:
                connection = getattr(arguments[0], "connection", arguments[0])
                said = shown(" ".join(what(*arguments).split()), connection)
                if said is None:
                    return original(dialect, *arguments, **options)
                return self.take(said, lambda: original(dialect, *arguments, **options))

            setattr(DefaultDialect, name, stop_or_do)

        counted("do_execute", lambda _cursor, statement, *_: str(statement))
        counted("do_execute_no_params", lambda _cursor, statement, *_: str(statement))
        counted("do_commit", lambda *_: "commit")
        counted("do_rollback", lambda *_: "rollback")


def decide_at_leisure(patch: Callable[[object, str, Any], object] = setattr) -> None:
    """No decision becomes stale, which would be made again: so a busy machine changes no call's steps."""
    append_fresh = Commands._append_fresh

    def append(
        self: Commands, connection: Any, command: Any, newest: Any, decision: Any, inside: bool
    ) -> Any:
        lasting = replace(decision, fresh_for=timedelta(hours=1))
        return append_fresh(self, connection, command, newest, lasting, inside)

    patch(Commands, "_append_fresh", append)


def run_and_kill(work: Callable[..., object], *arguments: Any) -> Stopped | None:
    """Does work in a process of its own until it stands still or ends, and kills that; `None` when it has ended.

    The work is given a pipe besides, for its `Steps`. An error of it is raised here.
    """
    ours, theirs = processes().Pipe()
    process = processes().Process(target=_work, args=(work, arguments, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(PATIENCE):
            raise AssertionError("the process neither stopped nor ended")
        said = ours.recv()
    finally:
        process.kill()
        process.join()
        ours.close()
    if isinstance(said, BaseException):
        raise said
    return said if isinstance(said, Stopped) else None


def _work(work: Callable[..., object], arguments: tuple[Any, ...], pipe: Pipe) -> None:
    try:
        work(*arguments, pipe)
        pipe.send("ended")
    except BaseException as fault:  # noqa: BLE001 raised again by the process that waits for it
        pipe.send(fault)


def kill_before(url: str, call: str, key: str, way: str, step: int) -> Stopped | None:
    """Makes a call in a process of its own, and kills that before so many steps; `None` when it needed fewer."""
    return run_and_kill(_call_and_stop, url, call, key, way, step)


def _call_and_stop(url: str, call: str, key: str, way: str, step: int, pipe: Pipe) -> None:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        configure_sqlite(engine)
    ledger = LockLedger(engine, policy=Silent() if way == "with a policy" else None)
    ledger.holder_of("warm")
    steps = Steps(step, pipe)
    decide_at_leisure()
    if way == "in a caller's transaction":
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
            steps.count_database(lambda said, _: said[:60])
            CALLS[call][1](ledger.using(connection), key)
            connection.commit()
    else:
        steps.count_database(lambda said, _: said[:60])
        CALLS[call][1](ledger, key)


def wait_until_noticed(database: Database) -> None:
    """PostgreSQL rolls back what a killed process had begun when it notices that nobody is there any more."""
    if database.server is None:
        return
    deadline = time.monotonic() + 20
    with database.server.connect() as connection:
        while connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND xact_start IS NOT NULL",
            (database.name,),
        ).fetchone():
            assert time.monotonic() < deadline, "a transaction of a killed process stays open"
            time.sleep(0.005)
