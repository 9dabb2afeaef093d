"""A refused call in an open host transaction keeps no row of the ledger locked: the real holder goes on at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Connection

from lockledger import BoundLedger, LockedByOther, LockLedgerError, Policy
from support.hosts import Host

REFUSED: dict[str, Callable[[BoundLedger], object]] = {
    "a take": lambda bound: bound.take("k", "run:1"),
    "a take of another state": lambda bound: bound.take(
        "k", "run:1", takeover_reason="r", expected_token=9
    ),
    "a release": lambda bound: bound.release("k", "run:1"),
    "an extension": lambda bound: bound.extend("k", "run:1", 5),
    "a guard": lambda bound: bound.guard("k", "run:1"),
    "a guard of another hold": lambda bound: bound.guard("k", "run:2", token=9),
    "a forced release of another state": lambda bound: bound.force_release(
        "k", actor="user:9", reason="r", expected_token=9
    ),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_the_real_holder_goes_on_at_once(postgres_host: Host, refused: str) -> None:
    host = postgres_host
    impatient = host.impatient()
    grant = impatient.take("k", "run:2", ttl=60)
    with host.session() as session, session.begin():
        host.write(session, 1)
        with pytest.raises(LockLedgerError):
            REFUSED[refused](host.ledger.using(session))

        assert impatient.extend("k", "run:2", 120, token=grant.token).token == grant.token
        assert impatient.take("k", "run:3", takeover_reason="urgent").created
        assert impatient.release("k", "run:3")

    assert set(host.documents()) == {1}


@pytest.mark.parametrize("known", [False, True], ids=["first take", "known lock"])
def test_also_when_the_race_was_lost_in_the_middle_of_the_append(
    postgres_host: Host, known: bool
) -> None:
    """`ON CONFLICT` keeps the row locked even where it changes nothing."""
    host = postgres_host
    impatient = host.impatient()
    if known:
        impatient.take("k", "run:0")
        impatient.release("k", "run:0")
    with host.session() as winner, host.session() as loser:
        host.ledger.using(winner).take("k", "run:2", ttl=60)
        losing = host.blocked(lambda: host.ledger.using(loser).try_take("k", "run:1"))
        winner.commit()
        assert losing.result() is None

        impatient.extend("k", "run:2", 120)
        assert impatient.release("k", "run:2")
        assert impatient.take("k", "run:4").created
        loser.commit()


def test_a_guard_that_had_to_wait_and_then_found_the_hold_lost_keeps_nothing_locked(
    postgres_host: Host,
) -> None:
    host = postgres_host
    impatient = host.impatient()
    host.ledger.take("k", "run:1")
    with host.session() as taker, host.session() as editor:
        host.ledger.using(taker).take("k", "run:2", takeover_reason="urgent")
        guarding = host.blocked(lambda: host.ledger.using(editor).guard("k", "run:1"))
        taker.commit()
        with pytest.raises(LockLedgerError):
            guarding.result()

        assert impatient.release("k", "run:2")
        editor.commit()


def test_two_refused_hosts_do_not_meet_in_a_deadlock(postgres_host: Host) -> None:
    """Each lost a race for one lock, and then goes for the lock that the other lost."""
    host = postgres_host
    with host.session() as winner, host.session() as one, host.session() as other:
        bound = host.ledger.using(winner)
        bound.take("a", "run:0")
        bound.take("b", "run:0")
        first = host.blocked(lambda: host.ledger.using(one).try_take("a", "run:1"))
        second = host.blocked(lambda: host.ledger.using(other).try_take("b", "run:2"))
        winner.commit()
        assert first.result() is second.result() is None

        taken = host.meanwhile(
            lambda: host.ledger.using(one).take("b", "run:1", takeover_reason="urgent")
        )
        also = host.meanwhile(
            lambda: host.ledger.using(other).take("a", "run:2", takeover_reason="urgent")
        )
        assert taken.result(5).taken_over_from == also.result(5).taken_over_from == "run:0"
        one.commit()
        other.commit()


def test_what_the_policy_locked_of_the_hosts_own_stays_locked(postgres_host: Host) -> None:
    """It is the host's row, and the host decides when it is let go: with its transaction."""

    class LocksTheDocument(Policy[Connection]):
        def lock_subject(self, connection: Connection, key: str) -> None:
            connection.exec_driver_sql("SELECT 1 FROM host_document WHERE id = 1 FOR UPDATE")

    host = postgres_host
    with host.session() as session, session.begin():
        host.write(session, 1)
    ledger = host.ledgers.open(policy=LocksTheDocument())
    ledger.take("k", "run:2")
    with host.session() as session:
        with pytest.raises(LockedByOther):
            ledger.using(session).take("k", "run:1")
        with host.session() as other:
            found = other.connection().exec_driver_sql(
                "SELECT id FROM host_document FOR UPDATE SKIP LOCKED"
            )
            assert found.all() == []
