"""`hold(…)`: a hold that was lost meanwhile, and one that was there already."""

from __future__ import annotations

import asyncio

import pytest

from lockledger import (
    AsyncLockLedger,
    HoldLost,
    LockLedger,
)
from support.blocks import Trouble, actions, was_released_once
from support.company import Company
from support.ledgers import Ledgers, SettableClock, unchanged
from support.stories import at

# A hold that was lost meanwhile.


def take_over(ledger: LockLedger) -> None:
    ledger.take("k", "run:2", takeover_reason="urgent")


def force(ledger: LockLedger) -> None:
    ledger.force_release("k", actor="user:9", reason="holiday")


def test_a_hold_that_was_taken_over_is_a_loss_at_the_end_and_the_other_keeps_it(
    company: Company, ledger: LockLedger
) -> None:
    with pytest.raises(HoldLost) as lost, company.hold(ledger, "k", "run:1"):
        take_over(ledger)
    told = lost.value
    assert (told.ended_by, told.ended_by_actor, told.reason) == ("takeover", "run:2", "urgent")
    assert told.current is not None
    assert told.current.holder == "run:2"
    assert actions(ledger, "k") == ["LockTaken", "LockTakenOver"]


def test_a_hold_that_was_forced_is_a_loss_at_the_end(company: Company, ledger: LockLedger) -> None:
    with pytest.raises(HoldLost) as lost, company.hold(ledger, "k", "run:1"):
        force(ledger)
    told = lost.value
    assert (told.ended_by, told.ended_by_actor, told.reason) == ("forced", "user:9", "holiday")
    assert told.current is None


def test_a_hold_that_ran_out_is_a_loss_at_the_end(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    with pytest.raises(HoldLost) as lost, company.hold(timed, "k", "run:1", ttl=10):
        clock.set(10)
    assert (lost.value.ended_by, lost.value.ended_at, lost.value.current) == (
        "expiry",
        at(10),
        None,
    )
    assert actions(timed, "k") == ["LockTaken"]


def test_a_loss_is_a_note_on_the_exception_of_a_body_that_failed(
    company: Company, ledger: LockLedger
) -> None:
    trouble = Trouble("it broke")
    with pytest.raises(Trouble) as raised, company.hold(ledger, "k", "run:1"):  # noqa: PT012
        take_over(ledger)
        raise trouble
    assert raised.value is trouble
    (note,) = trouble.__notes__
    assert "taken over by 'run:2'" in note
    assert ledger.is_locked("k")


def test_a_loss_is_a_note_on_the_cancellation_of_a_body(ledgers: Ledgers) -> None:
    async def main() -> None:
        async with AsyncLockLedger(ledgers.database.url) as ledger:
            notes: list[str] = []
            taken_over = asyncio.Event()

            async def work() -> None:
                try:
                    async with ledger.hold("k", "run:1"):
                        await ledger.take("k", "run:2", takeover_reason="urgent")
                        taken_over.set()
                        await asyncio.sleep(60)
                except asyncio.CancelledError as cancelled:
                    notes.extend(cancelled.__notes__)
                    raise

            task = asyncio.create_task(work())
            await taken_over.wait()
            task.cancel()
            await asyncio.wait([task])
            assert len(notes) == 1
            assert "taken over by 'run:2'" in notes[0]

    asyncio.run(main())


def test_a_release_in_the_body_is_no_loss(company: Company, ledger: LockLedger) -> None:
    with company.hold(ledger, "k", "run:1") as held:
        assert ledger.release("k", "run:1", token=held.grant.token)
    assert was_released_once(ledger)


def test_a_release_in_the_body_is_no_loss_whoever_took_the_lock_after_it(
    company: Company, ledger: LockLedger
) -> None:
    with company.hold(ledger, "k", "run:1"):
        ledger.release("k", "run:1")
        ledger.take("k", "run:2")
    live = ledger.holder_of("k")
    assert live is not None
    assert live.holder == "run:2"


def test_what_the_holder_took_anew_in_the_body_is_left_in_place(
    company: Company, ledger: LockLedger
) -> None:
    with company.hold(ledger, "k", "run:1") as held:
        ledger.release("k", "run:1")
        again = ledger.take("k", "run:1")
        assert again.token > held.grant.token
    live = ledger.holder_of("k")
    assert live is not None
    assert live.token == again.token


# A hold that was there already.


def test_a_hold_that_was_there_is_used_and_left_in_place(
    company: Company, ledger: LockLedger
) -> None:
    grant = ledger.take("k", "run:1")
    with (
        unchanged(company.ledgers),
        company.hold(ledger, "k", "run:1", if_mine="return") as held,
    ):
        assert (held.grant.token, held.grant.created) == (grant.token, False)
    assert ledger.is_locked("k")


def test_a_hold_that_was_there_is_extended_and_left_in_place(
    company: Company, timed: LockLedger, clock: SettableClock
) -> None:
    timed.take("k", "run:1", ttl=10)
    clock.set(5)
    with company.hold(timed, "k", "run:1", ttl=60, if_mine="extend") as held:
        assert held.grant.expires_at == at(65)
        held.check()
    clock.set(64)
    assert timed.is_locked("k")


@pytest.mark.parametrize("if_mine", ["return", "extend"])
def test_the_loss_of_a_hold_that_was_there_is_reported_and_the_others_left_in_place(
    company: Company, ledger: LockLedger, if_mine: str
) -> None:
    ledger.take("k", "run:1", ttl=60)
    for body in (None, Trouble("it broke")):
        told: BaseException
        try:
            with company.hold(ledger, "k", "run:1", ttl=60, if_mine=if_mine):
                take_over(ledger)
                if body is not None:
                    raise body
        except (HoldLost, Trouble) as error:
            told = error
        else:
            raise AssertionError("the loss was not reported")
        if body is None:
            assert isinstance(told, HoldLost)
            assert (told.ended_by, told.ended_by_actor) == ("takeover", "run:2")
        else:
            assert told is body
            assert "taken over by 'run:2'" in told.__notes__[0]
        assert ledger.release("k", "run:2")
        ledger.take("k", "run:1", ttl=60)


@pytest.mark.parametrize("if_mine", ["return", "extend"])
def test_a_block_that_finds_the_lock_free_begins_a_hold_and_releases_it(
    company: Company, ledger: LockLedger, if_mine: str
) -> None:
    with company.hold(ledger, "k", "run:1", ttl=60, if_mine=if_mine) as held:
        assert held.grant.created
    assert was_released_once(ledger)
