"""A connection to a server on an event loop, and the pool of idle ones.

The counterpart of `connection` for asyncio, uvloop included. Owns streams and their timeouts.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

from everlog.client.connection import MAX_IDLE
from everlog.client.wire import PIECE_BYTES, Answer, AnswerReader, BrokenAnswer, ServerAddress, unreachable


class AsyncConnection:
    """A connection; the first error closes it."""

    def __init__(
        self, address: ServerAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self.is_open = True
        self.was_idle = False
        self._bytes_in = reader
        self._bytes_out = writer
        self._reader = AnswerReader()

    @classmethod
    async def connect(cls, address: ServerAddress, timeout_s: float) -> AsyncConnection:
        """Connect."""
        secure: dict[str, Any] = {"ssl": ssl.create_default_context()} if address.is_tls else {}
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, limit=PIECE_BYTES, **secure
                )
        except (TimeoutError, OSError) as error:
            raise unreachable(address, error, timeout_s, was_sent=False) from None
        plain = writer.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(address, reader, writer)

    async def exchange(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request and wait for its whole answer."""
        reader = self._send_request(request)
        while not reader.is_complete:
            await self._receive_piece(timeout_s)
        if not reader.keeps_open:
            self.close()
        return reader.complete()

    async def open_stream(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request for a stream; an answer that is not a success comes with its body."""
        reader = self._send_request(request)
        while not reader.is_readable:
            await self._receive_piece(timeout_s)
        return reader.answer if reader.answer.is_success else reader.complete()

    async def more(self, timeout_s: float) -> bytes:
        """The next piece of a stream; it is empty at the end."""
        reader = self._reader
        while not reader.pieces and not reader.is_complete:
            await self._receive_piece(timeout_s)
        return reader.take()

    async def send(self, data: bytes) -> None:
        """Send bytes that are not HTTP, on an upgraded connection."""
        try:
            self._bytes_out.write(data)
            await self._bytes_out.drain()
        except BaseException as error:
            raise self._failed(error, 0.0) from None

    async def receive(self, timeout_s: float) -> bytes:
        """Receive bytes that are not HTTP; none at the end. Cancelling does no harm."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._bytes_in.read(PIECE_BYTES)
        except (TimeoutError, OSError) as error:
            self.close()
            raise unreachable(self.address, error, timeout_s, was_sent=True) from None

    def is_stale(self) -> bool:
        """Whether the server closed it while it was idle."""
        return not self.is_open or self._bytes_in.at_eof() or self._bytes_out.is_closing()

    def close(self) -> None:
        """Close the connection."""
        if self.is_open:
            self.is_open = False
            self._bytes_out.close()

    def _failed(self, error: BaseException, timeout_s: float) -> BaseException:
        """What to raise. The connection is closed: what arrives next would not be the answer to a request."""
        self.close()
        if isinstance(error, OSError | BrokenAnswer):
            return unreachable(self.address, error, timeout_s, was_sent=True)
        return error

    def _send_request(self, request: bytes) -> AnswerReader:
        self._reader = AnswerReader()
        # Not drained: the answer may come before all of the body is taken, and says more than a timeout.
        self._bytes_out.write(request)
        return self._reader

    async def _receive_piece(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                self._reader.receive(await self._bytes_in.read(PIECE_BYTES))
        except BaseException as error:
            raise self._failed(error, timeout_s) from None


class AsyncConnections:
    """Idle connections to one server. Each belongs to the loop that opened it."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self._idle_of: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, deque[AsyncConnection]] = (
            weakref.WeakKeyDictionary()
        )
        self._streams: dict[AsyncConnection, asyncio.AbstractEventLoop] = {}

    def _idle(self) -> deque[AsyncConnection]:
        """The connections of the running loop; those of closed loops are dropped."""
        loop = asyncio.get_running_loop()
        idle = self._idle_of.get(loop)
        if idle is None:
            for other in [known for known in self._idle_of if known.is_closed()]:
                del self._idle_of[other]
            idle = self._idle_of[loop] = deque()
        return idle

    async def take(self, timeout_s: float) -> AsyncConnection:
        """An idle connection that is still open, or a new one."""
        idle = self._idle()
        while idle:
            connection = idle.pop()
            if not connection.is_stale():
                connection.was_idle = True
                return connection
            connection.close()
        return await self.open(timeout_s)

    async def open(self, timeout_s: float) -> AsyncConnection:
        """A new connection."""
        return await AsyncConnection.connect(self.address, timeout_s)

    def give_back(self, connection: AsyncConnection) -> None:
        """Return a connection after use; it is kept if it is still open."""
        if not connection.is_open:
            return
        idle = self._idle()
        if len(idle) >= MAX_IDLE:
            connection.close()
        else:
            idle.append(connection)

    async def new_stream(self, timeout_s: float) -> AsyncConnection:
        """A new connection for a stream, which `close` ends."""
        stream = await self.open(timeout_s)
        self._streams[stream] = asyncio.get_running_loop()
        return stream

    def forget_stream(self, stream: AsyncConnection) -> None:
        """Close a stream."""
        self._streams.pop(stream, None)
        stream.close()

    def close(self) -> None:
        """Close the streams and the running loop's idle connections; others are closed by their users."""
        for stream, loop in list(self._streams.items()):
            with suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(stream.close)
        idle = self._idle()
        while idle:
            idle.pop().close()
