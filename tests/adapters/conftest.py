"""Fixtures for the tests of adapters."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger.adapters.store import Newest
from lockledger.commands import Commands
from lockledger.domain.lock import Decision, InTheWay
from lockledger.reckoning import Reckoning
from lockledger.wishes import Command, Performed
from support.recorders import recorder, transactions

__all__ = ["recorder", "transactions"]


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no decision be made anew because a busy machine took its time.

    It is good for longer than a quarter of a second, and the clock that is reckoned is not ahead, as it is after a
    question that was on its way for longer than the next one.
    """
    append, decide, reckoned = Commands._append_fresh, Commands.decide, Reckoning.now
    long = timedelta(minutes=1)

    def behind(self: Reckoning) -> datetime | None:
        clock = reckoned(self)
        return clock and clock - timedelta(milliseconds=100)

    def decide_for_long(
        self: Commands,
        connection: Connection,
        command: Command[Any],
        newest: Newest,
        in_the_way: InTheWay | None = None,
    ) -> Decision[Any]:
        return replace(decide(self, connection, command, newest, in_the_way), fresh_for=long)

    def append_later(
        self: Commands,
        connection: Connection,
        command: Command[Any],
        newest: Newest,
        decision: Decision[Any],
        inside: bool,
    ) -> Performed[Any] | None:
        remembered = replace(decision, fresh_for=long)
        return append(self, connection, command, newest, remembered, inside)

    monkeypatch.setattr(Commands, "_append_fresh", append_later)
    monkeypatch.setattr(Commands, "decide", decide_for_long)
    monkeypatch.setattr(Reckoning, "now", behind)
