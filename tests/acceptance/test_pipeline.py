"""The evaluation pipeline of the documentation: its locks as they used to be, and a run that crashes, on PostgreSQL."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session, sessionmaker

from lockledger import HoldLost, InvalidKey, InvalidTtl, LockLedger
from pipeline.evaluation import BANDS, evaluate_round
from pipeline.locks import ScopeLocks, round_key
from pipeline.tables import Base, Run, Score
from support.databases import Database
from support.in_the_way import clock_of
from support.lasting import lasting, while_live
from support.proof import prove

PATIENCE = 60.0
LEASE = 6.0
"""Seconds: long enough for another process on a busy machine to extend it in time, as it does four times in each."""
KEY = "round:5"
README = Path(__file__).parents[2] / "docs" / "examples" / "pipeline" / "README.md"
README_URL = "postgresql+psycopg://localhost/pipeline"

WORKER = """
import sys, time
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from lockledger import LockLedger
from pipeline.evaluation import evaluate_round

url, run_id, lease = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
engine = create_engine(url)

def score(band):
    print(band, flush=True)
    if band == 2:
        sys.stdin.readline()
    return band * 10.0

print(evaluate_round(sessionmaker(engine), LockLedger(engine), run_id, score, lease=lease), flush=True)
"""


@dataclass
class Pipeline:
    """The pipeline's database, and a program of it."""

    database: Database
    engine: Engine
    ledger: LockLedger
    may_log_errors: bool = False

    @property
    def sessions(self) -> sessionmaker[Session]:
        return sessionmaker(self.engine)

    @property
    def locks(self) -> ScopeLocks:
        return ScopeLocks(self.ledger)

    def evaluate(
        self, run_id: int, score: Callable[[int], float] = float, *, lease: float = 60
    ) -> bool:
        return evaluate_round(self.sessions, self.ledger, run_id, score, lease=lease)

    def run(self, run_id: int) -> Run:
        with self.sessions() as session:
            return session.get_one(Run, run_id)

    def scores(self) -> dict[int, tuple[int, float]]:
        """By band: which run's, and what."""
        with self.sessions() as session:
            return {each.band: (each.run_id, each.value) for each in session.query(Score)}

    def history(self, key: str = KEY) -> list[tuple[str, str]]:
        return [(entry.action, entry.holder) for entry in self.ledger.history(key)]

    @contextmanager
    def worker(self, run_id: int, *, lease: float) -> Iterator[subprocess.Popen[str]]:
        """Another process that evaluates, and stops in the middle, with the first band written."""
        folders = [str(Path(__file__).parents[2] / "docs" / "examples"), *sys.path]
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, self.database.url, str(run_id), str(lease)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        ) as process:
            try:
                assert process.stdout is not None
                assert [process.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
                yield process
            finally:
                process.kill()

    def expired(self, key: str = KEY) -> None:
        """Waits until the lock is free by itself."""
        deadline = time.monotonic() + PATIENCE
        while self.ledger.is_locked(key):
            assert time.monotonic() < deadline, "the lock does not run out"
            time.sleep(0.02)


@pytest.fixture
def pipeline(postgres_database: Database) -> Iterator[Pipeline]:
    """The pipeline with three runs that wait, all for round 5."""
    engine = postgres_database.engine()
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Run(id=number, round=5) for number in (41, 42, 43)])
    with LockLedger(engine) as ledger:
        pipeline = Pipeline(postgres_database, engine, ledger)
        yield pipeline
    prove(engine)
    if not pipeline.may_log_errors:
        assert postgres_database.logged_errors() == []


# The locks as they used to be.


def test_a_held_key_gives_nothing_to_the_owning_run_too(pipeline: Pipeline) -> None:
    grant = pipeline.locks.take(KEY, run_id=42)
    assert grant is not None
    assert pipeline.locks.take(KEY, run_id=42) is None
    assert pipeline.locks.take(KEY, run_id=43) is None
    assert pipeline.locks.take(KEY) is None
    assert pipeline.locks.is_locked(KEY)
    assert pipeline.history() == [("LockTaken", "run:42")]


def test_a_lock_need_not_belong_to_a_run(pipeline: Pipeline) -> None:
    assert pipeline.locks.take(KEY) is not None
    assert pipeline.locks.take(KEY) is None
    assert pipeline.locks.release(KEY)
    assert pipeline.locks.take(KEY) is not None


@pytest.mark.parametrize(
    "expires",
    [
        lambda seconds: seconds,
        lambda seconds: timedelta(seconds=seconds),
        lambda seconds: datetime.now(UTC) + timedelta(seconds=seconds),
    ],
    ids=["seconds", "a duration", "an instant"],
)
def test_a_lock_may_expire_and_then_never_blocks(
    pipeline: Pipeline, expires: Callable[[float], Any]
) -> None:
    def story(key: str, seconds: float) -> None:
        with while_live(pipeline.database, datetime.now(UTC) + timedelta(seconds=seconds)):
            grant = pipeline.locks.take(key, run_id=42, expires=expires(seconds))
            assert grant is not None
        with while_live(pipeline.database, grant.expires_at):
            assert pipeline.locks.take(key, run_id=43) is None
        pipeline.expired(key)
        assert pipeline.locks.take(key, run_id=43) is not None
        assert pipeline.history(key) == [
            ("LockTaken", "run:42"),
            ("LockExpired", "run:42"),
            ("LockTaken", "run:43"),
        ]

    lasting(story)


@pytest.mark.parametrize("expires", [0, -1, timedelta(0), datetime(2001, 1, 1, tzinfo=UTC)])
def test_an_expiry_that_has_passed_is_an_error(pipeline: Pipeline, expires: Any) -> None:
    with pytest.raises(InvalidTtl):
        pipeline.locks.take(KEY, expires=expires)
    assert not pipeline.locks.is_locked(KEY)


def test_release_is_by_key_and_tells_whether_something_was(pipeline: Pipeline) -> None:
    assert not pipeline.locks.release(KEY)
    pipeline.locks.take(KEY, run_id=42)
    assert pipeline.locks.release(KEY)
    assert not pipeline.locks.release(KEY)
    assert not pipeline.locks.is_locked(KEY)


def test_anothers_lock_is_not_released(pipeline: Pipeline) -> None:
    pipeline.locks.take(KEY, run_id=42)
    assert not pipeline.locks.release(KEY, run_id=43)
    assert pipeline.locks.is_locked(KEY)
    assert pipeline.locks.release(KEY, run_id=42)
    assert not pipeline.locks.release(KEY, run_id=42)


def test_scopes_are_locked_one_by_one(pipeline: Pipeline) -> None:
    assert round_key(5, 2) == "round:5:band:2"
    assert pipeline.locks.take(round_key(5), run_id=42) is not None
    assert pipeline.locks.take(round_key(5, 2), run_id=43) is not None


def test_a_lock_and_the_pipelines_own_rows_are_one_transaction(pipeline: Pipeline) -> None:
    with pipeline.sessions() as session:
        assert ScopeLocks(pipeline.ledger.using(session)).take(KEY, run_id=42) is not None
        session.get_one(Run, 42).status = "running"
        session.flush()
        session.rollback()
    assert not pipeline.locks.is_locked(KEY)
    assert pipeline.run(42).status == "waiting"
    assert pipeline.history() == []

    with pipeline.sessions.begin() as session:
        locks = ScopeLocks(pipeline.ledger.using(session))
        assert locks.take(KEY, run_id=42) is not None
        assert locks.take(KEY, run_id=43) is None
        session.get_one(Run, 42).status = "running"
    assert pipeline.locks.is_locked(KEY)
    assert pipeline.run(42).status == "running"


def test_any_other_error_comes_through_as_itself(pipeline: Pipeline) -> None:
    pipeline.may_log_errors = True
    with pytest.raises(InvalidKey):
        pipeline.locks.take("x" * 256)
    with (
        pytest.raises(OperationalError),
        LockLedger("postgresql+psycopg://nobody@127.0.0.1:1/none") as unreachable,
    ):
        ScopeLocks(unreachable).take(KEY)
    assert not pipeline.locks.is_locked(KEY)  # so the tables have been seen
    with pipeline.engine.begin() as connection:
        connection.execute(text("ALTER TABLE lockledger_events RENAME TO elsewhere"))
    with pytest.raises(ProgrammingError):
        pipeline.locks.take(KEY)
    with pipeline.engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO lockledger_events"))


# Runs.


def test_a_run_evaluates_its_round_and_releases_it(pipeline: Pipeline) -> None:
    held: list[bool] = []

    def score(band: int) -> float:
        held.append(pipeline.locks.is_locked(KEY))
        return band * 1.5

    assert pipeline.evaluate(42, score)
    assert held == [True] * len(BANDS)
    assert pipeline.run(42).status == "finished"
    assert pipeline.scores() == {band: (42, band * 1.5) for band in BANDS}
    assert pipeline.history() == [("LockTaken", "run:42"), ("LockReleased", "run:42")]


def test_a_second_run_of_the_round_does_nothing(pipeline: Pipeline) -> None:
    answers: list[bool] = []

    def score(band: int) -> float:
        answers.append(pipeline.evaluate(43))
        return float(band)

    assert pipeline.evaluate(42, score)
    assert answers == [False] * len(BANDS)
    assert pipeline.run(43).status == "waiting"
    assert {run for run, _ in pipeline.scores().values()} == {42}


def test_a_run_does_not_enter_its_own_round_twice(pipeline: Pipeline) -> None:
    pipeline.locks.take(KEY, run_id=42)
    assert not pipeline.evaluate(42)
    assert pipeline.locks.is_locked(KEY)


@pytest.mark.parametrize("failure", [ArithmeticError("a bad band"), KeyboardInterrupt()], ids=repr)
def test_a_failing_run_releases_and_is_not_masked(
    pipeline: Pipeline, failure: BaseException
) -> None:
    def score(band: int) -> float:
        if band == 2:
            raise failure
        return float(band)

    with pytest.raises(type(failure)) as caught:
        pipeline.evaluate(42, score)

    assert caught.value is failure
    assert getattr(failure, "__notes__", []) == []
    assert not pipeline.locks.is_locked(KEY)
    run = pipeline.run(42)
    assert (run.status, run.failure) == ("failed", repr(failure))
    assert pipeline.evaluate(43)


def test_a_failing_release_does_not_mask_the_failure(pipeline: Pipeline) -> None:
    """The database is gone while the run fails: the failure comes out, with notes of what could not be done."""
    failure = ArithmeticError("a bad band")

    def score(band: int) -> float:
        with pipeline.engine.begin() as connection:
            connection.execute(text("ALTER TABLE lockledger_current_holders RENAME TO elsewhere"))
            connection.execute(text("ALTER TABLE run RENAME TO elsewhere_too"))
        raise failure

    pipeline.may_log_errors = True
    with pytest.raises(ArithmeticError) as caught:
        pipeline.evaluate(42, score)
    with pipeline.engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO lockledger_current_holders"))
        connection.execute(text("ALTER TABLE elsewhere_too RENAME TO run"))

    assert caught.value is failure
    notes = " ".join(failure.__notes__)
    assert "run 42 could not be marked as failed" in notes
    assert "at the end of the hold" in notes
    assert "until" in notes
    assert pipeline.run(42).status == "running"


def test_a_failing_final_step_releases_and_finishes_nothing(pipeline: Pipeline) -> None:
    """The status and the release are one transaction, so neither is there without the other."""
    with pipeline.engine.begin() as connection:
        connection.execute(text("ALTER TABLE run ADD CHECK (status <> 'finished')"))
    pipeline.may_log_errors = True
    with pytest.raises(Exception, match="run_status_check") as caught:
        pipeline.evaluate(42)

    assert not getattr(caught.value, "__notes__", [])
    assert pipeline.run(42).status == "failed"
    assert not pipeline.locks.is_locked(KEY)
    assert pipeline.history() == [("LockTaken", "run:42"), ("LockReleased", "run:42")]


def test_a_run_that_is_killed_blocks_until_its_lease_is_over(pipeline: Pipeline) -> None:
    with pipeline.worker(41, lease=LEASE) as process:
        assert not pipeline.evaluate(42)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        assert not pipeline.evaluate(42), "a crash does not release by itself"
        pipeline.expired()

    assert (pipeline.run(41).status, pipeline.scores()) == ("running", {1: (41, 10.0)})
    assert pipeline.evaluate(42)
    assert {run for run, _ in pipeline.scores().values()} == {42}
    assert [step for step in pipeline.history() if step[0] != "LockExtended"] == [
        ("LockTaken", "run:41"),
        ("LockExpired", "run:41"),
        ("LockTaken", "run:42"),
        ("LockReleased", "run:42"),
    ]


def test_a_long_run_keeps_its_lease(pipeline: Pipeline) -> None:
    with pipeline.worker(41, lease=LEASE) as process:
        taken = pipeline.ledger.holder_of(KEY)
        assert taken is not None
        while clock_of(pipeline.database) < taken.taken_at + timedelta(seconds=LEASE + 1):
            time.sleep(0.1)
        assert not pipeline.evaluate(42)
        output, errors = process.communicate("go on\n", timeout=PATIENCE)

    assert (output, errors) == ("3\nTrue\n", "")
    assert pipeline.run(41).status == "finished"


def test_a_run_that_was_only_asleep_writes_nothing_when_it_wakes_up(pipeline: Pipeline) -> None:
    with pipeline.worker(41, lease=LEASE) as process:
        process.send_signal(signal.SIGSTOP)
        pipeline.expired()
        assert pipeline.evaluate(42)
        pipeline.locks.take(KEY, run_id=43)
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate("go on\n", timeout=PATIENCE)

    assert "HoldLost" in errors
    assert "with token 1 ran out at" in errors
    assert pipeline.run(41).status == "failed"
    assert {run for run, _ in pipeline.scores().values()} == {42}
    hold = pipeline.ledger.holder_of(KEY)
    assert hold is not None
    assert hold.holder == "run:43"


def test_a_run_whose_lock_was_taken_over_learns_by_whom(pipeline: Pipeline) -> None:
    def score(band: int) -> float:
        if band == 2:
            pipeline.ledger.force_release(KEY, actor="user:7", reason="wrong input")
        return float(band)

    with pytest.raises(HoldLost, match=r"released by force by 'user:7'.*wrong input"):
        pipeline.evaluate(42, score)

    assert pipeline.scores() == {1: (42, 1.0)}
    assert pipeline.run(42).status == "failed"


def test_the_readme_is_so(postgres_database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(
        r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    names: dict[str, Any] = {"__name__": "readme"}
    for example in examples:
        code = compile(
            example.replace(README_URL, postgres_database.url),
            README.name,
            "exec",
            dont_inherit=True,
        )
        exec(code, names)
    names["ledger"].close()
    names["engine"].dispose()

    assert capsys.readouterr().out == "['LockTaken', 'LockReleased']\n"
