"""The table of crashes: as the reference has it, and as a walk through an operation finds it."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby, pairwise

from support.crashes import OPERATIONS, Site, State
from support.crashing import ANSWER, kill_after
from support.documents import DOCS
from support.killed import wait_until_noticed
from support.proof import prove

PAGE = DOCS / "reference" / "crashes.md"
BEFORE, AFTER, SOME = "as before", "as after", "some of it, a repeat goes on"
FEW = 3
Row = tuple[str, str, str]
"""A write, what is there when the process is killed before it, and when it is killed right after it."""


def operations_documented() -> list[str]:
    """The operations that the reference tells of."""
    return re.findall(r"^### (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)


def documented(operation: str, database: str) -> list[Row]:
    """The rows that the reference has for an operation on a database."""
    section = re.search(
        rf"^### {operation}\n(.*?)(?=^##|\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert section, f"{PAGE.name} does not tell of {operation}"
    cells = [line.strip("| ").split(" | ") for line in section[1].splitlines() if "|" in line]
    return [(write, one, other) for which, write, one, other in cells if which == database]


def shown(database: str, rows: list[Row]) -> str:
    """Rows as the reference has them."""
    return "\n".join(f"| {' | '.join((database, *row))} |" for row in rows)


def walk(operation: str, site_of: Callable[[str], Site]) -> list[Row]:
    """Kills an operation between any two of its writes, and repeats it each time.

    Of writes of one kind that follow each other, it is killed before the first and after the last, and of many besides
    after the first.
    """
    site = site_of("whole")
    before = _prepared(operation, site)
    stopped = kill_after(operation, site.place, None)
    wait_until_noticed(site.database)
    after = OPERATIONS[operation].state(site)
    assert stopped.before == ANSWER
    assert before != after
    writes = list(stopped.done)
    runs = [len(list(run)) for _, run in groupby(writes)]
    starts = [sum(runs[:number]) for number in range(len(runs))]
    inside = [start + 1 for start, run in zip(starts, runs, strict=True) if run > FEW]
    walked = sorted({len(writes), *starts, *inside})
    found = {
        done: _left_by(operation, site_of(f"after{done}"), writes, done, before, after)
        for done in walked
    }
    _turns_where_it_commits(operation, writes, found)
    return [
        (_times(writes[start], run), found[start], found[start + run])
        for start, run in zip(starts, runs, strict=True)
    ]


def _times(write: str, times: int) -> str:
    return write if times == 1 else f"{write}, {times} times"


def _prepared(operation: str, site: Site) -> State:
    site.place.file.parent.mkdir()
    OPERATIONS[operation].before(site)
    return OPERATIONS[operation].state(site)


def _left_by(
    name: str, site: Site, writes: list[str], done: int, before: State, after: State
) -> str:
    """What a process leaves that is killed after so many writes; then all is as after one that was not killed."""
    operation = OPERATIONS[name]
    assert _prepared(name, site) == before
    stopped = kill_after(name, site.place, done)
    assert [*stopped.done, stopped.before] == [*writes, ANSWER][: done + 1], stopped
    wait_until_noticed(site.database)
    found = operation.state(site)
    if operation.sound:
        prove(site.engine)
    operation.call(site.ledger, site.place)
    assert operation.state(site) == after, f"after a repeat that followed {stopped}"
    prove(site.engine)
    if found in (before, after):
        return BEFORE if found == before else AFTER
    assert operation.batched, f"{found} is left by {stopped}"
    return SOME


def _turns_where_it_commits(name: str, writes: list[str], found: dict[int, str]) -> None:
    """What is left changes with the writes that make it true, and with no other."""
    order = [BEFORE, SOME, AFTER]
    for one, other in pairwise(sorted(found)):
        assert order.index(found[one]) <= order.index(found[other])
        if found[one] != found[other]:
            assert re.fullmatch(OPERATIONS[name].turns, writes[other - 1]), (name, writes, found)
    assert (found[0], found[len(writes)]) == (BEFORE, AFTER), (name, writes, found)
