"""The HTTP server: it listens, counts its connections, sweeps their timeouts and drains.

Owns the listening socket and the set of connections; knows no route and no topic. The application sees
`Exchange`, `Stream` and `Upgraded`; the parts are `http_connection` (one client), `http_reading` (bytes to
requests), and `http_exchange` (requests and responses as values, and their bounds).
Everything runs on the thread of one event loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Final, Protocol

from everlog.clock import NS_PER_S, Clock, SystemClock
from everlog.server.http_connection import HttpConnection
from everlog.server.http_exchange import (
    JSON_TYPE,
    Channel,
    EarlyAnswer,
    Exchange,
    Headers,
    HttpLimits,
    Refusal,
    Request,
    Stream,
    Target,
    Targets,
    Upgraded,
    error_body,
    render_head,
)
from everlog.server.http_reading import UNCOUNTED_HEAD_BYTES

__all__ = [
    "Application",
    "Channel",
    "EarlyAnswer",
    "Exchange",
    "Headers",
    "HttpLimits",
    "HttpServer",
    "Request",
    "Stream",
    "Target",
    "Upgraded",
    "error_body",
]

# After the last connections were aborted, the loop needs a moment to call `connection_lost`.
ABORT_GRACE_S: Final = 1.0


class Application(Protocol):
    """What a server serves. Both calls are made on the event loop and must not block."""

    def check_head(self, request: Request) -> EarlyAnswer | None:
        """Refuse a request by its head (status, JSON body, headers); asked before a long body is read."""
        ...

    def handle(self, exchange: Exchange) -> None:
        """Answer a complete request, now or later."""
        ...


class HttpServer:
    """Serves one application on one address.

    Time comes from the event loop unless a `clock` is given; with a clock of its own a test moves time and
    calls `sweep`.
    """

    def __init__(
        self, application: Application, limits: HttpLimits | None = None, clock: Clock | None = None
    ) -> None:
        self.application = application
        self.limits = limits if limits is not None else HttpLimits()
        self.is_draining = False
        # What bodies that are counted hold, see `HttpLimits.max_bodies_bytes`.
        self.bodies_bytes = 0
        self.heads_bytes = 0
        self.loop: asyncio.AbstractEventLoop
        # The time that timeouts are measured in; asked for with every request, so it is bound directly.
        self.now_s: Callable[[], float]
        self.date_line = b""
        self.ok_json_head = b""
        self.full_response = b""
        self.targets = Targets()
        self._clock = clock
        self._wall: Clock = clock if clock is not None else SystemClock()
        self._connections: set[HttpConnection] = set()
        self._listener: asyncio.Server | None = None
        self._tick_handle: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; port 0 means any free one. Returns the address that clients reach it at."""
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time if self._clock is None else self._clock_s
        self._emptied = asyncio.Event()
        self._render_heads()
        self._listener = await self.loop.create_server(
            lambda: HttpConnection(self), host, port, backlog=self.limits.listen_backlog
        )
        for listening in self._listener.sockets:
            # Linux hands this down to every connection, whatever the event loop does about it.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tick_handle = self.loop.call_later(self.limits.sweep_interval_s, self._tick)
        name = self._listener.sockets[0].getsockname()
        return name[0], name[1]

    def stop_accepting(self) -> None:
        """Take no new connections; those that are open go on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def drain(self, timeout_s: float) -> None:
        """Stop: idle connections end at once, others with their response, what is left after the timeout too.

        Streams and upgraded connections are ended by their owners or by the timeout.
        """
        self.stop_accepting()
        self.is_draining = True
        self._render_heads()
        for connection in tuple(self._connections):
            connection.drain()
        await self._until_empty(timeout_s)
        for connection in tuple(self._connections):
            connection.abort()
        await self._until_empty(ABORT_GRACE_S)
        if self._tick_handle is not None:
            self._tick_handle.cancel()
            self._tick_handle = None

    async def _until_empty(self, timeout_s: float) -> None:
        """Wait until no connection is left, or the time is over."""
        if self._connections:
            self._emptied.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), timeout_s)

    def sweep(self) -> None:
        """Look at the timeouts of all connections; also done by the loop, every `sweep_interval_s`."""
        now_s = self.now_s()
        for connection in tuple(self._connections):
            connection.sweep(now_s)

    def _clock_s(self) -> float:
        assert self._clock is not None, "only bound if there is a clock"
        return self._clock.monotonic_ns() / NS_PER_S

    # --- For connections ---

    def admit(self, connection: HttpConnection) -> bool:
        """Count a new connection, if there is room for it."""
        if self.is_draining or len(self._connections) >= self.limits.max_connections:
            return False
        self._connections.add(connection)
        return True

    def take_head(self, size: int) -> None:
        """Count what is held of heads that are not complete; raises a Refusal if that is too much."""
        self.heads_bytes += size
        limit = self.limits.max_heads_bytes
        if size > 0 and self.heads_bytes > limit:
            self.heads_bytes -= size
            body = error_body(
                "throttled",
                f"the headers that are being read hold {limit} bytes together; retry later, or send less "
                f"than {UNCOUNTED_HEAD_BYTES} bytes of them",
                {"limit": "max_heads_bytes", "max": limit},
            )
            raise Refusal(429, body, ((b"Retry-After", b"1"),))

    def take_body(self, size: int) -> None:
        """Count a part of a body that is held from now on; raises a Refusal if that is too much."""
        self.bodies_bytes += size
        limit = self.limits.max_bodies_bytes
        if self.bodies_bytes > limit:
            self.bodies_bytes -= size
            body = error_body(
                "throttled",
                f"the requests that are being read or handled hold {limit} bytes together; retry later",
                {"limit": "max_bodies_bytes", "max": limit},
            )
            raise Refusal(429, body, ((b"Retry-After", b"1"),))

    def forget(self, connection: HttpConnection) -> None:
        """A connection is over."""
        self._connections.discard(connection)
        if not self._connections:
            self._emptied.set()

    def _tick(self) -> None:
        self._tick_handle = self.loop.call_later(self.limits.sweep_interval_s, self._tick)
        self._render_heads()
        self.sweep()

    def _render_heads(self) -> None:
        """Render what holds for all responses of this second."""
        date = formatdate(self._wall.wall_ns() // NS_PER_S, usegmt=True)
        self.date_line = b"Date: %b\r\n" % date.encode("ascii")
        json_head = render_head(200, self.date_line, (), JSON_TYPE, None)
        self.ok_json_head = json_head.removesuffix(b"\r\n") + b"Content-Length: "
        body = self._full_body()
        fields = ((b"Retry-After", b"1"), (b"Connection", b"close"))
        self.full_response = render_head(503, self.date_line, fields, JSON_TYPE, len(body)) + body

    def _full_body(self) -> bytes:
        """The error of a connection that is not accepted."""
        if self.is_draining:
            return error_body("shutting_down", "the server is shutting down; connect to another one")
        return error_body(
            "throttled", f"the server has {self.limits.max_connections} connections; retry later"
        )
