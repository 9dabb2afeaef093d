"""Readers that follow a ledger in a thread of their own."""

from __future__ import annotations

import time
from threading import Thread
from types import TracebackType
from typing import Self

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from lockledger import LockLedger, RecordedEvent
from support.processes import PATIENCE
from support.writers import Place

POLL = 0.005


class Reader(Thread):
    """Reads along in a thread, until it is told to end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[Place] = []
        self.over = False
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            self.read()
        except BaseException as fault:  # noqa: BLE001 raised again where the reader is waited for
            self.fault = fault

    def read(self) -> None:
        raise NotImplementedError

    def see(self, recorded: RecordedEvent) -> None:
        event = recorded.event
        self.seen.append((recorded.position, event.key, event.originator_version))

    @property
    def position(self) -> int:
        return self.seen[-1][0] if self.seen else 0

    def wait_for(self, position: int) -> list[Place]:
        """All that was seen, once it has come to a position."""
        deadline = time.monotonic() + PATIENCE
        while self.position < position:
            if self.fault is not None:
                raise self.fault
            assert time.monotonic() < deadline, f"it stands at {self.position}, before {position}"
            time.sleep(POLL)
        return self.seen

    def end(self) -> None:
        self.over = True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        self.join(10)
        assert not self.is_alive()


class Subscriber(Reader):
    """One subscription from the beginning, which goes on after the server was lost."""

    def __init__(self, ledger: LockLedger) -> None:
        super().__init__()
        self._subscription = ledger.subscribe(poll=POLL)
        self.losses = 0

    def read(self) -> None:
        while not self.over:
            try:
                for recorded in self._subscription:
                    self.see(recorded)
            except OperationalError:
                self.losses += 1
                time.sleep(POLL)

    def end(self) -> None:
        super().end()
        self._subscription.close()


class Resumer(Reader):
    """Many short readings, each from where the one before it stood."""

    def __init__(self, ledger: LockLedger) -> None:
        super().__init__()
        self._ledger = ledger

    def read(self) -> None:
        while not self.over:
            for recorded in self._ledger.events(self.position):
                self.see(recorded)
            time.sleep(POLL)


class Naive(Reader):
    """What one would write without knowing better: everything beyond the last position that was seen."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")

    def read(self) -> None:
        with self._engine.connect() as connection:
            while not self.over:
                rows = connection.exec_driver_sql(
                    f"SELECT position, lock_id, version FROM lockledger_events WHERE position > {self.position}"
                    " ORDER BY position"
                )
                self.seen += [(position, str(lock), version) for position, lock, version in rows]
                time.sleep(POLL)
