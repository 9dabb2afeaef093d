"""The grants of the reference are enough for the application, and give nothing beyond."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import ProgrammingError

from lockledger.adapters.identifiers import VERSION_TABLE
from lockledger.adapters.migration import migrate
from lockledger.adapters.schema import (
    ALL_HOLDS,
    AUDIT_TRAIL,
    CONSUMER_POSITIONS,
    CURRENT_HOLDERS,
    EVENTS,
    HOLDS,
    LIVE_HOLDERS,
    POSITION_SEQUENCE,
    check_schema,
    declared,
)
from support.databases import Database
from support.roles import application_of
from support.rows import (
    insert_audit_entry,
    insert_current_holder,
    insert_ended_hold,
    insert_event,
)


@pytest.fixture
def application(postgres_database: Database) -> Iterator[Engine]:
    """An engine of the application's role."""
    with application_of(postgres_database) as engine:
        yield engine


def test_the_application_may_do_its_work(application: Engine) -> None:
    with application.begin() as connection:
        check_schema(connection)
        position = f"nextval('public.{POSITION_SEQUENCE}')"
        assert connection.exec_driver_sql(f"SELECT {position}").scalar() == 1
        last = f"SELECT pg_sequence_last_value('public.{POSITION_SEQUENCE}')"
        assert connection.exec_driver_sql(last).scalar() == 1
        insert_event(connection)
        insert_audit_entry(connection)
        insert_ended_hold(connection, token=2)
        insert_current_holder(connection)
        tables = declared("postgresql")
        connection.execute(tables.current_holders.update().values(holder=None, token=None))
        connection.execute(
            tables.consumer_positions.insert().values(ledger="default", consumer="c", position=1)
        )
        connection.execute(tables.consumer_positions.update().values(position=2))
        for readable in (EVENTS, AUDIT_TRAIL, HOLDS, CURRENT_HOLDERS, LIVE_HOLDERS, ALL_HOLDS):
            connection.exec_driver_sql(f"SELECT * FROM public.{readable}")
        connection.exec_driver_sql(f"SELECT 1 FROM public.{CURRENT_HOLDERS} FOR UPDATE")


def test_a_migration_with_nothing_to_do_needs_no_more(application: Engine) -> None:
    migrate(application)


NEVER = (
    *(f"UPDATE public.{table} SET ledger = 'x'" for table in (EVENTS, AUDIT_TRAIL, HOLDS)),
    *(
        f"{verb} public.{table}"
        for verb in ("DELETE FROM", "TRUNCATE", "DROP TABLE")
        for table in (
            EVENTS,
            AUDIT_TRAIL,
            HOLDS,
            CURRENT_HOLDERS,
            CONSUMER_POSITIONS,
            VERSION_TABLE,
        )
    ),
    *(
        f"ALTER TABLE public.{table} DISABLE TRIGGER {trigger}"
        for table in (EVENTS, AUDIT_TRAIL, HOLDS)
        for trigger in ("ALL", f"{table}_append_only")
    ),
    f"UPDATE public.{VERSION_TABLE} SET version_num = 'x'",
    f"INSERT INTO public.{VERSION_TABLE} VALUES ('x')",
    f"SELECT setval('public.{POSITION_SEQUENCE}', 1)",
    f"ALTER SEQUENCE public.{POSITION_SEQUENCE} CACHE 10",
    f"DROP VIEW public.{LIVE_HOLDERS}",
    "DROP FUNCTION public.lockledger_refuse_change() CASCADE",
    "SET session_replication_role = replica",
    "CREATE SCHEMA other",
)


def test_the_application_may_do_nothing_else(application: Engine) -> None:
    with application.connect() as connection:
        for statement in NEVER:
            with pytest.raises(ProgrammingError) as refused:
                connection.exec_driver_sql(statement)
            assert getattr(refused.value.orig, "sqlstate", None) == "42501", statement
            connection.rollback()
