"""A watch server in the test's own event loop, and a client that reads its streams frame by frame.

Time for heartbeats and slow readers is moved by the test; everything else is real sockets.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from everlog.clock import Clock, SystemClock
from everlog.fs import Fs
from everlog.server.app import App
from everlog.server.http import HttpServer
from everlog.server.settings import ServerSettings
from everlog.server.sse import read_event_id
from everlog.server.topic_routes import TopicRoutes
from everlog.server.watch_stream import SlowLimits, WatchRoutes
from everlog.topics import Engine, EngineSettings, NewRecord
from everlog.topics.storage.syncs import Done, InlineSyncs, Job
from tests.support.files import UnsyncedFs
from tests.support.http_peers import Peer, run_on, until
from tests.support.topic_directories import SEGMENT_EVENTS

RETRY = "retry"
HEARTBEAT = "heartbeat"
Scenario = Callable[["Site"], Awaitable[None]]


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


class HeldSyncs(InlineSyncs):
    """Syncs and cold reads that happen on the next turn, or when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.wake: Callable[[], None] = lambda: None

    def start(self, lane: int, job: Job, done: Done) -> None:
        super().start(lane, job, done)
        self.wake()

    def poll(self) -> int:
        return 0 if self.is_held else super().poll()

    def let_go(self) -> None:
        self.is_held = False
        self.wake()


def disk_engine(path: Path, syncs: HeldSyncs, fs: Fs | None = None) -> Callable[[], Engine]:
    """An engine on disk whose syncs the test can hold."""

    def open_engine() -> Engine:
        settings = EngineSettings(shards=1, segment_max_events=SEGMENT_EVENTS, cold_dir=str(path / "cold"))
        return Engine.open(path / "data", settings, fs=fs or UnsyncedFs(), syncs=syncs)

    return open_engine


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


class Site:
    """A server with its engine, and what a test does with them."""

    def __init__(
        self, settings: ServerSettings, engine: Engine, limits: SlowLimits | None, clock: Clock
    ) -> None:
        self.clock = clock
        self.timers = ManualTimers()
        self.engine = engine
        self.app = App(settings, asyncio.get_running_loop(), self.clock.monotonic_ns)
        self.app.engine = engine
        self.watch = WatchRoutes(self.app, timers=self.timers, limits=limits)
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
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n{lines}\r\n"
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
        await client.peer.send(f"GET /v0/watch/{wid}{query} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
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


@asynccontextmanager
async def open_site(
    settings: ServerSettings, engine: Engine, limits: SlowLimits | None, clock: Clock
) -> AsyncIterator[Site]:
    """Serve while the block runs; in the end nothing of it may be left."""
    site = Site(settings, engine, limits, clock)
    site.address = await site.http.start("127.0.0.1", 0)
    try:
        yield site
    finally:
        site.watch.shut_down()
        await site.http.drain(0)
        site.app.stop_turning()
        engine.close()
    assert site.watch.slots.taken == 0
    assert site.watch.streams == set()
    assert site.timers.pending == 0


def play(
    scenario: Scenario,
    *,
    settings: ServerSettings | None = None,
    engine: Callable[[], Engine] = lambda: Engine.open(None),
    limits: SlowLimits | None = None,
    clock: Clock | None = None,
    loop: str = "uvloop",
) -> None:
    """Run a scenario against a server of its own; sessions age by `clock`."""

    async def run() -> None:
        async with open_site(settings or ServerSettings(), engine(), limits, clock or SystemClock()) as site:
            await scenario(site)

    run_on(loop, run())
