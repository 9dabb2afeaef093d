"""Whatever stands in a file to be imported, nothing but events that the exporting ledger had comes into the ledger."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockledger import AuditExport, Checkpoint, LockLedger
from support.databases import Database
from support.fuzzing import altered, damaged, dumped, fuzzing
from support.ledgers import SettableClock


@pytest.fixture
def exporting(sqlite_database: Database) -> Iterator[LockLedger]:
    """A ledger with every kind of event."""
    clock = SettableClock()
    with LockLedger(sqlite_database.url, clock=clock) as ledger:
        ledger.take("k", "run:1", ttl=60, metadata={"request": "r1"})
        ledger.extend("k", "run:1", 120)
        ledger.take("k", "run:2", takeover_reason="why", ttl=60)
        clock.forward(300)
        ledger.expire_due()
        ledger.take("k", "run:3")
        ledger.force_release("k", actor="user:9", reason="stop")
        ledger.take("l:m", "run:1")
        yield ledger


def test_a_damaged_export_brings_in_nothing_new(exporting: LockLedger) -> None:
    stream = io.BytesIO()
    exporting.export_audit_trail(stream, format="jsonl", extensions=True)
    lines = stream.getvalue().splitlines()
    known = {each.event.model_dump_json() for each in exporting.events()}
    files = st.one_of(
        damaged(stream.getvalue()),
        damaged(stream.getvalue()).map(gzip.compress),
        damaged(gzip.compress(stream.getvalue())),
        st.lists(
            st.one_of(
                st.sampled_from(lines),
                st.sampled_from(lines).map(json.loads).flatmap(altered).map(dumped),
            ),
            max_size=12,
        ).map(b"\n".join),
        st.randoms(use_true_random=False).map(lambda chance: _shuffled(lines, chance)),
    )

    @fuzzing(40)
    @given(files)
    def brings_in(file: bytes) -> None:
        with LockLedger("sqlite://") as ledger:
            ledger.migrate()
            fault = "line 1"
            try:
                ledger.import_locks(AuditExport(io.BytesIO(file)))
            except ValueError as refused:
                fault = str(refused)
            assert "line " in fault
            assert {each.event.model_dump_json() for each in ledger.events()} <= known
            assert ledger.verify().ok

    brings_in()


def _shuffled(lines: list[bytes], chance: random.Random) -> bytes:
    mixed = list(lines)
    chance.shuffle(mixed)
    return b"\n".join(mixed)


def test_a_damaged_checkpoint_is_refused_or_says_the_same(exporting: LockLedger) -> None:
    kept = exporting.checkpoint()
    whole = kept.to_json().encode()
    files = st.one_of(damaged(whole), altered(json.loads(whole)).map(dumped))

    @fuzzing(50)
    @given(files)
    def is_refused(file: bytes) -> None:
        # The name, the count within a subtree and the time are no part of the tree.
        said: object = kept.root, kept.position, kept.subtrees
        try:
            read = Checkpoint.from_json(file)
            found: object = read.root, read.position, read.subtrees
        except ValueError as refused:
            found, said = str(refused).partition(" (")[0].partition(":")[0], "this is no checkpoint"
        assert found == said

    is_refused()
