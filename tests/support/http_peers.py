"""Both ends around the HTTP server under test: clients on raw sockets and a small application.

The clients never read ahead, so a test decides byte by byte what the server sees and what it gets rid of.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import uvloop

from everlog.clock import Clock
from everlog.server.http import (
    EarlyAnswer,
    Exchange,
    HttpLimits,
    HttpServer,
    Request,
    Stream,
    Upgraded,
    error_body,
)

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
PATIENCE_S = 20.0
HOST = b"Host: localhost\r\n"


def run_on(loop_name: str, scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario on a loop of this kind; whatever the loop complains about fails the test."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await asyncio.wait_for(scenario, PATIENCE_S)

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(watched())
    assert complaints == []


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something is true; `run_on` bounds the wait."""
    while not condition():
        await asyncio.sleep(0.001)


async def poll_sockets() -> None:
    """Let the loop poll its sockets a few times, so that what was sent on this host has been read."""
    for _ in range(4):
        await asyncio.sleep(0)


class Response(NamedTuple):
    """A response as it came over the wire."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Peer:
    """A client on a raw socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, address: tuple[str, int], receive_buffer_bytes: int = 0) -> Peer:
        """Connect; a small receive buffer makes the server notice early that the client does not read."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, address)
        return cls(sock)

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        await self._loop.sock_sendall(self.sock, data)

    def send_what_fits(self, data: bytes) -> int:
        """Send without waiting for room; returns how much went out."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0

    async def _more(self) -> bool:
        piece = await self._loop.sock_recv(self.sock, 65536)
        self.received += piece
        return bool(piece)

    async def _take(self, size: int) -> bytes:
        while len(self.received) < size:
            assert await self._more(), f"closed after {self.received!r}, {size} bytes were due"
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    async def _take_until(self, mark: bytes) -> bytes:
        while mark not in self.received:
            assert await self._more(), f"closed after {self.received!r}, {mark!r} was due"
        return await self._take(self.received.index(mark) + len(mark))

    async def head(self) -> Response:
        """The head of the next response."""
        lines = (await self._take_until(b"\r\n\r\n")).split(b"\r\n")[:-2]
        headers = dict(line.split(b": ", 1) for line in lines[1:])
        return Response(int(lines[0].split(b" ")[1]), {k.lower(): v for k, v in headers.items()}, b"")

    async def response(self, method: str = "GET") -> Response:
        """The next response with its body."""
        response = await self.head()
        if method == "HEAD" or response.status in (100, 101, 204, 304):
            return response
        if response.headers.get(b"transfer-encoding") == b"chunked":
            body = b""
            while piece := await self.chunk():
                body += piece
            return response._replace(body=body)
        return response._replace(body=await self._take(int(response.headers[b"content-length"])))

    async def chunk(self) -> bytes:
        """The next chunk of a stream; empty at its end."""
        size = int(await self._take_until(b"\r\n"), 16)
        return (await self._take(size + 2))[:-2]

    async def ask(self, data: bytes) -> Response:
        """Send a request and take its response."""
        await self.send(data)
        return await self.response(data.split(b" ", 1)[0].decode())

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        try:
            while await self._more():
                pass
        except ConnectionResetError:
            pass
        rest, self.received = self.received, b""
        return rest

    def end_sending(self) -> None:
        """Close the sending side only."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Go away in the usual manner."""
        self.sock.close()

    def reset(self) -> None:
        """Go away without a word: the server gets a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@dataclass
class EchoApplication:
    """Answers with what it was asked; the path says how.

    /later is answered by the test, /stream and /upgrade hand out their channels, /refused is turned away at
    its head and /broken raises.
    """

    requests: list[Request] = field(default_factory=list)
    later: list[Exchange] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    upgraded: list[Upgraded] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    reply: bytes | None = None
    watch_gone: bool = True

    def channels(self) -> list[Stream | Upgraded]:
        """Everything that was handed out to be written to."""
        return [*self.streams, *self.upgraded]

    def check_head(self, request: Request) -> EarlyAnswer | None:
        if request.path == b"/broken-head":
            raise LookupError("on purpose")
        if request.path == b"/refused":
            return 401, error_body("unauthorized", "no token"), ((b"WWW-Authenticate", b"Bearer"),)
        return None

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        self.requests.append(request)
        path = request.path
        if self.watch_gone:
            exchange.on_gone = lambda: self.gone.append(path)
        if path == b"/later":
            self.later.append(exchange)
        elif path == b"/broken":
            raise LookupError("on purpose")
        elif path == b"/stream":
            self.streams.append(exchange.start_stream(200, ((b"Content-Type", b"text/event-stream"),)))
        elif path == b"/upgrade" and request.offers_upgrade:
            self.upgraded.append(exchange.upgrade(((b"Upgrade", b"echo"),)))
        else:
            exchange.respond(200, self.reply if self.reply is not None else echo_of(request))


def echo_of(request: Request) -> bytes:
    """What the application says about a request."""
    return b" ".join((request.method.encode(), request.path, request.query, request.body))


@dataclass
class EchoServer:
    """A server, its application and a way to connect to it."""

    server: HttpServer
    application: EchoApplication
    address: tuple[str, int]

    async def connect(self, receive_buffer_bytes: int = 0) -> Peer:
        """A new client; the server knows it when this returns."""
        before = self.server.connections
        peer = await Peer.connect(self.address, receive_buffer_bytes)
        await until(lambda: self.server.connections > before)
        return peer


@asynccontextmanager
async def serving(limits: HttpLimits | None = None, clock: Clock | None = None) -> AsyncIterator[EchoServer]:
    """A server with the echo application, on a free port of this host."""
    application = EchoApplication()
    server = HttpServer(application, limits, clock)
    address = await server.start("127.0.0.1", 0)
    try:
        yield EchoServer(server, application, address)
    finally:
        await server.drain(0)
        assert server.connections == 0
        assert server.bodies_bytes == 0


def play(
    loop_name: str,
    scenario: Callable[[EchoServer], Awaitable[None]],
    limits: HttpLimits | None = None,
    clock: Clock | None = None,
) -> None:
    """Play a scenario against a fresh server."""

    async def whole() -> None:
        async with serving(limits, clock) as echo:
            await scenario(echo)

    run_on(loop_name, whole())


def request_bytes(path: bytes, body: bytes = b"", method: bytes = b"", extra: bytes = b"") -> bytes:
    """A plain HTTP/1.1 request; `extra` are whole header lines."""
    verb = method or (b"POST" if body else b"GET")
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return b"%b %b HTTP/1.1\r\n%b%b%b\r\n%b" % (verb, path, HOST, extra, length, body)
