"""Ctrl-C, also where the database keeps the process waiting and Python cannot hear it."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from lockledger.cli.failures import INTERRUPTED

GRACE_SECONDS: Final = 1.0
"""How long a call of the database may go on after Ctrl-C before the process ends without it."""

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def heard(
    interrupt: Handler = signal.default_int_handler,
    last_words: Callable[[], str] = lambda: "interrupted while the database kept it waiting",
) -> Iterator[None]:
    """Calls `interrupt` on Ctrl-C. When that cannot be, because SQLite waits for a lock, the process ends with 130.

    Nothing is half done then: the database takes back what was not committed. `last_words` go to standard error.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ears, mouth = socket.socketpair()
    mouth.setblocking(False)
    was_heard = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        was_heard.set()
        interrupt(number, frame)

    def listen() -> None:
        # Python writes a signal's number here at once, and runs its handler only between two of its own instructions.
        while signals := ears.recv(1):
            if signals[0] != signal.SIGINT:
                continue
            if not was_heard.wait(GRACE_SECONDS):
                print(f"lockledger: {last_words()}", file=sys.stderr, flush=True)
                os._exit(INTERRUPTED)
            was_heard.clear()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    handler_before = signal.signal(signal.SIGINT, handler)
    mouth_before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(mouth_before)
        signal.signal(signal.SIGINT, handler_before)
        mouth.close()
        listener.join()
        ears.close()
