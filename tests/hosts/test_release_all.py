"""`release_all` in the host's transaction: for "the version was cancelled", "the run ended", "the user left"."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from sqlalchemy import Connection

from lockledger import Policy, RecordedEvent
from support.hosts import Host
from support.ledgers import unchanged

MANY = 1_050
"""More keys than it looks at in one go."""


class TroubleLate(Policy[Connection]):
    """Raises when it is told of the second batch."""

    def __init__(self) -> None:
        self.told = 0

    def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        self.told += 1
        if self.told == 2:
            raise RuntimeError("trouble")


def test_more_holds_than_it_looks_at_in_one_go_end_together_or_not_at_all(host: Host) -> None:
    keys = [f"run:{number:04}" for number in range(MANY)]
    host.ledger.take_all(keys, "user:1")
    troubled = host.ledgers.open(policy=TroubleLate())
    with host.session() as session, session.begin():
        with unchanged(host.ledgers):
            with pytest.raises(RuntimeError, match="trouble"):
                troubled.using(session).release_all(holder="user:1", actor="user:9", reason="left")
            assert len(host.ledger.using(session).current_holders(limit=1000)) == 1000
        host.write(session, 1)
        ended = host.ledger.using(session).release_all(
            holder="user:1", actor="user:9", reason="left"
        )
        assert ended == MANY

    assert list(host.ledger.current_holders()) == []
    assert set(host.documents()) == {1}
    assert host.ledger.history(keys[-1])[-1].reason == "left"


def test_it_waits_for_a_guard_and_then_ends_what_is_left(postgres_host: Host) -> None:
    host = postgres_host
    host.ledger.take_all(["a", "b", "c"], "user:1")
    with host.session() as editor, host.session() as leaving:
        bound = host.ledger.using(editor)
        bound.guard("b", "user:1")
        waiting = host.blocked(
            lambda: host.ledger.using(leaving).release_all(
                holder="user:1", actor="user:9", reason="left"
            )
        )
        bound.release("b", "user:1")
        host.write(editor, 1, "edited")
        editor.commit()
        assert waiting.result() == 2
        leaving.commit()

    assert [entry.actor for entry in host.ledger.audit_trail(action="LockReleased")] == [
        "user:1",
        "user:9",
        "user:9",
    ]


def test_two_that_end_each_others_holds_never_meet_in_a_deadlock(postgres_host: Host) -> None:
    """Both lock the rows of their holds in key order."""
    host = postgres_host
    keys = [f"k:{number:02}" for number in range(30)]

    def leave(actor: str) -> int:
        with host.session() as session, session.begin():
            ended = host.ledger.using(session, actor=actor).release_all(under="k", reason="left")
            time.sleep(0.01)
            return ended

    for _ in range(3):
        host.ledger.take_all(keys, "user:1")
        leaving = [host.meanwhile(lambda: leave("user:8")), host.meanwhile(lambda: leave("user:9"))]
        assert sum(each.result(20) for each in leaving) == len(keys)
