"""The report: tables and drawings made from the figures, put between the markers in docs/benchmarks.md."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.drawing import Curve, Dot, Panel, curves, dots, figure, stacks
from benchmarks.orm import HOST_ALONE, ORM
from benchmarks.ours import LEDGER
from benchmarks.peers import ADVISORY, BARE_STOCK, INSERT, STOCK

Rows = Sequence[dict[str, Any]]
_LACKS: Final = {
    each.name: each.lacks for each in (ORM, HOST_ALONE, STOCK, BARE_STOCK, INSERT, ADVISORY)
} | {"Redis Lock": "history, durability, a part in the host's transaction, tokens that grow"}
_COLOURS: Final = (LEDGER.name, *_LACKS)
"""A contender has the same colour in every drawing."""
GOALS: Final = (
    (1, ORM.name, 3, 4),
    (1, STOCK.name, 2, 2.5),
    (1, BARE_STOCK.name, 2, 2.5),
    (1, INSERT.name, 1 / 4, 1 / 3),
    (8, ORM.name, 5, 8),
    (8, STOCK.name, 3, 4),
    (8, BARE_STOCK.name, 3, 4),
)
"""Clients, beside whom, how many times as fast, and how many times later on."""


def written(parts: dict[str, Any], docs: Path) -> None:
    """Puts everything that was measured into the page and beside it."""
    page = docs / "benchmarks.md"
    text = page.read_text()
    for name, make in SECTIONS.items():
        part = name.partition("-")[0]
        if part in parts:
            drawn = f"![{name}](benchmarks/{name}.svg)\n\n" if name in DRAWINGS else ""
            text = _between(text, name, drawn + make(parts[part]))
    text = _between(text, "runs", _runs(parts))
    page.write_text(text)
    for name, draw in DRAWINGS.items():
        part = name.partition("-")[0]
        if part in parts:
            (docs / "benchmarks" / f"{name}.svg").write_text(draw(parts[part]))


def _between(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    found, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(end)}",
        lambda _: f"{begin}\n{content}\n{end}",
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(
            f"docs/benchmarks.md has {count} places for {name}: it needs {begin} and {end} once"
        )
    return found


def _table(head: str, lines: Iterable[Sequence[str]]) -> str:
    """Columns whose head ends in a colon are figures, and to the right."""
    names = head.split(" | ")
    rule = " | ".join("---:" if name.endswith(":") else "---" for name in names)
    title = " | ".join(name.removesuffix(":") for name in names)
    return "\n".join(
        [f"| {title} |", f"| {rule} |", *(f"| {' | '.join(line)} |" for line in lines)]
    )


def _spread(values: Sequence[float]) -> str:
    return f"{figure(statistics.median(values))} ({figure(min(values))} to {figure(max(values))})"


def _ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> list[float]:
    """Round by round, since a slow moment of the machine hits both."""
    return [a / b for a, b in zip(ours["rates"], theirs["rates"], strict=True)]


def _groups(rows: Rows) -> Iterator[tuple[tuple[str, str, int], Rows]]:
    keys = dict.fromkeys((row["operation"], row["kind"], row["clients"]) for row in rows)
    for key in keys:
        yield (
            key,
            [row for row in rows if (row["operation"], row["kind"], row["clients"]) == key],
        )


def _runs(parts: dict[str, Any]) -> str:
    lines = [
        (
            name + (" (quick)" if part["quick"] else ""),
            part.get("commit") or "",
            part["began"].replace("+00:00", "Z"),
            f"{part['took_s']} s",
            _rounds(part),
            f"{part['load_before']} and {part['load_after']}",
            _others(part["rows"]),
        )
        for name, part in parts.items()
    ]
    first = next(iter(parts.values()))
    facts, packages = first["machine"], first["machine"]["packages"]
    told = (
        f"{facts['cores']} cores, {facts['memory_gib']} GiB, {facts['system']}, Python {facts['python']},"
        f" PostgreSQL {facts['postgresql']} with fsync {facts['fsync']} and synchronous_commit {facts['synchronous_commit']};"
        f" {', '.join(f'{name} {number}' for name, number in packages.items())}."
    )
    redis = [part["redis"] for part in parts.values() if part["redis"]]
    told += (
        f"\nRedis {redis[0]['version']} (appendonly {redis[0]['appendonly']}) through redis {redis[0]['client']}."
        if redis
        else "\nNo Redis answered, so it is left out."
    )
    return f"{told}\n\n{_table('part | commit | began | took: | rounds: | load before and after: | cores that others kept busy:', lines)}"


def _rounds(part: dict[str, Any]) -> str:
    first = part["rows"][0]
    for name in ("rates", "ms"):
        if name in first:
            each = f" of {part['seconds']:g} s" if name == "rates" and "clients" in first else ""
            return f"{len(first[name])}{each}"
    return "1"


def _others(rows: Rows) -> str:
    cores = [each for row in rows for each in row.get("others_cores", ()) if each is not None]
    return _spread(cores) if cores else ""


def _takes(rows: Rows) -> str:
    return _compared(rows, "clients:", lambda row: [str(row["clients"])])


def _compared(rows: Rows, head: str, cells: Callable[[dict[str, Any]], list[str]]) -> str:
    lines, told = [], set[str]()
    for _, group in _groups(rows):
        ours = group[0]
        for row in group:
            name = row["contender"]
            times = "" if row is ours else _spread(_ratios(ours, row))
            lacks = "as above" if name in told else _LACKS.get(name, "")
            told |= {name} & _LACKS.keys()
            lines.append([*cells(row), name, _spread(row["rates"]), times, lacks])
    return _table(
        f"{head} | contender | operations a second: | lockledger is so many times as fast: | does not give",
        lines,
    )


def _operations(rows: Rows) -> str:
    return _compared(
        rows, "operation | clients:", lambda row: [row["operation"], str(row["clients"])]
    )


def _kinds(rows: Rows) -> str:
    return _compared(rows, "clients: | as", lambda row: [str(row["clients"]), row["kind"]])


def _goals(rows: Rows) -> str:
    found = {(row["clients"], row["contender"]): row for row in rows}
    lines = []
    for clients, name, goal, later in GOALS:
        ours, theirs = found.get((clients, LEDGER.name)), found.get((clients, name))
        if ours is None or theirs is None:
            continue
        ratios = _ratios(ours, theirs)
        median = statistics.median(ratios)
        lines.append(
            (
                str(clients),
                name,
                _spread(ratios),
                f"{figure(goal)}: {_met(median, goal)}",
                f"{figure(later)}: {_met(median, later)}",
            )
        )
    return _table("clients: | beside | so many times as fast: | goal | later goal", lines)


def _met(median: float, goal: float) -> str:
    return "met" if median >= goal else f"missed, {median / goal:.0%} of it"


def _median(row: dict[str, Any], name: str) -> float:
    known = [each for each in row[name] if each is not None]
    return statistics.median(known) if known else 0.0


PLACES: Final = (
    "processor, client",
    "processor, server",
    "writing and syncing the log",
    "the rest",
)


def _time(row: dict[str, Any]) -> list[float]:
    """Microseconds of one operation at one client, by place; client and server may be at work at once."""
    known = [_median(row, name) for name in ("client_us", "server_us", "disk_us")]
    return [*known, max(0.0, _whole(row) - sum(known))]


def _whole(row: dict[str, Any]) -> float:
    return 1e6 / float(statistics.median(row["rates"]))


def _where(rows: Rows) -> str:
    lines = [
        (row["contender"], figure(_whole(row)), *map(figure, _time(row)))
        for row in rows
        if row["clients"] == 1
    ]
    places = " | ".join(f"{name}:" for name in PLACES)
    return _table(f"one client, microseconds of one operation | whole: | {places}", lines)


def _busy(part: dict[str, Any]) -> str:
    cores, lines = part["machine"]["cores"], []
    for row in part["rows"]:
        if row["clients"] > 1:
            client, server = _median(row, "client_us"), _median(row, "server_us")
            allowed = cores * 1e6 / (client + server)
            rate = statistics.median(row["rates"])
            lines.append(
                (
                    str(row["clients"]),
                    row["contender"],
                    *map(figure, (client, server, allowed, rate)),
                )
            )
    return _table(
        "clients: | contender | processor of the clients, µs an operation: | of the server:"
        f" | so {cores} cores allow, operations a second: | measured:",
        lines,
    )


def _subscriber(rows: Rows) -> str:
    lines = []
    for (_, _, clients), group in _groups(rows):
        ours, followed = group
        lags = followed["lags_ms"]

        def lag(name: str, lags: Rows = lags) -> str:
            return figure(statistics.median(each[name] for each in lags))

        lines.append(
            (
                str(clients),
                _spread(ours["rates"]),
                _spread(followed["rates"]),
                _spread(_ratios(followed, ours)),
                lag("median"),
                lag("95 of 100"),
            )
        )
    return _table(
        "clients: | alone, operations a second: | with a subscriber: | ratio: | an event comes after, ms: | 95 of 100 within, ms:",
        lines,
    )


def _apply(rows: Rows) -> str:
    lines = [(row["database"], f"{row['commands']:,}", _spread(row["rates"])) for row in rows]
    return _table("database | commands: | commands a second:", lines)


def _rebuild(rows: Rows) -> str:
    lines = [
        (
            row["what"],
            f"{row['events']:,}",
            figure(row["rate"]),
            figure(row["client_us"]),
            figure(row["memory_mib"]),
        )
        for row in rows
    ]
    return _table(
        "what | events: | events a second: | processor here, µs an event: | memory, MiB:", lines
    )


def _grown(what: str) -> Callable[[Rows], str]:
    def section(rows: Rows) -> str:
        rows = [row for row in rows if row["what"] == what]
        sizes = sorted({row["size"] for row in rows})
        lines = []
        for question in dict.fromkeys(row["question"] for row in rows):
            found = {row["size"]: row["ms"] for row in rows if row["question"] == question}
            medians = [statistics.median(found[size]) for size in sizes]
            lines.append(
                (question, *map(_spread_of(found), sizes), figure(medians[-1] / medians[0]))
            )
        heads = " | ".join(f"{size:,}:" for size in sizes)
        return _table(f"milliseconds | {heads} | last to first:", lines)

    return section


def _spread_of(found: dict[int, list[float]]) -> Callable[[int], str]:
    return lambda size: _spread(found[size])


Made = Callable[[dict[str, Any]], str]


def _of_rows(make: Callable[[Rows], str]) -> Made:
    return lambda part: make(part["rows"])


SECTIONS: Final[dict[str, Made]] = {
    "takes": _of_rows(_takes),
    "takes-goals": _of_rows(_goals),
    "takes-where": _of_rows(_where),
    "takes-busy": _busy,
    "operations": _of_rows(_operations),
    "kinds": _of_rows(_kinds),
    "subscriber": _of_rows(_subscriber),
    "apply": _of_rows(_apply),
    "rebuild": _of_rows(_rebuild),
    "growth-events": _of_rows(_grown("events")),
    "growth-history": _of_rows(_grown("history")),
    "growth-held": _of_rows(_grown("held")),
}


def _dot(name: str, row: dict[str, Any]) -> Dot:
    rates, colour = row["rates"], _COLOURS.index(row["contender"])
    return Dot(name, statistics.median(rates), min(rates), max(rates), colour)


def _draw_takes(rows: Rows) -> str:
    panels = [
        Panel(
            f"{clients} client{'s' if clients > 1 else ''}",
            [_dot(row["contender"], row) for row in group],
        )
        for (_, _, clients), group in _groups(rows)
    ]
    return dots("Take and release", "operations a second", panels)


def _draw_operations(rows: Rows) -> str:
    return dots("Other operations", "operations a second", [*_by_operation(rows)])


def _by_operation(rows: Rows) -> Iterator[Panel]:
    for operation in dict.fromkeys(row["operation"] for row in rows):
        yield Panel(
            operation,
            [
                _dot(f"{row['contender']}, {row['clients']}", row)
                for row in rows
                if row["operation"] == operation
            ],
        )


def _draw_kinds(rows: Rows) -> str:
    panels = [
        Panel(
            f"{clients} {kind if clients > 1 else kind.removesuffix('s')}",
            [_dot(row["contender"], row) for row in group],
        )
        for (_, kind, clients), group in _groups(rows)
    ]
    return dots("Take and release in one process", "operations a second", panels)


def _draw_where(rows: Rows) -> str:
    return stacks(
        "Where the time of one operation goes, one client",
        "microseconds, medians of the rounds",
        PLACES,
        [(row["contender"], _time(row)) for row in rows if row["clients"] == 1],
    )


def _draw_grown(what: str, title: str, across: str) -> Callable[[Rows], str]:
    def draw(rows: Rows) -> str:
        lines: dict[str, Curve] = {}
        for question in dict.fromkeys(row["question"] for row in rows if row["what"] == what):
            lines[question] = [
                (row["size"], statistics.median(row["ms"]), min(row["ms"]), max(row["ms"]))
                for row in rows
                if (row["what"], row["question"]) == (what, question)
            ]
        return curves(title, across, "milliseconds a call", lines)

    return draw


DRAWINGS: Final[dict[str, Made]] = {
    "takes": _of_rows(_draw_takes),
    "takes-where": _of_rows(_draw_where),
    "operations": _of_rows(_draw_operations),
    "kinds": _of_rows(_draw_kinds),
    "growth-events": _of_rows(_draw_grown("events", "As the ledger grows", "events in the ledger")),
    "growth-history": _of_rows(
        _draw_grown("history", "As the history of one lock grows", "events of the lock")
    ),
    "growth-held": _of_rows(_draw_grown("held", "As more locks are held", "locks held")),
}
