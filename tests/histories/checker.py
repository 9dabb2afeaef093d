"""Decides whether what callers were told fits one history of each lock, and whether that history is a lawful one.

The ledger's events give the order of the changes of a lock: its versions. Each change carries the id of the call that
made it, and each answer that changed nothing names the hold that it saw. So every answered call has its place, after the
change that made what it saw and before the next one. The history is linearizable exactly if no call that ended before
another began has a later place than that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from histories.calls import Answer, Call, Recorded

BEGINS = ("LockTaken", "LockTakenOver")
OF_ANYBODY = ("force_release", "in a transaction")
"""Verbs that may end holds of others. An expiry is recorded by whoever comes by."""


@dataclass(frozen=True)
class State:
    """What holds a lock after an event; nobody does while `token` is null."""

    holder: str | None = None
    token: int | None = None
    expires_at: datetime | None = None
    changed_at: datetime | None = None

    def is_over(self, now: datetime) -> bool:
        """Whether nobody holds it at an instant."""
        return self.token is None or (self.expires_at is not None and self.expires_at <= now)


def check(calls: Iterable[Call], events: Iterable[Recorded]) -> list[str]:
    """Every fault that is found; none means that the history is sound."""
    of_key: dict[str, list[Recorded]] = defaultdict(list)
    for event in events:
        of_key[event.key].append(event)
    asked: dict[str, list[Call]] = defaultdict(list)
    known = set()
    for call in calls:
        known.add(call.id)
        for key in call.keys:
            asked[key].append(call)
    faults = [
        f"{event.key} version {event.version}: recorded by nobody's call, {event.call!r}"
        for events_of_key in of_key.values()
        for event in events_of_key
        if event.call not in known and (event.call, event.action) != (None, "LockExpired")
    ]
    for key in sorted(of_key.keys() | asked.keys()):
        faults += _LockHistory(key, of_key[key], asked[key]).faults()
    return faults


class _LockHistory:
    """One lock's events, and the calls about it."""

    def __init__(self, key: str, events: Sequence[Recorded], calls: Sequence[Call]) -> None:
        self.key = key
        self.events = events
        self.calls = calls
        self.states: list[State] = [State()]
        self.written: dict[str | None, list[Recorded]] = defaultdict(list)
        for event in events:
            self.written[event.call].append(event)

    def faults(self) -> list[str]:
        found = [*self._unlawful_events()]
        if found:  # places in a history that is none mean nothing
            return found
        for call in self.calls:
            found += self._wrong_record(call)
        return found or [*self._out_of_place()]

    # The events by themselves.

    def _unlawful_events(self) -> Iterable[str]:
        for number, event in enumerate(self.events, start=1):
            if event.version != number:
                yield f"{self.key}: version {event.version} stands where {number} belongs"
                return
            wrong = _misfit(self.states[-1], event)
            if wrong:
                yield f"{self.key} version {event.version}: {wrong}"
                return
            over = event.action in ("LockReleased", "LockExpired")
            self.states.append(
                State(changed_at=event.timestamp)
                if over
                else State(event.holder, event.token, event.expires_at, event.timestamp)
            )

    # Each call by itself.

    def _wrong_record(self, call: Call) -> Iterable[str]:
        answer, events = call.answer(self.key), self.written[call.id]
        name = f"{self.key}, {call.verb} {call.id}"
        versions = [event.version for event in events]
        if any(later != earlier + 1 for earlier, later in pairwise(versions)):
            yield f"{name}: recorded twice, at versions {versions}"
        if call.verb not in OF_ANYBODY:
            strange = {e.holder for e in events if e.action != "LockExpired"} - {call.holder}
            if strange:
                yield f"{name}: {call.holder} made a change for {strange}"
        wrong = _unlike(answer, call, events)
        if wrong:
            yield f"{name}: {wrong}"
        yield from self._wrong_times(name, call, events)

    def _wrong_times(self, name: str, call: Call, events: Sequence[Recorded]) -> Iterable[str]:
        for event in events:
            before = self.states[event.version - 1].changed_at
            late = call.answered_at is not None and event.timestamp > call.answered_at
            if event.timestamp < call.at:
                yield f"{name}: recorded at {event.timestamp}, before it began at {call.at}"
            elif late and event.timestamp != before:
                yield f"{name}: recorded at {event.timestamp}, after its answer at {call.answered_at}"

    # All calls together.

    def _out_of_place(self) -> Iterable[str]:
        """Goes through all beginnings and ends in their order, and gives each call the earliest place that is left."""
        moments: list[tuple[float, int, Call]] = []
        for call in self.calls:
            moments.append((call.began, 0, call))
            if call.ended is not None:
                moments.append((call.ended, 1, call))
        moments.sort(key=lambda moment: moment[:2])
        passed, reason, places = 0, "nothing", dict[str, int]()
        for _, is_end, call in moments:
            if is_end:
                place = places.get(call.id, -1)
                if place > passed:
                    passed, reason = place, f"{call.verb} {call.id}"
                continue
            possible = self._places(call)
            if possible is None:
                continue
            left = [place for place in possible if place >= passed]
            if not left:
                yield (
                    f"{self.key}, {call.verb} {call.id}: it was told {call.answer(self.key)}, which was so"
                    f" {_named(possible)}, but {reason} had ended before at {_named([passed])}"
                )
                return
            places[call.id] = min(left)

    def _places(self, call: Call) -> list[int] | None:
        """Where a call may stand: at `2 * version` as the change itself, at `2 * version + 1` as one who saw it."""
        events, answer = self.written[call.id], call.answer(self.key)
        if events:
            return [2 * events[-1].version]
        if answer.told in ("nothing", "failed", "unknown", "done"):
            return None
        return [
            2 * version + 1
            for version, state in enumerate(self.states)
            if self._saw(call, answer, version, state)
        ]

    def _saw(self, call: Call, answer: Answer, version: int, state: State) -> bool:
        until = call.answered_at
        assert until is not None
        over = state.is_over(until)
        if answer.told == "free":
            return over
        if answer.told == "ended":
            return (over or state.token != answer.token) and version >= (answer.token or 0)
        same = (state.holder, state.token, state.expires_at) == (
            answer.holder,
            answer.token,
            answer.expires_at,
        )
        return same and not state.is_over(call.at)


def _misfit(before: State, event: Recorded) -> str | None:
    """What the rules of the domain have against an event, written here once more for a checker's own sake."""
    if before.changed_at is not None and event.timestamp < before.changed_at:
        return "it is older than the one before it"
    if event.action in BEGINS:
        return _wrong_beginning(before, event)
    if before.token is None:
        return f"{event.action} of a lock that nobody holds"
    if (event.holder, event.token) != (before.holder, before.token):
        return f"{event.action} of {event.holder}'s hold {event.token}, but {before} is held"
    over = before.is_over(event.timestamp)
    if event.action == "LockExpired":
        return None if over else f"it has not run out: {before}"
    if over:
        return f"{event.action} of a hold that had run out: {before}"
    if event.action == "LockExtended" and (
        before.expires_at is None or not event.expires_at or event.expires_at <= before.expires_at
    ):
        return f"it moves the expiry from {before.expires_at} to {event.expires_at}"
    return None


def _wrong_beginning(before: State, event: Recorded) -> str | None:
    if event.token != event.version or event.taken_at != event.timestamp:
        return f"a hold begins with token {event.token} at {event.taken_at}"
    if event.action == "LockTaken" and before.token is not None:
        return f"taken while {before} is held"
    if event.action == "LockTakenOver" and before.is_over(event.timestamp):
        return f"taken over from nobody: {before}"
    return None


def _unlike(answer: Answer, call: Call, events: Sequence[Recorded]) -> str | None:
    """How an answer and what was recorded for it differ."""
    actions = [event.action for event in events]
    if answer.told in ("unknown", "nothing"):
        return None
    if answer.told == "done":
        return None if actions == ["LockReleased"] else f"told that it ended a hold: {actions}"
    if answer.told != "granted":
        return f"told {answer.told}, but recorded {actions}" if actions else None
    if not events:
        return "told that it began a hold, and there is none" if answer.created else None
    last = events[-1]
    if (last.holder, last.token, last.expires_at) != (
        call.holder,
        answer.token,
        answer.expires_at,
    ):
        return f"told {answer}, but recorded {last}"
    if answer.created != (last.action in BEGINS):
        return f"told created={answer.created}, but recorded {actions}"
    return None


def _named(places: Sequence[int]) -> str:
    if not places:
        return "never"
    shown = ", ".join(
        f"{'version' if place % 2 == 0 else 'after version'} {place // 2}" for place in places[:3]
    )
    return shown if len(places) <= 3 else f"{shown} …"
