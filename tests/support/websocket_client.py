"""A WebSocket client on a raw socket, and a server with that route in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from everlog.clock import SystemClock
from everlog.server.settings import ServerSettings
from everlog.server.socket_session import SocketSession, WebSocketRoutes
from everlog.topics import Engine
from tests.support.files import UnsyncedFs
from tests.support.http_peers import Peer, Response, run_on, until
from tests.support.sse_client import HeldSyncs, Site

SAMPLE_KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = {
    "Host": "everlog",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": SAMPLE_KEY,
}
Scenario = Callable[["SocketSite"], Awaitable[None]]


def upgrade_request(
    headers: Mapping[str, str | None] | None = None, target: str = "/v0/ws", method: str = "GET"
) -> bytes:
    """The request for an upgrade; headers are added or replaced, None leaves one out."""
    fields = {**UPGRADE, **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode()


def bearer(token: str) -> dict[str, str | None]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {token}"}


class WebSocketClient:
    """The client's side of one conversation; it reads only when it is asked to."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.pongs: list[bytes] = []
        self.protocol = Connection(ConnectionType.CLIENT)
        self._texts: deque[str] = deque()
        self._partial = ""
        self._closing: CloseConnection | None = None

    def masked(self, event: Event) -> bytes:
        """What an event looks like on the wire."""
        return bytes(self.protocol.send(event))

    async def send_text(self, text: str) -> None:
        await self.peer.send(self.masked(TextMessage(data=text)))

    async def send_binary(self, data: bytes) -> None:
        await self.peer.send(self.masked(BytesMessage(data=data)))

    async def ping(self, payload: bytes) -> None:
        await self.peer.send(self.masked(Ping(payload=payload)))

    async def send(self, op: str, **fields: object) -> None:
        """Send a command and wait for nothing."""
        await self.send_text(msgspec.json.encode({"op": op, **fields}).decode())

    async def ask(self, op: str, **fields: object) -> Any:
        """Send a command and take the next message."""
        await self.send(op, **fields)
        return await self.next()

    async def _receive(self) -> bool:
        """Read what is there; false at the end of the connection."""
        data, self.peer.received = self.peer.received, b""
        if not data:
            data = await asyncio.get_running_loop().sock_recv(self.peer.sock, 65536)
        if not data:
            return False
        self.protocol.receive_data(data)
        for event in self.protocol.events():
            self._take(event)
        return True

    def _take(self, event: Event) -> None:
        if isinstance(event, TextMessage):
            self._partial += event.data
            if event.message_finished:
                self._texts.append(self._partial)
                self._partial = ""
        elif isinstance(event, Pong):
            self.pongs.append(bytes(event.payload))
        else:
            assert isinstance(event, CloseConnection), event
            self._closing = event

    async def next_text(self) -> str:
        """The next message, as it was sent."""
        while not self._texts:
            assert self._closing is None, self._closing
            assert await self._receive(), "the connection has ended"
        return self._texts.popleft()

    async def next(self) -> Any:
        """The next message."""
        return msgspec.json.decode(await self.next_text())

    async def take(self, *ops: str) -> list[Any]:
        """The next messages, which must be these."""
        messages = []
        for op in ops:
            message = await self.next()
            assert message["op"] == op, message
            messages.append(message)
        return messages

    async def until_op(self, op: str) -> list[Any]:
        """All messages up to the first of this kind."""
        messages = [await self.next()]
        while messages[-1]["op"] != op:
            messages.append(await self.next())
        return messages

    async def until_pong(self, payload: bytes) -> None:
        while payload not in self.pongs:
            assert await self._receive(), "the connection has ended"

    async def expect_quiet(self) -> None:
        """Nothing else is sent: only the answers to two pings come, the second one behind all that was due.

        Replies are sent before pushes of the same moment, so one would prove little.
        """
        for number in range(2):
            assert await self.ask("ping", request_id=number) == {"op": "pong", "request_id": number}

    async def closed(self) -> int:
        """The code with which the server ends the conversation; agrees, and sees the connection end."""
        while self._closing is None:
            assert await self._receive(), "the connection has ended without a word"
        assert not self._texts, self._texts
        if self.protocol.state is ConnectionState.REMOTE_CLOSING:
            await self.peer.send(self.masked(self._closing.response()))
        assert await self.peer.rest() == b""
        self.peer.close()
        return int(self._closing.code)

    async def close(self, code: int = 1000) -> int:
        """End the conversation in the proper way; the code that the server answers."""
        await self.peer.send(self.masked(CloseConnection(code=code, reason="done")))
        while self._closing is None:
            assert await self._receive(), "the connection has ended without a word"
        assert await self.peer.rest() == b""
        self.peer.close()
        return int(self._closing.code)


class SocketSite(Site):
    """A server with WebSockets beside everything else; its time is real."""

    def __init__(self, settings: ServerSettings, engine: Engine) -> None:
        super().__init__(settings, engine, limits=None, clock=SystemClock())
        self.sockets = WebSocketRoutes(self.app, slots=self.watch.slots, fan_out=self.watch.fan_out)

    async def upgrade(
        self,
        headers: Mapping[str, str | None] | None = None,
        target: str = "/v0/ws",
        method: str = "GET",
    ) -> Response:
        """Ask for an upgrade and go away again."""
        peer = await self.connect()
        response = await peer.ask(upgrade_request(headers, target, method))
        peer.close()
        return response

    async def talk(
        self, headers: Mapping[str, str | None] | None = None, receive_buffer_bytes: int = 0
    ) -> WebSocketClient:
        """Open a socket."""
        peer = await self.connect(receive_buffer_bytes)
        response = await peer.ask(upgrade_request(headers))
        assert response.status == 101, response
        return WebSocketClient(peer)

    def only_session(self) -> SocketSession:
        (session,) = self.sockets._sessions
        return session

    async def until_no_sockets(self) -> None:
        await until(lambda: self.sockets.open_sockets == 0)


@asynccontextmanager
async def open_socket_site(settings: ServerSettings, engine: Engine) -> AsyncIterator[SocketSite]:
    """Serve while the block runs; in the end nothing of it may be left."""
    site = SocketSite(settings, engine)
    site.address = await site.http.start("127.0.0.1", 0)
    try:
        yield site
    finally:
        site.sockets.shut_down()
        await site.http.drain(0)
        site.app.stop_turning()
        engine.close()
    assert site.sockets.open_sockets == 0
    assert site.sockets.slots.taken == 0
    assert site.sockets.fan_out._feeds == {}


def converse(
    scenario: Scenario,
    *,
    settings: ServerSettings | None = None,
    engine: Callable[[], Engine] = lambda: Engine.open(None),
    loop: str = "uvloop",
) -> None:
    """Run a scenario against a server of its own."""

    async def run() -> None:
        async with open_socket_site(settings or ServerSettings(), engine()) as site:
            await scenario(site)

    run_on(loop, run())


def converse_on_disk(
    scenario: Callable[[SocketSite, HeldSyncs], Awaitable[None]], root: Path, settings: ServerSettings
) -> None:
    """The same with a data directory, whose syncs and cold reads the test can hold."""
    syncs = HeldSyncs()

    async def whole(site: SocketSite) -> None:
        syncs.wake = site.app.turn_soon
        try:
            await scenario(site, syncs)
        finally:
            syncs.wake = lambda: None

    converse(
        whole,
        settings=settings,
        engine=lambda: Engine.open(root, settings.engine_settings(), syncs=syncs, fs=UnsyncedFs()),
    )
