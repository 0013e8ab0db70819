"""A server without sockets: transports keep what is written to them, and time and loop move by calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everlog.clock import NS_PER_S, TestClock
from everlog.fs import OsFs
from everlog.server.app import App
from everlog.server.http import HttpServer
from everlog.server.http_connection import HttpConnection
from everlog.server.topic_routes import TopicRoutes
from everlog.topics import Engine
from tests.support.engines import HeldSyncs
from tests.support.http_cases import settings_of


class SteppedLoop:
    """A loop that runs what is due when it is told to."""

    def __init__(self) -> None:
        self._ready: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Run it in the next `turn`."""
        self._ready.append(lambda: callback(*arguments))

    call_soon_threadsafe = call_soon

    def call_later(self, _delay_s: float, _callback: Callable[[], None]) -> SteppedLoop:
        """Never run it: time stands still."""
        return self

    def cancel(self) -> None:
        """As the handle of a timer."""

    def turn(self) -> None:
        """Run what was due when this was called."""
        ready, self._ready = self._ready, []
        for callback in ready:
            callback()


class MemoryTransport(asyncio.Transport):
    """A transport whose client reads everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_over = False

    def write(self, data: Any) -> None:
        """Remember it."""
        self.written += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is nothing to limit."""

    def get_write_buffer_size(self) -> int:
        """All is read."""
        return 0

    def is_closing(self) -> bool:
        """Whether the server has ended the connection."""
        return self.is_over

    def close(self) -> None:
        """The server ends the connection."""
        self.is_over = True

    def abort(self) -> None:
        """The server ends the connection at once."""
        self.is_over = True

    def write_eof(self) -> None:
        """The server sends nothing more."""

    def pause_reading(self) -> None:
        """Tests send what they like."""

    def resume_reading(self) -> None:
        """Tests send what they like."""


class SteppedServer:
    """A server with its engine and some connections."""

    def __init__(self, folder: Path | None, *, connections: int = 2, fs: OsFs, **settings: Any) -> None:
        self.clock = TestClock()
        self.fs = fs
        self.loop = SteppedLoop()
        self.app = App(settings_of(wal_shards=1, **settings), self.loop, lambda: 0)  # type: ignore[arg-type]
        TopicRoutes(self.app)
        self.syncs = HeldSyncs()
        self.syncs.wake = self.app.wake
        self.engine = Engine.open(
            folder, self.app.settings.engine_settings(), clock=self.clock, fs=fs, syncs=self.syncs
        )
        self.app.engine = self.engine
        self.server = HttpServer(self.app, clock=self.clock)
        self.server.loop = self.loop  # type: ignore[assignment]
        self.server.now_s = lambda: self.clock.monotonic_ns() / NS_PER_S
        self.server._emptied = asyncio.Event()
        self.server._render_heads()
        self.transports = [MemoryTransport() for _ in range(connections)]
        self.connections = [HttpConnection(self.server) for _ in self.transports]
        for connection, transport in zip(self.connections, self.transports, strict=True):
            connection.connection_made(transport)

    def turn(self) -> None:
        """One turn of the loop; what was waited for a while is due."""
        self.clock.advance_ns(20_000_000)
        self.app.turn_soon()
        self.loop.turn()

    @property
    def written(self) -> list[bytes]:
        """What each client has got."""
        return [transport.written for transport in self.transports]

    def log_bytes(self) -> list[bytes]:
        """What is written to the log, and what is gathered for it."""
        parts: list[bytes] = []
        for shard in self.engine._core.shards:
            with open(shard.wal.files[-1].path, "rb") as file:
                parts.append(file.read(shard.wal.position.offset))
            parts.append(bytes(shard.wal.buffer))
        return parts

    def close(self) -> None:
        """End the engine without a checkpoint."""
        self.engine.abandon()
