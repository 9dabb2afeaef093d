"""The log of a help desk, 2010 to 2014: what the rules make of who worked on which ticket.

It is not part of the project; it lies beside the checkout or nowhere.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from lockledger.domain.events import LockEvent
from lockledger.domain.keys import lock_id
from lockledger.domain.lock import Call, Decision, Lock, Take, evolve

LOG = Path(__file__).parents[3] / "shared" / "data" / "helpdesk.jsonl.gz"
EVENTS = 4583 + 4091 + 4560
"""How many events the lives have: takes, takeovers, ends."""


def lives() -> Iterator[list[LockEvent]]:
    """What the rules make of each ticket's commands."""
    commands: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with gzip.open(LOG, "rt") as lines:
        for line in lines:
            command = json.loads(line)
            commands[command["key"]].append(command)
    for key, of_ticket in commands.items():
        lock, events = Lock(lock_id("default", key), key), list[LockEvent]()
        for command in of_ticket:
            for event in _decided(lock, command).events:
                events.append(event)
                lock = evolve(event)
        yield events


def _decided(lock: Lock, command: dict[str, Any]) -> Decision[Any]:
    now, who = lock.now(datetime.fromisoformat(command["at"])), command["holder"]
    call, reason = Call(who, {}), command.get("reason")
    if command["do"] == "take":
        return lock.take(Take(who, call, None, reason), now)
    if command["do"] == "release":
        return lock.release(who, None, reason, call, now, lambda _: None)
    return lock.force_release(None, command["reason"], call, now)
