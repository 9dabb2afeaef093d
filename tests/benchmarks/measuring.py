"""How fast a contender does an operation: so many clients at once, as processes, as threads of one or as its tasks.

Beside the rate stands where the time went: processor time of the clients and of the server for one operation.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, Final

import psycopg
from sqlalchemy import make_url

CONTEXT = multiprocessing.get_context("fork")
KEYS_PER_WORKER: Final = 10
_WARM: Final = KEYS_PER_WORKER + 6
"""Every key once, and statements prepared."""

PROCESSES, THREADS, TASKS = "processes", "threads", "tasks"

Operation = Callable[[], int]
"""Does one thing, or a cycle of them, and gives how many operations that counts for."""
AsyncOperation = Callable[[], Awaitable[int]]
Client = Mapping[str, Operation]
"""One client's operations by name."""
AsyncClient = Mapping[str, AsyncOperation]
Site = Callable[[str, int], AbstractContextManager[Callable[[int], Client]]]
"""Given a URL and how many clients share it: what makes a client, given its number."""
AsyncSite = Callable[
    [str, int], AbstractAsyncContextManager[Callable[[int], Awaitable[AsyncClient]]]
]


Told = tuple[int, float, float, int]
"""What a process of clients tells: operations, seconds, seconds of its processor, and operations before, to warm up."""


@dataclass(frozen=True)
class Contender:
    """How its tables are made, how clients run it, and what it does not give."""

    name: str
    prepare: Callable[[str], None]
    site: Site
    lacks: str = ""
    tasks: AsyncSite | None = None


@dataclass(frozen=True)
class Round:
    """One measurement: operations a second, and microseconds for one operation: processor time of the clients and of
    the server, and how long the server wrote and synced its log; and how many cores somebody else kept busy meanwhile.
    `None`: not on this machine, or not timed.
    """

    rate: float
    client_us: float
    server_us: float | None
    disk_us: float | None
    others_cores: float | None


def each(worker: Callable[[str, int], AbstractContextManager[Client]]) -> Site:
    """A site whose clients share nothing."""

    @contextmanager
    def site(url: str, _width: int) -> Iterator[Callable[[int], Client]]:
        with ExitStack() as stack:
            yield lambda number: stack.enter_context(worker(url, number))

    return site


def in_a_process(work: Callable[..., None], *arguments: Any) -> None:
    """Runs it where what it imports and opens stays its own."""
    process = CONTEXT.Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{work.__name__} failed with {process.exitcode}")


def measure(
    contender: Contender,
    url: str,
    operation: str,
    clients: int,
    seconds: float,
    *,
    kind: str = PROCESSES,
) -> Round:
    """One round of so many clients."""
    groups = [[number] for number in range(clients)] if kind == PROCESSES else [[*range(clients)]]
    ready, results = CONTEXT.Barrier(len(groups) + 1), CONTEXT.SimpleQueue()
    work = _tasks if kind == TASKS else _clients
    workers = [
        CONTEXT.Process(
            target=_told, args=(work, contender, url, operation, numbers, seconds, ready, results)
        )
        for numbers in groups
    ]
    with _server(url) as (processor, log):
        written = log()
        for worker in workers:
            worker.start()
        with suppress(BrokenBarrierError):  # a worker failed, and says why in its result
            ready.wait(120)
        before, busy, began = processor(), _busy(), time.perf_counter()
        found = [results.get() for _ in workers]
        after, busy, lasted = processor(), _busy() - busy, time.perf_counter() - began
        with suppress(BrokenBarrierError):  # the clients have kept their connections until now
            ready.wait(120)
        for worker in workers:
            worker.join()
        written = log() - written  # what a server's process has timed is told when it ends
    failed = sorted((each for each in found if isinstance(each, str)), key=len, reverse=True)
    if failed:
        raise RuntimeError(f"{contender.name}, {operation}: {failed[0]}")
    done, warmed = sum(each[0] for each in found), sum(each[3] for each in found)
    clients_took = sum(each[2] for each in found)
    server_took = None if before is None or after is None else after - before
    return Round(
        rate=sum(done / took for done, took, _, _ in found),
        client_us=clients_took / done * 1e6,
        server_us=None if server_took is None else server_took / done * 1e6,
        disk_us=written / (done + warmed) * 1e6 if written else None,
        others_cores=None
        if server_took is None
        else max(0.0, (busy - clients_took - server_took) / lasted),
    )


def _told(work: Callable[..., Any], *arguments: Any) -> None:
    *given, ready, results = arguments

    def tell(result: Told) -> None:
        results.put(result)
        ready.wait(120)

    try:
        work(*given, ready, tell)
    except Exception as error:  # noqa: BLE001 - told to the parent, who raises it
        ready.abort()
        results.put(f"{type(error).__name__}: {error}")


def _clients(
    contender: Contender,
    url: str,
    operation: str,
    numbers: Sequence[int],
    seconds: float,
    ready: Any,
    tell: Callable[[Told], None],
) -> None:
    with (
        contender.site(url, len(numbers)) as client,
        ThreadPoolExecutor(len(numbers)) as pool,
    ):
        operations = [client(number)[operation] for number in numbers]
        warmed = sum(pool.map(_warm, operations))
        ready.wait(120)
        began, processor = time.perf_counter(), time.process_time()
        until = began + seconds
        if len(operations) == 1:
            done = _repeat(operations[0], until)
        else:
            done = sum(pool.map(lambda each: _repeat(each, until), operations))
        tell((done, time.perf_counter() - began, time.process_time() - processor, warmed))


def _warm(operation: Operation) -> int:
    return sum(operation() for _ in range(_WARM))


def _repeat(operation: Operation, until: float) -> int:
    done = 0
    while time.perf_counter() < until:
        done += operation()
    return done


def _tasks(
    contender: Contender,
    url: str,
    operation: str,
    numbers: Sequence[int],
    seconds: float,
    ready: Any,
    tell: Callable[[Told], None],
) -> None:
    async def repeat(operation: AsyncOperation, until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            done += await operation()
        return done

    async def warm(operation: AsyncOperation) -> int:
        return sum([await operation() for _ in range(_WARM)])

    async def all_of_them() -> None:
        if contender.tasks is None:
            raise ValueError(f"{contender.name} has no tasks")
        async with contender.tasks(url, len(numbers)) as client:
            operations = [(await client(number))[operation] for number in numbers]
            warmed = sum(await asyncio.gather(*map(warm, operations)))
            ready.wait(120)
            began, processor = time.perf_counter(), time.process_time()
            until = began + seconds
            done = sum(await asyncio.gather(*(repeat(each, until) for each in operations)))
            tell((done, time.perf_counter() - began, time.process_time() - processor, warmed))

    asyncio.run(all_of_them())


@contextmanager
def _server(url: str) -> Iterator[tuple[Callable[[], float | None], Callable[[], float]]]:
    """Seconds of processor that the server's processes have taken so far, and seconds that they wrote their log."""
    with psycopg.connect(libpq(url), autocommit=True) as connection:
        found = connection.execute(
            "SELECT pg_backend_pid(), current_setting('server_version_num')::int"
        ).fetchone()
        assert found is not None
        backend, timed = _stat(found[0]), found[1] >= 180_000

        def log() -> float:
            if not timed:
                return 0.0
            connection.execute("SELECT pg_stat_clear_snapshot()")
            sql = "SELECT coalesce(sum(write_time + fsync_time), 0) FROM pg_stat_io WHERE object = 'wal'"
            told = connection.execute(sql).fetchone()
            assert told is not None
            return float(told[0]) / 1000

        # The server's processes have the same parent; what those that ended have taken counts for it.
        yield (lambda: None if backend is None else _family(int(backend[1]))), log


def libpq(url: str) -> str:
    """The URL as psycopg takes it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def _family(parent: int) -> float:
    ticks = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or (stat := _stat(int(entry.name))) is None:
            continue
        if int(entry.name) == parent:
            ticks += sum(map(int, stat[11:15]))
        elif int(stat[1]) == parent:
            ticks += sum(map(int, stat[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _busy() -> float:
    """Seconds of processor that the whole machine has taken so far."""
    user, nice, system, _, _, *more = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return sum(map(int, (user, nice, system, *more))) / os.sysconf("SC_CLK_TCK")


def _stat(process: int) -> list[str] | None:
    """The fields after the name, which may hold spaces: state, parent, …; `None` when there is no such PostgreSQL."""
    try:
        name, _, fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")
    except OSError:
        return None
    return fields.split() if "postgres" in name or "postmaster" in name else None
