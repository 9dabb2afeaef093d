"""Faults of a ledger: how one reads, and how many are counted and kept."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from lockledger.domain.faults import MAX_FAULTS, Fault, FaultCount, FaultKind

STREAM = UUID(int=7)


def fault(kind: FaultKind = "rule", **place: Any) -> Fault:
    return Fault(kind=kind, expected="this", found="that", **place)


def counted(kind: FaultKind, number: int) -> FaultCount:
    """So many faults of a kind, told apart by their positions."""
    count = FaultCount()
    for position in range(number):
        count.add(fault(kind, position=position))
    return count


@pytest.mark.parametrize(
    ("place", "where"),
    [
        ({}, "the ledger"),
        ({"key": "round:5"}, "'round:5'"),
        ({"key": "я\n"}, "'\\u044f\\n'"),
        ({"lock_id": STREAM}, f"stream {STREAM}"),
        ({"key": "round:5", "lock_id": STREAM}, "'round:5'"),
        ({"key": "round:5", "version": 3}, "'round:5', version 3"),
        ({"position": 0}, "position 0"),
        (
            {"lock_id": STREAM, "version": 3, "position": 9},
            f"stream {STREAM}, version 3, position 9",
        ),
    ],
    ids=range(8),
)
def test_a_fault_reads_as_where_what_and_what_instead(place: dict[str, Any], where: str) -> None:
    assert str(fault(**place)) == f"rule: {where}: expected this, found that"


def test_a_fault_is_a_plain_value_of_a_known_kind() -> None:
    known = fault(key="round:5", lock_id=STREAM)

    assert Fault.model_validate_json(known.model_dump_json()) == known
    with pytest.raises(ValidationError, match="frozen"):
        known.found = "another"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        Fault.model_validate({**known.model_dump(), "other": 1})
    with pytest.raises(ValidationError):
        Fault.model_validate({**known.model_dump(), "kind": "magic"})


def test_every_fault_is_counted_and_the_first_thousand_are_kept() -> None:
    assert (FaultCount().total, FaultCount().kept) == (0, [])

    count = counted("rule", 1002)
    count.add(fault("checkpoint"))

    assert (count.total, count.by_kind) == (1003, {"rule": 1002, "checkpoint": 1})
    assert [each.position for each in count.kept] == list(range(1000))
    assert MAX_FAULTS == 1000


def test_another_counts_faults_come_after_those_that_there_are() -> None:
    count = counted("rule", 2)

    count.extend(counted("rule", 1))
    count.extend(counted("position", 2))

    assert (count.total, count.by_kind) == (5, {"rule": 3, "position": 2})
    assert [(each.kind, each.position) for each in count.kept] == [
        *(("rule", 0), ("rule", 1), ("rule", 0), ("position", 0), ("position", 1)),
    ]


@pytest.mark.parametrize(("here", "there", "taken"), [(998, 3, 2), (999, 1, 1), (1000, 3, 0)])
def test_of_another_count_too_only_a_thousand_are_kept_in_all(
    here: int, there: int, taken: int
) -> None:
    count, more = counted("rule", here), counted("position", there)

    count.extend(more)

    assert count.total == here + there
    assert [each.kind for each in count.kept] == ["rule"] * here + ["position"] * taken
    assert len(more.kept) == there
