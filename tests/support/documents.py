"""The pages of the documentation, whose code runs as tests: from top to bottom, in one namespace."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Block:
    """One fenced block of a page: its language, its text, and the page's line where it begins."""

    language: str
    text: str
    line: int


def blocks(page: Path, language: str) -> list[Block]:
    """The page's blocks in one language, in their order."""
    text = page.read_text("utf-8")
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [
        Block(each[1], each[2], text.count("\n", 0, each.start()) + 2)
        for each in found
        if each[1] == language
    ]


def run(page: Path, *, instead: Mapping[str, str], at_the_end: str = "") -> dict[str, Any]:
    """Runs the page's Python, where `await` may stand outside functions, and gives the names that it made.

    `instead`: what stands for other text of the page, each of which has to be there. `at_the_end`: code that the page leaves
    out. A traceback names the page's line.
    """
    text = page.read_text("utf-8")
    for old in instead:
        assert old in text, f"{page.name} no longer says {old!r}"
    end = Block("python", at_the_end, 1)
    code = [_compiled(page, block, instead) for block in (*blocks(page, "python"), end)]
    module = ModuleType(f"page_{page.stem}")
    module.__dict__["__builtins__"] = builtins  # as exec() adds them
    sys.modules[module.__name__] = module
    try:
        if any(each.co_flags & inspect.CO_COROUTINE for each in code):
            asyncio.run(_awaited(code, module.__dict__))
        else:
            for each in code:
                exec(each, module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module.__dict__


async def _awaited(code: list[CodeType], names: dict[str, Any]) -> None:
    for each in code:
        waiting = FunctionType(each, names)()
        if inspect.iscoroutine(waiting):
            await waiting


def _compiled(page: Path, block: Block, instead: Mapping[str, str]) -> CodeType:
    text = block.text
    for old, new in instead.items():
        text = text.replace(old, new)
    code: CodeType = compile(
        "\n" * (block.line - 1) + text,
        str(page),
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )
    return code
