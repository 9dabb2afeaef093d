"""The contract's table of `release`, and of `extend`, which follows the same columns; then `force_release`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockledger import (
    Hold,
    HoldChanged,
    HoldLost,
    InvalidTtl,
    LockLedger,
    NotHeld,
    NotHolding,
    NotLockHolder,
)
from support.ledgers import SettableClock
from support.situations import ANOTHERS, FREE, MINE, SITUATIONS, Told, told
from support.stories import at

Tell = Callable[[str], Told]
# Tokens that no hold of `run:1` ever had in any situation.
NEVER_MINE = (0, 1, 99, 2**63 - 1)


@pytest.fixture
def tell(ledger: LockLedger, clock: SettableClock) -> Tell:
    return lambda situation: told(ledger, clock, situation, situation)


def token_of(lock: Told) -> int:
    assert lock.live is not None
    return lock.live.token


def ended(lock: Told, at_second: float, by: str, actor: str | None, reason: str | None) -> object:
    """The facts of the live hold of the story with its end."""
    assert lock.live is not None
    end = {
        "ended_at": at(at_second),
        "ended_by": by,
        "ended_by_actor": actor,
        "end_reason": reason,
    }
    return lock.live.model_copy(update=end)


# release


@pytest.mark.parametrize("with_token", [True, False], ids=["token", "no token"])
def test_a_holder_releases_its_hold(tell: Tell, with_token: bool) -> None:
    for lock in map(tell, MINE):
        token = token_of(lock) if with_token else None

        assert lock.ledger.release(lock.key, "run:1", token=token, reason=" done ") is True

        (entry,) = lock.recorded()
        assert (entry.action, entry.holder, entry.actor) == ("LockReleased", "run:1", "run:1")
        assert (entry.reason, entry.before, entry.after) == ("done", lock.live, None)
        assert (entry.occurred_at, entry.recorded_at) == (at(100), at(100))
        assert lock.live_now() is None


def test_another_holders_hold_is_not_released_but_named(tell: Tell) -> None:
    for lock in map(tell, ANOTHERS):
        with pytest.raises(NotLockHolder) as refusal:
            lock.ledger.release(lock.key, "run:1")

        assert (refusal.value.current, refusal.value.holder) == (lock.live, "run:1")
        assert lock.has_not_changed()


def test_releasing_what_nobody_holds_changes_nothing_and_records_no_expiry(tell: Tell) -> None:
    for lock in map(tell, FREE):
        assert lock.ledger.release(lock.key, "run:1") is False
        assert lock.has_not_changed()


@pytest.mark.parametrize("token", NEVER_MINE)
def test_a_release_by_a_token_that_was_never_the_holders_loses_nothing(
    tell: Tell, token: int
) -> None:
    for lock in map(tell, SITUATIONS):
        with pytest.raises(HoldLost) as loss:
            lock.ledger.release(lock.key, "run:1", token=token)

        assert (loss.value.holder, loss.value.token) == ("run:1", token)
        assert end_told_by(loss.value) == (None, None, None, None)
        assert loss.value.current == lock.live
        assert lock.has_not_changed()


def test_the_token_of_anothers_live_hold_is_no_key_to_it(tell: Tell) -> None:
    for lock in map(tell, ANOTHERS):
        with pytest.raises(HoldLost) as loss:
            lock.ledger.release(lock.key, "run:1", token=token_of(lock))

        assert end_told_by(loss.value) == (None, None, None, None)
        assert lock.has_not_changed()


def test_a_try_release_says_false_instead_of_any_not_holding(tell: Tell) -> None:
    for lock in map(tell, [*FREE, *ANOTHERS]):
        assert lock.ledger.try_release(lock.key, "run:1") is False
        assert lock.ledger.try_release(lock.key, "run:1", token=1) is False
        assert lock.has_not_changed()
    for lock in map(tell, MINE):
        assert lock.ledger.try_release(lock.key, "run:1", token=token_of(lock), reason="done")
        assert lock.recorded()[0].reason == "done"


# How a hold was lost


def end_told_by(loss: HoldLost) -> tuple[object, ...]:
    return loss.ended_by, loss.ended_at, loss.ended_by_actor, loss.reason


def _forced(ledger: LockLedger) -> None:
    ledger.force_release("k", actor="user:9", reason="holiday")


def _taken_over(ledger: LockLedger) -> None:
    ledger.take("k", "run:2", takeover_reason="urgent", actor="user:2")


def _replaced(ledger: LockLedger) -> None:
    ledger.take("k", "run:1", if_mine="replace", takeover_reason="restarted")


def _replaced_in_silence(ledger: LockLedger) -> None:
    ledger.take("k", "run:1", if_mine="replace")


LOSSES: dict[str, tuple[float, Callable[[LockLedger], object], tuple[object, ...]]] = {
    "forced": (10, _forced, ("forced", at(10), "user:9", "holiday")),
    "taken over": (10, _taken_over, ("takeover", at(10), "user:2", "urgent")),
    "replaced": (10, _replaced, ("takeover", at(10), "run:1", "restarted")),
    "replaced in silence": (10, _replaced_in_silence, ("takeover", at(10), "run:1", None)),
    "run out": (70, lambda ledger: None, ("expiry", at(60), None, None)),
    "run out and taken": (70, lambda ledger: ledger.take("k", "b"), ("expiry", at(60), None, None)),
}


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after other holds"])
@pytest.mark.parametrize("how", LOSSES)
def test_a_lost_hold_is_told_with_how_when_by_whom_and_why(
    ledger: LockLedger, clock: SettableClock, how: str, later: bool
) -> None:
    grant = ledger.take("k", "run:1", ttl=60)
    second, lose, end = LOSSES[how]
    clock.set(second)
    lose(ledger)
    if later:
        clock.set(200)
        ledger.take("k", "run:5", takeover_reason="more", ttl=5)
        ledger.release("k", "run:5")
    entries = ledger.history("k")

    for act in (
        lambda: ledger.release("k", "run:1", token=grant.token),
        lambda: ledger.extend("k", "run:1", 60, token=grant.token),
    ):
        with pytest.raises(HoldLost) as loss:
            act()

        assert end_told_by(loss.value) == end
        assert (loss.value.key, loss.value.holder, loss.value.token) == ("k", "run:1", grant.token)
        assert loss.value.current == ledger.holder_of("k")
    assert ledger.history("k") == entries


def test_a_release_repeated_after_a_lost_answer_is_false_whatever_came_after_it(
    ledger: LockLedger, clock: SettableClock
) -> None:
    grant = ledger.take("k", "run:1", ttl=60)
    assert ledger.release("k", "run:1", token=grant.token)

    assert ledger.release("k", "run:1", token=grant.token) is False
    newer = ledger.take("k", "run:1")
    assert ledger.release("k", "run:1", token=grant.token) is False
    ledger.take("k", "run:2", takeover_reason="urgent")
    assert ledger.release("k", "run:1", token=grant.token) is False
    with pytest.raises(HoldLost):
        ledger.release("k", "run:1", token=newer.token)
    assert [entry.action for entry in ledger.history("k")] == [
        "LockTaken",
        "LockReleased",
        "LockTaken",
        "LockTakenOver",
    ]


def test_the_exception_for_repeated_releases_is_not_for_extensions_nor_for_others(
    ledger: LockLedger,
) -> None:
    grant = ledger.take("k", "run:1")
    ledger.release("k", "run:1", token=grant.token, actor="user:1", reason="done")

    with pytest.raises(HoldLost) as loss:
        ledger.extend("k", "run:1", 60, token=grant.token)
    assert end_told_by(loss.value) == ("release", at(0), "user:1", "done")
    with pytest.raises(HoldLost) as loss:
        ledger.release("k", "run:2", token=grant.token)
    assert end_told_by(loss.value) == (None, None, None, None)


# extend


@pytest.mark.parametrize("with_token", [True, False], ids=["token", "no token"])
def test_a_holder_extends_its_hold_from_now(tell: Tell, with_token: bool) -> None:
    for lock in map(tell, MINE):
        assert lock.live is not None
        token = lock.live.token if with_token else None

        grant = lock.ledger.extend(lock.key, "run:1", 300, token=token)

        moves = lock.live.expires_at is not None
        moved = lock.live.model_copy(update={"expires_at": at(400) if moves else None})
        assert grant == moved.grant(created=False)
        assert lock.live_now() == moved
        assert [(entry.action, entry.before, entry.after) for entry in lock.recorded()] == (
            [("LockExtended", lock.live, moved)] * moves
        )


@pytest.mark.parametrize("ttl", [1, 100, at(101), at(200)], ids=str)
def test_an_extension_never_shortens_and_one_that_moves_nothing_records_nothing(
    ledger: LockLedger, clock: SettableClock, ttl: float
) -> None:
    grant = ledger.take("k", "run:1", ttl=200)
    clock.set(100)

    assert ledger.extend("k", "run:1", ttl) == grant.model_copy(update={"created": False})
    assert len(ledger.history("k", extensions=True)) == 1


def test_an_extension_that_says_not_until_when_is_refused(tell: Tell) -> None:
    for lock in map(tell, SITUATIONS):
        with pytest.raises(InvalidTtl):
            lock.ledger.extend(lock.key, "run:1", None)
        if lock.live and lock.live.holder == "run:1":
            with pytest.raises(InvalidTtl):
                lock.ledger.take(lock.key, "run:1", if_mine="extend")
        assert lock.has_not_changed()


@pytest.mark.parametrize("token", [None, *NEVER_MINE])
def test_nothing_but_an_own_live_hold_is_extended(tell: Tell, token: int | None) -> None:
    for lock in map(tell, [*FREE, *ANOTHERS]):
        with pytest.raises(NotHolding) as refusal:
            lock.ledger.extend(lock.key, "run:1", 300, token=token)

        kind: type[NotHolding] = NotLockHolder if lock.live else NotHeld
        assert type(refusal.value) is (kind if token is None else HoldLost)
        assert refusal.value.current == lock.live
        assert lock.has_not_changed()


# force_release


@pytest.mark.parametrize("expected", [True, False], ids=["the token seen", "no token"])
def test_a_forced_release_ends_whoevers_hold_and_gives_it(tell: Tell, expected: bool) -> None:
    for lock in map(tell, [*MINE, *ANOTHERS]):
        hold = lock.ledger.force_release(
            lock.key,
            actor="user:9",
            reason=" moved away ",
            expected_token=token_of(lock) if expected else None,
        )

        assert hold == ended(lock, 100, "forced", "user:9", "moved away")
        (entry,) = lock.recorded()
        assert (entry.action, entry.actor, entry.reason) == ("LockReleased", "user:9", "moved away")
        assert (entry.before, entry.after, lock.live_now()) == (lock.live, None, None)


@pytest.mark.parametrize("expected", [None, 0])
def test_forcing_what_nobody_holds_gives_nothing_and_records_nothing(
    tell: Tell, expected: int | None
) -> None:
    for lock in map(tell, FREE):
        forced: Hold | None = lock.ledger.force_release(
            lock.key, actor="user:9", reason="why", expected_token=expected
        )
        assert forced is None
        assert lock.has_not_changed()


def test_a_forced_release_hits_only_the_hold_its_author_saw(tell: Tell) -> None:
    for lock in map(tell, SITUATIONS):
        others = {0, 1, lock.version, 99} - {lock.live.token if lock.live else 0}
        for token in others:
            with pytest.raises(HoldChanged) as refusal:
                lock.ledger.force_release(
                    lock.key, actor="user:9", reason="why", expected_token=token
                )
            assert (refusal.value.current, refusal.value.expected_token) == (lock.live, token)
        assert lock.has_not_changed()
