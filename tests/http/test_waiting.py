"""Requests that wait for other transactions, through the router, on PostgreSQL."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from lockledger import HoldLost
from support.hosts import Host
from support.sites import Site

TAKEOVER = {"takeover_reason": "the deadline"}


@pytest.fixture
def host(postgres_site: Site) -> Any:
    """Another program on the same database."""
    host = Host(
        postgres_site.ledgers, postgres_site.ledgers.database.engine(), postgres_site.ledger
    )
    yield host
    host.close()


def test_a_takeover_waits_for_the_holders_guarded_edit_and_sees_it(
    postgres_site: Site, host: Host
) -> None:
    site, seen = postgres_site, list[str]()

    def look(connection: Any, events: Any) -> None:
        seen.append(connection.execute(text("SELECT body FROM host_document")).scalar_one())

    site.policy.on_recorded = look
    grant = site.ledger.take("k", "user:8")
    with host.session() as session, session.begin():
        site.ledger.using(session).guard("k", "user:8", token=grant.token)
        host.write(session, 1, "the edit")
        answer: Future[Any] = host.blocked(
            lambda: site.request("PUT", "/locks/hold?key=k", TAKEOVER)
        )

    assert answer.result(20).status_code == 201
    assert answer.result().json()["taken_over_from"] == "user:8"
    assert seen == ["the edit"]
    with (
        pytest.raises(HoldLost, match="taken over by 'user:7'"),
        host.session() as session,
        session.begin(),
    ):
        site.ledger.using(session).guard("k", "user:8", token=grant.token)


def test_a_takeover_that_waited_for_the_release_takes_a_free_lock(
    postgres_site: Site, host: Host
) -> None:
    """What the host allowed before the wait was about a hold that is gone: it is asked again."""
    site = postgres_site
    site.ledger.take("k", "user:8")
    with host.session() as session, session.begin():
        bound = site.ledger.using(session)
        bound.guard("k", "user:8")
        bound.release("k", "user:8")
        answer: Future[Any] = host.blocked(
            lambda: site.request("PUT", "/locks/hold?key=k", TAKEOVER)
        )

    assert answer.result(20).status_code == 201
    assert answer.result().json()["taken_over_from"] is None
    assert answer.result().json()["takeover_reason"] is None
    assert [verb for _, verb, _, _ in site.asked] == ["takeover", "take"]


def test_a_host_may_change_its_mind_after_the_wait(postgres_site: Site, host: Host) -> None:
    site = postgres_site
    site.judge = lambda principal, verb, key, current: (
        "allow" if current is not None and current.holder == "user:8" else "forbid"
    )
    site.ledger.take("k", "user:8")
    with host.session() as session, session.begin():
        bound = site.ledger.using(session)
        bound.release("k", "user:8")
        bound.take("k", "user:9")
        answer: Future[Any] = host.blocked(
            lambda: site.request("PUT", "/locks/hold?key=k", TAKEOVER)
        )

    assert answer.result(20).status_code == 403
    hold = site.ledger.holder_of("k")
    assert hold is not None
    assert hold.holder == "user:9"


def test_of_two_simultaneous_takes_the_second_sees_the_firsts_result(
    postgres_site: Site, host: Host
) -> None:
    site = postgres_site
    with host.session() as session, session.begin():
        site.ledger.using(session).take("k", "user:8")
        answer: Future[Any] = host.blocked(lambda: site.call("take"))

    assert answer.result(20).status_code == 409
    assert answer.result().json()["current"]["holder_name"] == "Bo"


def test_many_simultaneous_takes_give_one_hold(postgres_site: Site, host: Host) -> None:
    site = postgres_site
    running = [
        host.meanwhile(partial(site.request, "PUT", "/locks/hold?key=k", user=f"user:{number}"))
        for number in range(12)
    ]
    answers = [each.result(60) for each in running]

    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 11
    [winner] = [answer.json()["holder"] for answer in answers if answer.status_code == 201]
    assert {
        answer.json()["current"]["holder"] for answer in answers if answer.status_code == 409
    } == {winner}


def test_the_audit_trail_waits_for_what_may_still_come(postgres_site: Site, host: Host) -> None:
    """Following `next_after` skips nothing, so what a slow transaction may come before is not shown yet."""
    site = postgres_site
    with host.session() as session, session.begin():
        site.ledger.using(session).take("slow", "user:8")
        site.call("take")
        before = site.request("GET", "/locks/audit").json()["items"]
        history = site.request("GET", "/locks/audit?key=k").json()["items"]
    after = site.request("GET", "/locks/audit").json()["items"]

    assert before == []
    assert [item["key"] for item in history] == ["k"]
    assert [item["key"] for item in after] == ["slow", "k"]


def test_the_audit_trail_reads_past_an_old_snapshot_of_the_hosts(
    postgres_site: Site, host: Host
) -> None:
    """A host whose requests run at REPEATABLE READ still skips nothing by following `next_after`."""
    site = postgres_site
    site.ledger.take("a", "user:8")
    assert [item["key"] for item in site.request("GET", "/locks/audit").json()["items"]] == ["a"]
    site.ledger.take("b", "user:8")
    assert [
        item["key"] for item in site.request("GET", "/locks/audit?after=1").json()["items"]
    ] == ["b"]
