"""Ledgers that remember, and ledgers that always look, are asked the same at random: no answer and no event differs.

Three ledgers and the open transactions of two hosts change three locks by turns, by a clock that jumps back now and
then. Who would have to wait for an open transaction gives up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from lockledger import ConcurrencyConflict, Grant, LockLedgerError
from support.databases import POSTGRES_KINDS, Kind, Servers
from support.hosts import Host, host_on
from support.ledgers import SettableClock, proven
from support.processes import rounds

CALLS = 340
IMPATIENT = {"connect_args": {"options": "-c lock_timeout=20"}}
KEYS = ("k", "k:1", "z")
HOLDERS = ("ann", "ben", "run:1")
JUMPS = (0, 0, 0, 0, 0.000001, 0.1, 0.1, 1, 7, -3)
SOON = timedelta(seconds=5)
LIFETIMES = (None, None, 60, 90, 600, 900, 3600, 0.001, 1, timedelta(days=36525), SOON, -SOON)
METADATA = (None, None, {"a": [1.5, {"b": "é"}]}, {"big": "x" * 8000})
TRANSACTIONS = (
    *("guard",) * 5,
    *("commit",) * 4,
    "roll back",
    "savepoint",
    "to savepoint",
)
VERBS = (
    *("take", "release") * 16,
    *("extend",) * 8,
    *("force_release", "take_all", "release_all", "expire_due", "holder_of"),
    *TRANSACTIONS,
)


@dataclass(frozen=True)
class Told:
    """What came of all the calls, and how many of them were written from memory."""

    answers: list[str]
    events: list[str]
    from_memory: int


class Story:
    """The calls that a number stands for. What is drawn depends on nothing but it and the answers."""

    def __init__(self, host: Host, seed: int, *, remembers: bool) -> None:
        self.clock = SettableClock()
        self.draw = Random(seed)
        self.tokens = [0]
        self.from_memory = 0
        engine = self._impatient(host)
        self.ledgers = [host.ledgers.open(url_or_engine=engine, clock=self.clock) for _ in range(3)]
        if not remembers:
            for ledger in self.ledgers:
                ledger.workings.commands._memories = None
        event.listen(engine, "after_cursor_execute", self._count)
        hosts = self._impatient(host)
        self.sessions = [Session(hosts), Session(hosts)]

    def _impatient(self, host: Host) -> Engine:
        return host.database.engine(**IMPATIENT)

    def _count(self, _connection: object, cursor: Any, sql: str, *_: object) -> None:
        if "%(was_hash)s" in sql and cursor.rowcount > 0:
            self.from_memory += 1

    def tell(self) -> Told:
        answers = [self._answer(number) for number in range(rounds(CALLS))]
        for session in self.sessions:
            session.rollback()
        events = [recorded.event.model_dump_json() for recorded in self.ledgers[0].events()]
        assert self.ledgers[0].verify().ok
        return Told(answers, events, self.from_memory)

    def _answer(self, number: int) -> str:
        self.clock.forward(self.draw.choice(JUMPS))
        verb, session = self.draw.choice(VERBS), self.draw.choice(self.sessions)
        ledger, key, holder = (
            self._mostly(each, number // length)
            for each, length in ((self.ledgers, 15), (KEYS, 60), (HOLDERS, 15))
        )
        call = self._call(verb, key, holder)
        bound = verb in TRANSACTIONS or self.draw.random() < 0.1
        try:
            if (end := self._end(verb, session)) is not None:
                end()
                return verb
            answer = call(ledger.using(session) if bound else ledger)
        except ConcurrencyConflict as conflict:
            if bound:
                session.rollback()
            return f"{number} {verb}: {conflict}"
        except (LockLedgerError, ValueError) as refused:
            return f"{number} {verb}: {refused!r} {vars(refused)}"
        if isinstance(answer, Grant):
            self.tokens.append(answer.token)
        return f"{number} {verb}: {answer!r}"

    def _mostly(self, choices: Any, turn: int) -> Any:
        """The one whose turn it is, now and then another."""
        other = self.draw.choice(choices)
        return choices[turn % len(choices)] if self.draw.random() < 0.9 else other

    def _end(self, verb: str, session: Session) -> Callable[[], object] | None:
        """What a host does with its transaction, when it is no verb of ours."""
        nested = session.get_nested_transaction()
        return {
            "commit": session.commit,
            "roll back": session.rollback,
            "savepoint": session.begin_nested,
            "to savepoint": nested.rollback if nested else session.flush,
        }.get(verb)

    def _call(self, verb: str, key: str, holder: str) -> Callable[[Any], object]:
        draw = self.draw
        token = draw.choice([None] * 12 + self.tokens[-2:] + [draw.choice(self.tokens)])
        expected = token if draw.random() < 0.3 else None
        ttl: Any = draw.choice(LIFETIMES)
        if ttl in (SOON, -SOON):
            ttl = self.clock.now + ttl
        reason = draw.choice((None, None, None, " ", "urgent"))
        if_mine: Any = draw.choice(("return", "return", "replace", "extend", "refuse"))
        metadata = draw.choice(METADATA)
        keys = draw.sample(KEYS, 2)
        calls: dict[str, Callable[[Any], object]] = {
            "take": lambda ledger: ledger.take(
                key,
                holder,
                ttl=ttl,
                takeover_reason=reason,
                if_mine=if_mine,
                expected_token=expected,
                metadata=metadata,
            ),
            "release": lambda ledger: ledger.release(
                key, holder, token=token, reason=reason, metadata=metadata
            ),
            "extend": lambda ledger: ledger.extend(key, holder, ttl, token=token),
            "force_release": lambda ledger: ledger.force_release(
                key, actor="root", reason="order", expected_token=token
            ),
            "take_all": lambda ledger: ledger.take_all(keys, holder, ttl=ttl),
            "release_all": lambda ledger: ledger.release_all(
                holder=holder, actor="root", reason="left"
            ),
            "expire_due": lambda ledger: ledger.expire_due(),
            "holder_of": lambda ledger: ledger.holder_of(key),
            "guard": lambda ledger: ledger.guard(key, holder, token=token),
        }
        return calls.get(verb, lambda _: None)


def told(servers: Servers, kind: Kind, folder: Path, seed: int, *, remembers: bool) -> Told:
    with (
        servers.database(kind, folder) as database,
        proven(database) as ledgers,
        host_on(ledgers) as host,
    ):
        ledgers.may_log_errors = True
        return Story(host, seed, remembers=remembers).tell()


@pytest.mark.parametrize("seed", [12, 19])
@pytest.mark.parametrize("kind", POSTGRES_KINDS)
def test_what_is_remembered_changes_no_answer_and_no_event(
    servers: Servers, tmp_path: Path, kind: Kind, seed: int
) -> None:
    remembering = told(servers, kind, tmp_path, seed, remembers=True)
    looking = told(servers, kind, tmp_path, seed, remembers=False)
    for one, other in zip(remembering.answers, looking.answers, strict=True):
        assert one == other
    assert remembering.events == looking.events
    assert remembering.from_memory > 0
    assert looking.from_memory == 0
