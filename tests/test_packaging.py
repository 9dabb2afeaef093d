"""What a user installs, and that importing it leaves the host's process as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from email import message_from_string
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "lockledger": "lockledger",
    "lockledger/adapters": "adapters",
    "lockledger/domain": "domain",
    "lockledger/migrations": "migrations",
    "lockledger/projections": "projections",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel made from the source distribution, so that both are proven; without the network."""
    source = tmp_path_factory.mktemp("source")
    for folder in FOLDERS.values():
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / file, source)
    build = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(source / "dist"),
        str(source),
    ]
    result = subprocess.run(build, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (made,) = (source / "dist").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel installs, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(code: str, path: Path, *options: str) -> str:
    """Run code in a new process that finds lockledger in a folder; give what it prints."""
    command = [sys.executable, *options, "-c", code]
    result = subprocess.run(
        command, cwd=path, env={"PYTHONPATH": str(path)}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_five_folders_and_no_other(installed: Path) -> None:
    expected = {
        f"{package}/{name}" for package, folder in FOLDERS.items() for name in files(ROOT / folder)
    }
    assert {name for name in files(installed) if ".dist-info/" not in name} == expected


def test_the_only_top_level_name_is_lockledger(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert names == {"lockledger"}


def test_the_wheel_holds_types_migrations_and_licence(installed: Path) -> None:
    held = files(installed)
    assert "lockledger/py.typed" in held
    assert "lockledger/migrations/versions/__init__.py" in held
    assert any(name.endswith("/licenses/LICENSE") for name in held)


def test_the_wheel_asks_for_what_the_project_declares(installed: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = _metadata(installed)
    wanted = [name.replace(" ", "") for name in metadata.get_all("Requires-Dist", [])]
    assert metadata["Requires-Python"] == ">=3.11"
    assert {_name(name) for name in wanted if "extra==" not in name} == {
        _name(name) for name in project["dependencies"]
    }
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])


def test_every_module_of_the_wheel_can_be_imported(installed: Path) -> None:
    # env.py runs only inside Alembic; __main__ runs a program.
    code = """
import importlib, pathlib, lockledger
root = pathlib.Path(lockledger.__file__).parents[1]
assert root == pathlib.Path.cwd(), root
for path in sorted(root.glob("lockledger/**/*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith((".env", ".__main__")):
        importlib.import_module(name)
"""
    run(code, installed, "-W", "error")


def test_the_library_imports_without_its_extras(installed: Path) -> None:
    code = """
import sys
sys.modules.update(typer=None, rich=None, pyarrow=None)
from lockledger import *
"""
    run(code, installed, "-W", "error")


def test_plain_dataclasses_still_behave_after_the_import(installed: Path) -> None:
    code = """
from lockledger import *
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

@dataclass(frozen=True, order=True, slots=True)
class Point:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list, compare=False)

@dataclass
class Base:
    a: int

@dataclass(kw_only=True)
class Child(Base):
    b: int = 2

try:
    Point(1).x = 2
except FrozenInstanceError:
    print("frozen")
print(Point(1) < Point(1, 1), replace(Point(1), y=5), not hasattr(Point(1), "__dict__"))
print(asdict(Child(1, b=3)), [f.name for f in fields(Child)], Child(1) == Child(1))
"""
    assert run(code, installed).splitlines() == [
        "frozen",
        "True Point(x=1, y=5, tags=[]) True",
        "{'a': 1, 'b': 3} ['a', 'b'] True",
    ]


@pytest.mark.parametrize("level", ["NOTSET", "DEBUG"])
def test_the_import_leaves_the_hosts_psycopg_loggers_alone(installed: Path, level: str) -> None:
    code = f"""
import logging, sys
import alembic, psycopg, sqlalchemy  # each sets its own logger once, also without lockledger
names = ["psycopg", "psycopg.pool", "sqlalchemy", "sqlalchemy.engine", "alembic", ""]
for name in names[:-1]:
    logging.getLogger(name).setLevel(logging.{level})
before = [(logging.getLogger(n).level, list(logging.getLogger(n).handlers)) for n in names]
from lockledger import *
after = [(logging.getLogger(n).level, list(logging.getLogger(n).handlers)) for n in names]
assert "eventsourcing.postgres" not in sys.modules
print(before == after)
"""
    assert run(code, installed) == "True"


def _metadata(installed: Path) -> Message:
    (folder,) = installed.glob("*.dist-info")
    return message_from_string((folder / "METADATA").read_text(encoding="utf-8"))


def _name(requirement: str) -> str:
    for end in "[<>=!~;":
        requirement = requirement.split(end, maxsplit=1)[0]
    return requirement.strip()
