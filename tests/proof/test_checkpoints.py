"""A checkpoint finds what a chain cannot see: lost ends, lost locks, and a history written anew from some position on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pytest

from lockledger import Checkpoint, LockLedger
from lockledger.adapters.merkle import Tree, root_of_subtrees
from lockledger.checkpoints import SUBTREE
from support.databases import Database
from support.ledgers import Ledgers
from support.tampering import tamper

TABLES = ("events", "audit_trail", "holds", "current_holders")


def tree_hash(leaves: Sequence[bytes]) -> bytes:
    """MTH as RFC 6962 writes it down, by recursion."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0]).digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha256(b"\x01" + tree_hash(leaves[:split]) + tree_hash(leaves[split:])).digest()


# The leaves that implementations of Certificate Transparency are tested with, and the roots over the first n of them.
LEAVES = [
    b"",
    b"\x00",
    b"\x10",
    b"\x20\x21",
    b"\x30\x31",
    b"\x40\x41\x42\x43",
    b"\x50\x51\x52\x53\x54\x55\x56\x57",
    b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
]
EMPTY_ROOT = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
FIRST_ROOT = "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
LAST_ROOT = "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


@pytest.mark.parametrize("count", range(9))
def test_roots_are_those_of_the_standard(count: int) -> None:
    tree = Tree()
    for leaf in LEAVES[:count]:
        tree.add(leaf)
    assert tree.root() == tree_hash(LEAVES[:count])
    known = {0: EMPTY_ROOT, 1: FIRST_ROOT, 8: LAST_ROOT}
    assert known.get(count, tree.root().hex()) == tree.root().hex()


@pytest.mark.parametrize("count", [9, 31, 32, 33, 100, 1000])
def test_a_root_follows_from_those_of_its_subtrees(count: int) -> None:
    leaves = [number.to_bytes(8, "big") for number in range(count)]
    roots = [tree_hash(leaves[start : start + 32]) for start in range(0, count, 32)]
    assert root_of_subtrees(roots) == tree_hash(leaves)


def history(database: Database) -> list[tuple[int, bytes]]:
    with database.engine().connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT position, hash FROM lockledger_events ORDER BY position"
        )
        return [(int(position), bytes(hash_)) for position, hash_ in rows]


def test_a_checkpoint_is_the_tree_over_positions_and_hashes(
    database: Database, ledger: LockLedger
) -> None:
    made, events = ledger.checkpoint(), history(database)
    leaves = [position.to_bytes(8, "big") + hash_ for position, hash_ in events]
    assert made.root == tree_hash(leaves)
    assert (made.count, made.position, made.ledger) == (len(events), events[-1][0], "default")
    assert [each.position for each in made.subtrees] == [events[-1][0]]
    assert Checkpoint.from_json(made.to_json()) == made
    assert json.loads(made.to_json())["root"] == made.root.hex()


def test_an_empty_ledger_has_a_checkpoint_too(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    made = ledger.checkpoint()
    assert (made.count, made.position, made.root.hex()) == (0, 0, EMPTY_ROOT)
    ledger.take("k", "run:1")
    assert ledger.verify(checkpoint=Checkpoint.from_json(made.to_json())).ok


def test_a_ledger_that_went_on_agrees_with_its_checkpoint(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    ledger.take("k", "run:1")
    made = ledger.checkpoint()
    ledger.release("k", "run:1")
    verification = ledger.verify(checkpoint=made)
    assert (verification.ok, verification.checkpoint, verification.position) == (True, 1, 2)


def removed(database: Database, condition: str) -> None:
    tamper(
        database, *(f"DELETE FROM lockledger_{table} WHERE {condition}" for table in TABLES), k="k"
    )


def test_a_lock_that_is_gone_with_all_its_traces(database: Database, ledger: LockLedger) -> None:
    made = ledger.checkpoint()
    removed(database, "lock_id = :k")
    assert ledger.verify().ok
    (fault,) = ledger.verify(checkpoint=made).faults
    assert (fault.kind, fault.position) == ("checkpoint", 1)
    assert fault.expected == "the 12 events that were at positions 1 to 12"
    assert fault.found == "5 events"


def test_a_ledger_that_is_gone(database: Database, ledger: LockLedger) -> None:
    made = ledger.checkpoint()
    removed(database, "1 = 1")
    assert ledger.verify().ok
    assert ledger.verify(checkpoint=made).by_kind == {"checkpoint": 1}


def test_a_history_that_was_written_anew(database: Database, ledger: LockLedger) -> None:
    """Everything is removed, and a different past is recorded in its place by the library itself."""
    made = ledger.checkpoint()
    removed(database, "1 = 1")
    if database.dialect == "sqlite":
        tamper(database, "UPDATE sqlite_sequence SET seq = 0")
    else:
        tamper(database, "SELECT setval('lockledger_position', 0)")
    for number in range(12):
        ledger.take(f"k:{number}", "run:2")
    assert ledger.verify().ok
    (fault,) = ledger.verify(checkpoint=made).faults
    assert (fault.kind, fault.position, fault.found) == ("checkpoint", 1, "others")


@pytest.mark.parametrize("where", ["first", "middle", "end"])
def test_the_place_is_told_to_a_subtree(database: Database, where: str) -> None:
    with LockLedger(database.url) as ledger:
        keys = [f"k:{number}" for number in range(2 * SUBTREE + 100)]
        for start in range(0, len(keys), 500):
            ledger.take_all(keys[start : start + 500], "run:1")
        made = ledger.checkpoint()
        assert [each.position for each in made.subtrees] == [1024, 2048, 2148]
        first, last, key = {
            "first": (1, 1024, "k:5"),
            "middle": (1025, 2048, "k:1500"),
            "end": (2049, 2148, "k:2147"),
        }[where]
        tamper(
            database,
            *(f"DELETE FROM lockledger_{table} WHERE lock_id = :one" for table in TABLES),
            one=key,
        )
        (fault,) = ledger.verify(checkpoint=made).faults
    count = last - first + 1
    assert fault.position == first
    assert fault.expected == f"the {count} events that were at positions {first} to {last}"
    assert fault.found == f"{count - 1} events"


def test_what_is_not_settled_is_left_out(postgres_database: Database) -> None:
    """An open transaction brings an event before the one that has committed; both come with the next checkpoint."""
    with LockLedger(postgres_database.url) as ledger:
        ledger.take("before", "run:1")
        with postgres_database.engine().connect() as connection:
            ledger.using(connection).take("open", "run:1")
            ledger.take("beside", "run:1")
            made = ledger.checkpoint()
            assert (made.count, made.position) == (1, 1)
            connection.commit()
        assert ledger.verify(checkpoint=made).ok
        assert ledger.checkpoint().count == 3


def test_of_another_ledger_is_refused(ledgers: Ledgers) -> None:
    made = ledgers.open(name="other").checkpoint()
    with pytest.raises(ValueError, match="the checkpoint is of the ledger 'other'"):
        ledgers.open().verify(checkpoint=made)


def test_its_text_is_not_taken_for_it(ledgers: Ledgers) -> None:
    ledger = ledgers.open()
    with pytest.raises(TypeError, match=r"not '\{.*: read a kept one with Checkpoint.from_json"):
        ledger.verify(checkpoint=ledger.checkpoint().to_json())  # type: ignore[arg-type]


CHANGES: dict[str, Any] = {
    "root": "00" * 32,
    "position": 13,
    "count": 2000,
    "subtrees": [],
    "format": "lockledger.checkpoint.v2",
    "made_at": "2026-11-30T09:03:22",
    "extra": 1,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_is_refused(database: Database, ledger: LockLedger, name: str) -> None:
    facts = json.loads(ledger.checkpoint().to_json())
    facts[name] = CHANGES[name]
    with pytest.raises(ValueError, match="this is no checkpoint"):
        Checkpoint.from_json(json.dumps(facts))


@pytest.mark.parametrize("text", ["", "{}", "[]", "no JSON", "\0"])
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is no checkpoint"):
        Checkpoint.from_json(text)
