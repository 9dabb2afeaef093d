"""Scopes: a hold covers every key under its own, siblings never wait for each other, and refusals name who is in the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from lockledger import Grant, HoldLost, LockedByOther, LockLedger, NotHeld, WaitTimeout
from support.company import Company
from support.hosts import Host
from support.ledgers import SettableClock, unchanged
from support.waits import takes


@pytest.fixture
def scoped(company: Company, clock: SettableClock) -> LockLedger:
    """A ledger with scopes, on the settable clock."""
    return company.open(scopes=True, clock=clock)


def in_the_way_of(take: Callable[[], object]) -> str:
    """The key whose hold is in the way."""
    with pytest.raises(LockedByOther) as refused:
        take()
    assert refused.value.current is not None
    return refused.value.current.key


# What a hold covers.


def test_who_holds_a_key_keeps_others_from_every_key_under_it(scoped: LockLedger) -> None:
    scoped.take("round:5", "run:1")
    for key in ("round:5", "round:5:band", "round:5:band:2", "round:5::", "round:5:ü"):
        assert in_the_way_of(lambda key=key: scoped.take(key, "run:2")) == "round:5"  # type: ignore[misc]


def test_who_holds_a_key_keeps_others_from_every_key_above_it(scoped: LockLedger) -> None:
    scoped.take("round:5:band:2", "run:1")
    for key in ("round", "round:5", "round:5:band", "round:5:band:2"):
        assert in_the_way_of(lambda key=key: scoped.take(key, "run:2")) == "round:5:band:2"  # type: ignore[misc]


def test_keys_beside_it_are_free(scoped: LockLedger) -> None:
    scoped.take("round:5", "run:1")
    for key in ("round:6", "round:50", "round:5x", "roun", "rounds:5", "round-5", "round:4:5"):
        assert scoped.take(key, "run:2").created


def test_a_key_is_only_above_where_a_part_ends(scoped: LockLedger) -> None:
    scoped.take("a", "run:1")
    scoped.take("a;b", "run:2")  # the character after the separator
    scoped.take("a9", "run:2")  # the character before it
    assert in_the_way_of(lambda: scoped.take("a:", "run:2")) == "a"
    assert in_the_way_of(lambda: scoped.take("a::b", "run:2")) == "a"


def test_a_separator_in_front_makes_no_key_above(scoped: LockLedger) -> None:
    scoped.take(":a", "run:1")
    assert scoped.take(":b", "run:2").created


def test_the_same_holder_may_hold_above_and_under(scoped: LockLedger) -> None:
    assert [
        scoped.take(key, "run:1").created
        for key in ("round:5:band:2", "round", "round:5", "round:5:x")
    ] == [True] * 4
    assert in_the_way_of(lambda: scoped.take("round:5:y", "run:2")) == "round"


def test_the_first_by_key_is_named(scoped: LockLedger) -> None:
    scoped.take_all(["round:5:b", "round:5:a", "round:5:c"], "run:1")
    assert in_the_way_of(lambda: scoped.take("round:5", "run:2")) == "round:5:a"


def test_a_refusal_is_of_the_key_and_says_whose_hold_is_in_the_way(
    company: Company, scoped: LockLedger
) -> None:
    scoped.take("round:5", "run:1", ttl=600)
    with unchanged(company.ledgers), pytest.raises(LockedByOther) as refused:
        scoped.take("round:5:band:2", "run:2")
    told = refused.value
    assert (told.key, told.code, told.same_holder) == ("round:5:band:2", "LOCKED_BY_OTHER", False)
    assert told.current == scoped.holder_of("round:5")
    assert "'round:5:band:2' cannot be taken, because 'round:5' is held by 'run:1'" in str(told)
    assert scoped.try_take("round:5:band:2", "run:2") is None


def test_a_wait_says_whose_hold_is_in_the_way_and_ends_when_it_ends(
    company: Company,
) -> None:
    ledger = company.open(scopes=True)
    ledger.take("round:5", "run:1")
    with pytest.raises(WaitTimeout, match="'round:5' is held by 'run:1'"):
        ledger.take("round:5:band:2", "run:2", wait=0.2)
    ledger.take("round:5", "run:1", ttl=0.5, if_mine="replace")
    assert ledger.take("round:5:band:2", "run:2", wait=20).created


def test_a_hold_that_ran_out_or_was_released_is_in_nobodys_way(
    scoped: LockLedger, clock: SettableClock
) -> None:
    scoped.take("round:5", "run:1", ttl=10)
    scoped.take("round:6", "run:1")
    clock.set(9.999999)
    assert in_the_way_of(lambda: scoped.take("round:5:a", "run:2")) == "round:5"
    clock.set(10)
    assert scoped.take("round:5:a", "run:2").token == 1
    scoped.release("round:6", "run:1")
    assert scoped.take("round:6:a", "run:2").created


def test_a_takeover_overrides_only_the_hold_of_the_key_it_names(
    company: Company, scoped: LockLedger
) -> None:
    scoped.take("round:5", "run:1")
    scoped.take("round:5:band:2", "run:1")
    with unchanged(company.ledgers):
        for key, other in (("round:5", "round:5:band:2"), ("round:5:band:2", "round:5")):
            taking = lambda key=key: scoped.take(key, "run:2", takeover_reason="urgent")  # noqa: E731
            assert in_the_way_of(taking) == other
        for key in ("round", "round:5:x"):
            taking = lambda key=key: scoped.take(key, "run:2", takeover_reason="urgent")  # noqa: E731
            assert in_the_way_of(taking) == "round:5"
    scoped.release("round:5:band:2", "run:1")
    assert scoped.take("round:5", "run:2", takeover_reason="urgent").taken_over_from == "run:1"
    with pytest.raises(LockedByOther):
        scoped.take("round:5:band:2", "run:1")


def test_who_holds_the_key_itself_is_told_so_first(scoped: LockLedger) -> None:
    scoped.take("round:5", "run:1", ttl=60)
    scoped.take("round:5:a", "run:1")
    assert not scoped.take("round:5", "run:1").created
    assert not scoped.take("round:5", "run:1", if_mine="extend", ttl=600).created
    assert scoped.take("round:5", "run:1", if_mine="replace").created
    with pytest.raises(LockedByOther) as refused:
        scoped.take("round:5", "run:1", if_mine="refuse")
    assert refused.value.same_holder


def test_the_other_verbs_look_at_the_exact_key(company: Company, scoped: LockLedger) -> None:
    grant = scoped.take("round:5", "run:1", ttl=60)
    assert not scoped.is_locked("round:5:a")
    assert scoped.holder_of("round") is None
    assert not scoped.release("round:5:a", "run:1")
    with pytest.raises(NotHeld):
        scoped.extend("round:5:a", "run:1", 60)
    assert scoped.force_release("round", actor="user:9", reason="why") is None
    assert scoped.extend("round:5", "run:1", 120, token=grant.token).token == grant.token
    assert [hold.key for hold in scoped.current_holders(under="round")] == ["round:5"]
    assert scoped.release_all(under="round", actor="user:9", reason="why") == 1


def test_a_guard_looks_at_the_exact_key(host: Host) -> None:
    ledger = host.ledgers.open(scopes=True)
    ledger.take("round:5", "run:1")
    with host.engine.connect() as connection:
        bound = ledger.using(connection)
        assert bound.guard("round:5", "run:1").token == 1
        with pytest.raises(NotHeld):
            bound.guard("round:5:a", "run:1")
        connection.rollback()


def test_take_all_checks_each_key_and_names_what_is_in_the_way_of_each(
    company: Company, scoped: LockLedger
) -> None:
    scoped.take("round:5:band:2", "run:2")
    scoped.take("round:7", "run:3")
    with unchanged(company.ledgers), pytest.raises(LockedByOther) as refused:
        scoped.take_all(["round:7:x", "round:6", "round:5"], "run:1")
    assert [(each.key, each.current and each.current.key) for each in refused.value.refusals] == [
        ("round:5", "round:5:band:2"),
        ("round:7:x", "round:7"),
    ]
    grants = scoped.take_all(["round:6:a", "round:6", "round:5:x"], "run:1")
    assert all(grant.created for grant in grants)


def test_a_block_holds_everything_under_its_key(company: Company) -> None:
    ledger = company.open(scopes=True)
    with company.hold(ledger, "round:5", ttl=60, heartbeat=0.1) as held:
        assert ledger.try_take("round:5:a", "run:2") is None
        time.sleep(0.3)
        held.check()
    assert ledger.take("round:5:a", "run:2").created


def test_without_scopes_a_key_is_a_key(ledger: LockLedger) -> None:
    ledger.take("round:5", "run:1")
    assert ledger.take("round:5:a", "run:2").created
    assert ledger.take("round", "run:3").created


def test_ledgers_of_other_names_do_not_see_each_others_scopes(company: Company) -> None:
    one, other = company.open(scopes=True), company.open(scopes=True, name="other")
    one.take("round:5", "run:1")
    assert other.take("round:5:a", "run:2").created


# In transactions.


def test_what_is_taken_in_a_transaction_covers_at_once_for_itself_and_for_all_when_committed(
    host: Host,
) -> None:
    ledger = host.ledgers.open(scopes=True)
    with host.session() as session:
        bound = ledger.using(session)
        bound.take("round:5", "run:1")
        assert in_the_way_of(lambda: bound.take("round:5:a", "run:2")) == "round:5"
        bound.take("round:5:b", "run:1")
        session.commit()
    assert in_the_way_of(lambda: ledger.take("round:5:a", "run:2")) == "round:5"


def test_who_is_under_an_uncommitted_hold_waits_for_it(postgres_host: Host) -> None:
    ledger = postgres_host.ledgers.open(scopes=True)
    for end, answer in (("commit", None), ("rollback", "run:2")):
        with postgres_host.engine.connect() as connection:
            ledger.using(connection).take(f"{end}:5", "run:1")
            waiting = postgres_host.blocked(
                lambda end=end: ledger.try_take(f"{end}:5:band:2", "run:2")  # type: ignore[misc]
            )
            getattr(connection, end)()
        grant = waiting.result(20)
        assert (grant and grant.holder) == answer


def test_siblings_do_not_wait_for_each_other(postgres_host: Host) -> None:
    ledger = postgres_host.ledgers.open(scopes=True)
    other = postgres_host.impatient(200, scopes=True)
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("round:5:band:2", "run:1")
        assert other.take("round:5:band:3", "run:2").created
        assert other.take("round:5:band:2x", "run:2").created
        assert other.take("round:6", "run:2").created
        assert [g.created for g in other.take_all(["round:5:a", "round:5:b:c"], "run:2")] == [
            True
        ] * 2
        connection.rollback()


def test_a_refused_take_keeps_nobody_waiting(postgres_host: Host) -> None:
    ledger = postgres_host.ledgers.open(scopes=True)
    other = postgres_host.impatient(200, scopes=True)
    ledger.take("round:5:a", "run:2")
    with postgres_host.engine.connect() as connection:
        bound = ledger.using(connection)
        for take in (
            lambda: bound.take("round:5", "run:1"),
            lambda: bound.take_all(["round:5", "round:6"], "run:1"),
        ):
            with pytest.raises(LockedByOther):
                take()
        assert other.take("round:5:b", "run:3").created
        assert other.take("round:6:b", "run:3").created
        connection.rollback()


def test_one_refused_only_after_its_wait_keeps_nobody_waiting(postgres_host: Host) -> None:
    ledger = postgres_host.ledgers.open(scopes=True)
    other = postgres_host.impatient(200, scopes=True)
    with postgres_host.engine.connect() as first, postgres_host.engine.connect() as second:
        ledger.using(first).take("round:5:a", "run:2")
        waiting = postgres_host.blocked(lambda: ledger.using(second).try_take("round:5", "run:1"))
        first.commit()
        assert waiting.result(20) is None
        assert other.take("round:5:b", "run:3").created
        second.rollback()


def test_a_release_and_an_extension_wait_for_no_scope(postgres_host: Host) -> None:
    ledger = postgres_host.ledgers.open(scopes=True)
    other = postgres_host.impatient(200, scopes=True)
    ledger.take_all(["round:5:a", "round:5:b"], "run:1", ttl=600)
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("round:5", "run:1")
        assert other.extend("round:5:a", "run:1", 1200).expires_at
        assert other.release("round:5:b", "run:1")
        connection.rollback()


def test_a_wait_does_not_block_behind_an_uncommitted_scope(postgres_host: Host) -> None:
    ledger = postgres_host.ledgers.open(scopes=True)
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("round:5", "run:1")
        with takes(0.4, 0.4), pytest.raises(WaitTimeout) as timeout:
            ledger.take("round:5:band:2", "run:2", wait=0.4)
        assert timeout.value.current is None
        connection.rollback()
    assert ledger.take("round:5:band:2", "run:2", wait=60).created


def test_keys_taken_in_order_in_one_transaction_do_not_deadlock_with_single_takes(
    postgres_host: Host,
) -> None:
    """Parents first, as rule 13 has it; whatever the hashes of the keys are."""
    ledger = postgres_host.ledgers.open(scopes=True)
    for number in range(12):
        parent, child = f"r:{number}", f"r:{number}:a"
        with postgres_host.engine.connect() as connection:
            bound = ledger.using(connection)
            bound.take(parent, "run:1")
            waiting = postgres_host.blocked(
                lambda child=child: ledger.try_take(f"{child}:x", "run:2")  # type: ignore[misc]
            )
            bound.take(child, "run:1")
            connection.commit()
        assert waiting.result(20) is None


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_old_snapshot_that_could_miss_a_hold_is_refused(
    postgres_host: Host, isolation: str
) -> None:
    ledger = postgres_host.ledgers.open(scopes=True)
    ledger.take("other", "run:1")
    connection = postgres_host.engine.connect().execution_options(isolation_level=isolation)
    with connection, unchanged(postgres_host.ledgers):
        bound = ledger.using(connection)
        for take in (
            lambda: bound.take("round:5", "run:1"),
            lambda: bound.take_all(["round:5", "round:6"], "run:1"),
        ):
            with pytest.raises(ValueError, match="READ COMMITTED"):
                take()
        assert not bound.take("other", "run:1").created
        connection.rollback()


def test_on_the_servers_own_default_isolation_a_standalone_take_works(postgres_host: Host) -> None:
    engine = postgres_host.database.engine(
        connect_args={"options": "-c default_transaction_isolation=serializable"}
    )
    ledger = postgres_host.ledgers.open(url_or_engine=engine, scopes=True)
    assert ledger.take("round:5", "run:1").created
    assert ledger.try_take("round:5:a", "run:2") is None


def test_a_ttl_counts_from_the_grant_behind_an_uncommitted_scope(postgres_host: Host) -> None:
    ledger = postgres_host.ledgers.open(scopes=True)
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("round:5", "run:1")
        waiting = postgres_host.blocked(lambda: ledger.take("round:5:a", "run:2", ttl=0.6))
        time.sleep(0.8)
        connection.rollback()
    grant = waiting.result(20)
    assert grant.expires_at == grant.taken_at + timedelta(seconds=0.6)
    with pytest.raises(HoldLost):
        ledger.release("round:5:a", "run:2", token=7)


# Extensions that are under way when the hold they extend runs out.

AROUND = {"above": ("round:5", "round:5:a"), "under": ("round:5:a", "round:5")}


def all_of(ledger: LockLedger, key: str) -> Grant | None:
    try:
        return ledger.take_all(["elsewhere", key], "run:2")[1]
    except LockedByOther:
        return None


TAKES: dict[str, Callable[[LockLedger, str], Grant | None]] = {
    "take": lambda ledger, key: ledger.try_take(key, "run:2"),
    "take over": lambda ledger, key: ledger.try_take(key, "run:2", takeover_reason="urgent"),
    "take all": all_of,
}


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("where", AROUND)
@pytest.mark.parametrize("how", TAKES)
def test_an_extension_that_came_in_time_counts_when_it_commits_late(
    postgres_host: Host, clock: SettableClock, how: str, where: str, end: str
) -> None:
    """Without a look at who has the rows in hand, both would be held at once."""
    held, wanted = AROUND[where]
    ledger = postgres_host.ledgers.open(scopes=True, clock=clock)
    grant = ledger.take(held, "run:1", ttl=10)
    with postgres_host.engine.connect() as connection:
        clock.set(9)
        ledger.using(connection).extend(held, "run:1", 600, token=grant.token)
        clock.set(10)
        assert not ledger.is_locked(held), "for all others it has run out"
        taking = postgres_host.blocked(lambda: TAKES[how](ledger, wanted))
        getattr(connection, end)()
    answer = taking.result(20)
    assert ledger.is_locked(held) == (end == "commit")
    assert (answer is None) == (end == "commit")


def test_a_wait_does_not_block_behind_such_an_extension(
    postgres_host: Host, clock: SettableClock
) -> None:
    ledger = postgres_host.ledgers.open(scopes=True, clock=clock)
    grant = ledger.take("round:5", "run:1", ttl=10)
    with postgres_host.engine.connect() as connection:
        clock.set(9)
        ledger.using(connection).extend("round:5", "run:1", 600, token=grant.token)
        clock.set(10)
        assert not ledger.is_locked("round:5"), "for all others it has run out"
        with takes(0.4, 0.4), pytest.raises(WaitTimeout):
            ledger.take("round:5:a", "run:2", wait=0.4)
        connection.commit()
    with pytest.raises(WaitTimeout, match="'round:5' is held by 'run:1'"):
        ledger.take("round:5:a", "run:2", wait=0.2)


def test_holds_that_have_run_out_and_that_nobody_has_in_hand_are_not_waited_for(
    postgres_host: Host, clock: SettableClock
) -> None:
    ledger = postgres_host.ledgers.open(scopes=True, clock=clock)
    other = postgres_host.impatient(200, scopes=True, clock=clock)
    ledger.take_all(["round:5:a", "round:5:b"], "run:1", ttl=10)
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).guard("round:5:a", "run:1")  # leaves its mark on the row
        connection.rollback()
    clock.set(10)
    assert not ledger.is_locked("round:5:b"), "both have run out"
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("elsewhere", "run:1")
        assert other.take("round:5", "run:2").created
        connection.rollback()


def test_an_extension_does_not_wait_for_takes_around_it(postgres_host: Host) -> None:
    """Also by `take`: only who begins a hold needs the scopes."""
    ledger = postgres_host.ledgers.open(scopes=True)
    other = postgres_host.impatient(200, scopes=True)
    grant = ledger.take("round:5", "run:1", ttl=600)
    with postgres_host.engine.connect() as connection:
        ledger.using(connection).take("round:5:a", "run:1")
        assert other.extend("round:5", "run:1", 1200, token=grant.token).token == grant.token
        again = other.take("round:5", "run:1", ttl=2400, if_mine="extend")
        assert (again.token, again.created) == (grant.token, False)
        waited = other.take("round:5", "run:1", ttl=4800, if_mine="extend", wait=60)
        assert waited.expires_at != again.expires_at
        connection.rollback()


def test_an_extending_take_whose_hold_ran_out_begins_a_hold_that_covers(
    postgres_host: Host, clock: SettableClock
) -> None:
    """It waits for its row as an extension, and finds that it has to begin a hold after all."""
    ledger = postgres_host.ledgers.open(scopes=True, clock=clock)
    ledger.take("round:5", "run:1", ttl=10)
    with postgres_host.engine.connect() as connection:
        clock.set(1)
        ledger.using(connection).extend("round:5", "run:1", 10)
        taking = postgres_host.blocked(
            lambda: ledger.try_take("round:5", "run:1", ttl=600, if_mine="extend")
        )
        clock.set(11)
        ledger.using(connection).take("round:5:a", "run:2")
        connection.commit()
    assert taking.result(20) is None
    assert [hold.key for hold in ledger.current_holders()] == ["round:5:a"]


def test_a_hold_begins_when_what_stood_in_its_way_has_ended(postgres_host: Host) -> None:
    """By the times of the holds: none of the children begins before its parent's hold has ended."""
    ledger = postgres_host.ledgers.open(scopes=True)
    for number in range(30):
        parent, child = f"r:{number}", f"r:{number}:a"
        ledger.take(parent, "run:1")
        taking = postgres_host.meanwhile(
            lambda child=child: ledger.take(child, "run:2", wait=20)  # type: ignore[misc]
        )
        time.sleep(0.01)
        ledger.release(parent, "run:1")
        began = taking.result(20).taken_at
        (ended,) = ledger.holds(key=parent)
        assert ended.ended_at is not None
        assert ended.ended_at <= began
