"""A connection to PostgreSQL that is lost: whether the change was made is unknown only if it was being committed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, OperationalError

from lockledger import OutcomeUnknown
from support.hosts import Host, host_on
from support.in_the_way import in_the_way
from support.killed import decide_at_leisure
from support.ledgers import Ledgers
from support.proof import count_rows
from support.proxies import proxy_of
from support.verbs import Verb

CALLS: dict[str, Verb] = {
    "take": lambda ledger: ledger.take("k", "ben", takeover_reason="urgent"),
    "release": lambda ledger: ledger.release("k", "ann"),
    "extend": lambda ledger: ledger.extend("k", "ann", 7200),
    "force_release": lambda ledger: ledger.force_release("k", actor="root", reason="order"),
}
COMMIT = "COMMIT\0"
"""The whole message; `BEGIN ISOLATION LEVEL READ COMMITTED` is another."""


@pytest.fixture
def postgres_host(postgres_ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host on each PostgreSQL server in turn, where ann holds `k`."""
    decide_at_leisure(monkeypatch.setattr)
    postgres_ledgers.may_log_errors = True
    with host_on(postgres_ledgers) as host:
        host.ledger.take("k", "ann", ttl=3600)
        yield host


def test_an_answer_that_is_lost_after_the_append_leaves_the_outcome_unknown_and_repeating_tells(
    postgres_host: Host,
) -> None:
    with proxy_of(postgres_host.database) as proxy:
        ledger = postgres_host.ledgers.open(url_or_engine=proxy.url)
        ledger.release("k", "ann")
        proxy.lose_answer_to("WITH head AS")
        with pytest.raises(OutcomeUnknown) as unknown:
            ledger.take("k", "ben")
        assert unknown.value.key == "k"
        assert proxy.lost.is_set()
        repeated = ledger.take("k", "ben")
        assert (repeated.created, repeated.token) == (False, 3)


def test_an_answer_that_is_lost_after_a_commit_leaves_the_outcome_unknown(
    postgres_host: Host,
) -> None:
    with proxy_of(postgres_host.database) as proxy:
        ledger = postgres_host.ledgers.open(url_or_engine=proxy.url, scopes=True)
        ledger.holder_of("k")
        proxy.lose_answer_to(COMMIT)
        with pytest.raises(OutcomeUnknown):
            ledger.take("new", "ben")
        assert not ledger.take("new", "ben").created


@pytest.mark.parametrize("lost", ["SELECT clock_timestamp()", "BEGIN ISOLATION"])
def test_an_answer_that_is_lost_before_anything_was_to_be_committed_is_its_own_error(
    postgres_host: Host, lost: str
) -> None:
    """A take with scopes: looked, begun, looked again, appended, committed."""
    with proxy_of(postgres_host.database) as proxy:
        ledger = postgres_host.ledgers.open(url_or_engine=proxy.url, scopes=True)
        ledger.holder_of("k")
        proxy.lose_answer_to(lost)
        with pytest.raises(OperationalError):
            ledger.take("new", "ben")
        assert ledger.take("new", "ben").created


def test_an_append_whose_answer_is_lost_before_its_commit_is_its_own_error(
    postgres_host: Host,
) -> None:
    with proxy_of(postgres_host.database) as proxy:
        ledger = postgres_host.ledgers.open(url_or_engine=proxy.url, scopes=True)
        ledger.holder_of("k")
        proxy.lose_answer_to("WITH head AS")
        with pytest.raises(OperationalError):
            ledger.take("new", "ben")  # BEGIN, append, COMMIT
        assert ledger.take("new", "ben").created


def test_an_answer_that_is_lost_in_a_callers_transaction_is_its_own_error(
    postgres_host: Host,
) -> None:
    with proxy_of(postgres_host.database) as proxy:
        engine = create_engine(proxy.url)
        with engine.connect() as connection:
            bound = postgres_host.ledger.using(connection)
            bound.holder_of("k")
            proxy.lose_answer_to("WITH head AS")
            with pytest.raises(OperationalError):
                bound.take("k", "ben", takeover_reason="urgent")
        engine.dispose()
    assert postgres_host.ledger.holder_of("k").holder == "ann"  # type: ignore[union-attr]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_session_that_is_ended_while_it_waits_is_never_called_locked(
    postgres_host: Host, call: Verb
) -> None:
    database, ledger = postgres_host.database, postgres_host.ledger
    before = count_rows(database.engine())
    with in_the_way(database, "k"):
        running = postgres_host.blocked(lambda: call(ledger))
        with database.server.connect() as admin:  # type: ignore[union-attr]
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = %s AND wait_event_type = 'Lock'",
                (database.name,),
            )
        with pytest.raises((OutcomeUnknown, DBAPIError)):
            running.result(timeout=20)
    assert count_rows(database.engine()) == before
    call(ledger)


def test_a_session_that_was_ended_before_the_call_is_its_own_error_and_the_next_call_works(
    postgres_host: Host,
) -> None:
    database = postgres_host.database
    ledger = postgres_host.ledgers.open()
    ledger.holder_of("k")
    with database.server.connect() as admin:  # type: ignore[union-attr]
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            (database.name,),
        )
    with pytest.raises(OperationalError):
        ledger.take("k", "ben", takeover_reason="urgent")
    assert ledger.take("k", "ben", takeover_reason="urgent").created
