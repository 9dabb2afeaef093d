"""Changes the rules a little in many ways, and tells which changes no test of the domain notices.

`python tests/mutation/run.py domain/lock.py domain/ttl.py`; `--sample 50 --seed 1` tries some of them only. The project
is copied beside and changed there.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("adapters", "domain", "migrations", "projections")
LIBRARIES = (
    "alembic",
    "eventsourcing.persistence",
    "hypothesis.stateful",
    "psycopg",
    "pydantic",
    "sqlalchemy.ext.asyncio",
)
SECONDS = 120
OTHERS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Each changed text, and what was changed in which line."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            changed = copy.deepcopy(tree)
            mutated = list(ast.walk(changed))[number]
            _apply(mutated, change)
            line = getattr(node, "lineno", 0)
            before, after = ast.unparse(node).split("\n")[0], ast.unparse(mutated).split("\n")[0]
            yield ast.unparse(ast.fix_missing_locations(changed)), f"{line}: {before}  ->  {after}"


def _changes(node: ast.AST) -> Iterator[str]:
    known = getattr(node, "op", None) or getattr(node, "ops", [None])[0]
    if type(known) in OTHERS and isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp):
        yield "operator"
    elif isinstance(node, ast.If | ast.IfExp):
        yield "negated"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        yield "constant"
    elif isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield "nothing"
    elif isinstance(node, ast.Raise):
        yield "no raise"


def _apply(node: ast.AST, change: str) -> None:
    if change == "operator" and isinstance(node, ast.Compare):
        node.ops[0] = OTHERS[type(node.ops[0])]()  # type: ignore[call-overload]
    elif change == "operator" and isinstance(node, ast.BoolOp | ast.BinOp):
        node.op = OTHERS[type(node.op)]()  # type: ignore[assignment]
    elif change == "negated" and isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif change == "constant" and isinstance(node, ast.Constant):
        known = node.value
        node.value = (not known) if isinstance(known, bool) else known + 1  # type: ignore[operator]
    elif change == "nothing" and isinstance(node, ast.Return):
        node.value = ast.Constant(None)
    elif change == "no raise" and isinstance(node, ast.Raise):
        node.__class__ = ast.Pass  # type: ignore[assignment]


def _copied(folder: Path) -> None:
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=ignored, dirs_exist_ok=True)
    view = folder / ".view" / "lockledger"
    view.mkdir(parents=True)
    for entry in (*(folder / "lockledger").iterdir(), *(folder / each for each in FOLDERS)):
        (view / entry.name).symlink_to(entry)


def _notices(folder: Path, tests: str, first: str = "") -> bool:
    """Whether a test fails; `first` names the module whose own tests are likely to, and are tried alone before."""
    own = f"{tests}/test_{first}.py"
    return ((folder / own).exists() and _fails(folder, own)) or _fails(folder, tests)


def _fails(folder: Path, tests: str) -> bool:
    """In a fork of this process, which has the libraries already: they take longer to import than most tests to run."""
    for name in LIBRARIES:
        importlib.import_module(name)
    ran = multiprocessing.get_context("fork").Process(target=_test, args=(folder, tests))
    ran.start()
    ran.join(SECONDS)
    if ran.is_alive():
        ran.kill()
        ran.join()
    return ran.exitcode != 0


def _test(folder: Path, tests: str) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder / ".view"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    sys.path.insert(0, str(folder / ".view"))
    plugins = ["-p", "_hypothesis_pytestplugin", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    sys.exit(pytest.main(["-q", "-x", "--hypothesis-seed=0", *plugins, tests]))


def _write(file: Path, text: str) -> None:
    """Without what Python compiled before: it goes by a file's length and the second of its change."""
    file.write_text(text)
    shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--tests", default="tests/domain")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _copied(folder)
        if _notices(folder, given.tests):
            sys.exit("the tests fail as it is")
        for name in given.files:
            _try_all(folder, name, given)


def _try_all(folder: Path, name: str, given: argparse.Namespace) -> None:
    file = folder / name
    source = file.read_text()
    chosen = list(mutants(source))
    if given.sample is not None and given.sample < len(chosen):
        chosen = random.Random(given.seed).sample(chosen, given.sample)
    survivors = 0
    for changed, what in chosen:
        _write(file, changed)
        if not _notices(folder, given.tests, file.stem):
            survivors += 1
            print(f"{name}:{what}", flush=True)
    _write(file, source)
    print(f"{name}: {len(chosen)} changes, {survivors} not noticed", flush=True)


if __name__ == "__main__":
    main()
