"""What `lockledger` offers by name, each loaded when it is first asked for."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import lockledger

_SOURCE = ast.parse(Path(str(lockledger.__file__)).read_text("utf-8"))


def test_type_checkers_and_the_interpreter_find_the_same_names() -> None:
    checked = next(node for node in _SOURCE.body if isinstance(node, ast.If))
    imports = {
        (each.name, node.module)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    assert imports == set(lockledger._WHERE.items())
    assert sorted(lockledger.__all__) == sorted(lockledger._WHERE)
    assert set(lockledger.__all__) <= set(dir(lockledger))


def test_each_name_is_the_one_that_its_module_has() -> None:
    for name, module in lockledger._WHERE.items():
        assert getattr(lockledger, name) is getattr(import_module(module), name)
    assert pickle.loads(pickle.dumps(lockledger.Hold)) is lockledger.Hold  # noqa: S301 - our own


def test_another_name_is_none() -> None:
    with pytest.raises(AttributeError, match="module 'lockledger' has no attribute 'LockLedgr'"):
        lockledger.LockLedgr  # type: ignore[attr-defined]  # noqa: B018 - to be refused
    with pytest.raises(ImportError, match="cannot import name 'LockLedgr'"):
        exec("from lockledger import LockLedgr")


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = """
import sys
import lockledger
print([name for name in ("pydantic", "sqlalchemy", "eventsourcing", "lockledger.domain") if name in sys.modules])
from lockledger import *
print(sorted(set(lockledger.__all__) - set(globals())), LockLedger is lockledger.LockLedger)
"""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == ["[]", "[] True"], ran.stderr
