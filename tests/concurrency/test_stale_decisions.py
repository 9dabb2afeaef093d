"""A call that had to wait for another transaction decides with the time after the wait.

All calls wait at once, each on a lock of its own, behind one transaction that is open until what was short is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from lockledger import (
    AuditEntry,
    Grant,
    Hold,
    HoldChanged,
    HoldLost,
    InvalidTtl,
    LockLedger,
    LockLedgerError,
    NotHeld,
)
from support.company import until
from support.databases import KINDS, Servers
from support.hosts import Host, host_on
from support.in_the_way import clock_of, in_the_way
from support.ledgers import proven
from support.waits import Missed, anew, decisions_of

TTL = timedelta(minutes=10)
SHORT = 1.5
"""Seconds of holds that are live when a call first decides, and have run out when it gets its turn."""


def free(ledger: LockLedger, key: str) -> None:
    ledger.take(key, "ann")
    ledger.release(key, "ann")


def held(holder: str, ttl: float | None = None) -> Callable[[LockLedger, str], Any]:
    return lambda ledger, key: ledger.take(key, holder, ttl=ttl)


SITUATIONS: dict[str, tuple[Callable[[LockLedger, str], Any], Callable[[LockLedger, str], Any]]] = {
    "take": (free, lambda ledger, key: ledger.take(key, "ben", ttl=TTL)),
    "take until an instant": (
        free,
        lambda ledger, key: ledger.take(
            key, "ben", ttl=datetime.now(UTC) + timedelta(seconds=SHORT)
        ),
    ),
    "takeover": (
        held("ann"),
        lambda ledger, key: ledger.take(key, "ben", ttl=TTL, takeover_reason="urgent"),
    ),
    "takeover of a hold that runs out": (
        held("ann", SHORT),
        lambda ledger, key: ledger.take(key, "ben", ttl=TTL, takeover_reason="urgent"),
    ),
    "takeover of an expected hold that runs out": (
        held("ann", SHORT),
        lambda ledger, key: ledger.take(key, "ben", takeover_reason="urgent", expected_token=1),
    ),
    "extending take of a hold that runs out": (
        held("ben", SHORT),
        lambda ledger, key: ledger.take(key, "ben", ttl=60, if_mine="extend"),
    ),
    "extension": (held("ben", 60), lambda ledger, key: ledger.extend(key, "ben", 120)),
    "extension of a hold that runs out": (
        held("ben", SHORT),
        lambda ledger, key: ledger.extend(key, "ben", 120),
    ),
    "extension by token of a hold that runs out": (
        held("ben", SHORT),
        lambda ledger, key: ledger.extend(key, "ben", 120, token=1),
    ),
    "release": (held("ben"), lambda ledger, key: ledger.release(key, "ben")),
    "release of a hold that runs out": (
        held("ben", SHORT),
        lambda ledger, key: ledger.release(key, "ben"),
    ),
    "release by token of a hold that runs out": (
        held("ben", SHORT),
        lambda ledger, key: ledger.release(key, "ben", token=1),
    ),
    "forced release": (
        held("ann"),
        lambda ledger, key: ledger.force_release(key, actor="root", reason="holiday"),
    ),
    "forced release of a hold that runs out": (
        held("ann", SHORT),
        lambda ledger, key: ledger.force_release(key, actor="root", reason="holiday"),
    ),
}


@dataclass
class Waited:
    """What became of every call, and what the ledger said right after it."""

    outcomes: dict[str, Any]
    holders: dict[str, Hold | None]
    entries: dict[str, list[AuditEntry]]
    before: dict[str, int]
    over: datetime

    def recorded(self, name: str) -> list[AuditEntry]:
        return self.entries[name][self.before[name] :]


@pytest.fixture(scope="module", params=KINDS)
def waited(
    request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Waited]:
    with (
        servers.database(request.param, tmp_path_factory.mktemp("waited")) as database,
        proven(database) as ledgers,
        host_on(ledgers) as host,
    ):
        yield anew(partial(all_wait, host))


def all_wait(host: Host, mark: str) -> Waited:
    ledger, database, short = host.ledger, host.database, timedelta(seconds=SHORT)
    keys = {name: f"{mark}:{name}" for name in SITUATIONS}
    begun = clock_of(database)
    for name, (prepare, _) in SITUATIONS.items():
        prepare(ledger, keys[name])
    before = {name: len(history(ledger, key)) for name, key in keys.items()}

    def outcome(name: str) -> tuple[Any, Hold | None]:
        try:
            result = SITUATIONS[name][1](ledger, keys[name])
        except LockLedgerError as refused:
            result = refused
        return result, ledger.holder_of(keys[name])

    with in_the_way(database, *keys.values()), decisions_of(ledger) as decisions:
        running = {name: host.meanwhile(partial(outcome, name)) for name in SITUATIONS}
        until(lambda: len(decisions) == len(running) or ended(running), "all have decided")
        over = clock_of(database)
        missed = over >= begun + short or len(decisions) < len(running)
        if not missed:
            until(lambda: clock_of(database) > over + short, "what was short is over")
            time.sleep(0.1)
            assert ended(running) == []
            over = clock_of(database)
    results = {name: future.result(timeout=30) for name, future in running.items()}
    if missed:
        raise Missed  # some were so late that the holds had run out before
    return Waited(
        outcomes={name: result for name, (result, _) in results.items()},
        holders={name: holder for name, (_, holder) in results.items()},
        entries={name: history(ledger, key) for name, key in keys.items()},
        before=before,
        over=over,
    )


def ended(running: dict[str, Future[Any]]) -> list[str]:
    return [name for name, future in running.items() if future.done()]


def history(ledger: LockLedger, key: str) -> list[AuditEntry]:
    return list(ledger.history(key, extensions=True))


def granted(waited: Waited, name: str, ttl: timedelta = TTL) -> Grant:
    """The grant of a call that waited, which is live for its whole ttl from when the wait was over."""
    grant = waited.outcomes[name]
    assert isinstance(grant, Grant), grant
    assert grant.created
    assert grant.taken_at >= waited.over
    assert grant.expires_at == grant.taken_at + ttl
    holder = waited.holders[name]
    assert holder is not None, "granted already run out"
    assert (holder.holder, holder.token) == ("ben", grant.token)
    return grant


def test_a_take_is_live_for_its_whole_ttl_after_the_wait(waited: Waited) -> None:
    granted(waited, "take")


def test_a_takeover_is_live_for_its_whole_ttl_after_the_wait(waited: Waited) -> None:
    assert granted(waited, "takeover").taken_over_from == "ann"


def test_an_instant_that_passes_during_the_wait_is_refused(waited: Waited) -> None:
    assert isinstance(waited.outcomes["take until an instant"], InvalidTtl)
    assert waited.recorded("take until an instant") == []


def test_what_was_a_takeover_before_the_wait_is_a_take_after_the_hold_ran_out(
    waited: Waited,
) -> None:
    name = "takeover of a hold that runs out"
    grant = granted(waited, name)
    assert (grant.taken_over_from, grant.takeover_reason) == (None, None)
    expired, taken = waited.recorded(name)
    assert (expired.action, taken.action) == ("LockExpired", "LockTaken")
    assert expired.occurred_at < waited.over <= expired.recorded_at


def test_the_hold_that_a_takeover_expected_may_run_out_during_the_wait(waited: Waited) -> None:
    name = "takeover of an expected hold that runs out"
    changed = waited.outcomes[name]
    assert isinstance(changed, HoldChanged)
    assert changed.current is None
    assert waited.recorded(name) == []


def test_what_was_an_extending_take_before_the_wait_begins_a_new_hold_after_it(
    waited: Waited,
) -> None:
    name = "extending take of a hold that runs out"
    granted(waited, name, timedelta(seconds=60))
    assert [entry.action for entry in waited.recorded(name)] == ["LockExpired", "LockTaken"]


def test_an_extension_counts_from_after_the_wait(waited: Waited) -> None:
    grant = waited.outcomes["extension"]
    assert isinstance(grant, Grant)
    assert grant.expires_at is not None
    assert grant.expires_at >= waited.over + timedelta(seconds=120)


def test_a_hold_that_ran_out_during_the_wait_is_not_extended(waited: Waited) -> None:
    assert isinstance(waited.outcomes["extension of a hold that runs out"], NotHeld)
    lost = waited.outcomes["extension by token of a hold that runs out"]
    assert isinstance(lost, HoldLost)
    assert (lost.ended_by, lost.ended_by_actor) == ("expiry", None)
    assert waited.recorded("extension of a hold that runs out") == []
    assert waited.recorded("extension by token of a hold that runs out") == []


def test_a_release_is_recorded_at_the_time_after_the_wait(waited: Waited) -> None:
    assert waited.outcomes["release"] is True
    (released,) = waited.recorded("release")
    assert released.occurred_at >= waited.over


def test_a_hold_that_ran_out_during_the_wait_is_not_released(waited: Waited) -> None:
    assert waited.outcomes["release of a hold that runs out"] is False
    lost = waited.outcomes["release by token of a hold that runs out"]
    assert isinstance(lost, HoldLost)
    assert lost.ended_by == "expiry"
    assert lost.ended_at is not None
    assert lost.ended_at < waited.over
    assert waited.recorded("release of a hold that runs out") == []
    assert waited.recorded("release by token of a hold that runs out") == []


def test_a_forced_release_ends_the_hold_after_the_wait(waited: Waited) -> None:
    ended = waited.outcomes["forced release"]
    assert isinstance(ended, Hold)
    assert ended.ended_at is not None
    assert ended.ended_at >= waited.over


def test_a_hold_that_ran_out_during_the_wait_is_not_forced(waited: Waited) -> None:
    assert waited.outcomes["forced release of a hold that runs out"] is None
    assert waited.recorded("forced release of a hold that runs out") == []
