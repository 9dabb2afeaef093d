"""Everything that `make benchmark` measures, beside what people use instead, on one server in one run.

    make benchmark                                  all of it
    make benchmark ARGS="--quick"                   all of it in short
    make benchmark ARGS="--only takes kinds"        takes, operations, kinds, subscriber, apply, rebuild or growth
    make benchmark ARGS="--only growth --events 10000000"
    make benchmark ARGS="--only report"             draws again what is in docs/benchmarks/figures.json

On a PostgreSQL 18 of its own with fsync, or with `--dsn` on a server whose user may create databases. A part that is
measured takes the place of what figures.json had of it; the other parts stay as they are, each with its own load, time
and versions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bulk import COMMANDS, REBUILT, apply, rebuilt
from benchmarks.growth import grown
from benchmarks.matrix import CLIENTS, PARTS, Settings
from benchmarks.peers import redis_lock, redis_server
from benchmarks.report import written

from support.checkout import commit
from support.documents import DOCS
from support.postgres import PostgresServer, embedded_postgres, named_postgres

EVERY = [*PARTS, "apply", "rebuild", "growth"]


def machine(server: PostgresServer) -> dict[str, Any]:
    """What the figures depend on, without names."""
    with server.connect() as connection:
        found = connection.execute(
            "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
        ).fetchone()
    assert found is not None
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "postgresql": found[0],
        "fsync": found[1],
        "synchronous_commit": found[2],
        "packages": {
            name: version(name) for name in ("lockledger", "sqlalchemy", "psycopg", "eventsourcing")
        },
    }


def measured(
    part: str, server: PostgresServer, settings: Settings, chosen: argparse.Namespace
) -> list[dict[str, Any]]:
    """The rows of one part."""
    if part in PARTS:
        return PARTS[part](server.url(server.create_database("template1")), settings)
    if part == "apply":
        return apply(server, 2_000 if chosen.quick else COMMANDS, 1 if chosen.quick else 3)
    if part == "rebuild":
        return rebuilt(server, REBUILT // 10 if chosen.quick else REBUILT)
    return grown(server, chosen.events, chosen.held, 5 if chosen.quick else 15)


@contextmanager
def _server(dsn: str | None) -> Iterator[PostgresServer]:
    if dsn:
        yield named_postgres(dsn)
    else:
        with embedded_postgres(durable=True) as server:
            with server.connect() as connection:
                connection.execute("ALTER SYSTEM SET track_wal_io_timing = on")
                connection.execute("SELECT pg_reload_conf()")
            yield server


def run(chosen: argparse.Namespace, figures: dict[str, Any], path: Path) -> None:
    """Measures part by part, and writes the figures whenever there are more."""
    host, _, port = chosen.redis.rpartition(":")
    redis = redis_server(host, int(port))
    if redis is None:
        print(f"no Redis at {chosen.redis}, or no package redis: left out", file=sys.stderr)
    rounds = chosen.rounds or (2 if chosen.quick else 5)
    seconds = chosen.seconds or (0.4 if chosen.quick else 1.0)
    with _server(chosen.dsn) as server:
        facts = {
            "rounds": rounds,
            "seconds": seconds,
            "quick": chosen.quick,
            "redis": redis,
            "commit": commit(),
            "machine": machine(server),
        }
        for part in chosen.only:
            keep = _keeper(part, facts, figures, path)
            peer = redis_lock(host, int(port)) if redis else None
            settings = Settings(rounds, seconds, chosen.clients, peer, keep)
            keep(measured(part, server, settings, chosen))


def _keeper(
    part: str, facts: dict[str, Any], figures: dict[str, Any], path: Path
) -> Callable[[list[dict[str, Any]]], None]:
    began, load = datetime.now(UTC), os.getloadavg()[0]
    print(f"{part}, at load {load:.1f}", file=sys.stderr, flush=True)

    def keep(rows: list[dict[str, Any]]) -> None:
        figures["parts"][part] = {
            "began": began.isoformat(timespec="seconds"),
            "took_s": round((datetime.now(UTC) - began).total_seconds()),
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            **facts,
            "rows": rows,
        }
        path.write_text(_shown(figures))

    return keep


def _shown(figures: dict[str, Any]) -> str:
    """JSON with each row on a line of its own."""
    parts = []
    for name, part in figures["parts"].items():
        facts = json.dumps(part | {"rows": []}, indent=1).removesuffix("[]\n}")
        rows = ",\n".join(f"  {json.dumps(row)}" for row in part["rows"])
        parts.append(f"{json.dumps(name)}: {facts}[\n{rows}\n ]\n}}")
    return '{"parts": {\n' + ",\n".join(parts) + "\n}}\n"


def main() -> None:
    """Measures what was chosen, and writes the figures and the report."""
    parser = argparse.ArgumentParser(description="lockledger beside its peers, and as it grows")
    parser.add_argument("--only", choices=[*EVERY, "report"], nargs="+", default=EVERY)
    parser.add_argument("--quick", action="store_true", help="all parts in short")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each contender in each round")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--events", type=int, help="the largest ledger of the growth")
    parser.add_argument("--held", type=int, help="the most locks held of the growth")
    parser.add_argument("--dsn", help="a running PostgreSQL instead of an own one")
    parser.add_argument("--redis", default="127.0.0.1:6379", help="host:port")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where benchmarks.md is")
    chosen = parser.parse_args()
    chosen.events = chosen.events or (10_000 if chosen.quick else 1_000_000)
    chosen.held = chosen.held or (10_000 if chosen.quick else 1_000_000)
    path = chosen.docs / "benchmarks" / "figures.json"
    figures = json.loads(path.read_text()) if path.exists() else {"parts": {}}
    if chosen.only != ["report"]:
        path.parent.mkdir(exist_ok=True)
        run(chosen, figures, path)
    written(figures["parts"], chosen.docs)


if __name__ == "__main__":
    main()
