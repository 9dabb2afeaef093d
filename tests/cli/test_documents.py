"""The pages about the command line: what they show is run, and what they list is complete."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
COMMANDS = (
    *("migrate", "take", "release", "force-release", "extend", "holders", "history", "audit"),
    *("holds", "at", "apply", "timeline", "doctor", "verify", "checkpoint", "rebuild", "export"),
    *("import", "sweep"),
)


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each block of code."""
    text = (DOCS / page).read_text(encoding="utf-8")
    yield from re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def sessions(console: str) -> Iterator[tuple[list[str], str]]:
    """Each command of a console block, and what it shows."""
    for part in console.split("$ ")[1:]:
        command, _, shown = part.partition("\n")
        yield shlex.split(command), shown


def without_instants(text: str) -> str:
    return INSTANT.sub("<instant>", text)


@pytest.mark.parametrize("page", ["tutorial.md", "how-to/apply.md", "how-to/who-held-it.md"])
def test_what_a_page_shows_is_what_happens(
    lockledger: Any, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    shutil.copy(DOCS / "examples" / "office-day.jsonl", ".")
    if page != "tutorial.md":
        lockledger.done("migrate")
    ran = 0
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, page, "exec"), {})
        if language != "console":
            continue
        for command, shown in sessions(text):
            if command[0] != "lockledger":
                continue
            said = lockledger(*command[1:])
            lines = [line for line in said.err.splitlines() if " a second" not in line]
            assert without_instants(
                said.out + "".join(f"{line}\n" for line in lines)
            ) == without_instants(shown)
            ran += 1
    assert ran > 0


def options(lockledger: Any, *command: str) -> set[str]:
    """The options that the help of a command names."""
    return set(re.findall(r"(?<=[ ,])--[a-z-]+", lockledger(*command, "--help").out))


def test_the_reference_lists_every_command_and_option(lockledger: Any) -> None:
    common = options(lockledger) | {"--json"}
    for option in common - {"--show-completion"}:
        assert f"`{option}" in REFERENCE, option
    sections = dict(
        re.findall(
            r"^### lockledger ([a-z-]+).*?\n(.*?)(?=^##|\Z)", REFERENCE, re.MULTILINE | re.DOTALL
        )
    )
    assert set(sections) == set(COMMANDS)
    for command, section in sections.items():
        named = set(re.findall(r"--[a-z][a-z-]+", section))
        own = options(lockledger, command) - common
        assert own - named == set(), command
        assert named - own - common == set(), command


def test_the_program_has_no_other_commands(lockledger: Any) -> None:
    listed = lockledger("--help").out.partition("Commands:\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^  ([a-z-]+)", listed, re.MULTILINE)) == set(COMMANDS)


def test_the_reference_gives_every_exit_code() -> None:
    from lockledger.cli import failures

    codes = {
        value for name, value in vars(failures).items() if name.isupper() and isinstance(value, int)
    }
    listed = re.findall(r"^\| (\d+) \|", REFERENCE, re.MULTILINE)
    assert {int(code) for code in listed} == codes
