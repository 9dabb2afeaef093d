"""Importing the library changes nothing in the host's process: its loggers, its dataclasses, its hooks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

LOOK = """
import asyncio, dataclasses, importlib, json, logging, pkgutil, signal, sys, warnings

def state():
    def told(logger):
        return [logger.level, len(logger.handlers), logger.disabled, logger.propagate]
    return {
        "loggers": {
            name: told(logger)
            for name, logger in logging.root.manager.loggerDict.items()
            if isinstance(logger, logging.Logger) and told(logger) != [0, 0, False, True]
        },
        "root": told(logging.root),
        "logger class": logging.getLoggerClass().__name__,
        "disabled": logging.root.manager.disable,
        "raise": logging.raiseExceptions,
        "dataclass": [dataclasses.dataclass.__qualname__, dataclasses._process_class.__qualname__],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "warnings": len(warnings.filters),
        "signals": [str(signal.getsignal(each))[:30] for each in (signal.SIGINT, signal.SIGTERM)],
        "loop": type(asyncio.get_event_loop_policy()).__qualname__,
    }

logging.getLogger("host").setLevel("DEBUG")
logging.getLogger("psycopg").setLevel("DEBUG")
logging.getLogger("alembic").setLevel("DEBUG")
"""
THEIRS = "import sqlalchemy.ext.asyncio, sqlalchemy.orm, psycopg, pydantic\n"


def process(script: str) -> Any:
    """What a new process prints, as JSON."""
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOOK + script], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    return json.loads(found.stdout)


def test_importing_it_leaves_the_process_as_its_libraries_do() -> None:
    before = process(THEIRS + "print(json.dumps(state()))")
    after = process(THEIRS + "import lockledger\nprint(json.dumps(state()))")

    assert after == before


def test_importing_every_part_of_it_leaves_the_hosts_loggers_alone() -> None:
    """`eventsourcing.postgres` would set psycopg's loggers to ERROR."""
    every = (
        "import lockledger\n"
        "for each in pkgutil.walk_packages(lockledger.__path__, 'lockledger.'):\n"
        "    if not each.name.endswith(('.env', '.__main__')) and '.versions.' not in each.name:\n"
        "        importlib.import_module(each.name)\n"
        "print(json.dumps(state()))"
    )
    before, after = process("print(json.dumps(state()))"), process(every)

    for name, (level, *_) in before["loggers"].items():
        assert after["loggers"][name][0] == level, name
    for kept in ("root", "logger class", "disabled", "raise", "hooks", "signals", "loop"):
        assert after[kept] == before[kept], kept


@pytest.mark.parametrize("module", ["lockledger", "lockledger.eventsourcing"])
def test_the_hosts_dataclasses_behave_as_before(module: str) -> None:
    """Importing `eventsourcing.domain` patches `dataclasses` for the whole process."""
    use = f"""
import {module}
from dataclasses import KW_ONLY, FrozenInstanceError, asdict, dataclass, field, fields, replace

@dataclass(order=True)
class Point:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list, compare=False)

@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    _: KW_ONLY
    b: int = 2

@dataclass
class Child(Point):
    z: int = 9

@dataclass(eq=False)
class Child(Child):
    more: int = 1

refused = False
try:
    Frozen(1).a = 2
except FrozenInstanceError:
    refused = True
plain = dataclasses.make_dataclass("Made", [("v", int)])
print(json.dumps([
    repr(Point(1)), Point(1) == Point(1, 0), Point(1) < Point(2), asdict(Point(1, 2, ["t"])),
    repr(Frozen(1, b=3)), hash(Frozen(1)) == hash(Frozen(1)), hasattr(Frozen(1), "__dict__"), refused,
    repr(Child(1)), [each.name for each in fields(Child)], Child(1) == Child(1),
    repr(replace(Point(1), y=5)), repr(plain(3)),
]))
"""
    assert process(use) == process(use.replace(f"import {module}\n", ""))
