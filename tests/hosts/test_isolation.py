"""A host's transaction at REPEATABLE READ or SERIALIZABLE looks at a snapshot: what it cannot see it never overrules.

PostgreSQL says so, in its log too, and the answer is `ConcurrencyConflict`: the transaction is lost and run again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from lockledger import BoundLedger, ConcurrencyConflict, LockedByOther, LockLedger, NotHolding
from support.hosts import Host

LEVELS = ("REPEATABLE READ", "SERIALIZABLE")


@pytest.fixture
def host(postgres_host: Host) -> Host:
    """A host on PostgreSQL, whose log will say what it could not serialize."""
    postgres_host.ledgers.may_log_errors = True
    return postgres_host


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def begun(host: Host, level: str) -> Session:
    """A session that has taken its snapshot."""
    session = Session(host.engine.execution_options(isolation_level=level))
    session.connection().exec_driver_sql("SELECT 1 FROM host_document")
    return session


def is_serialization_failure(conflict: ConcurrencyConflict) -> bool:
    cause = conflict.__cause__
    return isinstance(cause, DBAPIError) and isinstance(
        cause.orig, psycopg.errors.SerializationFailure
    )


Before = Callable[[LockLedger], object]
Change = Callable[[BoundLedger], object]

# What was before the snapshot, what another committed after it, and what the transaction then tries.
STALE: dict[str, tuple[Before, Before, Change]] = {
    "a first take": (
        lambda ledger: None,
        lambda ledger: ledger.take("k", "run:2"),
        lambda bound: bound.take("k", "run:1"),
    ),
    "a first take, come and gone": (
        lambda ledger: None,
        lambda ledger: (ledger.take("k", "run:2"), ledger.release("k", "run:2")),
        lambda bound: bound.take("k", "run:1"),
    ),
    "a take of what was free": (
        lambda ledger: (ledger.take("k", "run:3"), ledger.release("k", "run:3")),
        lambda ledger: ledger.take("k", "run:2"),
        lambda bound: bound.take("k", "run:1"),
    ),
    "a takeover": (
        lambda ledger: ledger.take("k", "run:3"),
        lambda ledger: ledger.take("k", "run:2", takeover_reason="first"),
        lambda bound: bound.take("k", "run:1", takeover_reason="second"),
    ),
    "a takeover of what was released": (
        lambda ledger: ledger.take("k", "run:3"),
        lambda ledger: ledger.release("k", "run:3"),
        lambda bound: bound.take("k", "run:1", takeover_reason="urgent"),
    ),
    "a replacement": (
        lambda ledger: ledger.take("k", "run:1"),
        lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
        lambda bound: bound.take("k", "run:1", if_mine="replace"),
    ),
    "a release": (
        lambda ledger: ledger.take("k", "run:1"),
        lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
        lambda bound: bound.release("k", "run:1"),
    ),
    "a forced release": (
        lambda ledger: ledger.take("k", "run:1"),
        lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
        lambda bound: bound.force_release("k", actor="user:9", reason="why"),
    ),
    "a forced release of all": (
        lambda ledger: ledger.take("k", "run:1"),
        lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
        lambda bound: bound.release_all(holder="run:1", actor="user:9", reason="why"),
    ),
    "an extension": (
        lambda ledger: ledger.take("k", "run:1", ttl=60),
        lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
        lambda bound: bound.extend("k", "run:1", 120),
    ),
    "a repeated take": (
        lambda ledger: ledger.take("k", "run:1"),
        lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
        lambda bound: bound.take("k", "run:1"),
    ),
    "a repeated take of many": (
        lambda ledger: ledger.take_all(["j", "k"], "run:1"),
        lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
        lambda bound: bound.take_all(["k", "j"], "run:1"),
    ),
    "a repeated take of what was released": (
        lambda ledger: ledger.take("k", "run:1"),
        lambda ledger: ledger.release("k", "run:1"),
        lambda bound: bound.take("k", "run:1"),
    ),
    "an extension that moves nothing": (
        lambda ledger: ledger.take("k", "run:1"),
        lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
        lambda bound: bound.extend("k", "run:1", 120),
    ),
    "a guard": (
        lambda ledger: ledger.take("k", "run:1"),
        lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
        lambda bound: bound.guard("k", "run:1"),
    ),
    "a guard of what was released": (
        lambda ledger: ledger.take("k", "run:1"),
        lambda ledger: ledger.release("k", "run:1"),
        lambda bound: bound.guard("k", "run:1"),
    ),
}


@pytest.mark.parametrize("stale", STALE)
def test_what_others_changed_since_the_snapshot_is_a_conflict(
    host: Host, level: str, stale: str
) -> None:
    before, meanwhile, change = STALE[stale]
    before(host.ledger)
    with begun(host, level) as session:
        meanwhile(host.ledger)
        trail = list(host.ledger.history("k"))
        host.write(session, 1)

        with pytest.raises(ConcurrencyConflict, match="run the transaction again") as conflict:
            change(host.ledger.using(session))
        assert is_serialization_failure(conflict.value)
        session.rollback()

        assert list(host.ledger.history("k")) == trail
        assert host.documents() == {}
        # Run again, it sees what it lost to, and gets the answer that it would have got alone.
        session.connection().exec_driver_sql("SELECT 1 FROM host_document")
        host.write(session, 2)
        with suppress(LockedByOther, NotHolding):
            change(host.ledger.using(session))
        session.commit()

    assert host.documents() == {2: "draft"}


def test_two_transactions_that_look_at_one_snapshot_never_both_win(host: Host, level: str) -> None:
    for number in range(5):
        key = f"k:{number}"
        with begun(host, level) as one, begun(host, level) as other:
            host.ledger.using(one).take(key, "run:1")

            def losing(key: str = key, other: Session = other) -> object:
                return host.ledger.using(other).take(key, "run:2")

            lost = host.blocked(losing)
            one.commit()
            with pytest.raises(ConcurrencyConflict) as conflict:
                lost.result()
            assert is_serialization_failure(conflict.value)
            other.rollback()

    assert [hold.holder for hold in host.ledger.current_holders()] == ["run:1"] * 5


def test_the_other_wins_when_the_first_is_rolled_back(host: Host) -> None:
    with begun(host, "REPEATABLE READ") as one, begun(host, "REPEATABLE READ") as other:
        host.ledger.using(one).take("k", "run:1")
        waiting = host.blocked(lambda: host.ledger.using(other).take("k", "run:2"))
        one.rollback()
        assert waiting.result().created
        other.commit()

    assert [entry.holder for entry in host.ledger.history("k")] == ["run:2"]


def test_what_was_held_at_the_snapshot_is_refused_and_the_transaction_lives(
    host: Host, level: str
) -> None:
    host.ledgers.may_log_errors = False
    host.ledger.take("k", "run:2")
    with begun(host, level) as session:
        host.write(session, 1)
        with pytest.raises(LockedByOther):
            host.ledger.using(session).take("k", "run:1")
        host.write(session, 2)
        session.commit()

    assert set(host.documents()) == {1, 2}


def test_a_whole_life_fits_into_one_transaction(host: Host, level: str) -> None:
    host.ledgers.may_log_errors = False
    with begun(host, level) as session:
        bound = host.ledger.using(session)
        grant = bound.take("k", "run:1", ttl=60)
        bound.extend("k", "run:1", 120)
        assert bound.guard("k", "run:1", token=grant.token).holder == "run:1"
        bound.take("k", "run:2", takeover_reason="urgent")
        assert bound.release("k", "run:2")
        session.commit()

    assert len(host.ledger.history("k", extensions=True)) == 4


@pytest.mark.parametrize("level", ["READ COMMITTED", *LEVELS])
def test_a_guard_holds_at_every_level(host: Host, level: str) -> None:
    host.ledgers.may_log_errors = False
    host.ledger.take("k", "run:1", ttl=600)
    with begun(host, level) as session:
        assert host.ledger.using(session).guard("k", "run:1").holder == "run:1"
        assert host.ledger.extend("k", "run:1", 1200).created is False
        taking = host.blocked(lambda: host.ledger.take("k", "run:2", takeover_reason="urgent"))
        host.write(session, 1)
        session.commit()
        assert taking.result().taken_over_from == "run:1"

    assert host.documents() == {1: "draft"}


def test_an_extension_since_the_snapshot_is_no_end_of_the_hold(host: Host, level: str) -> None:
    host.ledgers.may_log_errors = False
    host.ledger.take("k", "run:1", ttl=600)
    with begun(host, level) as session:
        host.ledger.extend("k", "run:1", 1200)
        assert host.ledger.using(session).guard("k", "run:1").holder == "run:1"
        taking = host.blocked(lambda: host.ledger.take("k", "run:2", takeover_reason="urgent"))
        session.rollback()
        assert taking.result().created


def test_a_repeated_take_is_confirmed_without_waiting_and_keeps_nothing_locked(
    host: Host, level: str
) -> None:
    keys = ["extended", "in hand", "extended, in hand"]
    host.ledger.take_all(keys, "run:1", ttl=600)
    with begun(host, level) as session, begun(host, "READ COMMITTED") as other:
        bound = host.ledger.using(session)
        for key in keys:
            if "extended" in key:
                host.ledger.extend(key, "run:1", 1200)
            if "in hand" in key:
                host.ledger.using(other).take(key, "run:2", takeover_reason="why")
        for key in keys:
            assert not bound.take(key, "run:1").created
        assert not any(grant.created for grant in bound.take_all(keys, "run:1"))
        assert host.impatient().take("extended", "run:2", takeover_reason="urgent").created
        other.rollback()


def test_who_can_only_read_is_told_what_the_snapshot_says(host: Host, level: str) -> None:
    host.ledgers.may_log_errors = False
    host.ledger.take("k", "run:1")
    engine = host.engine.execution_options(postgresql_readonly=True, isolation_level=level)
    with Session(engine) as session:
        assert host.ledger.using(session).is_locked("k")
        host.ledger.take("k", "run:2", takeover_reason="urgent")
        assert not host.ledger.using(session).take("k", "run:1").created
        assert host.ledger.using(session).holder_of("k") != host.ledger.holder_of("k")


def test_the_default_level_of_the_server_makes_no_difference(host: Host) -> None:
    engine = host.database.engine(
        connect_args={"options": "-c default_transaction_isolation=serializable"}
    )
    with Session(engine) as session:
        session.connection().exec_driver_sql("SELECT 1 FROM host_document")
        host.ledger.take("k", "run:2")
        with pytest.raises(ConcurrencyConflict):
            host.ledger.using(session).take("k", "run:1")
        session.rollback()
        with pytest.raises(LockedByOther):
            host.ledger.using(session).take("k", "run:1")


def test_a_read_only_transaction_can_read_and_its_refusal_to_write_passes_as_itself(
    host: Host,
) -> None:
    host.ledger.take("k", "run:2")
    engine = host.engine.execution_options(postgresql_readonly=True)
    with Session(engine) as session:
        bound = host.ledger.using(session)
        assert bound.is_locked("k")
        with pytest.raises(LockedByOther):
            bound.take("k", "run:1")
        with pytest.raises(DBAPIError) as refusal:
            bound.take("other", "run:1")
        assert isinstance(refusal.value.orig, psycopg.errors.ReadOnlySqlTransaction)
        assert bound.is_locked("k")
