"""`guard`: an assertion that a holder holds a lock, and that nobody can end the hold before the transaction ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from lockledger import (
    AsyncLockLedger,
    ConcurrencyConflict,
    Grant,
    HoldLost,
    LockedByOther,
    LockLedger,
    NotHeld,
    NotLockHolder,
)
from support.hosts import Host
from support.lasting import lasting, while_live

# What it answers


@pytest.mark.parametrize("shown", [False, True], ids=["without token", "with its token"])
def test_a_guard_gives_the_hold_that_it_found(host: Host, shown: bool) -> None:
    grant = host.ledger.take("k", "run:1", ttl=60, metadata={"n": 1})
    with host.session() as session, session.begin():
        hold = host.ledger.using(session).guard("k", "run:1", token=grant.token if shown else None)

    assert hold == host.ledger.holder_of("k")
    assert hold.grant(created=True) == grant
    assert [entry.action for entry in host.ledger.history("k")] == ["LockTaken"]


def test_a_guard_of_what_nobody_holds(host: Host) -> None:
    host.ledger.take("was held", "run:1")
    host.ledger.release("was held", "run:1")
    with host.session() as session, session.begin():
        for key in ("was held", "never taken"):
            with pytest.raises(NotHeld) as refusal:
                host.ledger.using(session).guard(key, "run:1")
            assert (refusal.value.key, refusal.value.current) == (key, None)


def test_a_guard_of_what_another_holds(host: Host) -> None:
    host.ledger.take("k", "run:2")
    with host.session() as session, session.begin(), pytest.raises(NotLockHolder) as refusal:
        host.ledger.using(session).guard("k", "run:1")

    assert refusal.value.current == host.ledger.holder_of("k")


End = Callable[[LockLedger], object]
# How the hold of run:1, token 1, ended; by whom, and why.
ENDS: dict[str, tuple[End, str | None, str | None]] = {
    "release": (lambda ledger: ledger.release("k", "run:1", reason="done"), "run:1", "done"),
    "forced": (
        lambda ledger: ledger.force_release("k", actor="user:9", reason="left"),
        "user:9",
        "left",
    ),
    "takeover": (lambda ledger: ledger.take("k", "run:2", takeover_reason="mine"), "run:2", "mine"),
    "expiry": (lambda ledger: time.sleep(0.3), None, None),
}


@pytest.mark.parametrize("then", ["nothing", "another hold"])
@pytest.mark.parametrize("ended_by", ENDS)
def test_a_guard_of_a_lost_hold_tells_by_whom_when_and_why(
    host: Host, ended_by: str, then: str
) -> None:
    end, actor, reason = ENDS[ended_by]
    grant = host.ledger.take("k", "run:1", ttl=0.25 if ended_by == "expiry" else None)
    end(host.ledger)
    if then == "another hold":
        host.ledger.take("k", "run:3", takeover_reason="mine now")
    with host.session() as session, session.begin(), pytest.raises(HoldLost) as loss:
        host.ledger.using(session).guard("k", "run:1", token=grant.token)

    lost = loss.value
    ended_at = grant.expires_at if ended_by == "expiry" else host.ledger.history("k")[1].occurred_at
    assert (lost.ended_by, lost.ended_at) == (ended_by, ended_at)
    assert (lost.ended_by_actor, lost.reason) == (actor, reason)
    assert (lost.holder, lost.token) == ("run:1", grant.token)
    assert lost.current == host.ledger.holder_of("k")


def test_a_guard_of_a_hold_that_never_was(host: Host) -> None:
    host.ledger.take("k", "run:2")
    with host.session() as session, session.begin():
        bound = host.ledger.using(session)
        for holder, token in (("run:1", 1), ("run:2", 7), ("run:2", 0)):
            with pytest.raises(HoldLost) as loss:
                bound.guard("k", holder, token=token)
            assert (loss.value.ended_by, loss.value.ended_at) == (None, None)


def test_a_guard_is_no_verb_of_a_ledger_on_its_own() -> None:
    assert not hasattr(LockLedger, "guard")
    assert not hasattr(AsyncLockLedger, "guard")


# In its own transaction


def test_what_was_guarded_may_be_released_extended_or_replaced_in_the_same_transaction(
    host: Host,
) -> None:
    host.ledger.take("k", "run:1", ttl=60)
    with host.session() as session, session.begin():
        bound = host.ledger.using(session)
        first = bound.guard("k", "run:1")
        longer = bound.extend("k", "run:1", 120, token=first.token)
        assert bound.guard("k", "run:1", token=first.token).expires_at == longer.expires_at
        second = bound.take("k", "run:1", if_mine="replace")
        with pytest.raises(HoldLost):
            bound.guard("k", "run:1", token=first.token)
        assert bound.guard("k", "run:1", token=second.token).token == second.token
        assert bound.release("k", "run:1", token=second.token)
        with pytest.raises(NotHeld):
            bound.guard("k", "run:1")

    assert host.ledger.holder_of("k") is None


def test_a_grant_of_the_same_transaction_can_be_guarded(host: Host) -> None:
    with host.session() as session, session.begin():
        grant = host.ledger.using(session).take("k", "run:1")
        assert host.ledger.using(session).guard("k", "run:1", token=grant.token).token == 1


def test_what_was_guarded_may_be_ended_by_somebody_else_in_the_same_transaction(
    host: Host,
) -> None:
    host.ledger.take("k", "run:1")
    with host.session() as session, session.begin():
        bound = host.ledger.using(session)
        bound.guard("k", "run:1")
        assert bound.release_all(under="k", actor="user:9", reason="cancelled") == 1

    assert host.ledger.holder_of("k") is None


# Others, on PostgreSQL

ENDING: dict[str, Callable[[LockLedger], object]] = {
    "a takeover": lambda ledger: ledger.take("k", "run:2", takeover_reason="urgent"),
    "a replacement": lambda ledger: ledger.take("k", "run:1", if_mine="replace"),
    "a release": lambda ledger: ledger.release("k", "run:1"),
    "a forced release": lambda ledger: ledger.force_release("k", actor="user:9", reason="why"),
    "a forced release of all": lambda ledger: ledger.release_all(
        under="k", actor="user:9", reason="why"
    ),
}


@pytest.mark.parametrize("ending", ENDING)
def test_whoever_would_end_the_hold_waits_and_then_sees_the_edit(
    postgres_host: Host, ending: str
) -> None:
    host = postgres_host
    host.ledger.take("k", "run:1", ttl=600)
    with host.session() as editor:
        host.ledger.using(editor).guard("k", "run:1")
        host.write(editor, 1, "edited")
        waiting = host.blocked(lambda: (ENDING[ending](host.ledger), host.documents()))
        editor.commit()
        _, seen = waiting.result()

    assert seen == {1: "edited"}
    assert len(host.ledger.history("k")) == 2
    with host.session() as editor, pytest.raises((HoldLost, NotHeld, NotLockHolder)):
        host.ledger.using(editor).guard("k", "run:1", token=1)


def test_an_extension_elsewhere_passes(postgres_host: Host) -> None:
    host = postgres_host
    impatient = host.impatient()
    grant = impatient.take("k", "run:1", ttl=600)
    with host.session() as editor, editor.begin():
        host.ledger.using(editor).guard("k", "run:1")
        for seconds in (700, 800, 900):
            extended = impatient.extend("k", "run:1", seconds, token=grant.token)
            assert extended.expires_at is not None
            assert extended.expires_at > grant.taken_at + timedelta(seconds=seconds)
        assert impatient.take("k", "run:1", if_mine="extend", ttl=1000).created is False
        # The guard itself sees them, and so does an extension of its own.
        seen = host.ledger.using(editor).guard("k", "run:1").expires_at
        assert seen is not None
        assert seen > grant.taken_at + timedelta(seconds=1000)
        assert host.ledger.using(editor).extend("k", "run:1", 2000).token == grant.token


def test_readers_refusals_and_unchanged_answers_pass(postgres_host: Host) -> None:
    host = postgres_host
    impatient = host.impatient()
    impatient.take("k", "run:1")
    with host.session() as editor, editor.begin():
        host.ledger.using(editor).guard("k", "run:1")

        assert impatient.is_locked("k")
        with pytest.raises(LockedByOther):
            impatient.take("k", "run:2")
        assert impatient.take("k", "run:1").created is False
        assert impatient.try_release("k", "run:2") is False
        assert impatient.take("other", "run:2").created


def test_several_transactions_may_guard_one_hold(postgres_host: Host) -> None:
    host = postgres_host
    host.ledger.take("k", "run:1")
    with host.session() as one, host.session() as other:
        host.ledger.using(one).guard("k", "run:1")
        host.ledger.using(other).guard("k", "run:1")
        taking = host.blocked(lambda: host.ledger.take("k", "run:2", takeover_reason="urgent"))
        one.commit()
        time.sleep(0.05)
        assert not taking.done()
        other.commit()
        assert taking.result().created


def test_two_guards_of_one_hold_that_both_go_on_to_end_it_meet_in_a_deadlock(
    postgres_host: Host,
) -> None:
    host = postgres_host
    host.ledgers.may_log_errors = True
    host.ledger.take("k", "run:1")
    with host.session() as one, host.session() as other:
        # Who waits for longer than this looks for a deadlock, and is the one that gives way.
        one.connection().exec_driver_sql("SET LOCAL deadlock_timeout = '10min'")
        other.connection().exec_driver_sql("SET LOCAL deadlock_timeout = '50ms'")
        for session in (one, other):
            host.ledger.using(session).guard("k", "run:1")
        first = host.blocked(lambda: host.ledger.using(one).release("k", "run:1"))
        second = host.meanwhile(lambda: host.ledger.using(other).release("k", "run:1"))
        with pytest.raises(ConcurrencyConflict, match="part of a deadlock"):
            second.result(60)
        other.rollback()
        assert first.result(60) is True
        one.commit()

    assert host.ledger.holder_of("k") is None


@pytest.mark.parametrize("ended", ["commit", "rollback", "released", "taken over"])
def test_a_takeover_decides_on_what_the_guarding_transaction_left(
    postgres_host: Host, ended: str
) -> None:
    host = postgres_host
    host.ledger.take("k", "run:1")
    with host.session() as editor:
        bound = host.ledger.using(editor)
        bound.guard("k", "run:1")
        waiting = host.blocked(lambda: host.ledger.take("k", "run:2", takeover_reason="urgent"))
        if ended == "released":
            assert bound.release("k", "run:1")
        if ended == "taken over":
            bound.take("k", "run:3", takeover_reason="first")
        if ended == "rollback":
            editor.rollback()
        else:
            editor.commit()
        grant = waiting.result()

    taken_from = {"released": None, "taken over": "run:3"}.get(ended, "run:1")
    assert grant.taken_over_from == taken_from
    assert grant.takeover_reason == ("urgent" if taken_from else None)


def test_a_guard_waits_for_a_takeover_under_way_and_then_tells_of_it(postgres_host: Host) -> None:
    host = postgres_host
    grant = host.ledger.take("k", "run:1")
    with host.session() as taker, host.session() as editor:
        taken = host.ledger.using(taker).take("k", "run:2", takeover_reason="urgent")
        guarding = host.blocked(
            lambda: host.ledger.using(editor).guard("k", "run:1", token=grant.token)
        )
        taker.commit()
        with pytest.raises(HoldLost) as loss:
            guarding.result()
        host.write(editor, 1)
        editor.commit()

    assert (loss.value.ended_by, loss.value.ended_at) == ("takeover", taken.taken_at)
    assert (loss.value.ended_by_actor, loss.value.reason) == ("run:2", "urgent")
    assert loss.value.current is not None
    assert loss.value.current.holder == "run:2"
    assert set(host.documents()) == {1}


def test_a_guard_that_waited_for_a_takeover_that_was_rolled_back_holds(postgres_host: Host) -> None:
    host = postgres_host
    host.ledger.take("k", "run:1")
    with host.session() as taker, host.session() as editor:
        host.ledger.using(taker).take("k", "run:2", takeover_reason="urgent")
        guarding = host.blocked(lambda: host.ledger.using(editor).guard("k", "run:1"))
        taker.rollback()
        assert guarding.result().holder == "run:1"


def test_a_guard_does_not_wait_for_an_extension_under_way(postgres_host: Host) -> None:
    host = postgres_host
    host.ledger.take("k", "run:1", ttl=60)
    with host.session() as extender, host.session() as editor, editor.begin():
        host.ledger.using(extender).extend("k", "run:1", 120)
        editor.connection().exec_driver_sql("SET LOCAL lock_timeout = 100")
        assert host.ledger.using(editor).guard("k", "run:1").holder == "run:1"


def test_a_guard_in_a_savepoint_ends_with_its_rollback(postgres_host: Host) -> None:
    host = postgres_host
    impatient = host.impatient()
    host.ledger.take("k", "run:1")
    with host.session() as editor, editor.begin():
        savepoint = editor.begin_nested()
        host.ledger.using(editor).guard("k", "run:1")
        savepoint.rollback()
        assert impatient.take("k", "run:2", takeover_reason="urgent").created


def test_a_guard_in_a_released_savepoint_lasts_as_long_as_the_transaction(
    postgres_host: Host,
) -> None:
    host = postgres_host
    host.ledger.take("k", "run:1")
    with host.session() as editor:
        with editor.begin_nested():
            host.ledger.using(editor).guard("k", "run:1")
        taking = host.blocked(lambda: host.ledger.take("k", "run:2", takeover_reason="urgent"))
        editor.commit()
        assert taking.result().created


def test_a_guard_does_not_stop_the_clock(postgres_host: Host) -> None:
    host = postgres_host

    def story(key: str, ttl: float) -> None:
        grant = host.ledger.take(key, "run:1", ttl=ttl)
        with host.session() as editor:
            with while_live(host.database, grant.expires_at):
                host.ledger.using(editor).guard(key, "run:1")
            time.sleep(ttl + 0.05)
            # Others see no holder, but no event says so before the transaction ends.
            assert host.ledger.holder_of(key) is None
            with pytest.raises(NotHeld):
                host.ledger.using(editor).guard(key, "run:1")
            taking = host.blocked(lambda: host.ledger.take(key, "run:2"))
            assert [entry.action for entry in host.ledger.history(key)] == ["LockTaken"]
            editor.commit()
            after: Grant = taking.result()

        assert grant.expires_at is not None
        assert after.taken_at > grant.expires_at
        assert after.taken_over_from is None

    lasting(story)


def test_a_guard_reads_the_clock_after_its_wait(postgres_host: Host) -> None:
    host = postgres_host

    def story(key: str, ttl: float) -> None:
        grant = host.ledger.take(key, "run:1", ttl=ttl)
        with host.session() as taker, host.session() as editor:
            with while_live(host.database, grant.expires_at):
                host.ledger.using(taker).take(key, "run:2", takeover_reason="urgent")
                guarding = host.blocked(
                    lambda: host.ledger.using(editor).guard(key, "run:1", token=grant.token)
                )
            time.sleep(ttl + 0.1)
            taker.rollback()
            with pytest.raises(HoldLost) as loss:
                guarding.result()

        assert (loss.value.ended_by, loss.value.ended_at) == ("expiry", grant.expires_at)

    lasting(story)
