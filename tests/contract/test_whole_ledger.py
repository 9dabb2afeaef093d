"""Whatever is called on whatever lock, and however time runs, a ledger answers and records as the model says.

The model is written from the contract alone. Each run has a ledger of its own name in one database, so that the runs
also show that they keep apart; at the end every table is proven against the events.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any, get_args

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lockledger import LockLedger
from lockledger.domain.lock import IfMine
from support.ledgers import Ledgers, SettableClock
from support.model import Answer, Facts, Model
from support.stories import T0, answer_of, facts

# The same runs each time, so that a red build can be looked into; a fault once found gets a test of its own. What fails
# is not made smaller, which takes minutes on a database: add Phase.shrink to look into it.
BOUNDED = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
MICROSECOND = timedelta(microseconds=1)
HOUR = timedelta(hours=1)

keys = st.sampled_from(["round:5", "round:5:band:2", "Round:5"])
holders = st.sampled_from(["run:1", "run:2", "whoever holds it", "whoever holds it"])
actors = st.sampled_from([None, None, "user:9"])
reasons = st.sampled_from([None, " \n", " urgent\n"])
brought = st.sampled_from([{}, {"request": "r1", "n": [1, {"a": None}]}])
lengths = st.sampled_from([1, 60, 0.5, 7200, timedelta(minutes=90), 0, -1])
# Instants, seen from the clock.
instants = st.sampled_from([HOUR, 3 * HOUR, MICROSECOND, timedelta(), -MICROSECOND, -HOUR])
ttls = st.one_of(st.none(), lengths, lengths, instants.map(lambda ahead: ("in", ahead)))
tokens = st.sampled_from(["none"] * 6 + ["live"] * 5 + ["newest", "next", "zero", 1, 2, 4])
names = count(1)


class LedgerMachine(RuleBasedStateMachine):
    """A ledger and its model, told the same calls. Between them time stands still unless a rule moves it."""

    open: Callable[..., LockLedger]

    def __init__(self) -> None:
        super().__init__()
        self.clock = SettableClock()
        self.model = Model()
        self.ledger = self.open(name=f"run:{next(names)}", clock=self.clock)

    # Time.

    @rule(by=st.sampled_from([MICROSECOND, timedelta(seconds=1), timedelta(minutes=1)]))
    def time_passes(self, by: timedelta) -> None:
        self.clock.now += by

    @rule(by=st.sampled_from([HOUR, -HOUR]))
    def the_clock_jumps(self, by: timedelta) -> None:
        self.clock.now += by

    @precondition(lambda self: any(self.expiries()))
    @rule(data=st.data(), by=st.sampled_from([timedelta(), timedelta(), -MICROSECOND, MICROSECOND]))
    def the_clock_hits_an_expiry(self, data: st.DataObject, by: timedelta) -> None:
        self.clock.now = data.draw(st.sampled_from(self.expiries())) + by

    def expiries(self) -> list[Any]:
        newest = [holds[-1] for key in self.model.locks if (holds := self.model.holds(key))]
        return sorted({hold["expires_at"] for hold in newest if hold["expires_at"]})

    # Calls.

    @initialize(key=keys, ttl=lengths.filter(lambda ttl: ttl not in (0, -1)))
    def begin_with_something(self, key: str, ttl: Any) -> None:
        self.call("take", key, holder="run:1", ttl=ttl)

    @rule(
        verb=st.sampled_from(["take", "take", "try_take"]),
        key=keys,
        who=holders,
        ttl=ttls,
        reason=reasons,
        if_mine=st.sampled_from(get_args(IfMine)),
        which=tokens,
        actor=actors,
        metadata=brought,
    )
    def take(
        self,
        verb: str,
        key: str,
        who: str,
        ttl: Any,
        reason: str | None,
        if_mine: IfMine,
        which: str | int,
        actor: str | None,
        metadata: Facts,
    ) -> None:
        self.call(
            verb,
            key,
            holder=self.holder(key, who),
            ttl=self.ttl(ttl),
            takeover_reason=reason,
            if_mine=if_mine,
            expected_token=self.token(key, which),
            actor=actor,
            metadata=metadata,
        )

    @rule(
        verb=st.sampled_from(["release", "try_release"]),
        key=keys,
        who=holders,
        which=tokens,
        reason=reasons,
        actor=actors,
        metadata=brought,
    )
    def release(
        self,
        verb: str,
        key: str,
        who: str,
        which: str | int,
        reason: str | None,
        actor: str | None,
        metadata: Facts,
    ) -> None:
        holder, token = self.holder(key, who), self.token(key, which)
        self.call(
            verb, key, holder=holder, token=token, reason=reason, actor=actor, metadata=metadata
        )

    @rule(key=keys, who=holders, ttl=ttls, which=tokens, actor=actors, metadata=brought)
    def extend(
        self,
        key: str,
        who: str,
        ttl: Any,
        which: str | int,
        actor: str | None,
        metadata: Facts,
    ) -> None:
        holder, token = self.holder(key, who), self.token(key, which)
        self.call(
            "extend",
            key,
            holder=holder,
            ttl=self.ttl(ttl),
            token=token,
            actor=actor,
            metadata=metadata,
        )

    @rule(key=keys, which=tokens, metadata=brought)
    def force_release(self, key: str, which: str | int, metadata: Facts) -> None:
        self.call(
            "force_release",
            key,
            actor="user:9",
            reason=" why ",
            expected_token=self.token(key, which),
            metadata=metadata,
        )

    def holder(self, key: str, who: str) -> str:
        live = self.model.holder_of(key, self.clock.now)
        return (live["holder"] if live else "run:1") if who == "whoever holds it" else who

    def ttl(self, ttl: Any) -> Any:
        return self.clock.now + ttl[1] if isinstance(ttl, tuple) else ttl

    def token(self, key: str, which: str | int) -> int | None:
        if isinstance(which, int):
            return which
        live, holds = self.model.holder_of(key, self.clock.now), self.model.holds(key)
        known = {
            "none": None,
            "live": live["token"] if live else None,
            "newest": holds[-1]["token"] if holds else None,
            "next": self.model.version(key) + 1,
            "zero": 0,
        }
        return known[which]

    def call(self, verb: str, key: str, **wish: Any) -> None:
        """The verb on both. Its answers agree, and so do the lock's version, holder and newest entries."""
        before = self.model.version(key)
        asked = getattr(self.model, verb.removeprefix("try_"))(key, now=self.clock.now, **wish)
        expected = softened(asked) if verb.startswith("try_") else asked
        actual = answer_of(lambda: getattr(self.ledger, verb)(key, **wish))

        if expected.refusal == "InvalidTtl":
            assert actual.refusal == "InvalidTtl"
        else:
            assert (actual.outcome, actual.refusal, actual.facts) == (
                expected.outcome,
                expected.refusal,
                expected.facts,
            )
        recorded = [entry.action for entry in self.ledger.history(key, extensions=True)][before:]
        assert tuple(recorded) == expected.events
        assert facts(self.ledger.holder_of(key)) == self.model.holder_of(key, self.clock.now)

    @invariant()
    def the_same_holds_are_live(self) -> None:
        found = [facts(hold) for hold in self.ledger.current_holders()]
        assert found == self.model.current_holders(self.clock.now)

    def teardown(self) -> None:
        """The whole trail agrees."""
        for key in self.model.locks:
            entries = [facts(entry) for entry in self.ledger.history(key, extensions=True)]
            for entry in entries:
                del entry["position"], entry["event_hash"]
            assert entries == self.model.trail(key)
        assert self.clock.now > T0 - timedelta(days=365), "the clock has not run away"


def softened(answer: Answer) -> Answer:
    """The answer of the verb that tries, where the plain one raises."""
    if answer.refusal == "LockedByOther":
        return Answer(None)
    return Answer(False) if answer.refusal in ("NotLockHolder", "HoldLost") else answer


def test_a_ledger_answers_and_records_as_the_model(ledgers: Ledgers) -> None:
    engine = ledgers.database.engine()

    class OnThisDatabase(LedgerMachine):
        def open(self, **options: Any) -> LockLedger:
            return LockLedger(engine, **options)

    run_state_machine_as_test(OnThisDatabase, settings=BOUNDED)
