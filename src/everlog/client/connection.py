"""One blocking connection to a server, and a store of those that are idle.

Owns sockets and their timeouts. Everything that goes wrong is an `ApiFailed` that says whether the server may
have seen the request. A connection is used by one thread at a time, the store by any number.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import weakref
from collections import deque
from contextlib import suppress
from typing import Final

from everlog.client.wire import PIECE_BYTES, Answer, AnswerReader, BrokenAnswer, Place, unreachable

MAX_IDLE: Final = 64


class Connection:
    """A connection that is opened when it is made, and kept until something goes wrong or it is closed."""

    def __init__(self, place: Place, timeout_s: float) -> None:
        self.place = place
        self.is_open = False
        self._timeout_s = 0.0
        self._reader = AnswerReader()
        try:
            self._socket = _connected(place, timeout_s)
        except OSError as error:
            raise unreachable(place, error, timeout_s, was_sent=False) from None
        self._is_tls = place.is_tls
        self.is_open = True

    def exchange(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request and wait for its whole answer."""
        try:
            self._ask(request, timeout_s)
            reader = self._reader
            while not reader.is_complete:
                self._read_piece()
        except (OSError, BrokenAnswer) as error:
            self.close()
            raise unreachable(self.place, error, timeout_s, was_sent=True) from None
        except BaseException:
            # Interrupted in the middle: what comes next on this connection is not our answer.
            self.close()
            raise
        if not reader.keeps_open:
            self.close()
        return reader.complete()

    def open_stream(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request for a stream; what is not a success comes back with its body."""
        try:
            self._ask(request, timeout_s)
            reader = self._reader
            while not reader.has_head or not (reader.answer.is_success or reader.is_complete):
                self._read_piece()
        except (OSError, BrokenAnswer) as error:
            self.close()
            raise unreachable(self.place, error, timeout_s, was_sent=True) from None
        if not reader.answer.is_success:
            return reader.complete()
        return reader.answer

    def more(self, timeout_s: float) -> bytes:
        """The next piece of a stream; nothing at its end."""
        reader = self._reader
        try:
            self._set_timeout(timeout_s)
            while not reader.pieces and not reader.is_complete:
                self._read_piece()
        except (OSError, BrokenAnswer) as error:
            self.close()
            raise unreachable(self.place, error, timeout_s, was_sent=True) from None
        return reader.take()

    def send(self, data: bytes) -> None:
        """Send bytes that are no HTTP, on a connection that was upgraded."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise unreachable(self.place, error, self._timeout_s, was_sent=True) from None

    def receive(self, timeout_s: float) -> bytes:
        """Bytes that are no HTTP; nothing at the end."""
        try:
            self._set_timeout(timeout_s)
            return self._socket.recv(PIECE_BYTES)
        except OSError as error:
            self.close()
            raise unreachable(self.place, error, timeout_s, was_sent=True) from None

    def is_stale(self) -> bool:
        """Whether the server ended it, or sent something that nobody asked for, while it was idle."""
        if not self.is_open:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Hang up."""
        if self.is_open:
            self.is_open = False
            self._socket.close()

    def interrupt(self) -> None:
        """Let another thread that waits here come back, with an error."""
        if self.is_open:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # ended by itself

    def _ask(self, request: bytes, timeout_s: float) -> None:
        self._set_timeout(timeout_s)
        self._reader = AnswerReader()
        # The server may refuse a body before it has all of it; its answer is there then.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(request)

    def _read_piece(self) -> None:
        data = self._socket.recv(PIECE_BYTES)
        if data:
            self._reader.feed(data)
        elif not self._reader.has_head and not self._reader.answer.status:
            raise ConnectionResetError("the server closed the connection without an answer")
        else:
            self._reader.end()

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s == self._timeout_s:
            return
        self._timeout_s = timeout_s
        if self._is_tls:
            self._socket.settimeout(timeout_s)
            return
        # By the kernel: with a timeout of its own, Python asks before each call whether it is going to wait.
        seconds = int(timeout_s)
        value = struct.pack("ll", seconds, max(1, int((timeout_s - seconds) * 1e6)))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def _connected(place: Place, timeout_s: float) -> socket.socket:
    raw = socket.create_connection((place.host, place.port), timeout_s)
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if place.is_tls:
            return ssl.create_default_context().wrap_socket(raw, server_hostname=place.host)
        raw.settimeout(None)
    except BaseException:
        raw.close()
        raise
    return raw


class Connections:
    """Connections to one server that nobody uses at the moment; a forked child begins without any."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._idle: deque[Connection] = deque(maxlen=MAX_IDLE)
        _stores.add(self)

    def take(self, timeout_s: float) -> Connection:
        """One that is idle and alive, or a new one."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return Connection(self.place, timeout_s)
            if not connection.is_stale():
                return connection
            connection.close()

    def give_back(self, connection: Connection) -> None:
        """Keep it for the next one, if it is still open."""
        if connection.is_open:
            if len(self._idle) >= MAX_IDLE:
                connection.close()
            else:
                self._idle.append(connection)

    def close(self) -> None:
        """Hang up all of them; those in use are closed by their users."""
        while self._idle:
            self._idle.pop().close()


_stores: Final[weakref.WeakSet[Connections]] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    # Shared by two processes, a connection would give each of them answers to the other.
    for store in _stores:
        store.close()


os.register_at_fork(after_in_child=_leave_to_the_parent)
