"""Whatever is called in whatever order, and however time runs, a `Lock` answers as the model of the contract."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from math import inf, nan
from typing import Any, get_args

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lockledger.domain.events import LockEvent, LockTaken, LockTakenOver
from lockledger.domain.lock import IfMine, Lock, evolve
from lockledger.domain.succession import misfit
from lockledger.domain.ttl import Ttl
from support.model import Answer, Facts, Model
from support.stories import KEY, T0, Story, answer_of, facts

MICROSECOND = timedelta(microseconds=1)
CENTURY = timedelta(days=36525)

# Holders by name, or whoever holds the lock.
names = st.sampled_from(["run:1", "run:2", "run:3"])
holders = st.sampled_from(["run:1", "run:2", "run:3", "the live one", "the live one"])
actors = st.sampled_from([None, "user:1", "user:9"])
reasons = st.sampled_from([None, "", " \n", "urgent", "  the\tdeadline\n"])
metadata = st.sampled_from([{}, {"request": "r1"}, {"nested": [1, {"a": None}]}])
KINDS = [*["none"] * 3, *["duration"] * 5, *["instant"] * 3, "unsound"]
durations = st.sampled_from(
    [1, 60, 3600, 0.5, 1e-6, 90.25, timedelta(hours=2), MICROSECOND, CENTURY]
)
unsound = st.sampled_from([0, 0.0, -1, nan, inf, -inf, 1e-7, timedelta(0), -MICROSECOND, 10**400])
# An instant so far from the clock: ahead, exactly now, or passed.
ahead = st.sampled_from([timedelta(hours=3), timedelta(seconds=5), MICROSECOND, timedelta(0), -MICROSECOND, timedelta(hours=-3)])  # fmt: skip
# Tokens by what they are: none, the live hold's, an older or a younger one, and that of no hold.
guesses = st.sampled_from(["none", "live", "newest", "next", "next", "zero", "zero", 1, 2, 3, 5, 8])
tokens = st.sampled_from([*["none"] * 8, *["live"] * 8, "newest", "next", "zero", 1, 2, 3, 5, 8])


class LockMachine(RuleBasedStateMachine):
    """One lock and its model, told the same calls. Between them time stands still unless a rule moves it."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()
        self.model = Model()
        self.clock = T0

    # Time.

    @rule(seconds=st.sampled_from([0.000001, 0.3, 1, 5, 61, 600]))
    def time_passes(self, seconds: float) -> None:
        self.clock += timedelta(seconds=seconds)

    @rule(hours=st.sampled_from([1, -1]))
    def the_clock_jumps(self, hours: int) -> None:
        self.clock += timedelta(hours=hours)

    @precondition(lambda self: self.story.lock.hold and self.story.lock.hold.expires_at)
    @rule(by=st.sampled_from([-MICROSECOND, timedelta(0), MICROSECOND]))
    def the_clock_hits_the_expiry(self, by: timedelta) -> None:
        hold = self.story.lock.hold
        assert hold is not None
        assert hold.expires_at is not None
        if hold.expires_at < T0 + timedelta(days=365):
            self.clock = hold.expires_at + by

    @precondition(lambda self: self.story.lock.changed_at is not None)
    @rule(by=st.sampled_from([-MICROSECOND, timedelta(0), MICROSECOND]))
    def the_clock_hits_the_newest_event(self, by: timedelta) -> None:
        changed_at = self.story.lock.changed_at
        assert changed_at is not None
        self.clock = changed_at + by

    # Calls.

    def ttl(self, data: st.DataObject) -> Any:
        kind = data.draw(st.sampled_from(KINDS))
        if kind == "duration":
            return data.draw(durations)
        if kind == "instant":
            return self.clock + data.draw(ahead)
        return data.draw(unsound) if kind == "unsound" else None

    def holder(self, who: str) -> str:
        live = self.story.live_hold(self.clock)
        return (live.holder if live else "run:1") if who == "the live one" else who

    def token(self, which: str | int) -> int | None:
        if isinstance(which, int):
            return which
        live = self.story.live_hold(self.clock)
        newest = self.story.lock.hold
        known = {
            "live": live.token if live else None,
            "newest": newest.token if newest else None,
            "next": self.story.lock.version + 1,
            "zero": 0,
        }
        return known.get(which)

    @rule(
        data=st.data(),
        who=holders,
        actor=actors,
        reason=reasons,
        if_mine=st.sampled_from(get_args(IfMine)),
        which=st.one_of(st.just("none"), tokens),
        brought=metadata,
    )
    def take(
        self,
        data: st.DataObject,
        who: str,
        actor: str | None,
        reason: str | None,
        if_mine: IfMine,
        which: str | int,
        brought: Facts,
    ) -> None:
        holder = self.holder(who)
        wish: Facts = {
            "ttl": self.ttl(data),
            "takeover_reason": reason,
            "if_mine": if_mine,
            "expected_token": self.token(which),
            "actor": actor,
            "metadata": brought,
        }
        self.compare(
            "take",
            lambda: self.story.take(holder, now=self.clock, **wish),
            self.model.take(KEY, holder, now=self.clock, **wish),
        )

    @rule(holder=names, ttl=durations, reason=reasons, brought=metadata)
    def take_plainly(self, holder: str, ttl: Ttl, reason: str | None, brought: Facts) -> None:
        """Fills the lock, so that the other rules find it held more often than not."""
        wish: Facts = {"ttl": ttl, "takeover_reason": reason, "metadata": brought}
        self.compare(
            "take",
            lambda: self.story.take(holder, now=self.clock, **wish),
            self.model.take(KEY, holder, now=self.clock, **wish),
        )

    @precondition(lambda self: self.story.live_hold(self.clock))
    @rule(ttl=durations, which=st.sampled_from(["none", "live"]))
    def extend_in_time(self, ttl: Ttl, which: str) -> None:
        holder, token = self.holder("the live one"), self.token(which)
        self.compare(
            "extend",
            lambda: self.story.extend(holder, ttl, now=self.clock, token=token),
            self.model.extend(KEY, holder, ttl, now=self.clock, token=token),
        )

    @rule(who=holders, which=tokens, reason=reasons, actor=actors, brought=metadata)
    def release(
        self, who: str, which: str | int, reason: str, actor: str | None, brought: Facts
    ) -> None:
        holder = self.holder(who)
        wish: Facts = {
            "token": self.token(which),
            "reason": reason,
            "actor": actor,
            "metadata": brought,
        }
        self.compare(
            "release",
            lambda: self.story.release(holder, now=self.clock, **wish),
            self.model.release(KEY, holder, now=self.clock, **wish),
        )

    @rule(data=st.data(), who=holders, which=tokens, actor=actors, brought=metadata)
    def extend(
        self,
        data: st.DataObject,
        who: str,
        which: str | int,
        actor: str | None,
        brought: Facts,
    ) -> None:
        holder, ttl = self.holder(who), self.ttl(data)
        wish: Facts = {"token": self.token(which), "actor": actor, "metadata": brought}
        self.compare(
            "extend",
            lambda: self.story.extend(holder, ttl, now=self.clock, **wish),
            self.model.extend(KEY, holder, ttl, now=self.clock, **wish),
        )

    @rule(which=guesses, actor=st.sampled_from(["user:9", "run:1"]), brought=metadata)
    def force_release(self, which: str | int, actor: str, brought: Facts) -> None:
        wish: Facts = {
            "actor": actor,
            "reason": "holiday",
            "expected_token": self.token(which),
            "metadata": brought,
        }
        self.compare(
            "force_release",
            lambda: self.story.force_release(now=self.clock, **wish),
            self.model.force_release(KEY, now=self.clock, **wish),
        )

    @rule(brought=metadata)
    def expire(self, brought: Facts) -> None:
        self.compare(
            "expire",
            lambda: self.story.expire(now=self.clock, metadata=brought),
            self.model.expire(KEY, now=self.clock, metadata=brought),
        )

    def compare(self, verb: str, call: Callable[[], object], expected: Answer) -> None:
        before, known = self.story.lock, len(self.story.events)
        answer = answer_of(call)
        recorded = tuple(made.action for made in self.story.events[known:])
        event(f"{verb}: {expected.refusal or ' and '.join(expected.events) or 'nothing recorded'}")
        assert Answer(answer.outcome, answer.refusal, answer.facts, recorded) == expected
        if not recorded:
            assert self.story.lock == before
        for made in self.story.events[known:]:
            assert misfit(before, made) is None
            before = evolve(made)

    # What holds after every call and every move of the clock.

    @invariant()
    def the_same_hold_is_live(self) -> None:
        assert facts(self.story.live_hold(self.clock)) == self.model.holder_of(KEY, self.clock)

    @invariant()
    def the_newest_event_is_worth_them_all(self) -> None:
        events = self.story.events
        if events:
            assert Lock.project(None, events) == evolve(events[-1]) == self.story.lock

    @invariant()
    def versions_have_no_gaps_and_time_never_runs_back(self) -> None:
        events = self.story.events
        assert [made.originator_version for made in events] == list(range(1, len(events) + 1))
        assert self.story.lock.version == len(events) == self.model.version(KEY)
        stamps = [made.timestamp for made in events]
        assert stamps == sorted(stamps)

    @invariant()
    def tokens_only_grow(self) -> None:
        tokens = [made.token for made in self.story.events if _begins(made)]
        assert tokens == sorted(set(tokens))

    @invariant()
    def events_chain_up(self) -> None:
        before = None
        for made in self.story.events:
            assert made.before() == before
            before = made.after()

    @invariant()
    def never_two_holds_at_once(self) -> None:
        free_since: datetime | None = T0 - CENTURY
        for made in self.story.events:
            over = made.ended_hold()
            if over is not None:
                assert over.ended_at is not None
                assert over.ended_at >= over.taken_at
                free_since = over.ended_at
            if _begins(made):
                assert free_since is not None
                assert made.taken_at >= free_since
                free_since = None

    @invariant()
    def the_trail_and_the_ended_holds_are_the_models(self) -> None:
        events = self.story.events
        assert [_entry(made) for made in events] == self.model.trail(KEY)
        ended = [facts(over) for over in (made.ended_hold() for made in events) if over]
        assert ended == [hold for hold in self.model.holds(KEY) if hold["ended_by"]]


def _begins(made: LockEvent) -> bool:
    return isinstance(made, LockTaken | LockTakenOver)


def _entry(made: LockEvent) -> Facts:
    return {
        "key": made.key,
        "version": made.originator_version,
        "action": made.action,
        "actor": made.actor,
        "holder": made.holder,
        "previous_holder": made.previous.holder if isinstance(made, LockTakenOver) else None,
        "token": made.token,
        "occurred_at": made.occurred_at,
        "recorded_at": made.timestamp,
        "reason": made.why,
        "before": facts(made.before()),
        "after": facts(made.after()),
        "metadata": made.metadata,
    }


def test_a_lock_answers_as_the_contract_says_however_time_runs() -> None:
    run_state_machine_as_test(
        LockMachine, settings=settings(max_examples=150, stateful_step_count=50, deadline=None)
    )
