"""What the column types keep, and what they give back."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, event, insert, select, text
from sqlalchemy.exc import StatementError

from lockledger.projections.columns import (
    ExactText,
    Instant,
    Json,
    instant_from_text,
    instant_to_text,
)
from support.databases import Database

AT = datetime(2026, 11, 30, 9, 3, 22, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

kept = Table(
    "kept",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("at", Instant),
    Column("name", ExactText),
    Column("facts", Json),
)


def given_back(engine: Engine, column: str, value: Any) -> Any:
    """One value after a way through the database."""
    with engine.begin() as connection:
        kept.create(connection, checkfirst=True)
        connection.execute(kept.delete())
        connection.execute(insert(kept).values(id=1, **{column: value}))
    with engine.connect() as connection:
        return connection.execute(select(kept.c[column])).scalar_one()


@pytest.mark.parametrize(
    "instant",
    [
        AT,
        AT + MICROSECOND,
        AT.astimezone(timezone(timedelta(hours=5, minutes=45))),
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC),
    ],
)
def test_an_instant_comes_back_as_the_same_moment_in_utc(
    empty_database: Database, instant: datetime
) -> None:
    back = given_back(empty_database.engine(), "at", instant)
    assert back == instant
    assert back.tzinfo is UTC


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/St_Johns", "+05:45"])
def test_the_sessions_time_zone_changes_no_instant(empty_database: Database, zone: str) -> None:
    engine = empty_database.engine()
    if empty_database.dialect == "postgresql":

        @event.listens_for(engine, "connect")
        def set_zone(connection: Any, _record: Any) -> None:
            connection.execute(f"SET TIME ZONE '{zone}'")
            connection.commit()

    assert given_back(engine, "at", AT).isoformat() == "2026-11-30T09:03:22+00:00"


def test_a_naive_datetime_is_refused_with_the_remedy(empty_database: Database) -> None:
    with pytest.raises(
        StatementError, match=r"has no time zone: give an aware datetime"
    ) as refused:
        given_back(empty_database.engine(), "at", AT.replace(tzinfo=None))
    assert isinstance(refused.value.orig, ValueError)


def test_an_instants_text_has_one_width_and_the_order_of_time() -> None:
    instants = [
        datetime(1, 1, 1, tzinfo=UTC),
        AT - MICROSECOND,
        AT,
        AT + MICROSECOND,
        datetime.max.replace(tzinfo=UTC),
    ]
    texts = [instant_to_text(each) for each in instants]
    assert texts == sorted(texts)
    assert {len(each) for each in texts} == {32}
    assert [instant_from_text(each) for each in texts] == instants
    assert instant_to_text(AT) == "2026-11-30T09:03:22.000000+00:00"


def test_text_without_an_offset_is_no_instant() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        instant_from_text("2026-11-30T09:03:22.000000")


def test_text_of_another_offset_still_comes_back_in_utc() -> None:
    assert instant_from_text("2026-11-30T10:03:22.000000+01:00").isoformat() == AT.isoformat()


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"b": 1, "a": {"nested": [1, 2.5, None, True, "ü\n"]}},
        {"id": 12345678901234567890123},
        {"third": 0.1},
        {"control": "a\x01b"},
    ],
)
def test_json_comes_back_equal(empty_database: Database, value: Any) -> None:
    assert given_back(empty_database.engine(), "facts", value) == value


def test_no_json_is_null(empty_database: Database) -> None:
    engine = empty_database.engine()
    assert given_back(engine, "facts", None) is None
    with engine.connect() as connection:
        assert (
            connection.execute(text("SELECT count(*) FROM kept WHERE facts IS NULL")).scalar() == 1
        )


def test_json_is_kept_to_the_letter(empty_database: Database) -> None:
    engine = empty_database.engine()
    given_back(engine, "facts", {"b": 1.0, "a": "ü"})
    with engine.connect() as connection:
        stored = connection.execute(text("SELECT CAST(facts AS TEXT) FROM kept")).scalar()
    assert stored == '{"b":1.0,"a":"ü"}'


def test_the_json_functions_of_the_hosts_engine_are_not_asked(empty_database: Database) -> None:
    def refuse(_value: Any) -> Any:
        raise AssertionError("the host's JSON functions are the host's")

    engine = empty_database.engine(json_serializer=refuse, json_deserializer=refuse)
    back = given_back(engine, "facts", {"third": 0.1})
    assert back == {"third": 0.1}
    assert not isinstance(back["third"], Decimal)


def test_what_is_no_json_is_refused(empty_database: Database) -> None:
    for value in ({"nan": float("nan")}, {"day": date(2026, 11, 30)}):
        with pytest.raises(StatementError):
            given_back(empty_database.engine(), "facts", value)


def test_text_is_compared_code_point_by_code_point(empty_database: Database) -> None:
    names = ["a", "B", "b ", "b", "ä", "a\u0308", "Z", "ﬁ", "fi", "😀", "\ufffd", "é"]
    engine = empty_database.engine()
    with engine.begin() as connection:
        kept.create(connection)
        connection.execute(insert(kept), [{"id": n, "name": name} for n, name in enumerate(names)])
        ordered = select(kept.c.name).order_by(kept.c.name)
        assert list(connection.execute(ordered).scalars()) == sorted(names)
        for name in names:
            matching = select(kept.c.name).where(kept.c.name == name)
            assert list(connection.execute(matching).scalars()) == [name]
