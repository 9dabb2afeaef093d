"""Which state of the project it is, to stand beside what was measured."""

from __future__ import annotations

import subprocess

from support.documents import DOCS


def commit() -> str | None:
    """The commit, with a star where something is changed beside it; `None` outside a checkout."""
    git = ["git", "-C", str(DOCS.parent)]
    try:
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True)
        named = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return named.stdout.decode().strip() + ("*" if changed.stdout else "")
