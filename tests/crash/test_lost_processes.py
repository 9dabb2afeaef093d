"""Processes killed at any moment of a load: what one was told stays, and no lock is left half-written."""

from __future__ import annotations

import random
import time
from itertools import chain

from support.fold import Folded
from support.ledgers import Ledgers
from support.processes import processes, rounds
from support.proof import prove
from support.writers import take_over_and_tell

PROCESSES = 6
KEYS = [f"key:{number}" for number in range(4)]


def grants_in(locks: list[Folded]) -> set[tuple[str, int]]:
    return {
        (lock.key, hold["token"])
        for lock in locks
        for hold in ([*lock.ended, lock.hold] if lock.hold else lock.ended)
    }


def test_what_a_killed_process_was_told_stays(ledgers: Ledgers) -> None:
    ledgers.may_log_errors = True
    chance, told = random.Random(7), list[tuple[str, int]]()
    for _ in range(rounds(2)):
        told += killed_at_random(ledgers, chance)
    ledger = ledgers.open()
    for key in KEYS:
        assert ledger.take(key, "cid", takeover_reason="after the crash").holder == "cid"
    begun = grants_in(prove(ledgers.database.engine()))
    assert len(told) == len(set(told))
    assert set(told) <= begun
    untold = len(begun) - len(told) - len(KEYS)
    complaints = ledgers.database.logged_errors()
    assert [line for line in complaints if "connection to client lost" not in line] == []
    assert untold <= PROCESSES * rounds(2), "more was recorded than was asked for"


def killed_at_random(ledgers: Ledgers, chance: random.Random) -> list[tuple[str, int]]:
    """What the processes were told before each was killed at a moment of its own."""
    pipes = [processes().Pipe(duplex=False) for _ in range(PROCESSES)]
    running = [
        processes().Process(
            target=take_over_and_tell, args=(ledgers.database.url, number, KEYS, sending)
        )
        for number, (_, sending) in enumerate(pipes)
    ]
    told: list[list[tuple[str, int]]] = []
    for process in running:
        process.start()
    for _, sending in pipes:
        sending.close()
    for receiving, _ in pipes:
        assert receiving.poll(30), "a process does not come to its first grant"
    for process in running:
        time.sleep(chance.random() * 0.05)
        process.kill()
    for process, (receiving, _) in zip(running, pipes, strict=True):
        process.join()
        told.append([])
        try:
            while True:
                told[-1].append(receiving.recv())
        except EOFError:
            receiving.close()
    return list(chain.from_iterable(told))
