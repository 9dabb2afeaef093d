"""The verbs in the host's transaction, each of which asks the host before it decides."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from lockledger.bound import BoundLedger
from lockledger.domain.holds import Hold
from lockledger.domain.lock import Decision, Lock
from lockledger.door import Door
from lockledger.wishes import Command, Performed
from lockledger.workings import Workings

T = TypeVar("T")


class AskingLedger(BoundLedger):
    """Asks about the live hold that it finds, and once more when a decision meets another one.

    `question(key, current)` raises what ends the request when the host does not allow it. It is put before the policy
    is, which locks the host's own row and may say what not everybody may know.
    """

    def __init__(
        self,
        workings: Workings,
        host: Session | Connection,
        door: Door,
        question: Callable[[str, Hold | None], None],
    ) -> None:
        super().__init__(workings, host, door)
        self._question = question
        self._met = 0

    def look(self, key: str) -> Hold | None:
        """The live hold, once the host has been asked about it."""
        current = self.holder_of(key)
        self._put(key, current)
        return current

    def look_again(self, key: str) -> Hold | None:
        """The live hold as it is by now, which the host is asked about if it is another one."""
        return self._meet(key, self.holder_of(key))

    def perform(self, command: Command[T]) -> Performed[T]:
        """Carries out a checked command, if the host allows it for the very hold that it is decided on."""
        self.look(command.key)

        def decide(lock: Lock, now: datetime, look: Any) -> Decision[T]:
            self._meet(command.key, lock.live_hold(now))
            return command.decide(lock, now, look)

        return super().perform(replace(command, decide=decide))

    def _meet(self, key: str, current: Hold | None) -> Hold | None:
        if _token(current) != self._met:
            self._put(key, current)
        return current

    def _put(self, key: str, current: Hold | None) -> None:
        self._met = _token(current)
        self._question(key, current)


def _token(hold: Hold | None) -> int:
    return 0 if hold is None else hold.token
