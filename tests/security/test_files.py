"""Files that are read take no more memory than they should, and files that are written replace nothing unasked."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from lockledger import AuditExport, LockLedger
from lockledger.cli.program import run
from support.databases import Database

MIB = 1 << 20


@pytest.fixture
def ledger_url(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with a held lock, which commands are run on."""
    monkeypatch.setenv("LOCKLEDGER_DATABASE", sqlite_database.url)
    with LockLedger(sqlite_database.url) as ledger:
        ledger.take("k", "run:1")
    return sqlite_database.url


def _peak_of(work: Callable[[], object]) -> int:
    """How many bytes more than before were in use at once."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_a_file_that_unpacks_to_far_more_takes_no_more_memory(
    ledger_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(bytes(64 * MIB)))
    assert bomb.stat().st_size < MIB
    assert _peak_of(lambda: run(["apply", str(bomb)])) < 4 * MIB
    assert "line 1 has more than 65536 bytes" in capsys.readouterr().err
    assert _peak_of(lambda: run(["import", str(bomb)])) < 8 * MIB
    assert "line 1 has more than 1048576 bytes" in capsys.readouterr().err
    with LockLedger(ledger_url) as ledger, pytest.raises(ValueError, match="more than 1048576"):
        ledger.import_locks(AuditExport(bomb))


def test_a_checkpoint_is_read_only_as_far_as_one_can_be_large(
    ledger_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lockledger.cli.proving._LARGEST_FILE", MIB)
    assert _peak_of(lambda: run(["verify", "--checkpoint", "/dev/zero"])) < 4 * MIB
    assert "never that large" in capsys.readouterr().err


WRITING: list[list[str]] = [
    ["checkpoint"],
    ["export", "audit", "--output"],
    ["export", "holds", "--format", "jsonl", "--output"],
]


@pytest.mark.parametrize("command", WRITING, ids=" ".join)
def test_what_is_there_already_stays_whatever_it_is(
    ledger_url: str, command: list[str], tmp_path: Path
) -> None:
    victim, link, folder = tmp_path / "victim", tmp_path / "link", tmp_path / "folder"
    victim.write_text("precious")
    link.symlink_to(victim)
    folder.mkdir()
    for target in (victim, link, folder):
        assert run([*command, str(target)]) == 2
    assert victim.read_text() == "precious"
    assert link.readlink() == victim
    assert sorted(each.name for each in tmp_path.iterdir() if "lockledger" not in each.name) == [
        "folder",
        "link",
        "victim",
    ]


def test_a_checkpoint_is_not_written_through_a_link_that_leads_nowhere(
    ledger_url: str, tmp_path: Path
) -> None:
    """Whoever may make a link in the folder would choose where it goes."""
    link, elsewhere = tmp_path / "link", tmp_path / "elsewhere"
    link.symlink_to(elsewhere)
    assert run(["checkpoint", str(link)]) == 2
    assert not elsewhere.exists()


def test_what_is_overwritten_is_replaced_at_once_and_by_nobodys_file(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file has a name that nobody can know before, and takes the place of the old one when it is whole."""
    made: list[str] = []
    opened = Path.open

    def noted(path: Path, mode: str = "r", *args: object, **options: object) -> object:
        if "x" in mode or "w" in mode:
            made.append(f"{path.name} {mode}")
        return opened(path, mode, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", noted)
    target = tmp_path / "audit.csv"
    for _ in range(2):
        assert run(["export", "audit", "--overwrite", "--output", str(target)]) == 0
    parts = [each for each in made if ".part" in each]
    assert len(set(parts)) == len(parts) == len(made) == 2
    assert all(each.endswith(" xb") for each in parts)
    assert os.listdir(tmp_path).count("audit.csv") == 1  # noqa: PTH208 - names only
