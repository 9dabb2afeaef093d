"""What the project is made of: dependencies with their licences, hashes, and nothing that runs what it reads."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("lockledger", "adapters", "projections", "domain", "migrations")
MODULES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
FORBIDDEN_MODULES = {
    *("pickle", "marshal", "shelve", "dill", "yaml", "subprocess", "ctypes", "code", "pty"),
    *("telnetlib", "ftplib", "urllib.request", "http.client", "xml.etree", "tempfile"),
}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "system",
    "popen",
    "mktemp",
    "import_module",
}
ALLOWED_CALLS = {
    ("lockledger/cli/given.py", "import_module"),  # the names that who runs the command asks for
    ("lockledger/__init__.py", "import_module"),  # the library's own modules
}


def test_every_dependency_is_listed_with_its_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {_name(each): "always" for each in project["dependencies"]}
    for extra, dependencies in project["optional-dependencies"].items():
        wanted |= {_name(each): extra for each in dependencies}
    page = (ROOT / "docs" / "security.md").read_text()
    (block,) = re.findall(r"^## Dependencies$(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| ([\w-]+) \| ([\w-]+) \| ([\w.-]+) \|$", block, re.MULTILINE)
    listed = {name: (by, licence) for name, by, licence in rows[1:]}
    assert {name: by for name, (by, _) in listed.items()} == wanted
    for name, (_, licence) in listed.items():
        assert licence in _licences(name), name


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].rstrip("<>=")


def _licences(name: str) -> str:
    found = metadata(name).json
    said = [found.get("license_expression"), found.get("license"), found.get("classifier")]
    return " ".join(map(str, said)).replace("MIT License", "MIT")


def test_everything_for_development_is_installed_by_hash() -> None:
    lock = (ROOT / "requirements-dev.lock").read_text()
    entries = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert len(entries) > 50
    for entry in entries:
        assert re.match(r"[\w.-]+(\[[\w,]+\])?==[\w.+!-]+ ", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    assert "--index" not in lock
    assert "://" not in lock
    assert "--require-hashes" in (ROOT / "Makefile").read_text()


def test_nothing_that_is_read_is_run() -> None:
    found = []
    for file in MODULES:
        name = file.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found += [
                    (name, each.name) for each in node.names if each.name in FORBIDDEN_MODULES
                ]
            elif isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN_MODULES:
                found.append((name, str(node.module)))
            elif isinstance(node, ast.Call):
                called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                plain = isinstance(node.func, ast.Name) or called in (
                    "system",
                    "popen",
                    "import_module",
                )
                if plain and called in FORBIDDEN_CALLS:
                    found.append((name, str(called)))
    assert set(found) <= ALLOWED_CALLS
