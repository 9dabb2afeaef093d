"""The reference names every event, field, error and limit, and nothing that is not there."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from lockledger.domain import errors
from lockledger.domain.errors import LockLedgerError
from lockledger.domain.events import EVENTS, LockEvent, LockTaken
from lockledger.domain.keys import MAX_LEDGER_NAME_LENGTH, MAX_LENGTH, NAMESPACE
from lockledger.domain.metadata import MAX_METADATA_BYTES, MAX_METADATA_DEPTH
from lockledger.domain.reasons import MAX_REASON_LENGTH

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def table_under(page: str, heading: str) -> dict[str, list[str]]:
    """The rows of the first table behind a line, by the text of their first cell that is no blank."""
    text = (REFERENCE / page).read_text(encoding="utf-8").split(f"{heading}\n", 1)[1]
    rows: dict[str, list[str]] = {}
    for line in text[text.index("|") :].splitlines():
        if not line.startswith("|"):
            break
        cells = [cell.strip().strip("`") for cell in line.strip("|").split(" | ")]
        rows[next(filter(None, cells))] = cells
    return rows


def test_the_five_events_are_described() -> None:
    described = set(table_under("events.md", "# Events")) - {"event", "---"}

    assert described == {kind.__name__ for kind in EVENTS.values()}


def test_the_fields_of_every_event_are_described() -> None:
    described = [*table_under("events.md", "## Fields of every event")][2:]

    assert described == list(LockEvent.model_fields)


def test_the_fields_of_some_events_are_described() -> None:
    own = {
        field
        for kind in EVENTS.values()
        for field in set(kind.model_fields) - set(LockEvent.model_fields)
    }
    rows = table_under("events.md", "## Fields of some").values()

    assert {cell for cells in rows for cell in cells[:2]} >= own


def test_topics_and_format_versions_are_described() -> None:
    rows = table_under("events.md", "## As they are stored")

    assert {topic: cells[1] for topic, cells in rows.items() if topic.startswith("lockledger")} == {
        topic: str(kind.class_version) for topic, kind in EVENTS.items()
    }


def test_the_stored_state_that_is_shown_can_be_read() -> None:
    text = (REFERENCE / "events.md").read_text(encoding="utf-8")
    shown = re.search(r'^    \{"class_version".*?\}\n', text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    state = json.loads(shown.group())

    assert state.pop("class_version") == LockTaken.class_version
    event = LockTaken.model_validate(state)
    assert list(event.model_dump(mode="json").items()) == list(state.items())
    assert str(NAMESPACE) in text


def test_every_error_is_described_with_its_code() -> None:
    rows = table_under("errors.md", "# Errors")
    described = {name: cells[1] for name, cells in rows.items() if name not in ("error", "---")}
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]

    assert described == {
        kind.__name__: kind.code
        for kind in kinds
        if issubclass(kind, LockLedgerError) and kind is not LockLedgerError
    }


@pytest.mark.parametrize(
    "limit",
    [
        f"1 to {MAX_LENGTH} characters",
        f"1 to {MAX_LEDGER_NAME_LENGTH} characters",
        f"at most {MAX_REASON_LENGTH:,} characters",
        f"at most {MAX_METADATA_BYTES:,} bytes",
        f"at most {MAX_METADATA_DEPTH} levels",
    ],
)
def test_every_limit_is_described(limit: str) -> None:
    assert limit in (REFERENCE / "errors.md").read_text(encoding="utf-8")
