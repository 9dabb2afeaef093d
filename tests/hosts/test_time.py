"""A transaction may be old when it takes: what counts is the time of the take, and after a wait that of its end (S42).

On PostgreSQL, where `now()` stands still inside a transaction.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from lockledger import Grant, InvalidTtl, LockedByOther
from support.hosts import Host
from support.lasting import lasting, while_live

OLD = 1.5
"""Seconds that a transaction is open before it takes. Whoever had these to believe in would be wrong by that."""


def clock(host: Host) -> datetime:
    """The database's clock."""
    with host.engine.connect() as connection:
        found: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    return found.astimezone(UTC)


def begun(host: Host) -> Session:
    """A session whose transaction has read already, so that its `now()` is this instant."""
    session = host.session()
    session.connection().exec_driver_sql("SELECT now()")
    return session


def test_an_old_transaction_grants_with_the_time_of_the_take(postgres_host: Host) -> None:
    host = postgres_host
    with begun(host) as session:
        time.sleep(OLD)
        before = clock(host)
        grant = host.ledger.using(session).take("k", "run:1", ttl=60)
        session.commit()

    assert before <= grant.taken_at <= clock(host)
    assert grant.expires_at == grant.taken_at + timedelta(seconds=60)
    with pytest.raises(LockedByOther) as refusal:
        host.ledger.take("k", "run:2")
    assert refusal.value.current is not None
    assert refusal.value.current.expires_at == grant.expires_at


def test_every_instant_that_an_old_transaction_records_is_its_own(postgres_host: Host) -> None:
    host = postgres_host
    with begun(host) as session:
        time.sleep(OLD)
        before = clock(host)
        bound = host.ledger.using(session)
        bound.take("k", "run:1", ttl=60)
        bound.extend("k", "run:1", 120)
        bound.take("k", "run:2", takeover_reason="urgent", ttl=60)
        bound.release("k", "run:2")
        session.commit()

    trail = host.ledger.history("k", extensions=True)
    instants = [entry.occurred_at for entry in trail] + [entry.recorded_at for entry in trail]
    assert len(trail) == 4
    assert before <= min(instants)
    assert max(instants) <= clock(host)
    assert [entry.occurred_at for entry in trail] == sorted(entry.occurred_at for entry in trail)


def test_two_old_transactions_never_both_win(postgres_host: Host) -> None:
    host = postgres_host

    def story(key: str, old: float) -> None:
        with begun(host) as one, begun(host) as other:
            time.sleep(old)
            ends = clock(host) + timedelta(seconds=old)
            won = host.ledger.using(one).take(key, "run:1", ttl=old)
            with while_live(host.database, ends):
                losing = host.blocked(
                    lambda: host.ledger.using(other).try_take(key, "run:2", ttl=old)
                )
                one.commit()
                assert losing.result() is None
                held = host.ledger.holder_of(key)
                assert held is not None
            other.commit()

        assert held.grant(created=True) == won

    lasting(story, OLD, 15.0)


def test_two_old_transactions_take_one_after_the_other_once_the_first_has_run_out(
    postgres_host: Host,
) -> None:
    host = postgres_host

    def story(key: str, ttl: float) -> None:
        with begun(host) as one, begun(host) as other:
            time.sleep(OLD)
            first = host.ledger.using(one).take(key, "run:1", ttl=ttl)
            one.commit()
            with while_live(host.database, first.expires_at):
                assert host.ledger.using(other).try_take(key, "run:2") is None
            time.sleep(ttl + 0.05)
            second = host.ledger.using(other).take(key, "run:2", ttl=60)
            other.commit()

        assert first.expires_at is not None
        assert second.taken_at >= first.expires_at
        assert [entry.action for entry in host.ledger.history(key)] == [
            "LockTaken",
            "LockExpired",
            "LockTaken",
        ]

    lasting(story)


def test_a_hold_that_ran_out_since_the_transaction_began_is_over_for_it(
    postgres_host: Host,
) -> None:
    host = postgres_host

    def story(key: str, ttl: float) -> None:
        first = host.ledger.take(key, "run:1", ttl=ttl)
        with begun(host) as session:
            with while_live(host.database, first.expires_at):
                assert host.ledger.using(session).holder_of(key) is not None
            time.sleep(ttl + 0.05)
            bound = host.ledger.using(session)
            assert bound.holder_of(key) is None
            assert list(bound.current_holders()) == []
            assert not bound.release(key, "run:1")
            grant = bound.take(key, "run:2")
            session.commit()

        assert first.expires_at is not None
        assert grant.taken_at >= first.expires_at

    lasting(story)


def waited(host: Host, seconds: float, ttl: float) -> tuple[Grant, datetime]:
    """A take that waited so long for another transaction, which then went away; and when that was."""
    with begun(host) as slow, begun(host) as session:
        host.ledger.using(slow).take("k", "run:1")
        waiting = host.blocked(lambda: host.ledger.using(session).take("k", "run:2", ttl=ttl))
        time.sleep(seconds)
        gone = clock(host)
        slow.rollback()
        grant = waiting.result()
        session.commit()
    return grant, gone


@pytest.mark.parametrize("known", [False, True], ids=["first take", "known lock"])
@pytest.mark.parametrize("ttl", [0.6, 60.0])
def test_a_take_that_had_to_wait_counts_its_time_from_the_end_of_the_wait(
    postgres_host: Host, ttl: float, known: bool
) -> None:
    if known:
        postgres_host.ledger.take("k", "run:0")
        postgres_host.ledger.release("k", "run:0")

    grant, gone = waited(postgres_host, 0.8, ttl)

    assert gone <= grant.taken_at <= clock(postgres_host)
    assert grant.expires_at == grant.taken_at + timedelta(seconds=ttl)
    assert postgres_host.ledger.history("k")[-1].occurred_at == grant.taken_at


def test_a_takeover_that_waited_past_the_end_of_the_old_hold_is_a_take(
    postgres_host: Host,
) -> None:
    host = postgres_host

    def story(key: str, ttl: float) -> None:
        held = host.ledger.take(key, "run:1", ttl=ttl)
        with begun(host) as slow, begun(host) as session:
            with while_live(host.database, held.expires_at):
                host.ledger.using(slow).guard(key, "run:1")
                waiting = host.blocked(
                    lambda: host.ledger.using(session).take(key, "run:2", takeover_reason="urgent")
                )
            time.sleep(ttl + 0.1)
            slow.rollback()
            grant = waiting.result()
            session.commit()

        assert (grant.taken_over_from, grant.takeover_reason) == (None, None)
        assert [entry.action for entry in host.ledger.history(key)] == [
            "LockTaken",
            "LockExpired",
            "LockTaken",
        ]

    lasting(story)


def test_a_release_that_waited_past_the_end_of_its_hold_releases_nothing(
    postgres_host: Host,
) -> None:
    host = postgres_host

    def story(key: str, ttl: float) -> None:
        held = host.ledger.take(key, "run:1", ttl=ttl)
        with begun(host) as slow:
            with while_live(host.database, held.expires_at):
                host.ledger.using(slow).guard(key, "run:1")
                releasing = host.blocked(lambda: host.ledger.release(key, "run:1"))
            time.sleep(ttl + 0.1)
            slow.rollback()
            assert releasing.result() is False

        assert [entry.action for entry in host.ledger.history(key)] == ["LockTaken"]

    lasting(story)


def test_an_instant_that_passed_while_a_take_waited_is_refused_and_the_transaction_lives(
    postgres_host: Host,
) -> None:
    host = postgres_host

    def story(key: str, ttl: float) -> None:
        with begun(host) as slow, begun(host) as session:
            host.write(session, 1)
            host.ledger.using(slow).take(key, "run:1")
            until = clock(host) + timedelta(seconds=ttl)
            with while_live(host.database, until):
                waiting = host.blocked(
                    lambda: host.ledger.using(session).take(key, "run:2", ttl=until)
                )
            time.sleep(ttl + 0.1)
            slow.rollback()
            with pytest.raises(InvalidTtl):
                waiting.result()
            host.write(session, 2)
            session.commit()

        assert set(host.documents()) == {1, 2}
        assert list(host.ledger.history(key)) == []

    lasting(story)
