"""The cases that `eventsourcing` gives to authors of recorders, against ours.

They are unittest classes, which pytest's parametrised fixtures do not reach: each of their methods is called by a test.
Left out is the one case that wants positions of two transactions never to interleave; `test_recorder_interleaving.py`
proves that no reader needs it.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any
from unittest import TestCase, defaultTestLoader

import pytest
from eventsourcing.tests import application, persistence

from lockledger.eventsourcing import (
    OwnTransactions,
    SQLAlchemyAggregateRecorder,
    SQLAlchemyApplicationRecorder,
    SQLAlchemyProcessRecorder,
    SQLAlchemyTrackingRecorder,
)
from support.databases import Database


class ApplicationsOfTheLibrary(application.ApplicationTestCase):
    __test__ = False


class Aggregates(persistence.AggregateRecorderTestCase):
    __test__ = False
    transactions: OwnTransactions

    def create_recorder(self) -> SQLAlchemyAggregateRecorder:
        return SQLAlchemyAggregateRecorder(self.transactions)


class Applications(persistence.ApplicationRecorderTestCase[SQLAlchemyApplicationRecorder]):
    __test__ = False
    transactions: OwnTransactions

    def create_recorder(self) -> SQLAlchemyApplicationRecorder:
        return SQLAlchemyApplicationRecorder(self.transactions)

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class Trackings(persistence.TrackingRecorderTestCase):
    __test__ = False
    transactions: OwnTransactions

    def create_recorder(self) -> SQLAlchemyTrackingRecorder:
        return SQLAlchemyTrackingRecorder(self.transactions)


class Processes(persistence.ProcessRecorderTestCase):
    __test__ = False
    transactions: OwnTransactions

    def create_recorder(self) -> SQLAlchemyProcessRecorder:
        return SQLAlchemyProcessRecorder(self.transactions)


class ProcessesAsApplications(Applications):
    __test__ = False

    def create_recorder(self) -> SQLAlchemyApplicationRecorder:
        return SQLAlchemyProcessRecorder(self.transactions)


RECORDERS = (Aggregates, Applications, Trackings, Processes, ProcessesAsApplications)


def methods(*cases: type[TestCase]) -> list[Any]:
    return [
        pytest.param(case, method, id=f"{case.__name__}-{method}")
        for case in cases
        for method in defaultTestLoader.getTestCaseNames(case)
    ]


def run(case: TestCase, method: str) -> None:
    before = set(threading.enumerate())
    case.setUp()
    try:
        getattr(case, method)()
    finally:
        case.tearDown()
        # Some cases leave threads behind that are about to end, and still hold a connection.
        for thread in set(threading.enumerate()) - before:
            thread.join(timeout=10)


@pytest.fixture
def transactions(database: Database) -> Iterator[OwnTransactions]:
    transactions = OwnTransactions(database.url)
    yield transactions
    transactions.close()
    assert database.logged_errors() == []


@pytest.mark.parametrize(("case", "method"), methods(*RECORDERS))
def test_recorders_pass_the_librarys_cases(
    case: Any, method: str, transactions: OwnTransactions
) -> None:
    test = case(method)
    test.transactions = transactions
    run(test, method)


# One case wants to see the warning of a deprecated property.
@pytest.mark.filterwarnings("always:'log' is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("case", "method"), methods(ApplicationsOfTheLibrary))
def test_the_librarys_application_works_on_a_ledger(
    case: Any, method: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSISTENCE_MODULE", "lockledger.eventsourcing")
    monkeypatch.setenv("LOCKLEDGER_URL", database.url)
    run(case(method), method)
    gc.collect()
