"""Any text and any JSON is either refused, with nothing changed, or kept exactly, wherever it comes out again."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lockledger import (
    InvalidHolder,
    InvalidKey,
    InvalidMetadata,
    InvalidReason,
    LockLedger,
    RecordedEvent,
)
from support.databases import Database
from support.exports import read
from support.fuzzing import fuzzing, json_values, texts

mostly_sound = st.one_of(st.just("k"), texts)
metadatas = st.one_of(st.just({}), st.dictionaries(texts, json_values, max_size=3), json_values)


def test_any_text_is_refused_or_kept_exactly(database: Database) -> None:
    with LockLedger(database.url) as ledger:

        @fuzzing(30)
        @given(mostly_sound, mostly_sound, mostly_sound, metadatas)
        def keeps(key: str, holder: str, reason: str, metadata: Any) -> None:
            before = ledger.settled_position()
            try:
                grant = ledger.take(key, holder, metadata=metadata)
                held = ledger.force_release(key, actor=holder, reason=reason)
            except (InvalidKey, InvalidHolder, InvalidMetadata, InvalidReason, TypeError):
                if ledger.settled_position() != before:
                    ledger.release(key, holder)
                return
            assert held is not None
            assert (grant.key, grant.holder, held.end_reason) == (key, holder, reason.strip())
            _comes_out_everywhere(ledger, before, key, holder, reason.strip(), grant.metadata)

        keeps()
        assert ledger.verify().ok


def _comes_out_everywhere(
    ledger: LockLedger, before: int, key: str, holder: str, reason: str, metadata: Any
) -> None:
    chosen: dict[str, Any] = {"key_prefix": key[: len(key) // 2], "under": key, "holder": holder}
    [*_, taken, released] = ledger.audit_trail(**chosen, after=before)
    assert (taken.key, taken.holder, taken.metadata) == (key, holder, metadata)
    assert (released.actor, released.reason) == (holder, reason)
    told = ledger.holds(**chosen, key=key, since=taken.occurred_at)
    assert told[-1].end_reason == reason
    recorded: list[RecordedEvent] = list(ledger.events(after=before))
    assert [each.event.key for each in recorded] == [key, key]
    for form in ("jsonl", "csv"):
        stream = io.BytesIO()
        ledger.export_audit_trail(stream, format=form, key=key)
        row = read(form, stream.getvalue(), {"metadata": "json"})[-2]
        assert (row["key"], row["holder"], row["metadata"]) == (key, holder, metadata)
