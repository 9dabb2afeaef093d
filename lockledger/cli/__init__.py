"""The command line, `lockledger` or `python -m lockledger`; needs the extra `cli`."""

import sys


def main() -> None:
    """Runs the command that the process was started with, and exits with its code."""
    try:
        from lockledger.cli.program import run
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        print(
            f"lockledger: the command line needs {missing.name}: pip install 'lockledger[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(run())
