"""A server from start to stop: listen, recover, serve, drain, leave.

Owns the order of these steps and the process around them (signals, log lines, port file); what is served is
decided by the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

from everlog.fs import OsFs, replace_file
from everlog.server.app import App
from everlog.server.auth import check_bind, is_loopback
from everlog.server.http import HttpServer
from everlog.server.http_limits import HttpLimits
from everlog.server.logs import configure_logging
from everlog.server.probe_routes import ProbeRoutes
from everlog.server.settings import ServerSettings
from everlog.server.socket_session import WebSocketRoutes
from everlog.server.stream_slots import StreamSlots
from everlog.server.topic_routes import TopicRoutes
from everlog.server.watch_stream import WatchRoutes
from everlog.topics import Engine
from everlog.topics.storage.recovery import Progress

DRAIN_S: Final = 10.0
log = logging.getLogger("everlog.server")


class TopicsServer:
    """One server in a running event loop. `memory` keeps everything in memory only."""

    def __init__(self, settings: ServerSettings, *, memory: bool = False) -> None:
        check_bind(settings.host, settings.api_keys.enabled, settings.allow_insecure_no_auth)
        self.settings = settings
        self.is_memory = memory
        self.address = ("", 0)
        self._app: App | None = None
        self._http: HttpServer | None = None
        self._watch: WatchRoutes | None = None
        self._sockets: WebSocketRoutes | None = None

    async def start(self) -> None:
        """Listen, recover, and be ready."""
        loop = asyncio.get_running_loop()
        self._app = app = App(self.settings, loop, time.monotonic_ns)
        self._http = HttpServer(app, HttpLimits(max_body_bytes=self.settings.max_body_bytes))
        slots = StreamSlots(self.settings)
        TopicRoutes(app)
        self._watch = WatchRoutes(app, slots=slots)
        self._sockets = WebSocketRoutes(app, slots=slots, fan_out=self._watch.fan_out)
        ProbeRoutes(app, self._gauges)
        # Listening before recovery: probes answer, everything else is told to come back.
        self.address = await self._http.start(self.settings.host, self.settings.port)
        try:
            if self.settings.port_file is not None:
                replace_file(OsFs(), self.settings.port_file, _host_and_port(self.address).encode())
            app.engine = await loop.run_in_executor(None, self._open_engine, app)
        except BaseException:
            await self._http.drain(0)
            raise
        app.turn_soon()

    def _open_engine(self, app: App) -> Engine:
        def show(progress: Progress) -> None:
            share = progress.done / progress.total if progress.total else 1.0
            app.replay_progress = share / 2 if progress.phase == "segments" else 0.5 + share / 2

        data_dir = None if self.is_memory else self.settings.data_dir
        return Engine.open(data_dir, self.settings.engine_settings(), wake=app.wake, progress=show)

    def _gauges(self) -> dict[str, int]:
        return {
            "routers": 0,
            "queue_topics": 0,
            "queue_leases_in_flight": 0,
            "sse_connections": self._watch.slots.taken if self._watch is not None else 0,
            "watch_sessions": len(self._watch.sessions) if self._watch is not None else 0,
        }

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Take no more, let what runs finish, and leave one snapshot."""
        app, http = self._app, self._http
        if app is None or http is None:
            return
        http.stop_accepting()
        app.drain()
        if self._watch is not None and self._sockets is not None:
            self._watch.shut_down()
            self._sockets.shut_down()
        await http.drain(drain_s)
        engine = app.engine
        app.stop_turning()
        if engine is not None:
            await asyncio.get_running_loop().run_in_executor(None, engine.close)


def announce(server: TopicsServer) -> None:
    """Log what a person wants to know when a server starts; that it is open to all, loudly."""
    settings = server.settings
    data = "in memory only, gone when it stops" if server.is_memory else os.path.abspath(settings.data_dir)
    log.info("listening on http://%s/v0", _host_and_port(server.address))
    log.info("data: %s", data)
    if settings.api_keys.enabled:
        log.info("keys: on, %d keys", len(settings.api_keys))
        return
    where = "on this machine" if is_loopback(settings.host) else "in the network"
    log.warning(
        "keys: OFF, anyone %s who reaches it may read and delete everything; set TOPICS_API_KEYS", where
    )


def _host_and_port(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _run(
    settings: ServerSettings, memory: bool, started: Callable[[TopicsServer], None] | None
) -> None:
    server = TopicsServer(settings, memory=memory)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await server.start()
    announce(server)
    if started is not None:
        started(server)
    await stopping.wait()
    log.info("stopping")
    await server.stop()
    log.info("stopped")


def run(
    settings: ServerSettings, *, memory: bool = False, started: Callable[[TopicsServer], None] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT."""
    configure_logging(settings.log_level, settings.log_format, sys.stderr)
    # The plain text of the keys is needed no more, and child processes must not inherit it.
    os.environ.pop("TOPICS_API_KEYS", None)
    make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        make_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_run(settings, memory, started))
