"""Each limit in the table of `docs/security.md` is the one in the code, is met, and is not passed."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lockledger import AuditExport, InvalidMetadata, InvalidTtl, LockLedger
from lockledger.adapters.identifiers import qualified
from lockledger.cli.command_log import BadLine, CommandLog
from lockledger.cli.proving import _LARGEST_FILE
from lockledger.cli.timeline import MOST_HOLDS
from lockledger.domain.faults import MAX_FAULTS
from lockledger.domain.keys import check_holder, check_key, check_ledger_name
from lockledger.domain.metadata import check_metadata
from lockledger.domain.reasons import check_reason
from lockledger.http.bodies import MAX_BODY_BYTES
from lockledger.importing import MAX_REFUSALS
from lockledger.queries import checked_limit
from lockledger.replaying import checked_name
from lockledger.verification import MAX_NAMED

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
T = "2012-10-12T15:02:56+00:00"


def _table() -> dict[str, int]:
    """What the page says is the most."""
    (block,) = re.findall(r"^## Limits$(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| ([^|]+) \| ([\d,]+) [a-z ]+ \|", block, re.MULTILINE)
    return {what: int(most.replace(",", "")) for what, most in rows}


def _nested(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value  # type: ignore[no-any-return]


def _metadata(size: int) -> None:
    check_metadata({"a": "x" * (size - len('{"a":""}'))})


def _ttl(days: int) -> None:
    with LockLedger("sqlite://") as ledger:
        ledger.migrate()
        ledger.take("k", "h", ttl=timedelta(days=days))


def _log_line(size: int) -> None:
    line = json.dumps({"at": T, "do": "take", "key": "k", "holder": "h"}).encode().ljust(size)
    list(CommandLog(io.BufferedReader(io.BytesIO(line)), "log").lines())


def _import_line(size: int) -> None:
    with LockLedger("sqlite://") as ledger:
        ledger.migrate()
        ledger.import_locks(AuditExport(io.BytesIO(b" " * size)))


TRIED: dict[str, tuple[Callable[[int], Any], type[Exception]]] = {
    "key, holder, actor": (
        lambda most: (check_key("k" * most), check_holder("é" * most)),
        ValueError,
    ),
    "name of a ledger": (lambda most: check_ledger_name("😀" * most), ValueError),
    "name of a schema": (lambda most: qualified("x", "postgresql", "s" * most), ValueError),
    "name of a projection": (lambda most: checked_name("p" * most), ValueError),
    "reason": (lambda most: check_reason("😀" * most), ValueError),
    "metadata": (_metadata, InvalidMetadata),
    "depth of metadata": (lambda most: check_metadata(_nested(most)), InvalidMetadata),
    "ttl": (_ttl, InvalidTtl),
    "page": (checked_limit, ValueError),
    "line of a command log": (_log_line, BadLine),
    "line of an export that is imported": (_import_line, ValueError),
}
ELSEWHERE = {
    "body of a request": MAX_BODY_BYTES,
    "checkpoint on the command line": _LARGEST_FILE,
    "faults, refusals and foreign streams in a report": MAX_FAULTS,
    "holds in a drawing": MOST_HOLDS,
}
"""Those that are met and passed in other tests: `test_http`, `test_files`, `proof`, `importing` and `cli`."""


@pytest.mark.parametrize("what", TRIED)
def test_a_limit_is_met_and_not_passed(what: str) -> None:
    tries, error = TRIED[what]
    most = _table()[what]
    tries(most)
    with pytest.raises(error):
        tries(most + 1)


def test_the_table_has_every_limit() -> None:
    table = _table()
    assert set(table) == {*TRIED, *ELSEWHERE}
    assert {what: table[what] for what in ELSEWHERE} == ELSEWHERE
    assert MAX_REFUSALS == MAX_NAMED == MAX_FAULTS
