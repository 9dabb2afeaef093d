"""A ledger that was dumped, restored into a new cluster, and goes on there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from lockledger import LockLedger
from support.databases import Database, migrate, new_database
from support.documents import DOCS, blocks
from support.postgres import EmbeddedPostgres, embedded_postgres
from support.proof import prove
from support.readers import Subscriber

pytestmark = pytest.mark.alone

OBJECTS = """
SELECT c.relname, c.relkind, c.relacl::text, t.tgname, t.tgenabled, pg_get_triggerdef(t.oid)
FROM pg_class c LEFT JOIN pg_trigger t ON t.tgrelid = c.oid WHERE c.relname LIKE 'lockledger%%'
UNION ALL
SELECT viewname, 'd', definition, null, null, null FROM pg_views WHERE viewname LIKE 'lockledger%%'
UNION ALL
SELECT indexname, 'x', indexdef, null, null, null FROM pg_indexes WHERE tablename LIKE 'lockledger%%'
"""
SEQUENCE = "SELECT last_value, is_called FROM lockledger_position"


@pytest.fixture
def other_server() -> Iterator[EmbeddedPostgres]:
    with embedded_postgres(durable=True) as server:
        yield server


def rows(database: Database, query: str) -> list[Any]:
    with database.engine().connect() as connection:
        found = connection.exec_driver_sql(query)
        return sorted((tuple(row) for row in found), key=repr)


def granted(server: EmbeddedPostgres, database: Database) -> None:
    """The application's role, with what the reference tells to grant it."""
    (grants,) = [
        block.text
        for block in blocks(DOCS / "reference" / "schema.md", "sql")
        if "GRANT" in block.text
    ]
    with server.connect(database.name) as admin:
        admin.execute("CREATE ROLE app LOGIN")
        admin.execute(grants)


def test_all_is_there_and_takes_checkpoints_and_subscribers_go_on(
    durable_server: EmbeddedPostgres, other_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    database = new_database(durable_server)
    migrate(database)
    granted(durable_server, database)
    with LockLedger(database.url) as ledger:
        for number in range(30):
            ledger.take(f"key:{number % 7}", f"run:{number}", takeover_reason="my turn")
        checkpoint = ledger.checkpoint()
        token = ledger.take("key:1", "ann", takeover_reason="urgent", ttl=3600).token
        read = [recorded.position for recorded in ledger.events()]

    file = (
        Path(durable_server.parameters["host"]) / "dump"
    )  # a folder that the server's user may write
    durable_server.client(
        "pg_dump", "--format=custom", f"--file={file}", durable_server.dsn(database.name)
    )
    with other_server.connect() as admin:
        admin.execute("CREATE ROLE app LOGIN")  # roles belong to a cluster
    restored = new_database(other_server)
    other_server.client(
        "pg_restore", "--exit-on-error", f"--dbname={other_server.dsn(restored.name)}", str(file)
    )

    assert rows(restored, OBJECTS) == rows(database, OBJECTS)
    assert rows(restored, SEQUENCE) == rows(database, SEQUENCE)
    assert len(prove(restored.engine())) == 7
    as_app = restored.url.replace("user=postgres", "user=app")
    with LockLedger(as_app) as ledger:
        verification = ledger.verify(checkpoint=checkpoint)
        assert (verification.ok, verification.checkpoint) == (True, checkpoint.position)
        assert ledger.extend("key:1", "ann", 7200, token=token).token == token
        assert ledger.take("key:1", "ben", takeover_reason="urgent").token == token + 2
        assert ledger.take("new", "ben").token == 1
        went_on = [recorded.position for recorded in ledger.events(after=read[-1])]
        assert len(went_on) == 3
        assert min(went_on) > read[-1]
        with Subscriber(ledger) as subscriber:
            seen = [position for position, _, _ in subscriber.wait_for(went_on[-1])]
        assert seen == [*read, *went_on]
        assert ledger.verify(checkpoint=ledger.checkpoint()).ok
    for table in ("events", "audit_trail", "holds"):
        with (
            restored.engine().begin() as connection,
            pytest.raises(IntegrityError, match="append-only"),
        ):
            connection.exec_driver_sql(f"DELETE FROM lockledger_{table}")
    prove(restored.engine())
    restored.close()
    database.close()


def test_without_the_sequences_value_a_take_fails_and_says_so(
    durable_server: EmbeddedPostgres,
) -> None:
    """Rows that were copied by hand, say."""
    database = new_database(durable_server)
    migrate(database)
    with LockLedger(database.url) as ledger:
        ledger.take("k", "ann")
        with durable_server.connect(database.name) as admin:
            admin.execute("ALTER SEQUENCE lockledger_position RESTART")
        with pytest.raises(DBAPIError):
            ledger.take("other", "ann")
        assert not ledger.is_locked("other")
    database.close()
