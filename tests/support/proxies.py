"""A proxy in front of a PostgreSQL server, which loses answers."""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from threading import Event, Thread

from sqlalchemy import URL, make_url

from support.databases import Database

PORT = 5432


class Proxy(Thread):
    """Passes everything on, until it is told to lose the answer to the next statement with a given text in it."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(daemon=True)
        assert database.server is not None
        self._server = database.server.parameters
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / f".s.PGSQL.{PORT}"))
        self._listening.listen()
        self._wanted: bytes | None = None
        self._clients: list[socket.socket] = []
        self.lost = Event()
        parameters = {**self._server, "host": str(folder), "port": str(PORT), "sslmode": "disable"}
        self.url: URL = make_url(database.url).set(query=parameters)

    def lose_answer_to(self, text: str) -> None:
        """The next request that holds this text reaches the server, and its answer nobody; the connection ends.

        Every request holds the empty text.
        """
        self.lost.clear()
        self._wanted = text.encode()

    def cut(self, rng: random.Random) -> bool:
        """Ends one of the connections, whatever is just said on it; `False` when there is none."""
        clients = list(self._clients)
        if clients:
            with suppress(OSError):
                rng.choice(clients).shutdown(socket.SHUT_RDWR)
        return bool(clients)

    def run(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                Thread(target=self._serve, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), self._connected() as server:
            self._clients.append(client)
            try:
                self._pass_on(client, server)
            finally:
                self._clients.remove(client)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            readable, _, _ = select([client, server], [], [])
            for one in readable:
                data = one.recv(1 << 16)
                if not data:
                    return
                if one is client and self._wanted is not None and self._wanted in data:
                    self._wanted = None
                    server.sendall(data)
                    server.recv(1 << 16)  # done, and nobody will know
                    self.lost.set()
                    return
                (server if one is client else client).sendall(data)

    def _connected(self) -> socket.socket:
        host, port = self._server.get("host", "localhost"), int(self._server.get("port", PORT))
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server


@contextmanager
def proxy_of(database: Database) -> Iterator[Proxy]:
    """A proxy in front of the database's server."""
    with tempfile.TemporaryDirectory(prefix="lockledger-proxy-") as folder:
        proxy = Proxy(database, Path(folder))
        proxy.start()
        try:
            yield proxy
        finally:
            proxy.close()
