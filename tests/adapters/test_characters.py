"""Databases and connections that could not keep, or not order, every character of a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, event, make_url

from lockledger import LockLedger
from lockledger.adapters.characters import is_utf8
from support.databases import Database

KEYS = ["a", "ÿ:1", "юг:1", "яма:1", "日本:1", "😀"]
PREFIXES = ["ÿ", "ю", "日", "😀", "a"]


@pytest.fixture
def other_encoding(request: pytest.FixtureRequest, postgres_database: Database) -> Iterator[URL]:
    """The URL of an empty database in the encoding that is asked for, beside the test's own."""
    server, name = postgres_database.server, f"{postgres_database.name}_other"
    assert server is not None
    with server.connect() as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{request.param}' LC_COLLATE 'C' LC_CTYPE 'C'"
            " TEMPLATE template0"
        )
        yield make_url(postgres_database.url).set(database=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("other_encoding", ["LATIN1", "KOI8R", "EUC_JP", "WIN1252"], indirect=True)
def test_a_database_without_every_character_is_refused(other_encoding: URL) -> None:
    with LockLedger(other_encoding) as ledger:
        for call in (ledger.migrate, ledger.current_holders, lambda: ledger.take("k", "run:1")):
            with pytest.raises(ValueError, match="needs a database made with ENCODING 'UTF8'"):
                call()
    engine = create_engine(other_encoding)
    with engine.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_class WHERE relname LIKE 'lockledger%%'"
        )
        assert found.scalar() == 0
    engine.dispose()


@pytest.mark.parametrize("other_encoding", ["SQL_ASCII"], indirect=True)
def test_one_that_keeps_bytes_as_they_are_orders_them_as_utf8_does(other_encoding: URL) -> None:
    with LockLedger(other_encoding) as ledger:
        ledger.migrate()
        all_keys_are_found(ledger)


def all_keys_are_found(ledger: LockLedger) -> None:
    ledger.take_all(KEYS, "Jürgen 日")
    assert [hold.key for hold in ledger.current_holders()] == sorted(KEYS)
    for prefix in PREFIXES:
        wanted = [key for key in sorted(KEYS) if key.startswith(prefix)]
        assert [hold.key for hold in ledger.current_holders(key_prefix=prefix)] == wanted
        assert {entry.key for entry in ledger.audit_trail(key_prefix=prefix)} == set(wanted)
    assert ledger.verify().ok


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_the_environments_encoding_does_not_count(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    with LockLedger(postgres_database.url) as ledger:
        all_keys_are_found(ledger)


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP"])
def test_a_connection_without_every_character_is_refused_by_name(
    postgres_database: Database, encoding: str
) -> None:
    url = make_url(postgres_database.url).update_query_dict({"client_encoding": encoding})
    engine = create_engine(url)
    for place in (url, engine):
        with LockLedger(place) as ledger:
            for call in (lambda: ledger.take("k", "run:1"), ledger.current_holders):
                with pytest.raises(ValueError, match=f"client_encoding is {encoding}.*utf8"):
                    call()
    with (
        engine.connect() as connection,
        LockLedger(engine) as ledger,
        pytest.raises(ValueError, match=f"client_encoding is {encoding}"),
    ):
        ledger.using(connection).take("k", "run:1")
    engine.dispose()


@pytest.mark.parametrize("name", ["UTF8", "utf8", "utf-8", "UTF_8", "Unicode"])
def test_a_pooler_may_call_it_as_the_client_did(postgres_database: Database, name: str) -> None:
    assert is_utf8(name)
    url = make_url(postgres_database.url).update_query_dict({"client_encoding": name})
    with LockLedger(url) as ledger:
        assert ledger.take("日", "run:1").created


@pytest.mark.parametrize("name", ["LATIN1", "UTF16", "SQL_ASCII", ""])
def test_nothing_else_is_called_so(name: str) -> None:
    assert not is_utf8(name)


def test_a_host_may_read_ids_as_text(postgres_database: Database) -> None:
    from psycopg.types.string import TextLoader

    engine = postgres_database.engine()

    @event.listens_for(engine, "connect")
    def read_ids_as_text(driver: Any, _record: object) -> None:
        driver.adapters.register_loader("uuid", TextLoader)

    with LockLedger(engine) as ledger:
        ledger.take("k", "run:1", ttl=0.01)
        ledger.take_all(["a", "b"], "run:1")
        assert [each.event.key for each in ledger.events()] == ["k", "a", "b"]
        while ledger.is_locked("k"):
            pass
        assert ledger.expire_due() == 1
        assert ledger.release_all(holder="run:1", actor="user:9", reason="why") == 2
        assert ledger.verify().ok
        assert [hold.key for hold in ledger.holds()] == ["a", "b", "k"]
