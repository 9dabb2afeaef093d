"""Several ledgers in one database, by name and by schema: nothing of one is seen, held up or ended by another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockledger import HoldChanged, HoldLost, LockLedger, SchemaMismatch
from support.ledgers import Ledgers, SettableClock

Two = tuple[LockLedger, LockLedger]
NAMES = [("default", "billing"), ("a", "a:b"), ("tenant", "Tenant"), ("ß", "ss"), ("t_1", "t%1")]


@pytest.fixture(params=NAMES, ids=str)
def two(request: pytest.FixtureRequest, ledgers: Ledgers, clock: SettableClock) -> Two:
    """Two ledgers by name, in the same tables."""
    first, second = request.param
    return ledgers.open(name=first, clock=clock), ledgers.open(name=second, clock=clock)


@pytest.fixture
def two_schemas(postgres_ledgers: Ledgers, clock: SettableClock) -> Two:
    """Two ledgers of one name, in schemas of their own."""
    found = [postgres_ledgers.open(schema=schema, clock=clock) for schema in ("a_1", "Other-Ä")]
    for ledger in found:
        ledger.migrate()
    return found[0], found[1]


def hold_apart(one: LockLedger, other: LockLedger) -> None:
    """What must be so of any two ledgers."""
    mine = one.take("daily", "run:1", ttl=60)
    theirs = other.take("daily", "run:2")
    assert (mine.created, theirs.created) == (True, True)

    assert one.holder_of("daily") == one.current_holders()[0]
    assert [hold.holder for hold in one.current_holders()] == ["run:1"]
    assert [hold.holder for hold in other.current_holders()] == ["run:2"]
    assert list(one.current_holders(holder="run:2")) == []
    for ledger, holder in ((one, "run:1"), (other, "run:2")):
        assert [entry.holder for entry in ledger.audit_trail()] == [holder]
        assert [entry.holder for entry in ledger.history("daily")] == [holder]
        assert [each.event.holder for each in ledger.events()] == [holder]
        assert list(ledger.audit_trail(holder="run:1" if holder == "run:2" else "run:2")) == []


def refuse_each_others_tokens(one: LockLedger, other: LockLedger) -> None:
    """A token is a number of its own lock only."""
    one.take("k", "run:0")
    one.release("k", "run:0")
    grant = one.take("k", "run:1")
    with pytest.raises(HoldLost) as loss:
        other.release("k", "run:1", token=grant.token)
    assert (loss.value.ended_by, loss.value.current) == (None, None)
    with pytest.raises(HoldChanged):
        other.force_release("k", actor="user:9", reason="mine", expected_token=grant.token)
    assert other.force_release("k", actor="user:9", reason="mine") is None
    assert other.release("k", "run:1") is False
    assert one.holder_of("k") is not None
    assert list(other.history("k")) == []


def subscribe_to_their_own(one: LockLedger, other: LockLedger) -> None:
    """Neither sees the other's events, wherever it begins."""
    other.take("theirs", "run:2")
    with one.subscribe(after="now", poll=0.01) as subscription:
        other.release("theirs", "run:2")
        one.take("mine", "run:1")
        assert next(subscription).event.key == "mine"
    assert [each.event.key for each in one.events()] == ["mine"]
    assert [each.event.key for each in other.events()] == ["theirs", "theirs"]


RULES = [hold_apart, refuse_each_others_tokens, subscribe_to_their_own]


@pytest.mark.parametrize("rule", RULES)
def test_ledgers_of_different_names_are_apart(
    two: Two, rule: Callable[[LockLedger, LockLedger], None]
) -> None:
    rule(*two)


@pytest.mark.parametrize("rule", RULES)
def test_ledgers_in_different_schemas_are_apart(
    two_schemas: Two, rule: Callable[[LockLedger, LockLedger], None]
) -> None:
    rule(*two_schemas)


def test_ledgers_of_one_name_are_one(ledgers: Ledgers) -> None:
    one, same = ledgers.open(name="billing"), ledgers.open(name="billing")

    grant = one.take("k", "run:1")

    assert same.take("k", "run:1") == grant.model_copy(update={"created": False})
    assert same.release("k", "run:1", token=grant.token)


def test_a_key_that_continues_the_name_is_another_lock(ledgers: Ledgers) -> None:
    """The ledger `a` and key `b:c`, and the ledger `a:b` and key `c`, are different locks."""
    assert ledgers.open(name="a").take("b:c", "run:1").created
    assert ledgers.open(name="a:b").take("c", "run:2").created
    assert ledgers.open(name="a:b:c").take("c", "run:3").created


def test_a_switched_search_path_leads_nowhere_else(postgres_ledgers: Ledgers) -> None:
    engine = postgres_ledgers.database.engine(pool_size=1, max_overflow=0)
    ledgers = [
        postgres_ledgers.open(url_or_engine=engine, schema=schema) for schema in ("a_1", "b_1")
    ]
    for ledger in ledgers:
        ledger.migrate()
    for schema in ("b_1", "a_1", "nowhere"):
        with engine.connect() as connection:
            connection.exec_driver_sql(f"SET search_path = {schema}")
            connection.commit()
        for number, ledger in enumerate(ledgers):
            ledger.take(schema, f"run:{number}")

    for number, ledger in enumerate(ledgers):
        assert {hold.holder for hold in ledger.current_holders()} == {f"run:{number}"}


def test_a_schema_is_migrated_alone(postgres_ledgers: Ledgers) -> None:
    migrated, other = postgres_ledgers.open(schema="a_1"), postgres_ledgers.open(schema="b_1")
    migrated.migrate()

    migrated.take("k", "run:1")
    with pytest.raises(SchemaMismatch, match="'b_1'"):
        other.take("k", "run:1")
    other.migrate()
    assert other.take("k", "run:2").created


@pytest.mark.parametrize("name", ["", " a", "a\n", "e\u0301", "x" * 256, "\ud800"])
def test_a_name_outside_the_limits_of_a_key_is_refused(ledgers: Ledgers, name: str) -> None:
    with pytest.raises(ValueError, match="ledger's name"):
        ledgers.open(name=name)


@pytest.mark.parametrize("name", [None, 5, b"a", ["a"]])
def test_a_name_that_is_no_text_is_refused(ledgers: Ledgers, name: object) -> None:
    with pytest.raises(
        TypeError, match=r"ledger's name must be a str, .*; write str\(…\), or leave name out"
    ):
        ledgers.open(name=name)


def test_sqlite_has_no_schemas(sqlite_ledgers: Ledgers) -> None:
    with pytest.raises(ValueError, match="SQLite has no schemas"):
        sqlite_ledgers.open(schema="a")
