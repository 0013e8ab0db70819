"""A blocking connection to a server, and the pool of idle ones.

Owns sockets and their timeouts. Every failure is an `ApiFailed` that says whether the server may have seen
the request. A connection is used by one thread at a time, the pool by any number.
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

from everlog.client.wire import PIECE_BYTES, Answer, AnswerReader, BrokenAnswer, ServerAddress, unreachable

MAX_IDLE: Final = 64


class Connection:
    """A connection; creating it connects. It is closed by the first error."""

    def __init__(self, address: ServerAddress, timeout_s: float) -> None:
        self.address = address
        self.is_open = False
        self.was_idle = False
        self._timeout_s = 0.0
        self._reader = AnswerReader()
        try:
            self._socket = _connected(address, timeout_s)
        except OSError as error:
            raise unreachable(address, error, timeout_s, was_sent=False) from None
        self._is_tls = address.is_tls
        self.is_open = True

    def exchange(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request and wait for its whole answer."""
        reader = self._reader = AnswerReader()
        try:
            self._set_timeout(timeout_s)
            self._send_request(request)
            while not reader.is_complete:
                reader.receive(self._socket.recv(PIECE_BYTES))
        except BaseException as error:
            raise self._failed(error, timeout_s) from None
        if not reader.keeps_open:
            self.close()
        return reader.complete()

    def open_stream(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request for a stream; an answer that is not a success comes with its body."""
        reader = self._reader = AnswerReader()
        try:
            self._set_timeout(timeout_s)
            self._send_request(request)
            while not reader.is_readable:
                reader.receive(self._socket.recv(PIECE_BYTES))
        except BaseException as error:
            raise self._failed(error, timeout_s) from None
        return reader.answer if reader.answer.is_success else reader.complete()

    def more(self, timeout_s: float) -> bytes:
        """The next piece of a stream; it is empty at the end."""
        reader = self._reader
        try:
            self._set_timeout(timeout_s)
            while not reader.pieces and not reader.is_complete:
                reader.receive(self._socket.recv(PIECE_BYTES))
        except BaseException as error:
            raise self._failed(error, timeout_s) from None
        return reader.take()

    def send(self, data: bytes) -> None:
        """Send bytes that are not HTTP, on an upgraded connection."""
        try:
            self._socket.sendall(data)
        except BaseException as error:
            raise self._failed(error, self._timeout_s) from None

    def receive(self, timeout_s: float) -> bytes:
        """Receive bytes that are not HTTP; none at the end."""
        try:
            self._set_timeout(timeout_s)
            return self._socket.recv(PIECE_BYTES)
        except BaseException as error:
            raise self._failed(error, timeout_s) from None

    def is_stale(self) -> bool:
        """Whether the server closed it, or sent something without a request, while it was idle."""
        if not self.is_open:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the connection."""
        if self.is_open:
            self.is_open = False
            self._socket.close()

    def interrupt(self) -> None:
        """Make another thread that waits here return with an error."""
        if self.is_open:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # closed already

    def _failed(self, error: BaseException, timeout_s: float) -> BaseException:
        """What to raise. The connection is closed: what arrives next would not be the answer to a request."""
        self.close()
        if isinstance(error, OSError | BrokenAnswer):
            return unreachable(self.address, error, timeout_s, was_sent=True)
        return error

    def _send_request(self, request: bytes) -> None:
        # The server may refuse a body before it has all of it; its answer can be read then.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(request)

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s == self._timeout_s:
            return
        self._timeout_s = timeout_s
        if self._is_tls:
            self._socket.settimeout(timeout_s)
            return
        # Set in the kernel: with a timeout of its own, Python polls the socket before each call.
        seconds = int(timeout_s)
        value = struct.pack("ll", seconds, max(1, int((timeout_s - seconds) * 1e6)))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def _connected(address: ServerAddress, timeout_s: float) -> socket.socket:
    raw = socket.create_connection((address.host, address.port), timeout_s)
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.is_tls:
            return ssl.create_default_context().wrap_socket(raw, server_hostname=address.host)
        raw.settimeout(None)
    except BaseException:
        raw.close()
        raise
    return raw


class Connections:
    """Idle connections to one server; a forked child begins without any."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self._idle: deque[Connection] = deque(maxlen=MAX_IDLE)
        self._streams: dict[Connection, None] = {}
        _pools.add(self)

    def take(self, timeout_s: float) -> Connection:
        """An idle connection that is still open, or a new one."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self.open(timeout_s)
            if not connection.is_stale():
                connection.was_idle = True
                return connection
            connection.close()

    def open(self, timeout_s: float) -> Connection:
        """A new connection."""
        return Connection(self.address, timeout_s)

    def give_back(self, connection: Connection) -> None:
        """Return a connection after use; it is kept if it is still open."""
        if connection.is_open:
            if len(self._idle) >= MAX_IDLE:
                connection.close()
            else:
                self._idle.append(connection)

    def new_stream(self, timeout_s: float) -> Connection:
        """A new connection for a stream, which `close` ends."""
        stream = self.open(timeout_s)
        self._streams[stream] = None
        return stream

    def forget_stream(self, stream: Connection) -> None:
        """Close a stream."""
        self._streams.pop(stream, None)
        stream.close()

    def close(self) -> None:
        """Close the idle connections and interrupt the streams; others are closed by their users."""
        for stream in list(self._streams):
            stream.interrupt()
        while self._idle:
            self._idle.pop().close()

    def forget(self) -> None:
        """Use none of the connections any more, in a forked child: they are its parent's."""
        self._streams.clear()
        self.close()


_pools: Final[weakref.WeakSet[Connections]] = weakref.WeakSet()


def _forget_connections() -> None:
    # Two processes on one connection would receive answers to each other's requests.
    for pool in _pools:
        pool.forget()


os.register_at_fork(after_in_child=_forget_connections)
