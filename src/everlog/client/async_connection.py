"""One connection to a server on an event loop, and a store of those that are idle.

The twin of `connection` for asyncio; any loop will do, uvloop included. Owns streams and their timeouts.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import weakref
from collections import deque
from collections.abc import Awaitable
from typing import Any, TypeVar

from everlog.client.connection import MAX_IDLE
from everlog.client.wire import PIECE_BYTES, Answer, AnswerReader, BrokenAnswer, Place, unreachable

_Result = TypeVar("_Result")


class AsyncConnection:
    """A connection that is kept until something goes wrong or it is closed."""

    def __init__(self, place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.place = place
        self.is_open = True
        self._bytes_in = reader
        self._bytes_out = writer
        self._reader = AnswerReader()

    @classmethod
    async def connect(cls, place: Place, timeout_s: float) -> AsyncConnection:
        """Open one."""
        secure: dict[str, Any] = {"ssl": ssl.create_default_context()} if place.is_tls else {}
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(
                    place.host, place.port, limit=PIECE_BYTES, **secure
                )
        except (TimeoutError, OSError) as error:
            raise unreachable(place, error, timeout_s, was_sent=False) from None
        plain = writer.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(place, reader, writer)

    async def exchange(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request and wait for its whole answer."""
        self._ask(request)
        reader = self._reader
        while not reader.is_complete:
            await self._guarded(self._read_piece(), timeout_s)
        if not reader.keeps_open:
            self.close()
        return reader.complete()

    async def open_stream(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request for a stream; what is not a success comes back with its body."""
        self._ask(request)
        reader = self._reader
        while not reader.has_head or not (reader.answer.is_success or reader.is_complete):
            await self._guarded(self._read_piece(), timeout_s)
        return reader.answer if reader.answer.is_success else reader.complete()

    async def more(self, timeout_s: float) -> bytes:
        """The next piece of a stream; nothing at its end."""
        reader = self._reader
        while not reader.pieces and not reader.is_complete:
            await self._guarded(self._read_piece(), timeout_s)
        return reader.take()

    async def send(self, data: bytes) -> None:
        """Send bytes that are no HTTP, on a connection that was upgraded."""
        self._bytes_out.write(data)
        await self._guarded(self._bytes_out.drain(), None)

    async def receive(self, timeout_s: float) -> bytes:
        """Bytes that are no HTTP; nothing at the end. To be cancelled does no harm."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._bytes_in.read(PIECE_BYTES)
        except (TimeoutError, OSError) as error:
            self.close()
            raise unreachable(self.place, error, timeout_s, was_sent=True) from None

    def is_stale(self) -> bool:
        """Whether the server ended it while it was idle."""
        return not self.is_open or self._bytes_in.at_eof() or self._bytes_out.is_closing()

    def close(self) -> None:
        """Hang up."""
        if self.is_open:
            self.is_open = False
            self._bytes_out.close()

    async def _guarded(self, step: Awaitable[_Result], timeout_s: float | None) -> _Result:
        try:
            async with asyncio.timeout(timeout_s):
                return await step
        except (TimeoutError, OSError, BrokenAnswer) as error:
            self.close()
            raise unreachable(self.place, error, timeout_s or 0.0, was_sent=True) from None
        except BaseException:
            # Cancelled in the middle: what comes next on this connection is not our answer.
            self.close()
            raise

    def _ask(self, request: bytes) -> None:
        self._reader = AnswerReader()
        # Not drained: the answer may come before all of the body is taken, and tells more than a wait would.
        self._bytes_out.write(request)

    async def _read_piece(self) -> None:
        data = await self._bytes_in.read(PIECE_BYTES)
        if data:
            self._reader.feed(data)
        elif not self._reader.has_head and not self._reader.answer.status:
            raise ConnectionResetError("the server closed the connection without an answer")
        else:
            self._reader.end()


class AsyncConnections:
    """Connections to one server that nobody uses at the moment. Each belongs to the loop that opened it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._idle_of: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, deque[AsyncConnection]] = (
            weakref.WeakKeyDictionary()
        )

    def _idle(self) -> deque[AsyncConnection]:
        """Those of the running loop; what a closed one left is forgotten."""
        loop = asyncio.get_running_loop()
        idle = self._idle_of.get(loop)
        if idle is None:
            for other in [known for known in self._idle_of if known.is_closed()]:
                del self._idle_of[other]
            idle = self._idle_of[loop] = deque()
        return idle

    async def take(self, timeout_s: float) -> AsyncConnection:
        """One that is idle and alive, or a new one."""
        idle = self._idle()
        while idle:
            connection = idle.pop()
            if not connection.is_stale():
                return connection
            connection.close()
        return await AsyncConnection.connect(self.place, timeout_s)

    def give_back(self, connection: AsyncConnection) -> None:
        """Keep it for the next one, if it is still open."""
        if not connection.is_open:
            return
        idle = self._idle()
        if len(idle) >= MAX_IDLE:
            connection.close()
        else:
            idle.append(connection)

    def close(self) -> None:
        """Hang up those of the running loop; those in use are closed by their users."""
        idle = self._idle()
        while idle:
            idle.pop().close()
