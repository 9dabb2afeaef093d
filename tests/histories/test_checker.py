"""The checker finds what is wrong, and nothing where nothing is."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from histories.broken import Fault, history
from histories.calls import Answer
from histories.checker import check


@pytest.mark.parametrize("seed", range(3))
def test_a_sound_history_passes(seed: int) -> None:
    calls, events = history(None, seed)
    assert check(calls, events) == []
    assert {call.answers["key"].told for call in calls} == {"granted", "held", "free", "done"}


def test_a_seed_says_everything_about_a_history() -> None:
    assert history(None, 1) == history(None, 1) != history(None, 2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fault", get_args(Fault))
def test_a_broken_ledger_is_caught(fault: Fault, seed: int) -> None:
    assert check(*history(fault, seed))


def test_an_event_of_nobodys_call_is_found() -> None:
    calls, events = history(None, 1)
    writer = next(event.call for event in events)
    assert f"recorded by nobody's call, {writer!r}" in "\n".join(
        check([call for call in calls if call.id != writer], events)
    )


def test_an_acknowledged_change_that_is_gone_is_found() -> None:
    """The newest event alone: what is left is a lawful history, of which nobody was told the end."""
    calls, events = history(None, 1)
    (writer,) = [call for call in calls if call.id == events[-1].call]
    last = [event for event in events if event.call == writer.id]
    faults = check(calls, events[: -len(last)])
    assert any(writer.id in fault for fault in faults)


def test_a_change_whose_answer_was_lost_may_be_there_or_not() -> None:
    calls, events = history(None, 1)
    writer = events[-1].call
    last = [event for event in events if event.call == writer]
    (call,) = [call for call in calls if call.id == writer]
    call.answers, call.ended, call.answered_at = {}, None, None
    assert check(calls, events) == []
    saw_it = {
        other.id
        for other in calls
        if other.began > call.began and other.answers and other.id != call.id
    }
    calls = [other for other in calls if other.id not in saw_it]
    assert check(calls, events[: -len(last)]) == []


def test_an_answer_that_came_before_what_it_tells_of_is_found() -> None:
    """A reader that names a hold from the future."""
    calls, events = history(None, 2)
    reader = next(call for call in calls if call.verb == "holder_of")
    future = next(event for event in reversed(events) if event.action == "LockTaken")
    reader.answers["key"] = Answer("held", future.holder, future.token, future.expires_at)
    assert "had ended before" in "\n".join(check(calls, events))


def test_an_event_of_another_time_than_its_call_is_found() -> None:
    calls, events = history(None, 1)
    first = next(event for event in events)
    (call,) = [call for call in calls if call.id == first.call]
    calls = [call if each is call else each for each in calls]
    moved = call.at.replace(year=call.at.year - 1)
    events = [replace(first, timestamp=moved, taken_at=moved), *events[1:]]
    assert "before it began" in "\n".join(check(calls, events))
