"""A host's policy overrides what it needs; the rest does nothing."""

from __future__ import annotations

from lockledger.domain.lock import Lock
from lockledger.domain.policy import Policy, TakeRequest
from support.stories import ID, KEY


class OnlyWatching(Policy[str]):
    """A policy that overrides one method."""

    def __init__(self) -> None:
        self.locked: list[tuple[str, str]] = []

    def lock_subject(self, connection: str, key: str) -> None:
        self.locked.append((connection, key))


def test_a_policy_overrides_what_it_needs_and_nothing_else() -> None:
    policy = OnlyWatching()
    request = TakeRequest("take", KEY, "run:1", "user:1", Lock(ID, KEY).hold, {})

    policy.lock_subject("connection", KEY)
    policy.check_take("connection", request)
    policy.recorded("connection", [])

    assert policy.locked == [("connection", KEY)]
