"""Takeovers against guarded edits, with a heartbeat beside them; and the one order of locks (rule 13)."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from lockledger import (
    ConcurrencyConflict,
    HoldLost,
    LockedByOther,
    NotHolding,
    Policy,
)
from support.hosts import Host

RACES = 100
WITHIN = 60.0
"""Seconds in which whatever must happen has happened, also on a busy machine."""


LOST = "lost by takeover to taker: urgent"


def body(session: Session, number: int) -> str:
    """A document as a new statement of this transaction sees it."""
    return str(
        session.connection()
        .execute(text("SELECT body FROM host_document WHERE id = :id"), {"id": number})
        .scalar_one()
    )


def write(session: Session, number: int, new: str) -> None:
    session.connection().execute(
        text("UPDATE host_document SET body = :body WHERE id = :id"), {"body": new, "id": number}
    )


@dataclass
class Race:
    """An editor that guards its hold while it edits, and a taker that takes it over."""

    host: Host
    number: int
    first: str
    editor_is_in: threading.Event = field(default_factory=threading.Event)
    taker_is_in: threading.Event = field(default_factory=threading.Event)
    beaten: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.key = f"document:{self.number}"
        self.grant = self.host.ledger.take(self.key, "editor", ttl=600)

    def edit(self) -> str:
        if self.first == "taker":
            assert self.taker_is_in.wait(WITHIN)
        with self.host.session() as session, session.begin():
            try:
                self.host.ledger.using(session).guard(self.key, "editor", token=self.grant.token)
            except HoldLost as loss:
                return f"lost by {loss.ended_by} to {loss.ended_by_actor}: {loss.reason}"
            if self.first == "editor":
                for _ in range(2):  # the second has begun since
                    self.beaten.clear()
                    assert self.beaten.wait(WITHIN), "a heartbeat waits for the guard"
            self.editor_is_in.set()
            time.sleep(random.uniform(0, 0.01))
            write(session, self.number, "edited")
        return "edited"

    def take_over(self) -> str:
        """Gives the document as the new holder finds it."""
        if self.first == "editor":
            assert self.editor_is_in.wait(WITHIN)
        with self.host.session() as session, session.begin():
            grant = self.host.ledger.using(session).take(
                self.key, "taker", takeover_reason="urgent"
            )
            assert grant.taken_over_from == "editor"
            self.taker_is_in.set()
            found = body(session, self.number)
            time.sleep(random.uniform(0, 0.005))
            return found

    def beat(self) -> None:
        """Extends until the hold is lost: it waits for a takeover at most, never for a guard."""
        while True:
            try:
                self.host.ledger.extend(self.key, "editor", 900, token=self.grant.token)
            except HoldLost:
                return
            self.beaten.set()
            time.sleep(0.002)

    def run(self) -> str:
        editing = self.host.meanwhile(self.edit)
        taking = self.host.meanwhile(self.take_over)
        beating = self.host.meanwhile(self.beat)
        outcome, found = editing.result(WITHIN), taking.result(WITHIN)
        beating.result(WITHIN)
        assert found == ("edited" if outcome == "edited" else "draft"), self
        # Whatever came of it, the old holder is refused from now on.
        self.first = "editor"
        assert self.edit() == LOST
        return outcome


def test_a_hundred_takeovers_against_guarded_edits(postgres_host: Host) -> None:
    host = postgres_host
    with host.session() as session, session.begin():
        for number in range(RACES):
            host.write(session, number)
    outcomes = Counter[str]()
    for number in range(RACES):
        race = Race(host, number, ("editor", "taker", "nobody")[number % 3])
        outcomes[race.run()] += 1

    assert set(outcomes) == {"edited", LOST}
    assert min(outcomes.values()) >= RACES // 3
    assert Counter(host.documents().values()) == {
        "edited": outcomes["edited"],
        "draft": outcomes[LOST],
    }


# The one order of locks


class LocksTheDocument(Policy[Connection]):
    """Locks the host's own row before the lock: document 7 for `document:7`."""

    def lock_subject(self, connection: Connection, key: str) -> None:
        connection.execute(
            text("SELECT 1 FROM host_document WHERE id = :id FOR UPDATE"),
            {"id": int(key.rpartition(":")[2])},
        )


def test_the_hosts_row_and_then_the_lock_never_meet_in_a_deadlock(postgres_host: Host) -> None:
    host = postgres_host
    documents = 3
    with host.session() as session, session.begin():
        for number in range(documents):
            host.write(session, number)
    ledger = host.ledgers.open(policy=LocksTheDocument())
    for number in range(documents):
        ledger.take(f"document:{number}", "editor:0")

    def edit(who: int) -> None:
        """Guards, by the policy behind the host's row, and then changes both."""
        number = random.randrange(documents)
        with host.session() as session, session.begin():
            bound = ledger.using(session)
            with suppress(NotHolding):
                bound.guard(f"document:{number}", f"editor:{who}")
                write(session, number, "edited")
                bound.extend(f"document:{number}", f"editor:{who}", 60)

    def take(who: int) -> None:
        number = random.randrange(documents)
        with host.session() as session, session.begin():
            ledger.using(session).take(
                f"document:{number}", f"editor:{who}", takeover_reason="mine", ttl=60
            )
            write(session, number, "taken")

    def cancel(who: int) -> None:
        """Locks the host's row by itself, as any part of a host may, and then ends the hold."""
        number = random.randrange(documents)
        with host.session() as session, session.begin():
            write(session, number, "cancelled")
            ledger.using(session).force_release(
                f"document:{number}", actor=f"editor:{who}", reason="cancelled"
            )

    def alone(who: int) -> None:
        number = random.randrange(documents)
        ledger.try_take(f"document:{number}", f"editor:{who}", ttl=60)
        ledger.try_release(f"document:{number}", f"editor:{who}")

    def work(who: int) -> None:
        for _ in range(12):
            random.choice((edit, take, cancel, alone))(who)

    workers = [host.meanwhile(partial(work, who)) for who in range(8)]
    for worker in workers:
        worker.result(60)


def test_the_lock_and_then_the_hosts_row_may_meet_in_a_deadlock_which_is_a_conflict(
    postgres_host: Host,
) -> None:
    host = postgres_host
    host.ledgers.may_log_errors = True
    with host.session() as session, session.begin():
        host.write(session, 1)
    host.ledger.take("document:1", "editor")
    ledger = host.ledgers.open(policy=LocksTheDocument())
    with host.session() as editor, host.session() as taker:
        editor.connection().exec_driver_sql("SET LOCAL deadlock_timeout = '10min'")
        taker.connection().exec_driver_sql("SET LOCAL deadlock_timeout = '50ms'")
        write(taker, 1, "by the taker")
        host.ledger.using(editor).guard("document:1", "editor")
        editing = host.blocked(lambda: write(editor, 1, "by the editor"))

        with pytest.raises(ConcurrencyConflict, match="part of a deadlock") as conflict:
            ledger.using(taker).take("document:1", "taker", takeover_reason="urgent")
        taker.rollback()
        editing.result(WITHIN)
        editor.commit()

        cause = conflict.value.__cause__
        assert isinstance(cause, DBAPIError)
        assert isinstance(cause.orig, psycopg.errors.DeadlockDetected)
        assert conflict.value.key == "document:1"
        # Run again, it finds everything as the editor left it.
        write(taker, 1, "by the taker")
        assert ledger.using(taker).take("document:1", "taker", takeover_reason="urgent").created
        taker.commit()

    assert host.documents() == {1: "by the taker"}


def test_a_guard_may_be_the_one_that_gives_way(postgres_host: Host) -> None:
    host = postgres_host
    host.ledgers.may_log_errors = True
    with host.session() as session, session.begin():
        host.write(session, 1)
    host.ledger.take("document:1", "editor")
    with host.session() as editor, host.session() as taker:
        taker.connection().exec_driver_sql("SET LOCAL deadlock_timeout = '10min'")
        editor.connection().exec_driver_sql("SET LOCAL deadlock_timeout = '50ms'")
        host.ledger.using(taker).take("document:1", "taker", takeover_reason="urgent")
        write(editor, 1, "by the editor")
        taking = host.blocked(lambda: write(taker, 1, "by the taker"))
        with pytest.raises(ConcurrencyConflict, match="part of a deadlock"):
            host.ledger.using(editor).guard("document:1", "editor")
        editor.rollback()
        taking.result(WITHIN)
        taker.commit()

    assert host.documents() == {1: "by the taker"}


def test_several_keys_in_key_order_never_meet_in_a_deadlock(postgres_host: Host) -> None:
    host = postgres_host
    keys = ["a", "b", "c"]

    def work(who: int) -> None:
        for _ in range(10):
            with host.session() as session, session.begin():
                bound = host.ledger.using(session)
                for key in sorted(random.sample(keys, 2)):
                    bound.take(key, f"run:{who}", takeover_reason="mine")

    workers = [host.meanwhile(partial(work, who)) for who in range(6)]
    for worker in workers:
        worker.result(60)


def test_several_keys_out_of_order_may_and_the_transaction_is_run_again(
    postgres_host: Host,
) -> None:
    host = postgres_host
    host.ledgers.may_log_errors = True
    with host.session() as one, host.session() as other:
        one.connection().exec_driver_sql("SET LOCAL deadlock_timeout = '10min'")
        other.connection().exec_driver_sql("SET LOCAL deadlock_timeout = '50ms'")
        host.ledger.using(one).take("a", "run:1")
        host.ledger.using(other).take("b", "run:2")
        waiting = host.blocked(lambda: host.ledger.using(one).take("b", "run:1"))
        with pytest.raises(ConcurrencyConflict, match="run the transaction again"):
            host.ledger.using(other).take("a", "run:2")
        other.rollback()
        assert waiting.result(WITHIN).created
        one.commit()
        with pytest.raises(LockedByOther):
            host.ledger.using(other).take("b", "run:2")
