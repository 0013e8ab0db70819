"""A TCP proxy that cuts connections at random bytes, in either direction.

Owns its sockets and threads. With a seed, the bytes after which connection number so-and-so is cut are always
the same.
"""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from types import TracebackType
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
