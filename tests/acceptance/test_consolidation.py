"""The consolidation service of the documentation, as its users meet it, on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from anyio import to_thread
from fastapi import Request
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consolidation.app import create_app, unit_of_work
from consolidation.tables import AuditRow, Base, Note, User, Version
from lockledger import LockLedger
from support.databases import Database
from support.proof import prove

ANN, BO, EVE, ADA = 7, 8, 9, 1
PATIENCE = 60.0
TAKEOVER = {"takeover_reason": "  the deadline is today "}


@dataclass
class Service:
    """The running service, and what another program sees of its database."""

    client: TestClient
    database: Database
    ledger: LockLedger
    pauses: dict[str, Pause] = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))

    def request(self, method: str, address: str, body: Any = None, *, user: int = ANN) -> Response:
        return self.client.request(method, address, json=body, headers={"x-user": str(user)})

    def take(self, version: int = 17, body: Any = None, *, user: int = ANN) -> Response:
        return self.request("PUT", f"/locks/hold?key=version:{version}", body, user=user)

    def release(self, version: int = 17, *, user: int = ANN) -> Response:
        return self.request("DELETE", f"/locks/hold?key=version:{version}", user=user)

    def edit(self, figures: str, *, user: int = ANN) -> Response:
        return self.request("PUT", "/versions/17/figures", {"figures": figures}, user=user)

    def cancel(self, *, user: int = ANN) -> Response:
        return self.request("POST", "/versions/17/cancellation", user=user)

    def audit(self, *, user: int = ANN) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.request("GET", "/versions/17/audit", user=user).json()
        return rows

    def show(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.request("GET", "/versions/17").json()
        return shown

    def paused(self, path: str, call: Callable[[], Response]) -> tuple[Pause, Future[Response]]:
        """The request, stopped right before its commit, until the pause is ended."""
        pause = self.pauses[path] = Pause()
        running = self._threads.submit(call)
        assert pause.reached.wait(PATIENCE), "the request did not get as far as its commit"
        return pause, running

    def blocked(self, call: Callable[[], Response]) -> Future[Response]:
        """The request, once it waits in the database for another transaction."""
        running = self._threads.submit(call)
        for _ in range(int(PATIENCE / 0.01)):
            if self._waiting():
                return running
            assert not running.done(), f"it did not have to wait: {running.result().text}"
            threading.Event().wait(0.01)
        raise AssertionError("it neither waits nor ends")

    def change(self, statement: Any) -> None:
        """Something that happens elsewhere, committed."""
        with self.database.engine().begin() as connection:
            connection.execute(statement)

    def rows(self, kind: type[Any]) -> list[Any]:
        with Session(self.database.engine()) as session:
            return list(session.scalars(select(kind).order_by(kind.id)))

    def close(self) -> None:
        for pause in self.pauses.values():
            pause.over.set()
        self._threads.shutdown()

    def _waiting(self) -> int:
        assert self.database.server is not None
        with self.database.server.connect() as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'",
                (self.database.name,),
            ).fetchone()
        assert found is not None
        return int(found[0])


@dataclass
class Pause:
    """Stops one request right before its commit; `fails` makes the commit fail instead."""

    reached: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    fails: bool = False


def pausing(service: Service) -> Callable[[Request], AbstractAsyncContextManager[AsyncSession]]:
    """The service's unit of work, which stops where a test has asked it to."""

    def unit(request: Request) -> AbstractAsyncContextManager[AsyncSession]:
        @asynccontextmanager
        async def pausing_unit() -> AsyncIterator[AsyncSession]:
            async with unit_of_work(request) as session:
                yield session
                await session.flush()
                pause = service.pauses.pop(request.url.path, None)
                if pause is not None:
                    pause.reached.set()
                    await to_thread.run_sync(pause.over.wait, PATIENCE)
                    if pause.fails:
                        raise ArithmeticError("the commit fails")

        return pausing_unit()

    unit.__annotations__["request"] = Request
    return unit


@pytest.fixture
def service(postgres_database: Database) -> Iterator[Service]:
    """The service with some users and versions."""
    database = postgres_database
    Base.metadata.create_all(database.engine())
    with Session(database.engine()) as session, session.begin():
        session.add_all(
            [
                User(id=ANN, name="Ann", group="north"),
                User(id=BO, name="Bo", group="north"),
                User(id=EVE, name="Eve", group="south"),
                User(id=ADA, name="Ada", group="staff", is_admin=True),
                Version(id=17, group="north"),
                Version(id=18, group="north"),
                Version(id=99, group="south"),
            ]
        )
    app = create_app(database.url)
    with LockLedger(database.url) as ledger, TestClient(app) as client:
        service = Service(client, database, ledger)
        app.dependency_overrides[unit_of_work] = pausing(service)
        try:
            yield service
        finally:
            service.close()
    prove(database.engine())
    assert database.logged_errors() == []


def problem(answer: Response) -> tuple[int, str, str | None]:
    """Status, code, and the name of who holds it."""
    current = answer.json().get("current") or {}
    return answer.status_code, answer.json()["code"], current.get("holder_name")


# Taking, and taking over.


def test_a_version_is_taken_into_work_once(service: Service) -> None:
    first, again = service.take(), service.take()

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {**first.json(), "created": False}
    assert [row["action"] for row in service.audit()] == ["LockTaken"]


def test_who_has_it_is_told_by_the_name_of_now_and_since_when(service: Service) -> None:
    taken = service.take().json()
    assert problem(service.take(user=BO)) == (409, "LOCKED_BY_OTHER", "Ann")
    service.change(update(User).where(User.id == ANN).values(name="Ann Newname"))
    answer = service.take(user=BO)

    assert problem(answer) == (409, "LOCKED_BY_OTHER", "Ann Newname")
    current = answer.json()["current"]
    assert (current["holder"], current["taken_at"]) == ("user:7", taken["taken_at"])
    assert service.show()["in_work_by"] == "Ann Newname"


def test_a_reason_takes_it_over_and_the_audit_says_from_whom_and_why(service: Service) -> None:
    old = service.take().json()
    answer = service.take(body=TAKEOVER, user=BO)

    assert answer.status_code == 201
    new = answer.json()
    assert new["token"] > old["token"]
    assert (new["taken_over_from"], new["previous_holder_name"]) == ("user:7", "Ann")
    assert new["takeover_reason"] == "the deadline is today"
    assert service.audit()[-1] == {
        "action": "LockTakenOver",
        "actor": "Bo",
        "before": "Ann",
        "after": "Bo",
        "comment": "the deadline is today",
    }
    past = service.request("GET", "/locks/holds?key=version:17").json()["items"]
    assert [(hold["holder_name"], hold["ended_by"], hold["actor_name"]) for hold in past] == [
        ("Ann", "takeover", "Bo"),
        ("Bo", None, None),
    ]


def test_a_blank_reason_is_none_and_one_for_a_free_version_is_not_kept(service: Service) -> None:
    taken = service.take(body=TAKEOVER)
    assert (taken.status_code, taken.json()["takeover_reason"]) == (201, None)
    assert problem(service.take(body={"takeover_reason": " \n"}, user=BO))[0] == 409
    assert [row["comment"] for row in service.audit()] == [None]


def test_a_hold_does_not_expire_by_itself(service: Service) -> None:
    assert service.take().json()["expires_at"] is None
    assert service.take(body={"ttl": 60}, user=BO).status_code == 422
    extension = service.request("POST", "/locks/hold/extension?key=version:17", {"ttl": 60})
    assert extension.status_code == 404


def test_a_late_takeover_hits_only_the_hold_its_author_saw(service: Service) -> None:
    seen = service.take().json()["token"]
    service.take(body=TAKEOVER, user=BO)
    answer = service.take(body=TAKEOVER | {"expected_token": seen}, user=ADA)

    assert problem(answer) == (412, "HOLD_CHANGED", "Bo")


# Putting back.


def test_ones_own_is_put_back(service: Service) -> None:
    service.take()
    assert service.release().status_code == 204
    assert service.show()["in_work_by"] is None
    assert service.take(user=BO).status_code == 201


def test_anothers_is_not_put_back(service: Service) -> None:
    service.take()
    assert problem(service.release(user=BO)) == (409, "NOT_LOCK_OWNER", "Ann")


def test_nothing_is_quietly_put_back(service: Service) -> None:
    assert service.release().status_code == 204
    assert service.audit() == []


def test_only_administrators_force(service: Service) -> None:
    service.take()
    address, why = "/locks/hold/forced-release?key=version:17", {"reason": "on holiday"}
    assert problem(service.request("POST", address, why, user=BO))[:2] == (403, "FORBIDDEN")
    ended = service.request("POST", address, why, user=ADA).json()

    assert (ended["holder_name"], ended["actor_name"], ended["end_reason"]) == (
        "Ann",
        "Ada",
        "on holiday",
    )
    assert service.audit()[-1]["comment"] == "on holiday"


# Who sees what.


def test_a_version_outside_ones_visibility_is_not_there(service: Service) -> None:
    service.take(99, user=EVE)
    for version in (99, 12345):
        answers = [
            service.take(version),
            service.take(version, TAKEOVER),
            service.release(version),
            service.request("GET", f"/locks/hold?key=version:{version}"),
            service.request("GET", f"/locks/audit?key=version:{version}"),
            service.request("GET", f"/locks/holds?key=version:{version}"),
            service.request(
                "POST", f"/locks/hold/forced-release?key=version:{version}", {"reason": "x"}
            ),
        ]
        assert [problem(answer) for answer in answers] == [(404, "NOT_FOUND", None)] * 7
        assert service.request("POST", f"/versions/{version}/cancellation").status_code == 404
    assert service.ledger.holder_of("version:99") is not None
    assert service.ledger.holder_of("version:12345") is None


def test_a_key_that_names_no_version_is_not_there(service: Service) -> None:
    for key in ("run:17", "version:", "version:017", "version:17:x", "versions", "version:1e3"):
        assert service.request("PUT", f"/locks/hold?key={key}").status_code == 404


def test_lists_show_what_one_sees(service: Service) -> None:
    service.take(17)
    service.take(99, user=EVE)
    for address in ("/locks/holders", "/locks/holds", "/locks/audit"):
        seen = {
            user: [
                item["key"] for item in service.request("GET", address, user=user).json()["items"]
            ]
            for user in (BO, EVE, ADA)
        }
        assert seen == {
            BO: ["version:17"],
            EVE: ["version:99"],
            ADA: ["version:17", "version:99"],
        }


def test_nobody_is_asked_to_say_who_they_are(service: Service) -> None:
    assert service.client.put("/locks/hold?key=version:17").status_code == 401
    assert service.request("GET", "/locks/holders", user=12345).status_code == 401
    assert service.client.get("/versions/17").status_code == 401


# Statuses.


def test_an_ordinary_user_who_cancels_a_version_ends_its_hold(service: Service) -> None:
    service.take()
    assert service.cancel(user=BO).status_code == 204

    assert service.show() == {"status": "cancelled", "figures": "", "in_work_by": None}
    assert service.audit()[-1] == {
        "action": "LockReleased",
        "actor": "Bo",
        "before": "Ann",
        "after": None,
        "comment": "the version was cancelled",
    }
    assert problem(service.take()) == (409, "VERSION_CANCELLED", None)
    assert service.edit("too late").status_code == 409
    assert service.cancel().status_code == 409


def test_a_cancellation_and_the_end_of_the_hold_are_one_transaction(service: Service) -> None:
    service.take()
    pause, running = service.paused("/versions/17/cancellation", service.cancel)
    assert service.ledger.is_locked("version:17")
    assert service.show()["status"] == "open"
    pause.fails = True
    pause.over.set()
    with pytest.raises(ArithmeticError, match="the commit fails"):
        running.result(PATIENCE)

    assert service.show() == {"status": "open", "figures": "", "in_work_by": "Ann"}
    assert [row.action for row in service.rows(AuditRow)] == ["LockTaken"]


def test_a_take_that_waited_for_the_cancellation_finds_it(service: Service) -> None:
    pause, cancelling = service.paused("/versions/17/cancellation", service.cancel)
    taking = service.blocked(lambda: service.take(user=BO))
    pause.over.set()

    assert cancelling.result(PATIENCE).status_code == 204
    assert problem(taking.result(PATIENCE)) == (409, "VERSION_CANCELLED", None)


def test_a_submission_ends_the_work(service: Service) -> None:
    service.take()
    assert service.request("POST", "/versions/17/submission", user=BO).status_code == 409
    assert service.request("POST", "/versions/17/submission").status_code == 204

    assert service.show()["status"] == "submitted"
    assert service.audit()[-1]["comment"] == "submitted"
    assert problem(service.take()) == (409, "VERSION_SUBMITTED", None)


# Races.


def test_a_takeover_waits_for_the_running_edit_and_sees_it(service: Service) -> None:
    service.take()
    pause, editing = service.paused("/versions/17/figures", lambda: service.edit("4,711"))
    taking = service.blocked(lambda: service.take(body=TAKEOVER, user=BO))
    pause.over.set()

    assert editing.result(PATIENCE).status_code == 204
    taken = taking.result(PATIENCE)
    assert (taken.status_code, taken.json()["taken_over_from"]) == (201, "user:7")
    assert service.show() == {"status": "open", "figures": "4,711", "in_work_by": "Bo"}
    refused = service.edit("too late")
    assert (refused.status_code, refused.json()["code"]) == (409, "NOT_LOCK_OWNER")
    assert service.show()["figures"] == "4,711"


def test_a_takeover_of_a_version_that_was_submitted_meanwhile_is_refused(service: Service) -> None:
    service.take()
    pause, submitting = service.paused(
        "/versions/17/submission", lambda: service.request("POST", "/versions/17/submission")
    )
    taking = service.blocked(lambda: service.take(body=TAKEOVER, user=BO))
    pause.over.set()

    assert submitting.result(PATIENCE).status_code == 204
    assert problem(taking.result(PATIENCE)) == (409, "VERSION_SUBMITTED", None)


def test_two_simultaneous_takes_queue(service: Service) -> None:
    pause, first = service.paused("/locks/hold", service.take)
    second = service.blocked(lambda: service.take(user=BO))
    pause.over.set()

    assert first.result(PATIENCE).status_code == 201
    assert problem(second.result(PATIENCE)) == (409, "LOCKED_BY_OTHER", "Ann")


def test_the_second_take_wins_when_the_first_fails(service: Service) -> None:
    pause, first = service.paused("/locks/hold", service.take)
    second = service.blocked(lambda: service.take(user=BO))
    pause.fails = True
    pause.over.set()

    with pytest.raises(ArithmeticError):
        first.result(PATIENCE)
    assert second.result(PATIENCE).status_code == 201
    assert [row["actor"] for row in service.audit()] == ["Bo"]


def test_a_lost_race_does_not_poison_the_requests_transaction(service: Service) -> None:
    pause, first = service.paused("/locks/hold", service.take)
    noting = service.blocked(
        lambda: service.request("POST", "/versions/17/notes", {"text": "look at row 5"}, user=BO)
    )
    pause.over.set()

    assert first.result(PATIENCE).status_code == 201
    assert (noting.result(PATIENCE).status_code, noting.result().json()) == (
        201,
        {"in_work": False},
    )
    assert [(row.author, row.text) for row in service.rows(Note)] == [("user:8", "look at row 5")]


def test_many_users_at_once_are_one_holder(service: Service) -> None:
    users = [ANN, BO] * 6
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda user: service.take(user=user), users))

    winner = {answer.json()["holder"] for answer in answers if answer.status_code in (200, 201)}
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201] + [409] * 6
    assert len(winner) == 1
    assert len(service.rows(AuditRow)) == 1


def test_the_services_audit_and_the_ledgers_say_the_same(service: Service) -> None:
    service.take()
    service.take(body=TAKEOVER, user=BO)
    service.cancel()
    entries = service.ledger.history("version:17")

    assert [
        (row.action, row.actor, row.before, row.after, row.comment, row.at)
        for row in service.rows(AuditRow)
    ] == [
        (
            entry.action,
            entry.actor,
            entry.before and entry.before.holder,
            entry.after and entry.after.holder,
            entry.reason,
            entry.occurred_at,
        )
        for entry in entries
    ]
    assert [entry.action for entry in entries] == ["LockTaken", "LockTakenOver", "LockReleased"]
    assert service.rows(Version)[0].status == "cancelled"
