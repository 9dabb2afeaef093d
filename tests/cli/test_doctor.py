"""What the doctor sees, and what it makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.databases import Database
from support.ledgers import Ledgers, proven
from support.roles import role_of


def verdicts(ran: Any) -> dict[str, str]:
    return {each["check"]: each["verdict"] for each in ran.json["findings"]}


def said(ran: Any, check: str) -> str:
    return " / ".join(each["text"] for each in ran.json["findings"] if each["check"] == check)


@pytest.fixture
def postgres(lockledger: Any, postgres_database: Database) -> Iterator[Any]:
    """The command line on PostgreSQL, and its database."""
    lockledger.on(postgres_database.url)
    with proven(postgres_database):
        yield lockledger


@contextmanager
def changed(database: Database, there: str, back: str) -> Iterator[None]:
    """A change of the database, taken back at the end."""
    with database.engine().begin() as connection:
        connection.exec_driver_sql(there)
    try:
        yield
    finally:
        with database.engine().begin() as connection:
            connection.exec_driver_sql(back)


def test_a_healthy_database_is_told_check_by_check(cli: Any, ledgers: Ledgers) -> None:
    cli.done("take", "k", "h")
    cli.done("take", "k2", "h")
    before = ledgers.rows()
    ran = cli("doctor")
    assert (ran.code, ran.err) == (0, "")
    lines = [line.split(maxsplit=2) for line in ran.out.splitlines()]
    assert ["ok", "schema", "version lockledger_0001"] in lines
    assert ["ok", "append-only", "the database refuses to change history"] in lines
    assert ["ok", "contents", "2 locks and 2 events in the ledger 'default'"] in lines
    assert [
        "ok",
        "agreement",
        "events and current holders agree on the 2 locks that changed last",
    ] in lines
    assert ledgers.rows() == before


def test_the_answer_as_json_is_one_object(cli: Any, ledgers: Ledgers) -> None:
    ran = cli("doctor", "--json")
    assert ran.code == 0
    assert set(ran.json) == {"database", "ok", "findings"}
    assert all(set(each) == {"check", "verdict", "text"} for each in ran.json["findings"])
    assert ran.json["ok"] is all(verdict == "ok" for verdict in verdicts(ran).values())
    assert ledgers.database.name in ran.json["database"]
    assert "fault" not in verdicts(ran).values()


def test_an_sqlite_file_is_looked_at_as_one(lockledger: Any, sqlite_database: Database) -> None:
    lockledger.on(sqlite_database.url)
    ran = lockledger("doctor", "--json")
    assert ran.json["ok"] is True
    assert said(ran, "database").startswith("SQLite 3.")
    assert said(ran, "journal") == "write-ahead logging"
    assert said(ran, "durability").startswith("synchronous FULL")
    assert said(ran, "waiting") == "a write waits 30 s for another connection's write"
    assert str(sqlite_database.path) in said(ran, "file")
    with changed(sqlite_database, "PRAGMA journal_mode = DELETE", "PRAGMA journal_mode = WAL"):
        ran = lockledger("doctor", "--json")
    assert (ran.code, verdicts(ran)["journal"]) == (0, "warning")
    assert "run `lockledger migrate`" in said(ran, "journal")


def test_a_server_is_looked_at_as_one(postgres: Any) -> None:
    ran = postgres("doctor", "--json")
    assert said(ran, "database").startswith("PostgreSQL ")
    assert said(ran, "isolation") == "read committed by default"
    assert said(ran, "timeouts").startswith(
        "statement_timeout 0, lock_timeout 0, idle in transaction 0"
    )
    assert said(ran, "subscribers") == "no open transaction holds them back"
    assert verdicts(ran)["positions"] == "ok"
    assert verdicts(ran)["clocks"] == "ok"
    assert verdicts(ran)["grants"] == "ok"
    assert verdicts(ran)["role"] == "warning"
    assert "'postgres' is superuser and owner of the tables" in said(ran, "role")


def test_settings_that_endanger_something_are_warnings(
    postgres: Any, postgres_database: Database
) -> None:
    settings = (
        "-cdefault_transaction_isolation=serializable -csynchronous_commit=off -clock_timeout=5s"
    )
    options = settings.replace(" ", "%20").replace("=", "%3D")
    ran = postgres("doctor", "--json", "--database", f"{postgres_database.url}&options={options}")
    assert ran.code == 0
    assert verdicts(ran)["isolation"] == "warning"
    assert said(ran, "isolation").startswith("serializable by default")
    assert verdicts(ran)["durability"] == "warning"
    assert "synchronous_commit is off" in said(ran, "durability")
    assert "lock_timeout 5s" in said(ran, "timeouts")


def test_a_role_with_exactly_the_documented_grants_is_fine(
    postgres: Any, postgres_database: Database
) -> None:
    tables = ("events", "audit_trail", "holds")
    with role_of(postgres_database) as role:
        with postgres_database.engine().begin() as connection:
            for grant in (
                f"SELECT, INSERT ON {', '.join(f'lockledger_{table}' for table in tables)}",
                "SELECT, INSERT, UPDATE ON lockledger_current_holders, lockledger_consumer_positions",
                "USAGE ON SEQUENCE lockledger_position",
                "SELECT ON lockledger_schema_version, lockledger_live_holders, lockledger_all_holds",
            ):
                connection.exec_driver_sql(f"GRANT {grant} TO {role}")
        options = f"&options=-crole%3D{role}"
        ran = postgres("doctor", "--json", "--database", postgres_database.url + options)
        assert ran.code == 0
        assert verdicts(ran)["role"] == "ok"
        assert verdicts(ran)["grants"] == "ok"
        assert said(ran, "role").endswith("cannot remove what protects history")
        with postgres_database.engine().begin() as connection:
            connection.exec_driver_sql(f"REVOKE INSERT ON lockledger_events FROM {role}")
            connection.exec_driver_sql(f"REVOKE USAGE ON SEQUENCE lockledger_position FROM {role}")
        ran = postgres("doctor", "--json", "--database", postgres_database.url + options)
    assert ran.code == 0
    assert (
        said(ran, "grants")
        == "the role lacks INSERT on lockledger_events, USAGE on lockledger_position"
    )
    assert verdicts(ran)["positions"] == "warning"


def test_a_trigger_that_sleeps_is_a_warning(postgres: Any, postgres_database: Database) -> None:
    table = "ALTER TABLE lockledger_events"
    name = "TRIGGER lockledger_events_append_only"
    for there in (f"{table} DISABLE {name}", f"{table} ENABLE {name}"):
        with changed(postgres_database, there, f"{table} ENABLE ALWAYS {name}"):
            ran = postgres("doctor", "--json")
        assert (ran.code, verdicts(ran)["append-only"]) == (0, "warning")
        assert "lockledger_events_append_only missing or disabled" in said(ran, "append-only")


def test_a_trigger_that_is_gone_is_a_warning(lockledger: Any, sqlite_database: Database) -> None:
    lockledger.on(sqlite_database.url)
    with sqlite_database.engine().begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER lockledger_holds_refuse_update")
    ran = lockledger("doctor", "--json")
    assert (ran.code, verdicts(ran)["append-only"]) == (0, "warning")
    assert "lockledger_holds_refuse_update missing" in said(ran, "append-only")


def test_a_sequence_that_caches_or_lags_is_a_fault(
    postgres: Any, postgres_database: Database
) -> None:
    postgres.done("take", "k", "h")
    postgres.done("take", "k2", "h")
    cache = "ALTER SEQUENCE lockledger_position CACHE"
    with changed(postgres_database, f"{cache} 20", f"{cache} 1"):
        ran = postgres("doctor", "--json")
    assert (ran.code, verdicts(ran)["positions"]) == (3, "fault")
    assert "CACHE 20" in said(ran, "positions")
    value = "SELECT setval('lockledger_position',"
    with changed(postgres_database, f"{value} 1)", f"{value} 2)"):
        ran = postgres("doctor", "--json")
    assert (ran.code, verdicts(ran)["positions"]) == (3, "fault")
    assert "set it with setval" in said(ran, "positions")


def test_an_open_transaction_that_holds_subscribers_back_is_named(
    postgres: Any, postgres_database: Database, ledgers_on_postgres: Ledgers
) -> None:
    engine = postgres_database.engine()
    with engine.connect() as connection, connection.begin():
        ledgers_on_postgres.open().using(connection).take("k", "h")
        process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        ran = postgres("doctor", "--json")
    assert (ran.code, verdicts(ran)["subscribers"]) == (0, "ok")
    assert said(ran, "subscribers").startswith(
        f"process {process} holds them back at position 0, for "
    )


# A server that is there already need not allow prepared transactions.
@pytest.mark.parametrize("postgres_database", ["postgres"], indirect=True)
def test_a_prepared_transaction_left_behind_is_a_warning(
    postgres: Any, postgres_database: Database, ledgers_on_postgres: Ledgers
) -> None:
    engine = postgres_database.engine()
    with engine.connect() as connection:
        transaction = connection.begin_twophase("left-behind")
        ledgers_on_postgres.open().using(connection).take("k", "h")
        transaction.prepare()
        try:
            ran = postgres("doctor", "--json")
        finally:
            transaction.rollback()
    assert (ran.code, verdicts(ran)["subscribers"]) == (0, "warning")
    assert "the prepared transaction 'left-behind' holds them back at position 0" in said(
        ran, "subscribers"
    )
    assert "commit or roll it back" in said(ran, "subscribers")


@pytest.fixture
def ledgers_on_postgres(postgres_database: Database) -> Iterator[Ledgers]:
    with proven(postgres_database) as opened:
        yield opened


def test_a_head_row_that_disagrees_with_the_events_is_a_fault(cli: Any, ledgers: Ledgers) -> None:
    cli.done("take", "k", "h")
    cli.done("take", "k2", "h")
    heads = "UPDATE lockledger_current_holders SET holder ="
    with changed(ledgers.database, f"{heads} 'x' WHERE key = 'k'", f"{heads} 'h' WHERE key = 'k'"):
        ran = cli("doctor", "--json")
        human = cli("doctor")
    assert (ran.code, human.code) == (3, 3)
    assert "'k': its head row differs in holder" in said(ran, "agreement")
    assert "agree on the 1 locks" in said(ran, "agreement")
    assert any(line.startswith("fault") for line in human.out.splitlines())


def test_events_from_the_future_are_a_warning(cli: Any, ledgers: Ledgers) -> None:
    from datetime import UTC, datetime, timedelta

    ledgers.open(clock=lambda: datetime.now(UTC) + timedelta(hours=1)).take("k", "h")
    ran = cli("doctor", "--json")
    assert (ran.code, verdicts(ran)["time"]) == (0, "warning")
    assert "ahead of the clock" in said(ran, "time")


def test_a_missing_schema_is_code_4_after_what_could_be_seen(
    lockledger: Any, empty_database: Database
) -> None:
    lockledger.on(empty_database.url)
    if empty_database.path is not None:
        empty_database.path.touch()
    ran = lockledger("doctor", "--json")
    assert ran.code == 4
    assert (verdicts(ran)["database"], verdicts(ran)["schema"]) == ("ok", "fault")
    assert "run `lockledger migrate`" in ran.err
    human = lockledger("doctor")
    assert human.code == 4
    assert "fault    schema       lockledger's tables are missing" in human.out
