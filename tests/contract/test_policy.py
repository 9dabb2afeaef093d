"""What the host plugs in: when each hook of its policy is called and with what, and whose transaction it is in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from lockledger import (
    HoldChanged,
    HoldLost,
    InvalidKey,
    InvalidTtl,
    LockedByOther,
    LockLedger,
    LockLedgerError,
    NotLockable,
    NotLockHolder,
    Policy,
    RecordedEvent,
    TakeRequest,
)
from support.ledgers import Ledgers, SettableClock, unchanged

Step = tuple[str, Any]


class HostsOwn(Exception):
    """An exception that the library cannot know."""


class Watching(Policy[Connection]):
    """Notes each call; `object_to` raises where it is told to. Writes one row of the host's for each hook."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.requests: list[TakeRequest] = []
        self.object_to: dict[str, Exception] = {}

    def lock_subject(self, connection: Connection, key: str) -> None:
        self._note(connection, "lock_subject", key)

    def check_take(self, connection: Connection, request: TakeRequest) -> None:
        self.requests.append(request)
        self._note(connection, "check_take", request.key)

    def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        positions = [each.position for each in events]
        found = connection.exec_driver_sql(
            "SELECT count(*) FROM lockledger_audit_trail a JOIN lockledger_events e"
            f" ON a.position = e.position WHERE e.position IN ({', '.join(map(str, positions))})"
        ).scalar()
        assert found == len(events), "events and projections are written before the policy is told"
        self._note(connection, "recorded", [each.event.action for each in events])

    def _note(self, connection: Connection, hook: str, about: Any) -> None:
        assert connection.in_transaction()
        connection.exec_driver_sql(f"INSERT INTO outbox (hook) VALUES ('{hook}')")
        self.steps.append((hook, about))
        if hook in self.object_to:
            raise self.object_to[hook]

    @property
    def order(self) -> list[str]:
        """The hooks in the order of their calls; a question asked again is named once."""
        hooks = [hook for hook, _ in self.steps]
        return [hook for number, hook in enumerate(hooks) if hooks[number - 1 : number] != [hook]]

    def forget(self) -> None:
        self.steps.clear()
        self.requests.clear()


@pytest.fixture
def policy(ledgers: Ledgers) -> Watching:
    with ledgers.database.engine().begin() as connection:
        connection.exec_driver_sql("CREATE TABLE outbox (hook TEXT NOT NULL)")
    return Watching()


@pytest.fixture
def watched(ledgers: Ledgers, clock: SettableClock, policy: Watching) -> LockLedger:
    return ledgers.open(clock=clock, policy=policy)


def outbox(ledgers: Ledgers) -> list[str]:
    with ledgers.database.engine().connect() as connection:
        return list(connection.exec_driver_sql("SELECT hook FROM outbox").scalars())


def test_a_take_is_locked_asked_and_told_in_this_order(
    watched: LockLedger, policy: Watching
) -> None:
    watched.take("k", "run:1", ttl=10)

    assert policy.order == ["lock_subject", "check_take", "recorded"]
    assert policy.steps[0] == ("lock_subject", "k")
    assert policy.steps[-1] == ("recorded", ["LockTaken"])


@pytest.mark.parametrize(
    ("verb", "recorded"),
    [
        (lambda ledger: ledger.try_take("k", "run:2", takeover_reason="urgent"), "LockTakenOver"),
        (lambda ledger: ledger.take("k", "run:1", if_mine="replace"), "LockTakenOver"),
        (lambda ledger: ledger.take("k", "run:1", if_mine="extend", ttl=60), "LockExtended"),
        (lambda ledger: ledger.release("k", "run:1"), "LockReleased"),
        (lambda ledger: ledger.try_release("k", "run:1"), "LockReleased"),
        (lambda ledger: ledger.extend("k", "run:1", 60), "LockExtended"),
        (lambda ledger: ledger.force_release("k", actor="u", reason="why"), "LockReleased"),
    ],
    ids=["take over", "replace", "take to extend", "release", "try_release", "extend", "force"],
)
def test_every_writing_verb_locks_the_subject_once_and_first_and_tells_once(
    watched: LockLedger, policy: Watching, verb: Callable[[LockLedger], object], recorded: str
) -> None:
    watched.take("k", "run:1", ttl=10)
    policy.forget()

    verb(watched)

    assert [hook for hook, _ in policy.steps].count("lock_subject") == 1
    assert policy.steps[0] == ("lock_subject", "k")
    assert [about for hook, about in policy.steps if hook == "recorded"] == [[recorded]]
    assert policy.steps[-1][0] == "recorded"


def test_two_events_of_one_append_are_told_together(
    watched: LockLedger, policy: Watching, clock: SettableClock
) -> None:
    watched.take("k", "run:1", ttl=10)
    clock.set(60)
    watched.take("k", "run:2")

    told = [about for hook, about in policy.steps if hook == "recorded"]
    assert told == [["LockTaken"], ["LockExpired", "LockTaken"]]


def test_what_is_told_is_what_was_recorded_with_its_positions(
    ledgers: Ledgers, clock: SettableClock
) -> None:
    told: list[RecordedEvent] = []

    class Telling(Policy[Connection]):
        def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
            told.extend(events)

    ledger = ledgers.open(clock=clock, policy=Telling())
    ledger.take("k", "run:1", ttl=10, metadata={"request": "r1"})
    clock.set(60)
    ledger.take("k", "run:2", actor="user:2")
    ledger.release("k", "run:2", reason="done")

    assert told == list(ledger.events())


def test_nothing_is_told_of_unchanged_and_refused_calls(
    watched: LockLedger, policy: Watching, clock: SettableClock
) -> None:
    grant = watched.take("k", "run:1", ttl=10)
    policy.forget()

    watched.take("k", "run:1")
    watched.extend("k", "run:1", 5)
    watched.release("free", "run:1")
    watched.force_release("free", actor="user:9", reason="why")
    assert watched.try_take("k", "run:2") is None
    assert watched.try_release("k", "run:2") is False
    for refused, kind in (
        (lambda: watched.take("k", "run:2"), LockedByOther),
        (lambda: watched.take("k", "run:1", if_mine="refuse"), LockedByOther),
        (lambda: watched.take("k", "run:2", expected_token=9), HoldChanged),
        (lambda: watched.release("k", "run:2"), NotLockHolder),
        (lambda: watched.extend("k", "run:2", 5, token=grant.token), HoldLost),
    ):
        with pytest.raises(kind):
            refused()

    assert "recorded" not in policy.order
    assert [hook for hook, _ in policy.steps].count("lock_subject") == 11


def test_reading_verbs_ask_nothing(watched: LockLedger, policy: Watching) -> None:
    watched.holder_of("k")
    watched.is_locked("k")
    watched.current_holders()
    watched.history("k")
    watched.audit_trail()
    list(watched.events())

    assert policy.steps == []


def test_bad_input_is_refused_before_the_policy_is_asked(
    watched: LockLedger, policy: Watching
) -> None:
    with pytest.raises(InvalidKey):
        watched.take("", "run:1")
    with pytest.raises(InvalidTtl):
        watched.take("k", "run:1", ttl=0)

    assert policy.steps == []


# check_take


def test_a_take_is_asked_about_with_who_wants_what_and_who_holds_it(
    watched: LockLedger, policy: Watching, clock: SettableClock
) -> None:
    def asked() -> TakeRequest:
        """What was asked since, once or again."""
        first, *again = policy.requests
        assert all(each == first for each in again)
        policy.forget()
        return first

    watched.take("k", "run:1", ttl=10, metadata={"n": 1})
    assert asked() == TakeRequest("take", "k", "run:1", "run:1", None, {"n": 1})
    hold = watched.holder_of("k")

    watched.take("k", "run:1", actor="user:1")
    assert asked() == TakeRequest("take", "k", "run:1", "user:1", hold, {})

    assert watched.try_take("k", "run:2", actor="user:2") is None
    assert asked() == TakeRequest("try_take", "k", "run:2", "user:2", hold, {})

    clock.set(60)
    watched.take("k", "run:2")
    assert asked() == TakeRequest("take", "k", "run:2", "run:2", None, {})


@pytest.mark.parametrize(
    "objection",
    [NotLockable(), NotLockable("it is cancelled", code="VERSION_CANCELLED"), HostsOwn("no")],
    ids=["NotLockable", "with the host's code", "the host's own"],
)
@pytest.mark.parametrize("held_by", [None, "run:1", "run:2"])
def test_an_objection_passes_unchanged_and_leaves_nothing(
    ledgers: Ledgers,
    watched: LockLedger,
    policy: Watching,
    objection: Exception,
    held_by: str | None,
) -> None:
    if held_by:
        watched.take("k", held_by)
    policy.object_to["check_take"] = objection
    hooks = outbox(ledgers)

    with unchanged(ledgers):
        for take in (watched.take, watched.try_take):
            with pytest.raises(type(objection)) as refusal:
                take("k", "run:1", takeover_reason="urgent")
            assert refusal.value is objection

    assert outbox(ledgers) == hooks
    if isinstance(objection, LockLedgerError):
        assert objection.code in ("NOT_LOCKABLE", "VERSION_CANCELLED")


def test_a_release_is_not_asked_about(watched: LockLedger, policy: Watching) -> None:
    watched.take("k", "run:1", ttl=10)
    policy.object_to["check_take"] = NotLockable()

    watched.extend("k", "run:1", 60)
    assert watched.release("k", "run:1")


# One transaction


@pytest.mark.parametrize("hook", ["lock_subject", "recorded"])
def test_a_hook_that_raises_takes_everything_back(
    ledgers: Ledgers, watched: LockLedger, policy: Watching, hook: str
) -> None:
    watched.take("held", "run:1", ttl=10)
    before, hooks = watched.holder_of("held"), outbox(ledgers)
    policy.object_to[hook] = HostsOwn("no")

    with unchanged(ledgers):
        for change in (
            lambda: watched.take("free", "run:1"),
            lambda: watched.take("held", "run:2", takeover_reason="urgent"),
            lambda: watched.extend("held", "run:1", 60),
            lambda: watched.release("held", "run:1"),
            lambda: watched.try_release("held", "run:1"),
            lambda: watched.force_release("held", actor="user:9", reason="why"),
        ):
            with pytest.raises(HostsOwn):
                change()

    assert (watched.holder_of("held"), outbox(ledgers)) == (before, hooks)
    policy.object_to.clear()
    assert watched.release("held", "run:1")


def test_the_hosts_rows_are_committed_with_the_change(
    ledgers: Ledgers, watched: LockLedger
) -> None:
    watched.take("k", "run:1")

    assert "recorded" in outbox(ledgers)


def test_a_refusal_takes_back_what_the_hooks_wrote(
    ledgers: Ledgers, watched: LockLedger, policy: Watching
) -> None:
    watched.take("k", "run:1")
    hooks = outbox(ledgers)

    with pytest.raises(LockedByOther):
        watched.take("k", "run:2")

    assert outbox(ledgers) == hooks


def test_the_hosts_row_stays_locked_until_the_change_is_committed(
    postgres_ledgers: Ledgers,
) -> None:
    engine = postgres_ledgers.database.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE versions (key TEXT, state TEXT)")
        connection.exec_driver_sql("INSERT INTO versions VALUES ('k', 'open')")
    skipped: list[int] = []

    class Locking(Policy[Connection]):
        def lock_subject(self, connection: Connection, key: str) -> None:
            connection.exec_driver_sql("SELECT * FROM versions WHERE key = %s FOR UPDATE", (key,))

        def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
            with engine.connect() as other:
                free = other.exec_driver_sql("SELECT * FROM versions FOR UPDATE SKIP LOCKED").all()
            skipped.append(len(free))

    ledger = postgres_ledgers.open(url_or_engine=engine, policy=Locking())
    ledger.take("k", "run:1")
    ledger.release("k", "run:1")

    assert skipped == [0, 0]
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM versions FOR UPDATE SKIP LOCKED").all()
    assert len(rows) == 1


# names


def test_names_are_asked_once_with_the_distinct_ids_and_unknown_ones_are_null(
    ledgers: Ledgers,
) -> None:
    asked: list[list[str]] = []

    def names(connection: Connection, ids: Collection[str]) -> Mapping[str, str]:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
        asked.append(sorted(ids))
        return {"user:1": "Ada", "user:2": "Grace", "user:3": "nobody asked"}

    ledger = ledgers.open(names=names)

    assert ledger.display_names(["user:2", "user:1", "user:2", "user:4"]) == {
        "user:1": "Ada",
        "user:2": "Grace",
        "user:4": None,
    }
    assert asked == [["user:1", "user:2", "user:4"]]
    assert ledger.display_names([]) == {}
    assert len(asked) == 1
    assert ledgers.open().display_names(["user:1"]) == {"user:1": None}
    with pytest.raises(TypeError, match="give a list of ids, or \\['user:1'\\] for one"):
        ledger.display_names("user:1")
