"""The load generator: raw sockets, one request under way on each connection, requests made beforehand.

Owns the loops between the clock readings, and how the end of an answer is found on each wire. It does as
little as a client can: one `send`, one `recv` and a look at the answer for each request, so that the server
is what is measured. Every answer is looked at; one that is no success ends the run.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Address = tuple[str, int]

SMALL_ANSWER_BYTES = 16 * 1024
SILENCE_TIMEOUT_S = 30.0
LENGTH_FIELD = b"Content-Length: "


class WrongAnswer(Exception):
    """A server answered with something else than a success."""


# How many bytes are missing of the answer at the start of a buffer that is filled so far; 0: complete.
# WrongAnswer if it is no success.
Missing = Callable[[bytearray, int], int]


@dataclass(frozen=True)
class Load:
    """What a run gave: how long it took, and how long each request waited for its answer."""

    elapsed_ns: int
    latencies_ns: NDArray[np.int64]


# --- Wires -----------------------------------------------------------------------------------------------


def http_missing(buffer: bytearray, filled: int) -> int:
    """What is missing of an HTTP response with a Content-Length."""
    end = buffer.find(b"\r\n\r\n", 0, filled)
    if end < 0:
        return 1
    if not buffer.startswith(b"HTTP/1.1 20"):
        raise WrongAnswer(f"the server answered {bytes(buffer[: min(filled, 500)])!r}")
    start = buffer.index(LENGTH_FIELD) + len(LENGTH_FIELD)
    return end + 4 + int(buffer[start : buffer.index(b"\r", start)]) - filled


def lines_missing(count: int, failure: bytes) -> Missing:
    """What is missing of answers that have `count` lines together."""

    def missing(buffer: bytearray, filled: int) -> int:
        if buffer.find(failure, 0, filled) >= 0:
            raise WrongAnswer(f"the server answered {bytes(buffer[: min(filled, 500)])!r}")
        return max(0, count - buffer.count(b"\n", 0, filled))

    return missing


def http_request(method: str, path: str, body: bytes = b"", key: str = "") -> bytes:
    """A request as a plain client sends it on a connection that stays open, with a key if one is given."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}Content-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


# --- Loops -----------------------------------------------------------------------------------------------


class Line:
    """A connection that sends at once, and the buffer that its answers come into."""

    __slots__ = ("_buffer", "_filled", "_missing", "_view", "receive_into", "send", "sent_ns", "socket")

    def __init__(self, address: Address, missing: Missing, buffer_bytes: int = SMALL_ANSWER_BYTES) -> None:
        self.socket = socket.create_connection(address, timeout=SILENCE_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # With a timeout Python would ask the kernel before each call whether it is going to wait.
        self.socket.settimeout(None)
        self.send = self.socket.sendall
        self.receive_into = self.socket.recv_into
        self.sent_ns = 0
        self._missing = missing
        self._buffer = bytearray(buffer_bytes)
        self._view = memoryview(self._buffer)
        self._filled = 0

    def is_answered(self) -> bool:
        """Take in what has come; whether the answer is complete. The next one begins a new answer."""
        filled = self._filled
        # A view only if it must be: most answers come in one piece.
        size = self.receive_into(self._view[filled:] if filled else self._buffer)
        if not size:
            raise WrongAnswer("the server closed a connection with a request under way")
        filled += size
        if self._missing(self._buffer, filled):
            self._filled = filled
            return False
        self._filled = 0
        return True

    def ask(self, request: bytes) -> bytes:
        """Send one request and return its whole answer."""
        self.send(request)
        while not self.is_answered():
            pass
        return bytes(self._buffer)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


def closed_loop(
    lines: list[Line], requests: Iterator[bytes] | Mapping[Line, Iterator[bytes]], count: int
) -> Load:
    """Send `count` requests, each as soon as the one before on its connection is answered.

    They come from one row for all connections, or each connection has a row of its own.
    """
    sources = requests if isinstance(requests, Mapping) else dict.fromkeys(lines, requests)
    clock = time.perf_counter_ns
    latencies_ns = np.empty(count, np.int64)
    by_number = {line.socket.fileno(): line for line in lines}
    left = count
    done = 0
    with select.epoll() as poll:
        started_ns = clock()
        for number, line in by_number.items():
            poll.register(number, select.EPOLLIN)
            if left:
                left -= 1
                line.sent_ns = clock()
                line.send(next(sources[line]))
        while done < count:
            ready = poll.poll(SILENCE_TIMEOUT_S)
            if not ready:
                raise WrongAnswer(f"no answer for {SILENCE_TIMEOUT_S} s, {done} of {count} are done")
            for number, _ in ready:
                line = by_number[number]
                if not line.is_answered():
                    continue
                now_ns = clock()
                latencies_ns[done] = now_ns - line.sent_ns
                done += 1
                if left:
                    left -= 1
                    line.sent_ns = now_ns
                    line.send(next(sources[line]))
        return Load(clock() - started_ns, latencies_ns)
