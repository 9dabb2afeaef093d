"""`verify`, `checkpoint` and `rebuild` as an administrator runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.databases import Database
from support.tampering import tamper

TABLES = ("events", "audit_trail", "holds", "current_holders")


@pytest.fixture
def cli(lockledger: Any, database: Database) -> Any:
    """The command line on a ledger of each kind, in which `k` was taken and released, and `other` is held."""
    lockledger.on(database.url)
    lockledger.done("take", "k", "run:1")
    lockledger.done("release", "k", "run:1")
    lockledger.done("take", "other", "run:1")
    return lockledger


def test_a_sound_ledger(cli: Any) -> None:
    ran = cli("verify")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "3 events of 2 locks up to position 3, 3 audit entries, 1 ended holds: nothing is wrong\n"
    )
    facts = cli("verify", "--json").json
    assert (facts["ok"], facts["events"], facts["faults"]) == (True, 3, [])


def test_a_fault_is_a_line_and_exit_code_3(cli: Any, database: Database) -> None:
    tamper(
        database, "UPDATE lockledger_current_holders SET holder = 'run:\x1b9' WHERE key = 'other'"
    )
    ran = cli("verify")
    assert ran.code == 3
    first, last = ran.out.splitlines()
    assert first == (
        "head_different: 'other', version 1: expected holder='run:1', found holder='run:\\x1b9'"
    )
    assert last.endswith(": 1 faults")
    ran = cli("verify", "--json")
    assert (ran.code, ran.json["ok"]) == (3, False)
    assert ran.json["by_kind"] == {"head_different": 1}
    assert ran.json["faults"][0]["key"] == "other"


def test_a_checkpoint_is_kept_and_held_against(cli: Any, database: Database) -> None:
    ran = cli.done("checkpoint", "kept.json")
    root = json.loads(Path("kept.json").read_text())["root"]
    assert ran.out == f"kept.json: 3 events up to position 3, root {root}\n"
    assert json.loads(cli.done("checkpoint").out)["root"] == root
    facts = cli.done("checkpoint", "another.json", "--json").json
    assert (facts["file"], facts["root"], facts["count"]) == ("another.json", root, 3)

    cli.done("take", "later", "run:1")
    ran = cli.done("verify", "--checkpoint", "kept.json")
    assert ran.out.endswith("; checkpoint at position 3: nothing is wrong\n")
    tamper(database, *(f"DELETE FROM lockledger_{table}" for table in TABLES))
    assert cli("verify").code == 0
    ran = cli("verify", "--checkpoint", "kept.json")
    assert ran.code == 3
    assert ran.out.startswith(
        "checkpoint: position 1: expected the 3 events that were at positions 1 to 3, found 0 events\n"
    )


def test_a_checkpoint_is_never_written_over(cli: Any) -> None:
    cli.done("checkpoint", "kept.json")
    before = Path("kept.json").read_text()
    ran = cli("checkpoint", "kept.json")
    assert (ran.code, "kept.json is there already" in ran.err) == (2, True)
    assert Path("kept.json").read_text() == before
    assert cli("checkpoint", "no/such/folder.json").code == 2


def test_what_is_no_checkpoint_is_bad_input(cli: Any) -> None:
    Path("changed.json").write_text('{"format": "lockledger.checkpoint.v1"}')
    for file in ("changed.json", "missing.json", "."):
        ran = cli("verify", "--checkpoint", file)
        assert (ran.code, ran.out) == (2, "")
        assert file in ran.err
    cli.done("checkpoint", "other.json", "--ledger", "other")
    assert cli("verify", "--checkpoint", "other.json").code == 2


def test_a_rebuild_says_what_it_did(cli: Any, database: Database) -> None:
    ran = cli.done("rebuild")
    assert ran.out == "0 rows inserted, 0 corrected, 0 removed\n"
    tamper(
        database,
        "DELETE FROM lockledger_audit_trail WHERE version = 2",
        "UPDATE lockledger_holds SET holder = 'x'",
        "UPDATE lockledger_current_holders SET holder = 'x'",
    )
    ran = cli.done("rebuild")
    assert ran.out == "1 rows inserted, 3 corrected, 0 removed\n"
    assert ran.err.startswith("lockledger: 3 events in ")
    facts = cli.done("rebuild", "--json").json
    assert (facts["ok"], facts["inserted"], facts["left"]) == (True, 0, [])
    assert cli("verify").code == 0


def test_a_rebuild_leaves_what_cannot_be_believed(cli: Any, database: Database) -> None:
    tamper(database, "UPDATE lockledger_events SET state = replace(state, 'run:1', 'run:2')")
    before = cli.done("holders", "--json").out
    ran = cli("rebuild")
    assert ran.code == 3
    assert ran.out.splitlines()[-1] == "0 rows inserted, 0 corrected, 0 removed, 3 left"
    assert {line.partition(":")[0] for line in ran.out.splitlines()[:-1]} == {"event_hash"}
    assert cli("holders", "--json").out == before
