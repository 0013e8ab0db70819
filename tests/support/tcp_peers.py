"""TCP peers that misbehave on purpose: a proxy that cuts connections, a server with scripted answers.

Each owns its sockets and threads. The seed of a proxy decides after how many bytes each connection is cut.
"""

from __future__ import annotations

import random
import re
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

PIECE_BYTES = 4096
PATIENCE_S = 20.0


class FaultProxy:
    """Stands before a server; each connection is cut after a random number of bytes, `sound` stops that."""

    def __init__(self, url: str, seed: int, most_bytes: int) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._random = random.Random(seed)
        self._most_bytes = most_bytes
        self._is_sound = False
        self.cuts = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept)

    def sound(self) -> None:
        """Cut no connection that comes from now on."""
        self._is_sound = True

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target, PATIENCE_S)
            except OSError:
                return  # the test is over
            limit = None if self._is_sound else self._random.randrange(1, self._most_bytes)
            left = [limit]
            for source, sink in ((near, far), (far, near)):
                thread = threading.Thread(target=self._pump, args=(source, sink, left))
                with self._lock:
                    self._open |= {source, sink}
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, left: list[int | None]) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                with self._lock:
                    limit = left[0]
                    if limit is not None:
                        left[0] = limit - len(data)
                if limit is not None and limit <= len(data):
                    with suppress(OSError):
                        sink.sendall(data[: max(0, limit)])
                    with self._lock:
                        self.cuts += 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(PATIENCE_S)
        with self._lock:
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for end in self._open:
            end.close()


def http_answer(status: int, body: bytes, *headers: str, close: bool = False) -> bytes:
    """An HTTP response."""
    lines = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(body)}", *headers]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + body


class ScriptedServer:
    """Gives, connection by connection, one scripted answer after each request, then closes."""

    def __init__(self, *connections: Sequence[bytes]) -> None:
        self._script = connections
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        for answers in self._script:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # the test is over
            with connection:
                connection.settimeout(PATIENCE_S)
                for answer in answers:
                    request = _read_request(connection)
                    if not request:
                        break
                    self.requests.append(request)
                    connection.sendall(answer)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def _read_request(connection: socket.socket) -> bytes:
    request = b""
    while True:
        head, end, body = request.partition(b"\r\n\r\n")
        found = re.search(rb"(?i)content-length: (\d+)", head)
        if end and len(body) >= (int(found[1]) if found else 0):
            return request
        data = connection.recv(65536)
        if not data:
            return b""
        request += data
