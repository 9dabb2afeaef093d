"""Display names are the host's, looked up when an answer is made, in every way of calling the verbs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from sqlalchemy import Connection, bindparam, text

from support.hosts import Host
from support.ways import Way

NAMES = text("SELECT id, name FROM host_user WHERE id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)


def names(connection: Connection, ids: Collection[str]) -> Mapping[str, str]:
    """As a host would look them up."""
    assert isinstance(connection, Connection)
    assert len(set(ids)) == len(ids)
    return {row.id: row.name for row in connection.execute(NAMES, {"ids": list(ids)})}


@pytest.fixture
def host(host: Host) -> Host:
    """A host with users."""
    with host.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE host_user (id TEXT, name TEXT)")
        connection.exec_driver_sql("INSERT INTO host_user VALUES ('user:1', 'Ada')")
    return host


def test_names_are_as_they_are_now_and_none_is_stored(host: Host, way: Way) -> None:
    with way.ledger(names=names) as opened:
        with opened.transaction() as verbs:
            verbs.take("k", "user:1", actor="user:2")
        with opened.transaction() as verbs:
            ids = ["user:1", "user:2", "user:1"]
            assert verbs.display_names(ids) == {"user:1": "Ada", "user:2": None}
            assert verbs.display_names([]) == {}
        with host.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE host_user SET name = 'Ada Lovelace'")
        with opened.transaction() as verbs:
            assert verbs.display_names(["user:1"]) == {"user:1": "Ada Lovelace"}
            hold = verbs.holder_of("k")
            assert hold is not None
            assert "Ada" not in hold.model_dump_json()
            assert "Ada" not in verbs.history("k")[0].model_dump_json()


def test_in_a_transaction_names_are_its_own(host: Host) -> None:
    ledger = host.ledgers.open(names=names)
    with host.session() as session:
        session.execute(text("UPDATE host_user SET name = 'renamed'"))
        assert ledger.using(session).display_names(["user:1"]) == {"user:1": "renamed"}
        if host.postgres:
            assert ledger.display_names(["user:1"]) == {"user:1": "Ada"}
        session.rollback()

    assert ledger.display_names(["user:1"]) == {"user:1": "Ada"}


def test_a_ledger_without_names_knows_none(host: Host) -> None:
    with host.session() as session:
        assert host.ledger.using(session).display_names(["user:1"]) == {"user:1": None}
