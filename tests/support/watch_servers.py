"""A server in the test's own event loop, and clients that read its event streams and WebSockets bit by bit.

Time for heartbeats and slow readers is moved by the test; everything else is real sockets.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from everlog.clock import Clock, SystemClock
from everlog.fs import Fs
from everlog.server.app import App
from everlog.server.http import HttpServer
from everlog.server.settings import ServerSettings
from everlog.server.socket_session import SocketSession, WebSocketRoutes
from everlog.server.sse import read_event_id
from everlog.server.topic_routes import TopicRoutes
from everlog.server.watch_stream import WatchRoutes
from everlog.topics import Engine, NewRecord
from tests.support.engines import SEGMENT_EVENTS, HeldSyncs, open_engine
from tests.support.files import UnsyncedFs
from tests.support.http_peers import Peer, Response, run_on, until

RETRY = "retry"
HEARTBEAT = "heartbeat"
Scenario = Callable[["WatchServer"], Awaitable[None]]
SAMPLE_KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = {
    "Host": "localhost",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": SAMPLE_KEY,
}


class ManualTimers:
    """Timers that go off when the test moves the time."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._due: list[tuple[float, int, ManualTimer]] = []
        self._number = itertools.count()

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(callback)
        heapq.heappush(self._due, (self.now_s + delay, next(self._number), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move the time, running what comes due at its own moment."""
        end_s = self.now_s + seconds
        while self._due and self._due[0][0] <= end_s:
            self.now_s, _, timer = heapq.heappop(self._due)
            if not timer.is_cancelled:
                timer.callback()
        self.now_s = end_s

    @property
    def pending(self) -> int:
        return sum(not timer.is_cancelled for _, _, timer in self._due)


class ManualTimer:
    """One of them."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def disk_engine(path: Path, syncs: HeldSyncs, fs: Fs | None = None) -> Callable[[], Engine]:
    """An engine on disk whose syncs the test can hold."""
    settings = {"segment_max_events": SEGMENT_EVENTS, "cold_dir": str(path / "cold")}
    return lambda: open_engine(path / "data", fs=fs, syncs=syncs, **settings)


class Answer(NamedTuple):
    """A JSON answer."""

    status: int
    json: Any
    headers: dict[bytes, bytes]

    @property
    def code(self) -> str:
        """The code of a refusal."""
        return str(self.json["error"]["code"])


class Frame(NamedTuple):
    """One frame of a stream; `id` is decoded."""

    event: str
    data: Any
    id: dict[str, int] | None
    text: bytes

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.data["records"]]


def parse_frame(text: bytes) -> Frame:
    """Read one frame, without its blank line, by the rules of the contract."""
    if text.startswith(b":"):
        return Frame(HEARTBEAT, None, None, text)
    fields: dict[bytes, bytes] = {}
    for line in text.split(b"\n"):
        name, separator, value = line.partition(b": ")
        assert separator and name not in fields, text
        fields[name] = value
    if b"retry" in fields:
        assert fields == {b"retry": b"2000"}, text
        return Frame(RETRY, None, None, text)
    assert fields.keys() <= {b"event", b"data", b"id"}, text
    cursors = read_event_id(fields[b"id"]) if b"id" in fields else None
    return Frame(fields[b"event"].decode(), msgspec.json.decode(fields[b"data"]), cursors, text)


class SseClient:
    """The reading end of a stream."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.headers: dict[bytes, bytes] = {}
        self._text = b""

    async def next(self) -> Frame:
        """The next frame."""
        while b"\n\n" not in self._text:
            piece = await self.peer.chunk()
            assert piece, "the stream has ended"
            self._text += piece
        text, _, self._text = self._text.partition(b"\n\n")
        return parse_frame(text)

    async def take(self, *events: str) -> list[Frame]:
        """The next frames, which must be these."""
        frames = []
        for event in events:
            frame = await self.next()
            assert frame.event == event, frame
            frames.append(frame)
        return frames

    async def until_event(self, event: str) -> list[Frame]:
        """All frames up to the first of this kind."""
        frames = [await self.next()]
        while frames[-1].event != event:
            frames.append(await self.next())
        return frames

    async def expect_end(self) -> None:
        """Nothing more, and a proper end."""
        assert self._text == b""
        assert await self.peer.chunk() == b""

    def close(self) -> None:
        self.peer.sock.close()


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

    @property
    def close_reason(self) -> str | None:
        """Why the server ended the conversation."""
        return None if self._closing is None else self._closing.reason

    async def close(self, code: int = 1000) -> int:
        """End the conversation in the proper way; the code that the server answers."""
        await self.peer.send(self.masked(CloseConnection(code=code, reason="done")))
        while self._closing is None:
            assert await self._receive(), "the connection has ended without a word"
        assert await self.peer.rest() == b""
        self.peer.close()
        return int(self._closing.code)


class WatchServer:
    """A server with its engine, event streams and WebSockets, and what a test does with them."""

    def __init__(self, settings: ServerSettings, engine: Engine, clock: Clock) -> None:
        self.clock = clock
        self.timers = ManualTimers()
        self.engine = engine
        self.app = App(settings, asyncio.get_running_loop(), self.clock.monotonic_ns)
        self.app.engine = engine
        self.watch = WatchRoutes(self.app, timers=self.timers)
        self.sockets = WebSocketRoutes(self.app, slots=self.watch.slots, fan_out=self.watch.fan_out)
        self.http = HttpServer(self.app)
        self.address = ("", 0)
        TopicRoutes(self.app)

    async def connect(self, receive_buffer_bytes: int = 0) -> Peer:
        return await Peer.connect(self.address, receive_buffer_bytes)

    async def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request on a connection of its own."""
        peer = await self.connect()
        content = b"" if body is None else msgspec.json.encode(body)
        fields = {"Content-Type": "application/json", **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n{lines}\r\n"
        response = await peer.ask(head.encode() + content)
        peer.sock.close()
        json = msgspec.json.decode(response.body) if response.body else None
        return Answer(response.status, json, response.headers)

    async def put(self, name: str, **config: object) -> None:
        assert (await self.ask("PUT", f"/v0/topics/{name}", config)).status in (200, 201)

    def append(self, name: str, count: int = 1, *, node: str | None = None, data: bytes = b"1") -> None:
        """Append records and take the turn in which they are written."""
        self.engine.append(name, [NewRecord(data, f"tag{n}", node, b'{"m":1}') for n in range(count)])
        self.app.turn_soon()

    def delete(self, name: str) -> None:
        self.engine.delete_topic(name)
        self.app.turn_soon()

    async def session(self, topics: Mapping[str, object], token: str | None = None, **fields: object) -> str:
        """Make a session; its wid."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = await self.ask("POST", "/v0/watch", {"topics": topics, **fields}, headers)
        assert answer.status == 200, answer
        return str(answer.json["wid"])

    async def open(
        self,
        wid: str,
        headers: Mapping[str, str] | None = None,
        query: str = "",
        receive_buffer_bytes: int = 0,
    ) -> SseClient:
        """Open a stream and take its first line."""
        client = SseClient(await self.connect(receive_buffer_bytes))
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        await client.peer.send(
            f"GET /v0/watch/{wid}{query} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()
        )
        head = await client.peer.head()
        assert head.status == 200, head
        client.headers = head.headers
        await client.take(RETRY)
        return client

    async def follow(self, topics: Mapping[str, object], **fields: Any) -> SseClient:
        """Make a session and open its stream."""
        return await self.open(await self.session(topics, **fields))

    async def leave(self, client: SseClient) -> None:
        """Close a client and wait until the server has noticed."""
        open_streams = len(self.watch.streams)
        client.close()
        await until(lambda: len(self.watch.streams) < open_streams)

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
        self,
        headers: Mapping[str, str | None] | None = None,
        receive_buffer_bytes: int = 0,
        target: str = "/v0/ws",
    ) -> WebSocketClient:
        """Open a socket."""
        peer = await self.connect(receive_buffer_bytes)
        response = await peer.ask(upgrade_request(headers, target))
        assert response.status == 101, response
        return WebSocketClient(peer)

    def only_session(self) -> SocketSession:
        (session,) = self.sockets._sessions
        return session

    async def until_no_sockets(self) -> None:
        await until(lambda: self.sockets.open_sockets == 0)


@asynccontextmanager
async def serving(settings: ServerSettings, engine: Engine, clock: Clock) -> AsyncIterator[WatchServer]:
    """Serve while the block runs; in the end nothing of it may be left."""
    server = WatchServer(settings, engine, clock)
    server.address = await server.http.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        server.watch.shut_down()
        server.sockets.shut_down()
        await server.http.drain(0)
        server.app.stop_turning()
        engine.close()
    assert server.watch.slots.taken == 0
    assert server.watch.streams == set()
    assert server.timers.pending == 0
    assert server.sockets.open_sockets == 0
    assert server.sockets.fan_out._topics == {}


def play(
    scenario: Scenario,
    *,
    settings: ServerSettings | None = None,
    engine: Callable[[], Engine] = lambda: Engine.open(None),
    clock: Clock | None = None,
    loop: str = "uvloop",
) -> None:
    """Run a scenario against a server of its own; sessions age by `clock`."""

    async def run() -> None:
        async with serving(settings or ServerSettings(), engine(), clock or SystemClock()) as server:
            await scenario(server)

    run_on(loop, run())


def play_on_disk(
    scenario: Callable[[WatchServer, HeldSyncs], Awaitable[None]], root: Path, settings: ServerSettings
) -> None:
    """Run a scenario against a server with a data directory, whose syncs and cold reads the test can hold."""
    syncs = HeldSyncs()

    async def whole(server: WatchServer) -> None:
        syncs.wake = server.app.turn_soon
        try:
            await scenario(server, syncs)
        finally:
            syncs.wake = lambda: None

    play(
        whole,
        settings=settings,
        engine=lambda: Engine.open(root, settings.engine_settings(), syncs=syncs, fs=UnsyncedFs()),
    )
