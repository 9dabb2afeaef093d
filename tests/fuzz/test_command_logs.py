"""Whatever stands in a command log, `apply` carries it out or names the line; never a fault, never a byte for the terminal to obey."""

from __future__ import annotations

import gzip
import io
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockledger import LockLedger
from lockledger.cli.output import safe
from lockledger.cli.program import run
from support.databases import Database
from support.fuzzing import altered, damaged, dumped, endless, fuzzing, json_values, numbers, texts

COMMAND = {
    "at": "2012-10-12T15:02:56+00:00",
    "do": "take",
    "key": "ticket:2900",
    "holder": "agent:2",
    "reason": "Wait",
    "ttl": 3600,
}
VERBS = ["take", "release", "force_release", "extend"]

lines = st.one_of(
    st.binary(max_size=60),
    json_values.map(dumped),
    altered(COMMAND).map(dumped),
    st.builds(dict, st.just(COMMAND), do=st.sampled_from(VERBS)).map(dumped),
    st.builds(
        dict, st.just(COMMAND), do=st.sampled_from(VERBS), key=texts, holder=texts, reason=texts
    ).map(dumped),
    st.builds(dict, st.just(COMMAND), ttl=numbers).map(dumped),
    damaged(dumped(COMMAND)),
    endless.map(lambda line: line[:60_000]),
)
logs = st.lists(lines, min_size=1, max_size=5).map(b"\n".join)


def test_any_log_is_carried_out_or_its_bad_line_is_named(
    sqlite_database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @fuzzing(40)
    @given(st.one_of(logs, logs.map(gzip.compress), logs.map(gzip.compress).flatmap(damaged)))
    def applies(log: bytes) -> None:
        given: Any = io.TextIOWrapper(io.BufferedReader(io.BytesIO(log)))
        monkeypatch.setattr(sys, "stdin", given)
        code = run(["--database", sqlite_database.url, "apply", "-"])
        printed = capsys.readouterr()
        assert code in (0, 2), printed.err
        if code == 2:
            assert "line " in printed.err, printed.err
        for text in (*printed.out.splitlines(), *printed.err.splitlines()):
            assert safe(text) == text

    applies()
    with LockLedger(sqlite_database.url) as ledger:
        assert ledger.verify().ok
