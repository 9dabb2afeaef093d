"""A server that lets nobody in."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refusing_server() -> Iterator[int]:
    """Speaks just enough of PostgreSQL's protocol to ask for a password and to refuse it, repeating it in the message."""
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                startup = client.recv(4096)
                if startup[4:8] in (
                    b"\x04\xd2\x16\x2f",
                    b"\x04\xd2\x16\x30",
                ):  # asks for encryption first
                    client.sendall(b"N")
                    startup = client.recv(4096)
                    if startup[4:8] == b"\x04\xd2\x16\x2f":
                        client.sendall(b"N")
                        startup = client.recv(4096)
                client.sendall(b"R\0\0\0\x08\0\0\0\x03")
                password = client.recv(4096)[5:].rstrip(b"\0")
                fields = (
                    b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed, not "
                    + password
                    + b"\0\0"
                )
                client.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)

    thread = threading.Thread(target=refuse, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
