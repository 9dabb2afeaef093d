"""Heartbeats: they keep a hold through outages, tell its loss, never take it back, and end with the block or the process.

A database that does not answer is one whose row, or file, another transaction keeps locked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from lockledger import Held, HoldLost, HoldSuspect, LockLedger
from support.company import SOAK, Company, Process, until
from support.databases import Database
from support.in_the_way import clock_of, in_the_way
from support.ledgers import Ledgers, proven
from support.postgres import EmbeddedPostgres
from support.waits import Imagined, Missed, anew

STALE = 0.5
"""Seconds that make a decision stale: more than the 250 ms after which a call decides again."""


def turns_suspect_and_runs_out(held: Held, imagined: Imagined, other: LockLedger) -> None:
    """A hold of ten seconds on `k` that no answer reaches any more; meanwhile it asks."""
    imagined.now = 8.9
    held.check()
    imagined.now = 9.1
    assert held.lost
    assert other.is_locked("k")
    assert isinstance(checked_raises(held), HoldSuspect)
    time.sleep(0.2)  # it asks
    imagined.now = 10.0
    assert not other.is_locked("k")


def checked_raises(held: Held) -> HoldLost:
    """What the holder is told once it is told anything."""
    until(lambda: held.lost, "the holder is told")
    with pytest.raises(HoldLost) as lost:
        held.check()
    return lost.value


def actions(ledger: LockLedger, key: str = "k") -> list[str]:
    return [entry.action for entry in ledger.history(key, extensions=True)]


def test_a_hold_outlives_its_ttl_as_long_as_its_heart_beats(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By clocks that go on when it has beaten."""
    imagined = Imagined()
    imagined.replace(monkeypatch, sleeps=False)
    ledger = company.open(clock=imagined.clock)
    with company.hold(ledger, "k", ttl=60, heartbeat=0.05) as held:
        for second in range(20, 200, 20):
            imagined.now = second
            ends = imagined.clock() + timedelta(seconds=60)
            until(lambda ends=ends: held.grant.expires_at == ends, "the heart beats")  # type: ignore[misc]
            held.check()
            assert ledger.try_take("k", "run:2") is None
    assert ledger.history("k")[-1].action == "LockReleased"
    assert actions(ledger).count("LockTaken") == 1


@pytest.mark.parametrize("how", ["takeover", "forced", "release"])
def test_a_heart_that_meets_the_loss_tells_at_once_by_whom_and_stops(
    company: Company, ledger: LockLedger, how: str
) -> None:
    def end() -> None:
        if how == "takeover":
            ledger.take("k", "run:2", takeover_reason="urgent")
        elif how == "forced":
            ledger.force_release("k", actor="user:9", reason="holiday")
        else:
            ledger.release("k", "run:1")

    told: HoldLost | None = None
    with (
        contextlib.suppress(HoldLost),
        company.hold(ledger, "k", "run:1", ttl=600, heartbeat=0.05) as held,
    ):
        held.check()
        end()
        told = checked_raises(held)
        before = actions(ledger)
        time.sleep(0.3)
        assert actions(ledger) == before
    assert told is not None
    assert not isinstance(told, HoldSuspect)
    by = {"takeover": "run:2", "forced": "user:9", "release": "run:1"}[how]
    assert (told.ended_by, told.ended_by_actor) == (how, by)
    assert (told.current is not None) == (how == "takeover")


def test_a_heart_never_takes_back_what_ran_out(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database does not answer for longer than the ttl; when it does again, the extension comes too late."""
    imagined = Imagined()
    imagined.replace(monkeypatch, sleeps=False)
    ledger, other = (
        opened(clock=imagined.clock) for opened in (company.open, company.ledgers.open)
    )
    with (  # noqa: PT012
        pytest.raises(HoldLost) as at_exit,
        company.hold(ledger, "k", "run:1", ttl=10, heartbeat=0.05) as held,
    ):
        with in_the_way(company.database, "k"):
            turns_suspect_and_runs_out(held, imagined, other)
            time.sleep(STALE)
        until(lambda: not isinstance(checked_raises(held), HoldSuspect), "the ledger answers")
        told = checked_raises(held)
        assert (told.ended_by, told.ended_by_actor) == ("expiry", None)
        assert not other.is_locked("k")
    assert at_exit.value.ended_by == "expiry"
    assert "LockReleased" not in actions(other)


def test_a_heart_never_takes_back_what_another_took(company: Company) -> None:
    ledger, other = company.open(), company.ledgers.open()
    with (  # noqa: PT012
        pytest.raises(HoldLost),
        company.hold(ledger, "k", "run:1", ttl=1.2, heartbeat=0.2) as held,
    ):
        with in_the_way(company.database, "k"):
            checked_raises(held)
            until(lambda: not other.is_locked("k"), "the hold runs out")
            taking = threading.Thread(target=lambda: other.take("k", "run:2", wait=20))
            taking.start()
        taking.join()
        until(lambda: not isinstance(checked_raises(held), HoldSuspect), "the ledger answers")
        told = checked_raises(held)
        assert told.ended_by == "expiry"
    holder = other.holder_of("k")
    assert holder is not None
    assert holder.holder == "run:2"


def test_a_heart_that_was_not_answered_in_time_believes_again_when_it_is(
    company: Company, ledger: LockLedger
) -> None:
    """An outage shorter than the ttl, but of more than one beat."""
    with company.hold(ledger, "k", ttl=600, heartbeat=0.2) as held:
        with in_the_way(company.database, "k"):
            time.sleep(1.2)
        before = held.grant.expires_at
        until(lambda: held.grant.expires_at != before, "the heart beats again")
        held.check()
    assert ledger.history("k")[-1].action == "LockReleased"


def test_a_heart_that_finds_the_hold_in_place_extends_it_at_once(
    company: Company, ledger: LockLedger
) -> None:
    grant = ledger.take("k", "run:1", ttl=500)
    with company.hold(ledger, "k", "run:1", ttl=6000, heartbeat=2000, if_mine="return") as held:
        until(lambda: held.grant.expires_at != grant.expires_at, "the hold is extended")
        assert held.grant.token == grant.token
    assert ledger.is_locked("k")


def test_the_body_may_use_the_only_connection_meanwhile(company: Company) -> None:
    if company.database.path is None:
        engine = company.database.engine(pool_size=1, max_overflow=0)
        ledger = company.ledgers.open(url_or_engine=engine)
        with ledger.hold("k", ttl=600, heartbeat=0.1) as held:
            for number in range(20):
                ledger.take(str(number), "run:1")
                held.check()
                time.sleep(0.03)
        assert ledger.history("k")[-1].action == "LockReleased"


# Connections that break, and servers that go away.


def break_connections(database: Database) -> int:
    """Ends every session of the database but this one."""
    assert database.server is not None
    with database.server.connect(database.name) as connection:
        ended = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert ended is not None
    return int(ended[0])


def test_a_hold_survives_its_connections(postgres_company: Company) -> None:
    postgres_company.ledgers.may_log_errors = True  # the server says that it ended them
    ledger = postgres_company.open()
    with postgres_company.hold(ledger, "k", ttl=600, heartbeat=0.1) as held:
        for _ in range(5 * SOAK):
            time.sleep(0.25)
            until(lambda: break_connections(postgres_company.database), "it has a connection")
            held.check()
        assert held.grant.token == 1
        before = held.grant.expires_at
        until(lambda: held.grant.expires_at != before, "the heart still beats")
    assert ledger.history("k")[-1].action == "LockReleased"


def test_a_release_survives_a_connection_that_broke_during_the_block(
    postgres_company: Company,
) -> None:
    postgres_company.ledgers.may_log_errors = True
    ledger = postgres_company.open()
    with postgres_company.hold(ledger, "k"):
        assert break_connections(postgres_company.database)
    assert [entry.action for entry in ledger.history("k")] == ["LockTaken", "LockReleased"]


def test_a_hold_survives_a_crash_of_the_server_that_is_shorter_than_the_ttl(
    durable_server: EmbeddedPostgres, durable_database: Database
) -> None:
    with proven(durable_database) as ledgers:
        ledgers.may_log_errors = True
        ledger = ledgers.open()
        with ledger.hold("k", ttl=600, heartbeat=0.2) as held:
            time.sleep(0.3)
            durable_server.crash()
            until(lambda: isinstance(held.trouble, DBAPIError), "the heart meets no server")
            held.check()
            durable_server.start()
            before = held.grant.expires_at
            until(lambda: held.grant.expires_at != before, "the heart beats again")
            assert held.grant.token == 1
            held.check()
        assert actions(ledger)[-1] == "LockReleased"
        assert set(actions(ledger)) == {"LockTaken", "LockExtended", "LockReleased"}


def test_a_release_that_finds_no_server_says_so(
    durable_server: EmbeddedPostgres, durable_database: Database
) -> None:
    with proven(durable_database) as ledgers:
        ledgers.may_log_errors = True
        ledger = ledgers.open()
        with pytest.raises(OperationalError) as failed, ledger.hold("k", "run:1", ttl=600):
            durable_server.crash()
        (note,) = failed.value.__notes__
        assert note.startswith("the hold on 'k' with token 1 could not be released and may remain")
        durable_server.start()
        trouble = ValueError("it broke")
        with pytest.raises(ValueError, match="it broke") as raised, ledger.hold("j"):  # noqa: PT012
            durable_server.crash()
            raise trouble
        assert raised.value is trouble
        assert len(trouble.__notes__) == 2
        assert "may remain until somebody ends it" in trouble.__notes__[1]
        durable_server.start()
        until_it_answers(ledger)
        assert ledger.is_locked("k")
        assert ledger.is_locked("j")


def until_it_answers(ledger: LockLedger) -> None:
    """Broken connections in the pool are met, and thrown away."""

    def answers() -> bool:
        with contextlib.suppress(DBAPIError):
            ledger.is_locked("k")
            return True
        return False

    until(answers, "the server answers")


def test_a_hold_turns_suspect_in_time_while_the_server_stands_still(
    postgres_ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even an error comes back: the sessions are stopped, as behind a network that swallows everything."""
    database, imagined = postgres_ledgers.database, Imagined()
    imagined.replace(monkeypatch, sleeps=False)
    ledger, other = (postgres_ledgers.open(clock=imagined.clock) for _ in range(2))
    with (  # noqa: PT012
        pytest.raises(HoldLost) as at_exit,
        ledger.hold("k", "run:1", ttl=10, heartbeat=0.1) as held,
    ):
        with stopped(database):
            turns_suspect_and_runs_out(held, imagined, other)
            assert other.take("k", "run:2").token == 1 + len(extensions(other)) + 2
        until(lambda: not isinstance(checked_raises(held), HoldSuspect), "the ledger answers")
    assert at_exit.value.ended_by == "expiry"
    assert at_exit.value.current is not None
    assert at_exit.value.current.holder == "run:2"


def extensions(ledger: LockLedger) -> list[str]:
    return [action for action in actions(ledger) if action == "LockExtended"]


def sessions_of(database: Database, *, state: str | None = None) -> list[int]:
    assert database.server is not None
    with database.server.connect() as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = %s AND state = coalesce(%s, state)"
            " ORDER BY pid",
            (database.name, state),
        ).fetchall()
    return [int(pid) for (pid,) in found]


@contextlib.contextmanager
def stopped(database: Database) -> Iterator[None]:
    """Its sessions stand still for a block; none in the middle of anything, which would keep others out."""
    processes = sessions_of(database)

    def tell_all(what: signal.Signals) -> None:
        for process in processes:
            os.kill(process, what)

    def stand_still_idle() -> bool:
        tell_all(signal.SIGSTOP)
        if sessions_of(database, state="idle") == processes:
            return True
        tell_all(signal.SIGCONT)
        return False

    try:
        until(stand_still_idle, "the sessions are idle")
        yield
    finally:
        tell_all(signal.SIGCONT)


# The end of the process.

HOLDING = """
import lockledger.holding
lockledger.holding.LONGEST_FAREWELL = 120  # whoever waits so long for a heart does not end promptly
with LockLedger(url) as ledger:
    ledger.take("other", "run:1")
    {body}
"""
EXITS = {
    "sys.exit in the block": (
        'with ledger.hold("k", "run:1", ttl=600, heartbeat=0.05):\n'
        '        time.sleep(0.2); say("held"); sys.exit(7)'
    ),
    "an error in the block": (
        'with ledger.hold("k", "run:1", ttl=600, heartbeat=0.05):\n'
        '        time.sleep(0.2); say("held"); raise ValueError("it broke")'
    ),
    "Ctrl-C in the block": (
        'with ledger.hold("k", "run:1", ttl=600, heartbeat=0.05):\n'
        '        time.sleep(0.2); say("held"); time.sleep(60)'
    ),
}


@pytest.mark.parametrize("how", EXITS)
def test_a_process_that_ends_in_its_block_ends_promptly_and_releases(
    ledgers: Ledgers, how: str
) -> None:
    ledger = ledgers.open()
    with Process(HOLDING.format(body=EXITS[how]), ledgers.database.url) as process:
        assert process.hear() == "held"
        if how == "Ctrl-C in the block":
            assert ledger.is_locked("k")
            process.kill(signal.SIGINT)
        code = process.ended()
        assert code == {"sys.exit in the block": 7, "an error in the block": 1}.get(how, -2)
    assert not ledger.is_locked("k")
    assert ledger.history("k")[-1].action == "LockReleased"


LEFT_OPEN = """
import lockledger.holding
lockledger.holding.LONGEST_FAREWELL = 120
ledger = LockLedger(url)
holding = ledger.hold("k", "run:1", ttl=600, heartbeat=0.05)
held = holding.__enter__()
time.sleep(0.2)
say("held")
"""


def test_a_process_that_ends_with_an_open_block_ends_promptly(ledgers: Ledgers) -> None:
    with Process(LEFT_OPEN, ledgers.database.url) as process:
        assert process.hear() == "held"
        assert process.ended() == 0
        assert process.errors() == ""


KILLED = """
ledger = LockLedger(url)
with ledger.hold(sys.argv[2], "run:1", ttl=1.5, heartbeat=0.3):
    say("held")
    time.sleep(60)
"""


def test_after_a_kill_the_lock_is_free_a_ttl_after_the_last_beat_at_the_latest(
    ledgers: Ledgers,
) -> None:
    """It is killed when its heart has kept the hold for longer than the ttl."""
    ledgers.may_log_errors = True
    ledger, ttl = ledgers.open(), timedelta(seconds=1.5)

    def beats(key: str) -> list[datetime]:
        entries = ledger.history(key, extensions=True)
        return [
            each.occurred_at for each in entries if each.action in ("LockTaken", "LockExtended")
        ]

    def killed(key: str) -> None:
        with Process(KILLED, ledgers.database.url, key) as process:
            assert process.hear() == "held"
            until(
                lambda: beats(key)[-1] - beats(key)[0] > ttl or not ledger.is_locked(key),
                "the hold outlives its ttl",
            )
            if beats(key)[-1] - beats(key)[0] <= ttl:
                # The heart beats five times in a ttl, unless the machine does not let it.
                raise Missed
            process.kill()
            process.ended()
        until(lambda: clock_of(ledgers.database) >= beats(key)[-1] + ttl, "the ttl is over")
        last = beats(key)[-1]
        grant = ledger.try_take(key, "run:2")
        assert grant is not None
        expired = ledger.history(key)[-2]
        assert (expired.action, expired.occurred_at) == ("LockExpired", last + ttl)
        assert expired.occurred_at <= grant.taken_at

    anew(killed)
