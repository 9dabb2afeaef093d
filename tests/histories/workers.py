"""Processes that ask a ledger for anything at random and write down what they were told."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from histories.calls import Answer, Call, Diary
from lockledger import (
    ConcurrencyConflict,
    HoldChanged,
    HoldLost,
    LockedByOther,
    LockLedger,
    NotHeld,
    NotLockHolder,
    OutcomeUnknown,
    commands,
    configure_sqlite,
    reckoning,
)
from lockledger.adapters import clock

TTLS = (None, 0.05, 0.3, 1.0)
Kind = Literal["plain", "crowded", "wrong clock", "jumping clock", "full disk"]
"""`crowded`: two threads share a pool of one connection. `wrong clock`: the process is an hour ahead. `jumping clock`:
by the clock of its machine that nobody should set, seconds pass at once, or a second time.
"""
VERBS = {
    "take": 24,
    "take over": 8,
    "replace": 4,
    "take or extend": 6,
    "wait": 6,
    "take all": 4,
    "release": 16,
    "release by token": 8,
    "extend": 10,
    "force_release": 4,
    "holder_of": 10,
    "expire": 3,
    "in a transaction": 10,
    "rolled back": 4,
}


@dataclass(frozen=True)
class Assignment:
    """What a worker is to do. `over`: a file that appears when it is to end."""

    url: str
    folder: Path
    over: Path
    name: str
    seed: str
    keys: list[str]
    kind: Kind = "plain"


def work(task: Assignment) -> None:
    """Calls until it is told to end."""
    threads = 2 if task.kind == "crowded" else 1
    if task.kind == "wrong clock":
        clock.datetime = _HourAhead  # type: ignore[attr-defined]
    if task.kind == "jumping clock":
        commands.monotonic_ns = reckoning.monotonic_ns = _jumping  # type: ignore[attr-defined]
    engine = _engine(task)
    own = task.kind in ("plain", "wrong clock", "jumping clock")
    with LockLedger(task.url if own else engine) as ledger:
        running = [
            Thread(target=_work, args=(task, ledger, engine, number)) for number in range(threads)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    engine.dispose()


def _work(task: Assignment, ledger: LockLedger, engine: Engine, number: int) -> None:
    name = f"{task.name}.{number}"
    rng, diary = random.Random(f"{task.seed} {number}"), Diary(task.folder, name)
    worker = _Worker(ledger, engine, diary, rng, task.keys, holder=f"run:{name}")
    while not task.over.exists():
        failed = worker.turn()
        time.sleep(rng.random() * (0.2 if failed else 0.01))
    diary.close()


class _HourAhead(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(hours=1)


_jumped = [0]


def _jumping() -> int:
    if random.random() < 0.02:
        _jumped[0] = random.choice((0, 2, 5, 3600)) * 10**9
    return time.monotonic_ns() + _jumped[0]


def _engine(task: Assignment) -> Engine:
    """A host's engine, whose pool is small."""
    patience = 0.1 if task.kind == "crowded" else 10
    engine = create_engine(task.url, pool_size=1, max_overflow=0, pool_timeout=patience)
    if engine.dialect.name == "sqlite":
        configure_sqlite(engine)
    if task.kind == "full disk":

        @event.listens_for(engine, "checkout")
        def _little_room(connection: Any, *_: object) -> None:
            connection.execute(f"PRAGMA max_page_count = {1 if random.random() < 0.3 else 1 << 30}")

    return engine


class _Worker:
    """Makes one call after another."""

    def __init__(
        self,
        ledger: LockLedger,
        engine: Engine,
        diary: Diary,
        rng: random.Random,
        keys: list[str],
        holder: str,
    ) -> None:
        self._ledger = ledger
        self._engine = engine
        self._diary = diary
        self._rng = rng
        self._keys = keys
        self._holder = holder
        self._tokens: dict[str, int] = {}

    def turn(self) -> bool:
        """One call; whether it failed."""
        verb = self._rng.choices(list(VERBS), list(VERBS.values()))[0]
        keys = [self._rng.choice(self._keys)]
        if verb == "take all":
            keys = self._rng.sample(self._keys, 2)
        elif verb == "expire":
            keys = list(self._keys)
        call = self._diary.begin(verb, keys, self._holder)
        answers = self._answers(call)
        self._diary.end(call, answers)
        return any(answer.told == "failed" for answer in answers.values())

    def _answers(self, call: Call) -> dict[str, Answer]:
        """What each lock was said to be; an error that says nothing of a lock says the same of each."""
        try:
            return self._asked(call)
        except LockedByOther as refused:
            if len(call.keys) > 1:
                refusals = getattr(refused, "refusals", [refused])
                blank = dict.fromkeys(call.keys, Answer("failed"))
                return blank | {each.key: Answer.of_hold(each.current) for each in refusals}
            return {call.keys[0]: Answer.of_hold(refused.current)}
        except (HoldChanged, NotLockHolder) as refused:
            return {call.keys[0]: Answer.of_hold(refused.current)}
        except HoldLost:
            key = call.keys[0]
            return {key: Answer("ended", self._holder, self._tokens.get(key))}
        except NotHeld:
            return {call.keys[0]: Answer("free")}
        except OutcomeUnknown as unknown:
            for key in call.keys:
                self._tokens.pop(key, None)
            return dict.fromkeys(call.keys, Answer("unknown", error=_name(unknown)))
        except (ConcurrencyConflict, SQLAlchemyError) as error:
            return dict.fromkeys(call.keys, Answer("failed", error=_name(error)))

    def _asked(self, call: Call) -> dict[str, Answer]:
        ask: dict[str, Callable[[Any, Call, str], Answer]] = {
            "take": self._take,
            "take over": lambda ledger, call, key: self._take(
                ledger, call, key, takeover_reason="my turn"
            ),
            "replace": lambda ledger, call, key: self._take(ledger, call, key, if_mine="replace"),
            "take or extend": lambda ledger, call, key: self._take(
                ledger, call, key, if_mine="extend", ttl=0.3
            ),
            "wait": lambda ledger, call, key: self._take(ledger, call, key, wait=0.2),
            "release": self._release,
            "release by token": self._release_by_token,
            "extend": self._extend,
            "force_release": self._force_release,
        }
        key = call.keys[0]
        if call.verb in ask:
            return {key: ask[call.verb](self._ledger, call, key)}
        if call.verb == "holder_of":
            return {key: Answer.of_hold(self._ledger.holder_of(key))}
        if call.verb == "expire":
            return self._expire(call)
        if call.verb == "take all":
            return self._take_all(call)
        return {key: self._in_transaction(call, key)}

    def _take(self, ledger: Any, call: Call, key: str, **options: Any) -> Answer:
        options.setdefault("ttl", self._rng.choice(TTLS))
        grant = ledger.take(key, self._holder, metadata={"call": call.id}, **options)
        self._tokens[key] = grant.token
        return Answer.of_grant(grant)

    def _release(self, ledger: Any, call: Call, key: str) -> Answer:
        done = ledger.release(key, self._holder, metadata={"call": call.id})
        return Answer("done" if done else "free")

    def _release_by_token(self, ledger: Any, call: Call, key: str) -> Answer:
        token = self._tokens.get(key)
        if token is None:
            return self._release(ledger, call, key)
        done = ledger.release(key, self._holder, token=token, metadata={"call": call.id})
        return Answer("done") if done else Answer("ended", self._holder, token)

    def _extend(self, ledger: Any, call: Call, key: str) -> Answer:
        ttl = self._rng.choice(TTLS[1:])
        grant = ledger.extend(key, self._holder, ttl, metadata={"call": call.id})
        return Answer.of_grant(grant)

    def _force_release(self, ledger: Any, call: Call, key: str) -> Answer:
        ended = ledger.force_release(
            key, actor="user:9", reason="order", metadata={"call": call.id}
        )
        return Answer("free") if ended is None else Answer("done")

    def _expire(self, call: Call) -> dict[str, Answer]:
        self._ledger.expire_due(metadata={"call": call.id})
        return dict.fromkeys(call.keys, Answer("nothing"))

    def _take_all(self, call: Call) -> dict[str, Answer]:
        ttl, metadata = self._rng.choice(TTLS), {"call": call.id}
        grants = self._ledger.take_all(call.keys, self._holder, ttl=ttl, metadata=metadata)
        self._tokens |= {grant.key: grant.token for grant in grants}
        return {grant.key: Answer.of_grant(grant) for grant in grants}

    def _in_transaction(self, call: Call, key: str) -> Answer:
        """A change in a host's transaction, which is open for a while, and committed or rolled back."""
        known = dict(self._tokens)
        with self._engine.connect() as connection:
            ledger = self._ledger.using(connection)
            doing = self._rng.choice((self._take, self._release, self._extend, self._force_release))
            answer = doing(ledger, call, key)
            granted, self._tokens = self._tokens, known  # a grant is provisional until the commit
            time.sleep(self._rng.random() * 0.02)
            if call.verb == "rolled back":
                connection.rollback()
                return Answer("failed", error="rolled back")
            try:
                connection.commit()
            except DBAPIError as error:
                return Answer("unknown", error=_name(error))
        self._tokens = granted
        return answer


def _name(error: BaseException) -> str:
    """The driver's name of what went wrong, beneath all that it was wrapped in."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__
