"""The host's hooks in every way of calling the verbs: in the transaction that makes the change, and taken back with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from lockledger import (
    BoundLedger,
    ConcurrencyConflict,
    LockedByOther,
    NotLockable,
    NotLockHolder,
    Policy,
    RecordedEvent,
    TakeRequest,
)
from support.hosts import Host
from support.ledgers import unchanged
from support.ways import Way

Told = tuple[str, Any]


class HostsOwn(Exception):
    """An exception that the library cannot know."""


class Writing(Policy[Connection]):
    """Writes an audit row of the host's for each event, as a host would, and notes each call."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.refuses: dict[str, Exception] = {}

    def lock_subject(self, connection: Connection, key: str) -> None:
        self._note(connection, "lock_subject", key)

    def check_take(self, connection: Connection, request: TakeRequest) -> None:
        self._note(connection, "check_take", (request.verb, request.key))

    def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        for each in events:
            connection.execute(
                text("INSERT INTO host_audit (position, line) VALUES (:position, :line)"),
                {
                    "position": each.position,
                    "line": f"{each.event.action} {each.event.key} by {each.event.actor}",
                },
            )
        self._note(connection, "recorded", [each.event.action for each in events])

    def _note(self, connection: Connection, hook: str, about: object) -> None:
        assert isinstance(connection, Connection)
        assert connection.in_transaction() or hook == "lock_subject"
        self.told.append((hook, about))
        if hook in self.refuses:
            raise self.refuses[hook]

    def once(self) -> list[Told]:
        """What it was told; a question that was asked again is named once."""
        told = self.told
        return [each for number, each in enumerate(told) if told[number - 1 : number] != [each]]


@pytest.fixture
def policy(host: Host) -> Writing:
    with host.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE host_audit (position INTEGER, line TEXT)")
    return Writing()


def audit(host: Host) -> list[str]:
    """The host's audit rows as everybody sees them, which stand where the events stand."""
    with host.database.engine().connect() as connection:
        rows = connection.execute(
            text("SELECT position, line FROM host_audit ORDER BY position")
        ).all()
    known = {each.position: each.event for each in host.ledger.events()}
    assert [row.line.split()[0] for row in rows] == [known[row.position].action for row in rows]
    return [row.line for row in rows]


def test_a_change_and_the_hosts_audit_row_are_one(host: Host, policy: Writing, way: Way) -> None:
    with way.ledger(policy=policy) as opened:
        with opened.transaction() as verbs:
            verbs.take("k", "run:1", ttl=60)
        with opened.transaction() as verbs:
            verbs.extend("k", "run:1", 120, actor="heart")
        with opened.transaction() as verbs:
            verbs.take("k", "run:2", takeover_reason="urgent")
        with opened.transaction() as verbs:
            verbs.force_release("k", actor="user:9", reason="cancelled")
        with opened.transaction() as verbs:
            assert [grant.key for grant in verbs.take_all(["n", "m"], "run:3")] == ["n", "m"]
        with opened.transaction() as verbs:
            assert verbs.release_all(holder="run:3", actor="user:9", reason="left") == 2

    assert audit(host) == [
        "LockTaken k by run:1",
        "LockExtended k by heart",
        "LockTakenOver k by run:2",
        "LockReleased k by user:9",
        "LockTaken m by run:3",
        "LockTaken n by run:3",
        "LockReleased m by user:9",
        "LockReleased n by user:9",
    ]


def test_the_hooks_come_in_their_order(policy: Writing, way: Way) -> None:
    with way.ledger(policy=policy) as opened:
        with opened.transaction() as verbs:
            verbs.take("k", "run:1")
        with opened.transaction() as verbs:
            verbs.release("k", "run:1")

    assert policy.once() == [
        ("lock_subject", "k"),
        ("check_take", ("take", "k")),
        ("recorded", ["LockTaken"]),
        ("lock_subject", "k"),
        ("recorded", ["LockReleased"]),
    ]


def test_several_locks_lock_their_subjects_first_in_key_order_and_are_told_at_once(
    policy: Writing, way: Way
) -> None:
    with way.ledger(policy=policy) as opened:
        with opened.transaction() as verbs:
            verbs.take_all(["b", "a", "c"], "run:1", ttl=0.05)
        with opened.transaction() as verbs:
            verbs.take("d", "run:1")
        policy.told.clear()
        with opened.transaction() as verbs:
            verbs.release_all(holder="run:1", actor="user:9", reason="left")

    subjects = [about for hook, about in policy.told if hook == "lock_subject"]
    assert subjects == sorted(subjects)
    assert policy.told[-1][0] == "recorded"


def test_an_objection_passes_unchanged_and_nothing_is_recorded(
    host: Host, policy: Writing, way: Way
) -> None:
    with way.ledger(policy=policy) as opened:
        with opened.transaction() as verbs:
            verbs.take("held", "run:1")
        for hook in ("lock_subject", "check_take", "recorded"):
            for objection in (NotLockable("no", code="CANCELLED"), HostsOwn("mine")):
                policy.refuses = {hook: objection}
                with unchanged(host.ledgers), opened.transaction() as verbs:
                    with pytest.raises(type(objection)) as raised:
                        verbs.take("k", "run:1")
                    assert raised.value is objection
        policy.refuses = {}
        # Each transaction that was refused in went on and committed; the next one finds nothing of it.
        with opened.transaction() as verbs:
            assert verbs.take("k", "run:1").token == 1

    assert audit(host) == ["LockTaken held by run:1", "LockTaken k by run:1"]


def test_an_unchanged_or_refused_call_is_not_told(host: Host, policy: Writing, way: Way) -> None:
    with way.ledger(policy=policy) as opened:
        with opened.transaction() as verbs:
            verbs.take("k", "run:1")
        policy.told.clear()
        with opened.transaction() as verbs:
            assert verbs.take("k", "run:1").created is False
            with pytest.raises(LockedByOther):
                verbs.take("k", "run:2")
            with pytest.raises(NotLockHolder):
                verbs.release("k", "run:2")
            assert verbs.release("free", "run:2") is False
            assert verbs.release_all(holder="run:9", actor="user:9", reason="left") == 0
            assert verbs.holder_of("k") is not None

    assert {hook for hook, _ in policy.told} == {"lock_subject", "check_take"}
    assert audit(host) == ["LockTaken k by run:1"]


# In the host's transaction


IN_TRANSACTION: dict[str, Callable[[BoundLedger], object]] = {
    "take": lambda bound: bound.take("k", "run:1"),
    "take_all": lambda bound: bound.take_all(["k", "l"], "run:1"),
    "release": lambda bound: bound.release("held", "run:1"),
    "release_all": lambda bound: bound.release_all(under="held", actor="a", reason="r"),
    "expire_due": lambda bound: bound.expire_due(),
}


@pytest.mark.parametrize("verb", IN_TRANSACTION)
def test_a_rollback_takes_the_hosts_rows_back_with_the_change(
    host: Host, policy: Writing, verb: str
) -> None:
    host.ledger.take("held", "run:1")
    host.ledger.take("run out", "run:1", ttl=0.01)
    time.sleep(0.05)
    ledger = host.ledgers.open(policy=policy)
    with unchanged(host.ledgers), host.session() as session:
        IN_TRANSACTION[verb](ledger.using(session))
        assert policy.told[-1][0] == "recorded"
        assert session.scalar(text("SELECT count(*) FROM host_audit"))
        session.rollback()
        savepoint = session.begin_nested()
        IN_TRANSACTION[verb](ledger.using(session))
        savepoint.rollback()
        session.commit()

    assert audit(host) == []


def test_what_a_hook_writes_before_a_refusal_is_the_hosts_to_keep(host: Host) -> None:
    """Only what came with the append goes with it; the host's transaction is the host's."""

    class Counting(Policy[Connection]):
        def lock_subject(self, connection: Connection, key: str) -> None:
            connection.exec_driver_sql("INSERT INTO host_document VALUES (1, 'asked')")

    host.ledger.take("k", "run:2")
    ledger = host.ledgers.open(policy=Counting())
    with pytest.raises(LockedByOther):
        ledger.take("k", "run:1")
    assert host.documents() == {}
    with host.session() as session, session.begin():
        assert ledger.using(session).try_take("k", "run:1") is None
    assert host.documents() == {1: "asked"}


def test_a_guard_locks_its_subject_first_and_is_not_asked_about(
    host: Host, policy: Writing
) -> None:
    host.ledger.take("k", "run:1")
    ledger = host.ledgers.open(policy=policy)
    with host.session() as session, session.begin():
        ledger.using(session).guard("k", "run:1")
        with pytest.raises(NotLockHolder):
            ledger.using(session).guard("k", "run:2")

    assert policy.told == [("lock_subject", "k"), ("lock_subject", "k")]


def test_a_policy_sees_the_transactions_own_rows(host: Host) -> None:
    class OnlyDrafts(Policy[Connection]):
        def check_take(self, connection: Connection, request: TakeRequest) -> None:
            number = int(request.key.rpartition(":")[2])
            body = connection.execute(
                text("SELECT body FROM host_document WHERE id = :id"), {"id": number}
            ).scalar()
            if body != "draft":
                raise NotLockable(f"document {number} is {body}", code="NO_DRAFT", key=request.key)

    ledger = host.ledgers.open(policy=OnlyDrafts())
    with host.session() as session, session.begin():
        bound = ledger.using(session)
        with pytest.raises(NotLockable, match="document 1 is None"):
            bound.take("document:1", "run:1")
        host.write(session, 1)
        bound.take("document:1", "run:1")
        session.execute(text("UPDATE host_document SET body = 'cancelled'"))
        # Also when the hold is the asker's own: it is the host's say.
        with pytest.raises(NotLockable) as refusal:
            bound.take("document:1", "run:1")
        assert bound.release_all(under="document:1", actor="user:9", reason="cancelled") == 1

    assert (refusal.value.code, refusal.value.key) == ("NO_DRAFT", "document:1")
    assert host.ledger.holder_of("document:1") is None


def test_a_version_that_is_cancelled_ends_its_hold_with_its_own_row(
    host: Host, policy: Writing
) -> None:
    """For "the version was cancelled", "the run ended", "the user left": whoever's hold it is."""
    with host.session() as session, session.begin():
        host.write(session, 1)
    host.ledger.take("document:1", "user:1")
    host.ledger.take("document:1:figures", "user:2")
    ledger = host.ledgers.open(policy=policy)
    with host.session() as session, session.begin():
        session.execute(text("UPDATE host_document SET body = 'cancelled' WHERE id = 1"))
        ended = ledger.using(session, actor="user:3").release_all(
            under="document:1", reason="the version was cancelled"
        )
        assert ended == 2

    assert host.documents() == {1: "cancelled"}
    assert audit(host) == [
        "LockReleased document:1 by user:3",
        "LockReleased document:1:figures by user:3",
    ]
    entry = host.ledger.history("document:1")[-1]
    assert (entry.actor, entry.reason) == ("user:3", "the version was cancelled")


def test_a_hook_that_writes_on_a_connection_of_its_own_waits_for_itself_on_sqlite(
    sqlite_host: Host,
) -> None:
    """One writer at a time; so a hook uses the connection that it is given."""

    class Elsewhere(Policy[Connection]):
        def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
            engine = sqlite_host.database.engine(connect_args={"timeout": 0.05})
            with engine.begin() as own:
                own.exec_driver_sql("INSERT INTO host_document VALUES (1, 'x')")

    ledger = sqlite_host.ledgers.open(policy=Elsewhere())
    with unchanged(sqlite_host.ledgers), pytest.raises(ConcurrencyConflict, match="busy timeout"):
        ledger.take("k", "run:1")
    assert sqlite_host.documents() == {}


def test_a_hook_that_catches_an_error_of_the_database_makes_no_grant_that_is_not_there(
    host: Host, way: Way
) -> None:
    """PostgreSQL answers COMMIT with a ROLLBACK then, and no error; SQLite goes on without the statement."""

    class Careless(Policy[Connection]):
        def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
            with suppress(DBAPIError):
                connection.exec_driver_sql("INSERT INTO nowhere VALUES (1)")

    host.ledgers.may_log_errors = True
    lost = pytest.raises(DBAPIError, match="current transaction is aborted")
    calls: list[Callable[[Any], Any]] = [
        lambda verbs: verbs.take("k", "run:1"),
        lambda verbs: verbs.take_all(["l", "m"], "run:1"),
    ]
    with way.ledger(policy=Careless()) as opened:
        for call in calls:
            with lost if host.postgres else nullcontext(), opened.transaction() as verbs:
                call(verbs)

    assert len(host.ledger.current_holders()) == (0 if host.postgres else 3)
    assert len(host.ledger.audit_trail()) == (0 if host.postgres else 3)
