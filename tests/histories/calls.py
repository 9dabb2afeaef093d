"""What a program asked of a ledger and what it was told: one record a call, kept in files that outlive their writers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from lockledger import Grant, Hold, LockLedger
from lockledger.domain.events import LockEvent

Told = Literal["granted", "done", "held", "free", "ended", "nothing", "failed", "unknown"]
"""What a caller knows afterwards.

`granted`: a hold is the caller's, `created` by this call or not. `done`: this call ended a hold. `held`, `free`: that is
how the lock was found, and nothing changed. `ended`: the caller's hold with that token was over. `nothing`: the answer
says nothing about the lock. `failed`: an error that promises that nothing changed. `unknown`: no answer, or one that
says so.
"""


@dataclass(frozen=True)
class Answer:
    """What was told about one lock."""

    told: Told
    holder: str | None = None
    token: int | None = None
    expires_at: datetime | None = None
    created: bool = False
    error: str | None = None

    @classmethod
    def of_hold(cls, hold: Hold | None) -> Answer:
        """How the lock was found."""
        if hold is None:
            return cls("free")
        return cls("held", hold.holder, hold.token, hold.expires_at)

    @classmethod
    def of_grant(cls, grant: Grant) -> Answer:
        """A hold of the caller's."""
        return cls("granted", grant.holder, grant.token, grant.expires_at, grant.created)


@dataclass
class Call:
    """One call about one or more locks. `began`, `ended`: monotonic seconds; `at`, `answered_at`: by the wall clock.

    A call that was never answered has neither `ended` nor `answered_at`, and its answer is `unknown`.
    """

    id: str
    verb: str
    keys: list[str]
    holder: str
    began: float
    at: datetime
    ended: float | None = None
    answered_at: datetime | None = None
    answers: dict[str, Answer] = field(default_factory=dict)

    def answer(self, key: str) -> Answer:
        """What was told about this lock."""
        return self.answers.get(key, Answer("unknown"))


@dataclass(frozen=True)
class Recorded:
    """An event, as far as it matters to who was told what. `call` is the id of the call that recorded it."""

    key: str
    version: int
    action: str
    holder: str
    token: int
    taken_at: datetime
    expires_at: datetime | None
    timestamp: datetime
    call: str | None

    @classmethod
    def of(cls, event: LockEvent) -> Recorded:
        """What is read from the ledger's event."""
        return cls(
            event.key,
            event.originator_version,
            event.action,
            event.holder,
            event.token,
            event.taken_at,
            event.expires_at,
            event.timestamp,
            event.metadata.get("call"),
        )


def recorded_in(ledger: LockLedger) -> list[Recorded]:
    """All events of a ledger, in its order."""
    return [Recorded.of(each.event) for each in ledger.events()]


class Diary:
    """Writes calls down, each before it is made and once it was answered; a line that a kill cut short counts as unwritten."""

    def __init__(self, folder: Path, writer: str) -> None:
        self._file = (folder / f"{writer}.jsonl").open("a", encoding="utf-8", buffering=1)
        self._writer = writer
        self._count = 0

    def begin(self, verb: str, keys: list[str], holder: str) -> Call:
        """The next call, about to be made."""
        self._count += 1
        call = Call(
            f"{self._writer}-{self._count}", verb, keys, holder, time.monotonic(), datetime.now(UTC)
        )
        self._write({"call": asdict(call)})
        call.began, call.at = time.monotonic(), datetime.now(UTC)
        return call

    def end(self, call: Call, answers: dict[str, Answer]) -> None:
        """What it was told."""
        call.ended, call.answered_at, call.answers = time.monotonic(), datetime.now(UTC), answers
        self._write({"answered": asdict(call)})

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, default=datetime.isoformat) + "\n")

    def close(self) -> None:
        self._file.close()


def calls_in(folder: Path) -> list[Call]:
    """Every call that any diary in the folder tells of."""
    calls: dict[str, Call] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for record in _records(file):
            facts = record.get("answered") or record["call"]
            calls[facts["id"]] = _call(facts)
    return list(calls.values())


def _records(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def _call(facts: dict[str, Any]) -> Call:
    answers = {
        key: Answer(**{**answer, "expires_at": _instant(answer["expires_at"])})
        for key, answer in facts["answers"].items()
    }
    at, answered_at = datetime.fromisoformat(facts["at"]), _instant(facts["answered_at"])
    return Call(**{**facts, "at": at, "answered_at": answered_at, "answers": answers})


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
