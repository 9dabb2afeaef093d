"""Scenarios 4.5: which texts are one lock and which are two, and whose lock it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from enum import Enum
from random import Random
from unicodedata import normalize
from uuid import UUID

import pytest

from lockledger import (
    Hold,
    HoldLost,
    InvalidHolder,
    InvalidKey,
    LockedByOther,
    LockLedger,
    LockTaken,
    lock_key,
)
from lockledger.domain.keys import lock_id
from support.ledgers import Ledgers
from support.uncommitted import uncommitted_take


def test_s58_texts_that_look_alike_are_locks_of_their_own(ledger: LockLedger) -> None:
    keys = ["stock:1", "STOCK:1", "Stock:1", "ﬁle:1", "file:1", "é", "e", "ß", "ss", "ı", "i", "İ"]
    for number, key in enumerate(keys):
        assert ledger.take(key, f"run:{number}").created

    found = {hold.key: hold.holder for hold in ledger.current_holders()}
    assert found == {key: f"run:{number}" for number, key in enumerate(keys)}
    with pytest.raises(InvalidKey, match="normal form C"):  # never folded behind one's back
        ledger.take(normalize("NFD", "é"), "run:1")


@pytest.mark.parametrize("text", ["brad ", " brad", "brad\u00a0", "brad\n"])
def test_s59_white_space_around_a_name_never_makes_two_names_equal_or_one_foreign(
    ledger: LockLedger, text: str
) -> None:
    ledger.take("k", "brad")
    with pytest.raises(InvalidHolder, match="white space"):
        ledger.release("k", text)
    with pytest.raises(InvalidKey, match="white space"):
        ledger.take(text, "brad")
    assert ledger.release("k", "brad")


def test_s60_length_is_counted_in_characters(ledger: LockLedger) -> None:
    for character in ("x", "я", "\U0001f600"):
        assert ledger.take(character * 255, character * 255).key == character * 255
        with pytest.raises(InvalidKey, match="256 characters"):
            ledger.take(character * 256, "A")


def test_s60_two_hundred_thousand_keys_are_as_many_locks() -> None:
    digits = Random(60)
    keys = {f"{digits.getrandbits(128):032x}" for _ in range(200_000)}

    assert len({lock_id("default", key) for key in keys}) == 200_000


BUILD_AND = """
from enum import Enum
from uuid import UUID
from lockledger import LockLedger, lock_key

class Kind(Enum):
    ROUND = "round"

with LockLedger({url!r}) as ledger:
    key = lock_key(Kind.ROUND, 5, UUID(int=7), "bänd")
    print(ascii(key), ledger.{verb}(key, "A") and True)
"""


def test_s61_two_processes_build_the_same_key(ledgers: Ledgers) -> None:
    said: list[str] = []
    for seed, verb in (("1", "take"), ("2", "release")):
        script = BUILD_AND.format(url=ledgers.database.url, verb=verb)
        result = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(result.stdout.strip())

    key = ascii(f"round:5:{UUID(int=7)}:bänd")
    assert said == [f"{key} True", f"{key} True"]


class Plain:
    """Its text holds an address in memory, another one in each process."""


class Kind(Enum):
    NESTED = (1, 2)


@pytest.mark.parametrize(
    "part",
    [Plain(), {"id": 5}, {5}, [5], (5,), 5.0, True, None, b"5", Kind.NESTED],
    ids=lambda part: type(part).__name__,
)
def test_s61_parts_whose_text_may_differ_are_refused(part: object) -> None:
    with pytest.raises(TypeError, match="stays the same in every process"):
        lock_key("round", part)  # type: ignore[arg-type]


def test_s63b_an_owner_is_a_text_everywhere_or_nothing(ledger: LockLedger) -> None:
    with pytest.raises(TypeError, match=r"must be a str, not int 42; write str\(…\)"):
        ledger.take("k", 42)  # type: ignore[arg-type]
    ledger.take("k", "42")
    with pytest.raises(TypeError, match="must be a str"):
        ledger.release("k", 42)  # type: ignore[arg-type]
    with pytest.raises(LockedByOther) as refusal:
        ledger.take("k", "43")

    row, event = ledger.current_holders()[0], next(ledger.events()).event
    assert isinstance(event, LockTaken)
    assert row == Hold.model_validate_json(row.model_dump_json()) == event.after()
    assert refusal.value.current == row


def test_s64_the_same_key_of_two_tenants_is_two_locks(ledgers: Ledgers) -> None:
    tenants = [ledgers.open(name=name) for name in ("tenant:1", "tenant:2")]

    for number, tenant in enumerate(tenants):
        assert tenant.take("daily_report", f"run:{number}").created
    assert [tenant.current_holders()[0].holder for tenant in tenants] == ["run:0", "run:1"]


def test_s64_the_same_key_in_two_schemas_is_two_locks_whatever_the_search_path(
    postgres_ledgers: Ledgers,
) -> None:
    engine = postgres_ledgers.database.engine(pool_size=1, max_overflow=0)
    tenants = [postgres_ledgers.open(url_or_engine=engine, schema=name) for name in ("t1", "t2")]
    for number, tenant in enumerate(tenants):
        tenant.migrate()
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SET search_path = t{2 - number}")
        assert tenant.take("daily_report", f"run:{number}").created

    assert [tenant.current_holders()[0].holder for tenant in tenants] == ["run:0", "run:1"]


def test_s65_a_grant_of_another_tenant_opens_nothing(ledgers: Ledgers) -> None:
    a, b = ledgers.open(name="tenant:a"), ledgers.open(name="tenant:b")
    grant = a.take("k", "A")

    with pytest.raises(HoldLost) as loss:
        b.release("k", "A", token=grant.token)
    assert (loss.value.ended_by, loss.value.current) == (None, None)
    assert b.force_release("k", actor="admin:b", reason="full rights in b") is None
    assert a.is_locked("k")


def test_s65b_different_keys_never_wait_for_each_other(postgres_ledgers: Ledgers) -> None:
    engine = postgres_ledgers.database.engine(connect_args={"options": "-c lock_timeout=100"})
    ledger = postgres_ledgers.open(url_or_engine=engine)

    with uncommitted_take(postgres_ledgers, "0"):
        for number in range(1, 50):
            key = str(number * 641)
            assert ledger.take(key, "B").created
            assert ledger.release(key, "B")


def test_s65b_on_sqlite_a_writer_waits_for_any_writer_and_is_never_refused_for_it(
    sqlite_ledgers: Ledgers,
) -> None:
    ledger = sqlite_ledgers.open()
    granted: list[bool] = []
    taker = threading.Thread(target=lambda: granted.append(ledger.take("641", "B").created))
    with uncommitted_take(sqlite_ledgers, "0"):
        taker.start()
        taker.join(0.1)
        assert granted == []
    taker.join()
    assert granted == [True]
