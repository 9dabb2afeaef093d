"""Much at once: `lockledger apply` of a command log, and proving and rebuilding a ledger."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.past import filled
from benchmarks.rebuild import copy, emptied, measured, rebuild, verify

from support.crowd import BEGIN
from support.postgres import PostgresServer

REBUILT = 100_000
COMMANDS = 5_000
_LOCKS = 500


def apply(server: PostgresServer, commands: int, rounds: int) -> list[dict[str, Any]]:
    """Commands a second of a log of takes, takeovers, extensions and releases, each line its own transaction."""
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.jsonl")
        log.write_text("".join(_lines(commands)))
        for number in range(rounds):
            for name, url in {
                "PostgreSQL": server.url(server.create_database("template1")),
                "SQLite": f"sqlite:///{folder}/{number}.db",
            }.items():
                _command("migrate", url)
                began = time.perf_counter()
                _command("apply", url, str(log))
                taken = time.perf_counter() - began
                row = rows.setdefault(name, {"database": name, "commands": commands, "rates": []})
                row["rates"].append(round(commands / taken, 1))
    return [*rows.values()]


def _command(name: str, url: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "lockledger", name, *arguments],
        env=os.environ | {"LOCKLEDGER_DATABASE": url},
        check=True,
        capture_output=True,
    )


def _lines(commands: int) -> Any:
    chance, now = random.Random(3), BEGIN
    for _ in range(commands):
        now += timedelta(seconds=chance.randrange(1, 60))
        line: dict[str, Any] = {
            "at": now.isoformat(),
            "do": chance.choice(("take", "take", "release", "extend")),
            "key": f"ticket:{chance.randrange(_LOCKS)}",
            "holder": f"agent:{chance.randrange(5)}",
        }
        if line["do"] != "release":
            line["ttl"] = 3600
        if line["do"] == "take" and chance.random() < 0.2:
            line["reason"] = "Wait"
        yield json.dumps(line) + "\n"


def rebuilt(server: PostgresServer, events: int) -> list[dict[str, Any]]:
    """Events a second of a proof, and of a rebuild of sound and of emptied tables, beside a bare COPY."""
    url = server.url(server.create_database("template1"))
    filled(url, events)
    found = [
        measured("COPY out of the events table", copy, url),
        measured("verify", verify, url),
        measured("rebuild, everything is right", rebuild, url),
    ]
    emptied(url)
    return [*found, measured("rebuild, audit trail and ended holds empty", rebuild, url)]
