"""One connection to a venue: WebSocket and REST around a `FeedSession`, and its queues.

Owns time: backoff, staleness, the age of a connection, pings, the pace of what is sent, retries of REST. Ends
only when it is told to; whatever goes wrong is a gap, a count and another attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter, deque
from typing import Any, Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from everlog.bus.feed_status import STATUS_FILE, FeedStatus, SymbolStatus
from everlog.client.async_connection import AsyncConnection
from everlog.client.errors import ApiFailed
from everlog.client.wire import Answer, RequestWriter, ServerAddress
from everlog.clock import Clock, SystemClock
from everlog.feeds.config import FeedConfig
from everlog.feeds.frames import PROCESS_START, FeedQueues, FrameKind, RawFrame
from everlog.feeds.session import FeedSession
from everlog.fs import Fs, OsFs, replace_file
from everlog.market.symbols import SymbolDefinition
from everlog.queue.config import MIB

STATUS_S: Final = 1.0
REMIND_S: Final = 10.0
"""A symbol that has waited this long for its book is asked for again."""
FRAME_BYTES_MAX: Final = 64 * MIB
FRAMES_WAITING_MAX: Final = 256
OPEN_TIMEOUT_S: Final = 10.0
REST_TIMEOUT_S: Final = 10.0
INFO_S: Final = 3600.0
"""How often the venue is asked what its symbols are."""
INFO_RETRY_S: Final = 60.0
FIRST_BACKOFF_S: Final = 0.5
NS_PER_S: Final = 10**9
TOO_MANY: Final = (418, 429)


class FeedRunner:
    """Captures one feed until `stop` is set."""

    def __init__(self, feed: FeedConfig, root: str, clock: Clock | None = None, fs: Fs | None = None) -> None:
        """`feed` is one connection of `FeedsConfig.connections`."""
        self.feed = feed
        self.venue = feed.made_venue()
        self.session = FeedSession(self.venue, feed.symbols)
        self.counts: Counter[str] = Counter()
        self.clock_offset_ns: int | None = None
        self.is_connected = False
        self.stop = asyncio.Event()
        self._clock = clock or SystemClock()
        self._fs = fs or OsFs()
        self._queues = FeedQueues(root, feed.name, feed.segment_mib * MIB, self._clock, self._fs)
        at_ts = self._clock.wall_ns() // 1000
        self._queues.learn(
            SymbolDefinition(exchange=self.venue.name, exchange_symbol=symbol, at_ts=at_ts)
            for symbol in feed.symbols
        )
        self._is_first = True
        self._outgoing: deque[str] = deque()
        self._wake = asyncio.Event()
        rest_url = feed.rest_url or self.venue.rest_url
        self._rest = ServerAddress.parse(rest_url) if rest_url else None

    async def run(self) -> None:
        """Connect again and again; return when `stop` is set."""
        status = asyncio.create_task(self._write_status())
        backoff_s = FIRST_BACKOFF_S
        try:
            while not self.stop.is_set():
                frames = self.session.counts["frames"]
                await self._until_stopped(self._one_connection())
                backoff_s = FIRST_BACKOFF_S if self.session.counts["frames"] > frames else backoff_s * 2
                backoff_s = min(backoff_s, self.feed.backoff_max_s)
                # Spread, so that many connections do not come back at once.
                await self._until_stopped(asyncio.sleep(backoff_s * random.uniform(0.5, 1.0)))
        finally:
            status.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await status
            self._store_status(0.0)
            self._queues.close()

    async def _until_stopped(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self.stop.wait())
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    # -- one connection -------------------------------------------------------------------

    async def _one_connection(self) -> None:
        url = (self.feed.url or self.venue.url) + self.venue.path(self.feed.symbols, self.feed.channels)
        reason, detail = "stop", ""
        self.counts["connects"] += 1
        try:
            async with connect(
                url,
                open_timeout=OPEN_TIMEOUT_S,
                max_size=FRAME_BYTES_MAX,
                max_queue=FRAMES_WAITING_MAX,
                ping_interval=self.venue.ping_s,
                ping_timeout=self.venue.ping_s,
                close_timeout=1.0,
                proxy=None,
            ) as socket:
                self._begin()
                reason = await self._capture(socket)
        except asyncio.CancelledError:
            raise
        except (OSError, TimeoutError, WebSocketException, ApiFailed) as error:
            reason, detail = "disconnect", f"{type(error).__name__}: {error}"[:200]
        finally:
            if self.is_connected:
                self._end(reason, detail)
            else:
                self.counts["connect_failures"] += reason != "stop"

    def _begin(self) -> None:
        now_ns = self._clock.wall_ns()
        self.is_connected = True
        self._outgoing.clear()
        is_continued = self._is_first and not self._queues.is_new
        messages = self.session.connected(now_ns, is_continued=is_continued)
        body = PROCESS_START if self._is_first else b""
        self._is_first = False
        self._queues.store(RawFrame(FrameKind.CONNECTED, self.session.connection_id, now_ns, body))
        self._queues.publish(messages, now_ns)
        self._outgoing.extend(self.venue.subscriptions(self.feed.symbols, self.feed.channels))
        self._wake.set()

    def _end(self, reason: str, detail: str) -> None:
        now_ns = self._clock.wall_ns()
        self.is_connected = False
        body = f"{reason}: {detail}".encode()
        self._queues.store(RawFrame(FrameKind.DISCONNECTED, self.session.connection_id, now_ns, body))
        self._queues.publish(self.session.disconnected(reason, detail, now_ns), now_ns)

    async def _capture(self, socket: ClientConnection) -> str:
        """Receive until the connection ends; return why."""
        helpers = [self._send(socket), self._fetch(), self._learn(), self._ping(), self._remind()]
        tasks = [asyncio.create_task(helper) for helper in helpers]
        receiving = asyncio.create_task(self._receive(socket))
        try:
            done, _ = await asyncio.wait((receiving, *tasks), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task is not receiving:
                    task.result()  # a helper ends only with an error
            return await receiving
        finally:
            for task in (receiving, *tasks):
                task.cancel()
            await asyncio.gather(receiving, *tasks, return_exceptions=True)

    async def _receive(self, socket: ClientConnection) -> str:
        stale_s = self.feed.stale_s or self.venue.stale_s
        max_age_ns = int((self.feed.max_age_s or self.venue.max_age_s) * NS_PER_S)
        ends_ns = self._clock.monotonic_ns() + max_age_ns
        while self._clock.monotonic_ns() < ends_ns:
            try:
                async with asyncio.timeout(stale_s):
                    frame = await socket.recv(decode=False)
            except TimeoutError:
                return "stale"
            now_ns = self._clock.wall_ns()
            self._queues.store(RawFrame(FrameKind.FRAME, self.session.connection_id, now_ns, frame))
            self._queues.publish(self.session.frame(frame, now_ns), now_ns)
            self._pass_requests_on()
        return "age"

    def _pass_requests_on(self) -> None:
        if self.session.to_send:
            self._outgoing.extend(self.session.to_send)
            self.session.to_send.clear()
        if self._outgoing or self.session.snapshots_wanted:
            self._wake.set()

    # -- what is sent ---------------------------------------------------------------------

    async def _send(self, socket: ClientConnection) -> None:
        while True:
            while self._outgoing:
                await socket.send(self._outgoing.popleft())
                await asyncio.sleep(1.0 / self.venue.frames_per_s)
            await asyncio.sleep(0.02)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self.venue.ping_s)
            if self.venue.ping_text is not None:
                self._outgoing.append(self.venue.ping_text)

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(min(REMIND_S, 5 * self.feed.retry_s))
            self.session.remind()
            self._pass_requests_on()

    # -- REST -----------------------------------------------------------------------------

    async def _fetch(self) -> None:
        if self._rest is None:
            await asyncio.Event().wait()
        await self._compare_clocks()
        while True:
            self._wake.clear()
            while self.session.snapshots_wanted:
                symbol = self.session.snapshots_wanted.pop(0)
                wait_s = await self._fetch_snapshot(symbol)
                if wait_s:
                    self.session.snapshots_wanted.append(symbol)
                await asyncio.sleep(max(wait_s, 1.0 / self.venue.frames_per_s / 10))
            await self._wake.wait()

    async def _fetch_snapshot(self, symbol: str) -> float:
        """Ask for a book; return after how many seconds to ask again, 0 if it was taken in."""
        target = self.venue.snapshot_target(symbol)
        assert target is not None, "only then a snapshot is wanted"
        try:
            answer = await self._get(target)
        except ApiFailed:
            self.counts["rest_failures"] += 1
            return self.feed.retry_s
        if answer.status in TOO_MANY:
            self.counts[f"rest_{answer.status}"] += 1
            given = answer.headers.get(b"retry-after", b"")
            return float(given) if given.isdigit() and int(given) else 5 * self.feed.retry_s
        if answer.status != 200:
            self.counts["rest_failures"] += 1
            return self.feed.retry_s
        now_ns = self._clock.wall_ns()
        self._queues.store(RawFrame(FrameKind.REST, self.session.connection_id, now_ns, answer.body, symbol))
        self._queues.publish(self.session.snapshot(symbol, answer.body, now_ns), now_ns)
        if symbol in self.session.snapshots_wanted:  # too old: a newer one, but not at once
            self.session.snapshots_wanted.remove(symbol)
            return self.feed.retry_s
        return 0.0

    async def _get(self, target: str) -> Answer:
        assert self._rest is not None, "there is no request without it"
        connection = await AsyncConnection.connect(self._rest, REST_TIMEOUT_S)
        try:
            request = RequestWriter(self._rest).bare_request("GET", target, None, {"Accept": "*/*"})
            return await connection.exchange(request, REST_TIMEOUT_S)
        finally:
            connection.close()

    async def _compare_clocks(self) -> None:
        if self.venue.time_target is None:
            return
        begun_ns = self._clock.wall_ns()
        try:
            answer = await self._get(self.venue.time_target)
            ended_ns = self._clock.wall_ns()
            self.clock_offset_ns = self.venue.server_time_ns(answer.body) - (begun_ns + ended_ns) // 2
        except (ApiFailed, ValueError, KeyError, msgspec.DecodeError):
            self.counts["rest_failures"] += 1

    async def _learn(self) -> None:
        """Keep the symbol catalogue up to date; what is known stays if the venue does not answer."""
        target = self.venue.info_target(self.feed.symbols)
        while self._rest is not None and target is not None:
            wait_s = INFO_RETRY_S
            try:
                answer = await self._get(target)
                if answer.status == 200:
                    now_ts = self._clock.wall_ns() // 1000
                    self._queues.learn(self.venue.decode_info(self.feed.symbols, answer.body, now_ts))
                    wait_s = INFO_S
            except (ApiFailed, ValueError, msgspec.DecodeError):
                self.counts["rest_failures"] += 1
            await asyncio.sleep(wait_s)
        await asyncio.Event().wait()

    # -- status ---------------------------------------------------------------------------

    async def _write_status(self) -> None:
        frames = 0
        while True:
            await asyncio.sleep(STATUS_S)
            now = self.session.counts["frames"]
            self._store_status((now - frames) / STATUS_S)
            frames = now

    def _store_status(self, frames_per_s: float) -> None:
        session = self.session
        status = FeedStatus(
            name=self.feed.name,
            venue=self.venue.name,
            pid=os.getpid(),
            updated_ns=self._clock.wall_ns(),
            connection_id=session.connection_id,
            is_connected=self.is_connected,
            frames_per_s=frames_per_s,
            clock_offset_ms=None if self.clock_offset_ns is None else self.clock_offset_ns / 1e6,
            counts=dict(self.counts + session.counts),
            refusals=session.refusals,
            symbols={
                name: SymbolStatus(
                    state.is_live,
                    dict(state.counts),
                    state.last_received_ns,
                    (state.last_received_ns - state.last_exchange_ns) / 1e6
                    if state.last_exchange_ns
                    else 0.0,
                )
                for name, state in session.symbols.items()
            },
        )
        path = self._queues.events_dir.parent / STATUS_FILE
        replace_file(self._fs, str(path), msgspec.json.encode(status), durable=False)
