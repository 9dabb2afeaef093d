"""The caller's transaction: a lock change and a business change commit together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

from lockledger import (
    AsyncBoundLedger,
    AsyncLockLedger,
    BoundLedger,
    HoldChanged,
    HoldLost,
    InvalidHolder,
    InvalidKey,
    InvalidMetadata,
    InvalidReason,
    InvalidTtl,
    LockedByOther,
    LockLedger,
    LockLedgerError,
    NotHeld,
    NotLockHolder,
)
from support.colours import running_loop
from support.hosts import Host
from support.ledgers import unchanged
from support.verbs import BOUND
from support.ways import async_engine

Refused = tuple[type[Exception], Callable[[BoundLedger], object]]


# Refusals


def in_its_way(ledger: LockLedger) -> None:
    """`held` is another's, `free` was, `lost` was taken over from run:1, `mine` is run:1's."""
    ledger.take("held", "run:2")
    ledger.take("free", "run:2")
    ledger.release("free", "run:2")
    ledger.take("lost", "run:1")
    ledger.take("lost", "run:2", takeover_reason="urgent")
    ledger.take("mine", "run:1")


REFUSED: dict[str, Refused] = {
    "a take of another's": (LockedByOther, lambda bound: bound.take("held", "run:1")),
    "a take that must be the first": (
        LockedByOther,
        lambda bound: bound.take("mine", "run:1", if_mine="refuse"),
    ),
    "a take of another state": (
        HoldChanged,
        lambda bound: bound.take("held", "run:1", takeover_reason="r", expected_token=9),
    ),
    "a release of another's": (NotLockHolder, lambda bound: bound.release("held", "run:1")),
    "a release of a lost hold": (HoldLost, lambda bound: bound.release("lost", "run:1", token=1)),
    "an extension of nothing": (NotHeld, lambda bound: bound.extend("free", "run:1", 5)),
    "an extension of a lost hold": (
        HoldLost,
        lambda bound: bound.extend("lost", "run:1", 5, token=1),
    ),
    "a forced release of another state": (
        HoldChanged,
        lambda bound: bound.force_release("held", actor="a", reason="r", expected_token=9),
    ),
    "a guard of nothing": (NotHeld, lambda bound: bound.guard("free", "run:1")),
    "a guard of what was never taken": (NotHeld, lambda bound: bound.guard("new", "run:1")),
    "a guard of another's": (NotLockHolder, lambda bound: bound.guard("held", "run:1")),
    "a guard of a lost hold": (HoldLost, lambda bound: bound.guard("lost", "run:1", token=1)),
    "a bad key": (InvalidKey, lambda bound: bound.take("k" * 256, "run:1")),
    "a bad holder": (InvalidHolder, lambda bound: bound.take("k", "")),
    "a bad ttl": (InvalidTtl, lambda bound: bound.take("k", "run:1", ttl=0)),
    "a bad reason": (InvalidReason, lambda bound: bound.force_release("k", actor="a", reason=" ")),
    "bad metadata": (
        InvalidMetadata,
        lambda bound: bound.take("k", "run:1", metadata={"n": 1e999}),
    ),
    "a wrong type": (TypeError, lambda bound: bound.take(5, "run:1")),  # type: ignore[arg-type]
    "no selector": (ValueError, lambda bound: bound.release_all(actor="a", reason="r")),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_a_refusal_leaves_the_transaction_healthy(host: Host, refused: str) -> None:
    error, call = REFUSED[refused]
    in_its_way(host.ledger)

    with unchanged(host.ledgers), host.session() as session, session.begin():
        host.write(session, 1)
        with pytest.raises(error):
            call(host.ledger.using(session))
        host.write(session, 2)

    assert set(host.documents()) == {1, 2}


@pytest.mark.parametrize("known", [False, True], ids=["first take", "known lock"])
def test_a_race_lost_in_the_middle_of_an_append_leaves_the_transaction_healthy(
    postgres_host: Host, known: bool
) -> None:
    host = postgres_host
    if known:
        host.ledger.take("k", "run:0")
        host.ledger.release("k", "run:0")
    with host.session() as winner, host.session() as loser:
        host.ledger.using(winner).take("k", "run:2")
        host.write(loser, 1)
        losing = host.blocked(lambda: host.ledger.using(loser).try_take("k", "run:1"))
        winner.commit()
        assert losing.result() is None
        host.write(loser, 2)
        loser.commit()

    assert set(host.documents()) == {1, 2}


def test_a_refusal_tells_of_the_holder_that_the_race_was_lost_to(postgres_host: Host) -> None:
    host = postgres_host
    with host.session() as winner, host.session() as loser:
        grant = host.ledger.using(winner).take("k", "run:2", ttl=60)
        losing = host.blocked(lambda: host.ledger.using(loser).take("k", "run:1"))
        winner.commit()

        with pytest.raises(LockedByOther) as refusal:
            losing.result()

    assert refusal.value.current is not None
    assert refusal.value.current.grant(created=True) == grant


# Commit and rollback


def test_a_grant_and_the_hosts_rows_commit_together(host: Host) -> None:
    with host.session() as session, session.begin():
        host.write(session, 1)
        grant = host.ledger.using(session).take("k", "run:1", ttl=60)
        assert host.ledger.holder_of("k") is None
        assert host.documents() == {}

    held = host.ledger.holder_of("k")
    assert held is not None
    assert held.grant(created=True) == grant
    assert host.documents() == {1: "draft"}


CHANGES: dict[str, Callable[[BoundLedger], object]] = {
    "a take": lambda bound: bound.take("free", "run:1", ttl=60),
    "a first take": lambda bound: bound.take("new", "run:1"),
    "a takeover": lambda bound: bound.take("held", "run:1", takeover_reason="urgent"),
    "a replacement": lambda bound: bound.take("mine", "run:1", if_mine="replace"),
    "a release": lambda bound: bound.release("mine", "run:1"),
    "a forced release": lambda bound: bound.force_release("held", actor="user:9", reason="why"),
    "a forced release of all": lambda bound: bound.release_all(
        holder="run:2", actor="user:9", reason="why"
    ),
    "a whole life": lambda bound: (
        bound.take("new", "run:1", ttl=60),
        bound.extend("new", "run:1", 120),
        bound.guard("new", "run:1"),
        bound.take("new", "run:3", takeover_reason="urgent"),
        bound.release("new", "run:3"),
        bound.take("new", "run:4"),
    ),
}


def everything(ledger: LockLedger | BoundLedger) -> list[object]:
    """All that a ledger tells of its locks."""
    return [
        *ledger.current_holders(),
        *ledger.audit_trail(extensions=True),
        *(ledger.history(key) for key in ("held", "free", "lost", "mine", "new")),
        *(ledger.holder_of(key) for key in ("held", "free", "lost", "mine", "new")),
    ]


@pytest.mark.parametrize("change", CHANGES)
def test_a_rollback_takes_back_everything_and_others_never_saw_it(host: Host, change: str) -> None:
    in_its_way(host.ledger)
    before = everything(host.ledger)
    events = list(host.ledger.events())

    with unchanged(host.ledgers), host.session() as session:
        host.write(session, 1)
        bound = host.ledger.using(session)
        CHANGES[change](bound)
        assert everything(bound) != before
        assert everything(host.ledger) == before
        assert list(host.ledger.events()) == events
        session.rollback()

        assert everything(bound) == before
        session.rollback()

    assert everything(host.ledger) == before
    assert list(host.ledger.events()) == events
    assert host.documents() == {}


@pytest.mark.parametrize("change", CHANGES)
def test_a_rollback_to_a_savepoint_takes_back_what_came_after_it(host: Host, change: str) -> None:
    in_its_way(host.ledger)

    with host.session() as session, session.begin():
        host.write(session, 1)
        bound = host.ledger.using(session)
        bound.take("before", "run:1")
        before = everything(bound)
        savepoint = session.begin_nested()
        host.write(session, 2)
        CHANGES[change](bound)
        assert everything(bound) != before
        savepoint.rollback()
        assert everything(bound) == before
        host.write(session, 3)
        bound.take("after", "run:1")

    assert everything(host.ledger)[-5:] == before[-5:]
    assert host.ledger.is_locked("before")
    assert host.ledger.is_locked("after")
    assert set(host.documents()) == {1, 3}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_released_savepoint_holds_is_committed_by_the_transaction(
    host: Host, change: str
) -> None:
    in_its_way(host.ledger)
    before = everything(host.ledger)

    with host.session() as session, session.begin():
        bound = host.ledger.using(session)
        with session.begin_nested():
            CHANGES[change](bound)
        inside = everything(bound)
        assert everything(host.ledger) == before

    assert everything(host.ledger) == inside


def test_a_savepoint_in_a_savepoint_is_taken_back_alone(host: Host) -> None:
    with host.engine.connect() as connection, connection.begin():
        bound = host.ledger.using(connection)
        with connection.begin_nested():
            bound.take("outer", "run:1")
            inner = connection.begin_nested()
            bound.take("inner", "run:1")
            inner.rollback()
            bound.take("again", "run:1")

    assert [each.key for each in host.ledger.current_holders()] == ["again", "outer"]


def test_a_grant_that_was_taken_back_leaves_nothing_behind_in_the_process(host: Host) -> None:
    with host.session() as session:
        bound = host.ledger.using(session)
        first = bound.take("k", "run:1")
        session.rollback()
        other = host.ledger.take("k", "run:2")
        with pytest.raises(LockedByOther) as refusal:
            bound.take("k", "run:1")

    assert (first.token, other.token) == (1, 1)
    assert refusal.value.current is not None
    assert refusal.value.current.grant(created=True) == other


def test_a_grant_that_was_taken_back_can_be_had_again(host: Host) -> None:
    with host.session() as session:
        bound = host.ledger.using(session)
        for _ in range(3):
            grant = bound.take("k", "run:1")
            assert (grant.token, grant.created) == (1, True)
            session.rollback()
        bound.take("k", "run:1")
        session.commit()

    assert [entry.version for entry in host.ledger.history("k")] == [1]


def test_a_release_shows_when_the_transaction_commits_and_with_what_it_wrote(host: Host) -> None:
    with host.session() as session, session.begin():
        host.write(session, 1, "old")
    host.ledger.take("k", "run:1")

    with host.session() as session, session.begin():
        session.connection().exec_driver_sql("UPDATE host_document SET body = 'new'")
        assert host.ledger.using(session).release("k", "run:1")
        assert host.ledger.try_take("k", "run:2") is None
        assert host.documents() == {1: "old"}

    assert host.ledger.take("k", "run:2").created
    assert host.documents() == {1: "new"}


def test_a_take_waits_for_a_release_and_sees_what_was_written_before_it(
    postgres_host: Host,
) -> None:
    host = postgres_host
    host.ledger.take("k", "run:1")

    with host.session() as session:
        host.write(session, 1, "written by run:1")
        host.ledger.using(session).release("k", "run:1")
        takeover = host.blocked(
            lambda: host.ledger.take("k", "run:2", takeover_reason="urgent").created
        )
        session.commit()
        assert takeover.result()

    assert host.documents() == {1: "written by run:1"}
    assert [entry.action for entry in host.ledger.history("k")] == [
        "LockTaken",
        "LockReleased",
        "LockTaken",
    ]


def test_reads_see_the_transactions_own_writes(host: Host) -> None:
    with host.session() as session, session.begin():
        bound = host.ledger.using(session)
        grant = bound.take("k", "run:1", ttl=60)

        held = bound.holder_of("k")
        assert held is not None
        assert held.grant(created=True) == grant
        assert bound.is_locked("k")
        assert list(bound.current_holders(holder="run:1")) == [held]
        assert [entry.action for entry in bound.history("k")] == ["LockTaken"]
        assert [entry.key for entry in bound.audit_trail()] == ["k"]
        assert [entry.key for entry in bound.audit_trail(holder="run:1")] == ["k"]
        bound.release("k", "run:1")
        assert bound.holder_of("k") is None
        assert list(bound.current_holders()) == []


def test_a_transaction_may_change_a_lock_any_number_of_times(host: Host) -> None:
    with host.session() as session, session.begin():
        bound = host.ledger.using(session)
        for number in range(50):
            assert bound.take("k", f"run:{number}").token == 2 * number + 1
            assert bound.release("k", f"run:{number}")

    assert len(host.ledger.history("k", limit=1000)) == 100


# Nothing of the host's


def test_no_verb_begins_commits_or_rolls_back(host: Host) -> None:
    heard: list[str] = []
    for name in ("begin", "commit", "rollback", "savepoint", "rollback_savepoint"):
        event.listen(host.engine, name, lambda *_, name=name: heard.append(name))
    with host.session() as session, session.begin() as transaction:
        host.write(session, 1)
        root = session.connection().get_transaction()
        heard.clear()

        for call in BOUND.values():
            try:
                call(host.ledger.using(session))
            except LockLedgerError:
                assert transaction.is_active
        assert heard == []
        assert session.get_transaction() is transaction
        assert session.connection().get_transaction() is root
        assert session.get_nested_transaction() is None

    assert host.documents() == {1: "draft"}


def test_a_transaction_of_many_locks_and_rows_works_on_a_plain_connection(host: Host) -> None:
    with host.engine.begin() as connection:
        bound = host.ledger.using(connection)
        for number in range(5):
            connection.exec_driver_sql(f"INSERT INTO host_document VALUES ({number}, 'x')")
            bound.take(f"k:{number}", "run:1")

    assert len(host.documents()) == len(host.ledger.current_holders()) == 5


def test_a_connection_that_has_begun_nothing_begins_as_with_any_other_statement(host: Host) -> None:
    with host.engine.connect() as connection:
        host.ledger.using(connection).take("k", "run:1")
        assert connection.in_transaction()
        assert host.ledger.holder_of("k") is None
        connection.commit()

    assert host.ledger.is_locked("k")


def test_a_bound_ledger_goes_on_in_the_sessions_next_transaction(host: Host) -> None:
    with host.session() as session:
        bound = host.ledger.using(session)
        bound.take("k", "run:1")
        session.commit()
        assert bound.release("k", "run:1")
        session.rollback()
        assert bound.holder_of("k") is not None


@pytest.mark.parametrize("verb", ["events", "subscribe"])
def test_what_would_skip_events_is_no_verb_of_a_transaction(host: Host, verb: str) -> None:
    assert not hasattr(BoundLedger, verb)
    assert hasattr(LockLedger, verb)


@pytest.mark.parametrize(
    ("verb", "remedy"),
    [
        ("hold", "use ledger.hold(…) around this one, and guard(…) in it"),
        ("events", "use ledger.events(…) outside, or audit_trail(…) here"),
        ("subscribe", "use ledger.subscribe(…) outside"),
    ],
)
def test_what_is_no_verb_of_a_transaction_is_refused_with_the_remedy(
    host: Host, verb: str, remedy: str
) -> None:
    engine = async_engine(host.database)
    with running_loop() as loop, host.engine.connect() as connection:

        async def using() -> AsyncBoundLedger:
            return AsyncLockLedger(engine).using(AsyncConnection(engine))

        for bound in (host.ledger.using(connection), loop.run(using())):
            with pytest.raises(AttributeError) as refused:
                getattr(bound, verb)
            assert str(refused.value).startswith(f"{verb}(…) is not in a caller's transaction: it ")
            assert str(refused.value).endswith(remedy)
            assert not hasattr(bound, verb)
            assert verb not in dir(bound)
            kind = type(bound).__name__
            with pytest.raises(AttributeError, match=f"^'{kind}' object has no attribute 'tkae'$"):
                bound.tkae  # type: ignore[union-attr]  # noqa: B018
        loop.run(engine.dispose())


def test_a_closed_ledger_joins_no_transaction(host: Host) -> None:
    host.ledger.close()

    with host.session() as session, pytest.raises(RuntimeError, match="is closed"):
        host.ledger.using(session)


# Actor and metadata


def test_using_names_the_actor_and_the_metadata_of_all_its_calls(host: Host) -> None:
    with host.session() as session, session.begin():
        bound = host.ledger.using(session, actor="user:1", metadata={"request": "r1", "n": 1})
        bound.take("k", "run:1", ttl=60)
        bound.extend("k", "run:1", 120, metadata={"n": 2})
        bound.take("k", "run:2", takeover_reason="urgent", actor="user:2")
        bound.force_release("k", reason="over", metadata={"cause": "c"})
        bound.take("k", "run:3")
        bound.release_all(under="k", reason="cancelled")

    told = [
        (entry.action, entry.actor, entry.metadata)
        for entry in host.ledger.history("k", extensions=True)
    ]
    assert told == [
        ("LockTaken", "user:1", {"request": "r1", "n": 1}),
        ("LockExtended", "user:1", {"request": "r1", "n": 2}),
        ("LockTakenOver", "user:2", {"request": "r1", "n": 1}),
        ("LockReleased", "user:1", {"request": "r1", "n": 1, "cause": "c"}),
        ("LockTaken", "user:1", {"request": "r1", "n": 1}),
        ("LockReleased", "user:1", {"request": "r1", "n": 1}),
    ]


def test_the_actor_of_what_is_forced_may_be_left_out_only_where_using_named_one(
    host: Host,
) -> None:
    forced: dict[str, Callable[[Any], object]] = {
        "force_release": lambda ledger: ledger.force_release("k", reason="r"),
        "release_all": lambda ledger: ledger.release_all(under="k", reason="r"),
    }
    with host.session() as session:
        for call in forced.values():
            with pytest.raises(TypeError, match="name an actor in using"):
                call(host.ledger)
            with pytest.raises(TypeError, match="name an actor in using"):
                call(host.ledger.using(session))
            call(host.ledger.using(session, actor="user:1"))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"actor": ""}, InvalidHolder),
        ({"actor": 7}, TypeError),
        ({"metadata": {"n": float("nan")}}, InvalidMetadata),
        ({"metadata": [1]}, TypeError),
    ],
    ids=str,
)
def test_what_using_is_given_is_checked_at_once(
    host: Host, given: dict[str, Any], error: type[Exception]
) -> None:
    with host.session() as session, pytest.raises(error):
        host.ledger.using(session, **given)


def test_metadata_that_is_too_large_only_together_is_refused(host: Host) -> None:
    half = {"a": "x" * 5_000}
    with host.session() as session, session.begin():
        bound = host.ledger.using(session, metadata=half)
        with pytest.raises(InvalidMetadata):
            bound.take("k", "run:1", metadata={"b": "x" * 5_000})
        assert bound.take("k", "run:1", metadata={"a": "short"}).metadata == {"a": "short"}


def test_what_using_was_given_may_be_changed_afterwards(host: Host) -> None:
    metadata = {"request": {"id": "r1"}}
    with host.session() as session, session.begin():
        bound = host.ledger.using(session, metadata=metadata)
        metadata["request"]["id"] = "r2"
        assert bound.take("k", "run:1").metadata == {"request": {"id": "r1"}}


def test_every_verb_of_a_transaction_is_in_the_list_that_tests_walk_through() -> None:
    verbs = {name for name in dir(BoundLedger) if not name.startswith("_")}

    assert verbs - {"perform"} == set(BOUND)
