"""What goes wrong while workers call: processes killed and stopped, connections cut, servers lost, locks held for long."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from histories.workers import Assignment, Kind, work
from lockledger import ConcurrencyConflict, LockedByOther, LockLedger, configure_sqlite
from support.databases import Database
from support.postgres import EmbeddedPostgres
from support.processes import processes
from support.proxies import Proxy

STOPPED = (0.2, 1.3)
"""Seconds for which a process stands still: the longest is more than any ttl but none."""


class Crew:
    """Worker processes on one database, some of them odd; one that is lost is replaced."""

    def __init__(
        self, database: Database, proxy: Proxy | None, folder: Path, seed: int, size: int
    ) -> None:
        self._folder = folder
        self._over = folder / "over"
        self._started = 0
        self._sqlite = database.dialect == "sqlite"
        self._url = database.url
        self._behind_proxy = None if proxy is None else proxy.url.render_as_string(False)
        self._seed = seed
        self._context = processes()
        self.keys = [f"key:{number}" for number in range(5)]
        self.running: list[Any] = [self._start(number) for number in range(size)]
        self._stopped: list[tuple[float, int]] = []

    def _start(self, place: int) -> Any:
        self._started += 1
        name = f"w{self._started}"
        odd: dict[int, Kind] = {1: "crowded", 2: "full disk" if self._sqlite else "wrong clock"}
        if not self._sqlite:
            odd[5] = "jumping clock"
        through = self._behind_proxy if place in (3, 4) and self._behind_proxy else self._url
        task = Assignment(
            through,
            self._folder,
            self._over,
            name,
            f"{self._seed} {name}",
            self.keys,
            odd.get(place, "plain"),
        )
        process = self._context.Process(target=work, args=(task,))
        process.start()
        return process

    def kill(self, place: int) -> None:
        """SIGKILL, and another one takes its place."""
        os.kill(self.running[place].pid, signal.SIGKILL)
        self.running[place].join()
        self.running[place] = self._start(place)

    def stop(self, place: int, seconds: float) -> None:
        """It stands still for so long."""
        os.kill(self.running[place].pid, signal.SIGSTOP)
        self._stopped.append((time.monotonic() + seconds, self.running[place].pid))

    def wake(self, *, all_of_them: bool = False) -> None:
        """Lets those go on whose time has come."""
        now = time.monotonic()
        for until, pid in self._stopped:
            if until <= now or all_of_them:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        self._stopped = [] if all_of_them else [each for each in self._stopped if each[0] > now]

    def end(self) -> list[str]:
        """Lets all of them come to their end; names those that do not, or that failed."""
        self._over.touch()
        self.wake(all_of_them=True)
        wrong = []
        for process in self.running:
            process.join(60)
            if process.exitcode is None:
                wrong.append(f"{process.name} does not end")
                process.kill()
            elif process.exitcode:
                wrong.append(f"{process.name} ended with {process.exitcode}")
        return wrong


class Faults:
    """Makes faults at random, and counts those that hit."""

    def __init__(
        self, database: Database, crew: Crew, proxy: Proxy | None, rng: random.Random
    ) -> None:
        self._database = database
        self._crew = crew
        self._proxy = proxy
        self._rng = rng
        self.made: Counter[str] = Counter()
        engine = create_engine(database.url)
        self._engine = configure_sqlite(engine) if database.dialect == "sqlite" else engine
        self._ledger = LockLedger(self._engine)
        self._kinds: dict[str, tuple[int, Callable[[], bool]]] = {
            "process killed": (10, self._kill),
            "process stopped": (6, self._stop),
            "long foreign transaction": (6, self._hold),
        }
        if database.server is not None:
            self._kinds["backend terminated"] = (20, self._terminate)
        if proxy is not None:
            self._kinds["connection cut"] = (20, self._cut)
            self._kinds["answer lost"] = (20, self._lose_answer)
        if isinstance(database.server, EmbeddedPostgres):
            self._kinds["server crashed"] = (2, self._crash)

    def make(self, wanted: int) -> None:
        """Makes so many."""
        names, weights = list(self._kinds), [weight for weight, _ in self._kinds.values()]
        while self.made.total() < wanted:
            self._crew.wake()
            (name,) = self._rng.choices(names, weights)
            if self._kinds[name][1]():
                self.made[name] += 1
            time.sleep(self._rng.random() * 0.1)

    def close(self) -> None:
        self._engine.dispose()

    def _place(self) -> int:
        return self._rng.randrange(len(self._crew.running))

    def _kill(self) -> bool:
        self._crew.kill(self._place())
        return True

    def _stop(self) -> bool:
        self._crew.stop(self._place(), self._rng.uniform(*STOPPED))
        return True

    def _hold(self) -> bool:
        """A transaction of somebody else's with a lock of ours in hand, which comes to nothing."""
        key = self._rng.choice(self._crew.keys)
        try:
            with self._engine.connect() as connection:
                try:
                    self._ledger.using(connection).take(
                        key, "host:1", takeover_reason="to hold it up", metadata={"call": "host"}
                    )
                    time.sleep(self._rng.uniform(0.05, 0.5))
                finally:
                    connection.rollback()
        except (DBAPIError, ConcurrencyConflict, LockedByOther):
            return False
        return True

    def _terminate(self) -> bool:
        assert self._database.server is not None
        with self._database.server.connect() as admin:
            found = admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s ORDER BY pid",
                [self._database.name],
            ).fetchall()
            if not found:
                return False
            (pid,) = self._rng.choice(found)
            row = admin.execute("SELECT pg_terminate_backend(%s)", [pid]).fetchone()
            return bool(row and row[0])

    def _cut(self) -> bool:
        assert self._proxy is not None
        return self._proxy.cut(self._rng)

    def _lose_answer(self) -> bool:
        assert self._proxy is not None
        self._proxy.lose_answer_to("")
        return self._proxy.lost.wait(1)

    def _crash(self) -> bool:
        assert isinstance(self._database.server, EmbeddedPostgres)
        self._database.server.crash()
        self._database.server.start()
        return True
