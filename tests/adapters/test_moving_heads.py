"""Why no take ever meets a unique violation, although the head rows have two unique indexes and one arbiter.

While another transaction moves a head, PostgreSQL's look at the arbiter index may catch neither the old nor the new
version of the row. It then inserts what was proposed, finds the head after all, and takes the insertion back; but not
before it has looked into the other unique index, (lock_id, token), which raises an error for a token that is there. It
takes thousands of tries by many processes to meet it, so this looks at what is proposed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockledger import LockLedger
from support.databases import Database
from support.proof import prove

WATCH = """
CREATE TABLE proposed (token bigint, version bigint);
CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN INSERT INTO proposed VALUES (NEW.token, NEW.version); RETURN NEW; END';
CREATE TRIGGER watch BEFORE INSERT ON lockledger_current_holders FOR EACH ROW EXECUTE FUNCTION watch();
"""


@pytest.fixture
def watched(postgres_database: Database) -> Iterator[LockLedger]:
    with postgres_database.engine().begin() as connection:
        connection.exec_driver_sql(WATCH)
    with LockLedger(postgres_database.url) as ledger:
        yield ledger
    prove(postgres_database.engine())


def test_only_a_locks_first_event_proposes_a_token(
    watched: LockLedger, postgres_database: Database
) -> None:
    watched.take("k", "run:1", ttl=60)
    watched.extend("k", "run:1", 120)
    watched.take("k", "run:2", takeover_reason="urgent")
    watched.release("k", "run:2")
    watched.take("k", "run:1")

    with postgres_database.engine().connect() as connection:
        found = connection.exec_driver_sql("SELECT version, token FROM proposed ORDER BY version")
        assert [tuple(row) for row in found] == [(1, 1), (2, None), (3, None), (4, None), (5, None)]


def test_the_token_moves_all_the_same(watched: LockLedger, postgres_database: Database) -> None:
    watched.take("k", "run:1")
    watched.release("k", "run:1")
    watched.take("k", "run:2")

    with postgres_database.engine().connect() as connection:
        found = connection.exec_driver_sql("SELECT token FROM lockledger_current_holders").scalar()
    assert found == 3
