"""Processes that stand still before a given step of a call, and are killed there.

A step is one thing that is asked of the database driver: a statement or a commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

from sqlalchemy import Connection, create_engine
from sqlalchemy.engine.default import DefaultDialect

from lockledger import LockLedger, Policy, configure_sqlite
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


def kill_before(url: str, call: str, key: str, way: str, step: int) -> Stopped | None:
    """Makes a call in a process of its own, and kills that before so many steps; `None` when it needed fewer."""
    ours, theirs = processes().Pipe()
    process = processes().Process(target=_call_and_stop, args=(url, call, key, way, step, theirs))
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


def _call_and_stop(url: str, call: str, key: str, way: str, step: int, pipe: Pipe) -> None:
    try:
        engine = create_engine(url)
        if engine.dialect.name == "sqlite":
            configure_sqlite(engine)
        ledger = LockLedger(engine, policy=Silent() if way == "with a policy" else None)
        ledger.holder_of("warm")
        if way == "in a caller's transaction":
            with engine.connect() as connection:
                connection.exec_driver_sql("SELECT 1")
                _stop_before(step, pipe)
                CALLS[call][1](ledger.using(connection), key)
                connection.commit()
        else:
            _stop_before(step, pipe)
            CALLS[call][1](ledger, key)
        pipe.send("ended")
    except BaseException as fault:  # noqa: BLE001 raised again by the process that waits for it
        pipe.send(fault)


def _stop_before(step: int, pipe: Pipe) -> None:
    """From here on the driver is asked for `step` things less one."""
    done: list[str] = []

    def counted(name: str, what: Callable[..., str]) -> None:
        original = getattr(DefaultDialect, name)

        def stop_or_do(self: Any, *arguments: Any, **options: Any) -> Any:
            said = " ".join(what(*arguments).split())[:60]
            if len(done) + 1 == step:
                pipe.send(Stopped(said, tuple(done)))
                time.sleep(PATIENCE)
            result = original(self, *arguments, **options)
            done.append(said)
            return result

        setattr(DefaultDialect, name, stop_or_do)

    counted("do_execute", lambda _cursor, statement, *_: str(statement))
    counted("do_execute_no_params", lambda _cursor, statement, *_: str(statement))
    counted("do_commit", lambda *_: "commit")
    counted("do_rollback", lambda *_: "rollback")
