"""A server from start to stop: listen, recover, serve, drain, leave.

Owns the order of these steps and the process around them (signals, log lines, port file); what is served is
decided by the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from everlog.errors import InvalidConfig, Io
from everlog.fs import OsFs, replace_file
from everlog.queue.control import ControlBlock
from everlog.server.app import App
from everlog.server.auth import Key, check_bind, is_loopback
from everlog.server.busy_time import busy_ns
from everlog.server.console_routes import ConsoleRoutes
from everlog.server.consumer_routes import ConsumerRoutes
from everlog.server.following import Follower
from everlog.server.http import HttpServer
from everlog.server.http_exchange import HttpLimits
from everlog.server.job_admin_routes import JobAdminRoutes
from everlog.server.job_routes import ClaimWindows, JobRoutes
from everlog.server.key_file import read_key_file, reload_time_ns
from everlog.server.lake_routes import LakeRoutes
from everlog.server.logs import configure_logging
from everlog.server.market_routes import MarketRoutes
from everlog.server.overview_routes import OverviewRoutes
from everlog.server.probe_routes import ProbeRoutes
from everlog.server.queue_routes import QueueRoutes
from everlog.server.router_routes import RouterRoutes
from everlog.server.schedule_routes import ScheduleRoutes
from everlog.server.settings import ServerSettings
from everlog.server.socket_session import WebSocketRoutes
from everlog.server.streams import StreamSlots
from everlog.server.summary_routes import SummaryRoutes
from everlog.server.topic_routes import TopicRoutes
from everlog.server.watch_stream import WatchRoutes
from everlog.server.work_stream import WorkRoutes
from everlog.topics import Engine
from everlog.topics.replica import Replica
from everlog.topics.storage.recovery import Progress

DRAIN_S: Final = 10.0
GIVE_UP_SHARE: Final = 0.8
"""Writes that the backup does not take are given up before connections are, so that they are answered."""
REVOKE_INTERVAL_S: Final = 2.0
"""Between two looks for streams whose key has expired."""
COLLECTOR_ALLOCATIONS: Final = 10_000
"""New objects after which the garbage collector looks at them, and soon once more: some 5 ms at most."""
COLLECTOR_ROUNDS: Final = 1000
"""After so many of these it may look at all objects."""
BODIES_OF_LENGTH: Final = 4
DESCRIPTORS_RESERVED: Final = 256
"""Open files that clients cannot use up, or half of all if the limit is lower than twice that."""
log = logging.getLogger("everlog.server")


def _check_data_dir(path: str) -> None:
    """Refuse what cannot be, or must not become, a data directory."""
    if os.path.exists(path) and not os.path.isdir(path):
        raise InvalidConfig(
            f"the data directory {path} is a file; name a directory, it is made if it is absent"
        )
    if ControlBlock.exists(OsFs(), path):
        raise InvalidConfig(f"the data directory {path} holds a queue; name another one for topics")


class StartCancelled(Exception):
    """The server was stopped before it was ready."""


class _Keyed(Protocol):
    """A stream that ends when its key does."""

    @property
    def key(self) -> Key | None: ...

    def revoke(self) -> None: ...


class TopicsServer:
    """One server in a running event loop. `memory` keeps everything in memory only.

    A host that is a name is looked up here, which may block: make the server before the loop runs.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        memory: bool = False,
        source: str | None = None,
        follow_interval_s: float = 1.0,
    ) -> None:
        """With `source` the server is a standby of the one that ships there."""
        path = settings.api_keys_file
        if path is not None:
            own = settings.api_keys
            settings = replace(settings, api_keys=own.with_file(read_key_file(path, own.next_number)))
        check_bind(settings.host, settings.api_keys.enabled, settings.allow_insecure_no_auth)
        self.settings = settings
        self.is_memory = memory
        self._source = source
        self._follow_interval_s = follow_interval_s
        self.replica: Replica | None = None
        self._follower: Follower | None = None
        self.is_local = is_loopback(settings.host)
        self.address = ("", 0)
        self._is_cancelled = False
        self._port_is_written = settings.port_file is None
        self._reload_asked_ns = 0
        self._app: App | None = None
        self._http: HttpServer | None = None
        self._watch: WatchRoutes | None = None
        self._sockets: WebSocketRoutes | None = None
        self._work: WorkRoutes | None = None

    async def start(self) -> None:
        """Listen, recover, and be ready; raises StartCancelled after `cancel_start`."""
        loop = asyncio.get_running_loop()
        self._app = app = self.build_app(loop)
        self._http = HttpServer(app, _http_limits(self.settings))
        # Listening before recovery: probes answer, everything else gets 503.
        self.address = await self._http.start(self.settings.host, self.settings.port)
        try:
            app.engine = await loop.run_in_executor(None, self._open_engine, app)
        except BaseException:
            await self._http.drain(0)
            raise
        if self.settings.api_keys_file is not None:
            self._reload_asked_ns = reload_time_ns(self.settings.api_keys_file)
            loop.call_later(REVOKE_INTERVAL_S, self._revoke_regularly)
        if self.replica is not None:
            self._follower = Follower(app, self.replica, self._follow_interval_s)
        app.engine.delivery.measure_busy(busy_ns)
        self._overview.start()
        app.turn_soon()

    def build_app(self, loop: asyncio.AbstractEventLoop) -> App:
        """The application with all its routes; the documents of the API are made from these."""
        app = App(self.settings, loop, time.monotonic_ns)
        slots = StreamSlots(self.settings)
        TopicRoutes(app)
        ConsumerRoutes(app)
        SummaryRoutes(app)
        JobAdminRoutes(app)
        ScheduleRoutes(app)
        RouterRoutes(app)
        self._watch = WatchRoutes(app, slots=slots)
        self._sockets = WebSocketRoutes(app, slots=slots, fan_out=self._watch.fan_out)
        windows = ClaimWindows(app, loop)
        JobRoutes(app, windows)
        self._work = WorkRoutes(app, windows, slots=slots)
        self.probes = ProbeRoutes(app, self._gauges, self._connections, slots.of_key)
        self._overview = OverviewRoutes(app, self._gauges, is_memory=self.is_memory)
        queues = QueueRoutes(app)
        MarketRoutes(app, queues)
        LakeRoutes(app, queues)
        ConsoleRoutes(app)
        return app

    def reload_keys(self) -> None:
        """Read the key file again; if it cannot be used, the keys stay as they are."""
        path, keys = self.settings.api_keys_file, self.settings.api_keys
        if path is None:
            return
        try:
            keys.replace_file_keys(read_key_file(path, keys.next_number))
        except InvalidConfig as error:
            log.error("the keys stay as they were: %s", error)
            return
        log.info("the key file was read again: %d keys", len(keys))
        self._end_revoked()

    def _end_revoked(self) -> None:
        """End the streams whose key was removed or has expired."""
        assert self._watch is not None and self._sockets is not None and self._work is not None
        streams: tuple[_Keyed, ...] = (*self._watch.streams, *self._sockets.sessions, *self._work.streams)
        for stream in streams:
            if stream.key is not None and not self.settings.api_keys.is_valid(stream.key):
                stream.revoke()

    def _revoke_regularly(self) -> None:
        if self._app is not None and not self._app.is_draining:
            asked_ns = reload_time_ns(self.settings.api_keys_file or "")
            if asked_ns != self._reload_asked_ns:
                self._reload_asked_ns = asked_ns
                self.reload_keys()
            self._end_revoked()
            self._app.loop.call_later(REVOKE_INTERVAL_S, self._revoke_regularly)

    def cancel_start(self) -> None:
        """Give up recovery as soon as it looks up; what is on disk stays as it is."""
        self._is_cancelled = True
        if self._app is not None:
            self._app.drain()

    def _open_engine(self, app: App) -> Engine:
        def show(progress: Progress) -> None:
            if self._is_cancelled:
                raise StartCancelled("stopped while the log was being replayed")
            # From here on the data directory is locked: another server that was refused never gets so far.
            self._write_port_file()
            share = progress.done / progress.total if progress.total else 1.0
            app.replay_progress = share / 2 if progress.phase == "segments" else 0.5 + share / 2

        data_dir = None if self.is_memory else self.settings.data_dir
        if data_dir is not None:
            _check_data_dir(data_dir)
        if self._source is not None:
            return self._open_replica(app, self._source)
        host, port = self.address
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        settings = replace(self.settings.engine_settings(), backup_address=url)
        engine = Engine.open(data_dir, settings, wake=app.wake, progress=show, fills_later=True)
        try:
            self._write_port_file()
        except BaseException:
            engine.abandon()
            raise
        return engine

    def _open_replica(self, app: App, source: str) -> Engine:
        settings = replace(self.settings.engine_settings(), backup_url=None, ack="local", cold_dir=None)
        replica = Replica(source, self.settings.data_dir, settings, wake=app.wake)
        engine = replica.open()
        try:
            self._write_port_file()
        except BaseException:
            engine.close()
            replica.close()
            raise
        self.replica = replica
        return engine

    def _write_port_file(self) -> None:
        """Write the port file, once."""
        path = self.settings.port_file
        if self._port_is_written or path is None:
            return
        try:
            replace_file(OsFs(), path, _host_and_port(self.address).encode())
        except OSError as error:
            reason = error.strerror or str(error)
            raise Io(f"the port file {path} cannot be written: {reason}", error.errno) from error
        self._port_is_written = True

    def _gauges(self) -> dict[str, int]:
        return {
            "routers": 0 if self._app is None or self._app.engine is None else self._app.engine.router_count,
            "sse_connections": self._watch.slots.taken if self._watch is not None else 0,
            "watch_sessions": len(self._watch.sessions) if self._watch is not None else 0,
        }

    def _connections(self) -> dict[str, int]:
        """Open connections by what they are used for."""
        kinds = {
            "sse": 0 if self._watch is None else len(self._watch.streams),
            "ws": 0 if self._sockets is None else self._sockets.open_sockets,
            "work": 0 if self._work is None else len(self._work.streams),
        }
        everything = 0 if self._http is None else self._http.connections
        return {"http": max(0, everything - sum(kinds.values())), **kinds}

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
        if self._work is not None:
            self._work.shut_down()
        if app.engine is not None and drain_s:
            app.engine.begin_close(drain_s * GIVE_UP_SHARE)
        await http.drain(drain_s)
        if self._follower is not None:
            await self._follower.stop()
        engine = app.engine
        app.stop_turning()
        if engine is not None:
            await asyncio.get_running_loop().run_in_executor(None, engine.close)


def _http_limits(settings: ServerSettings) -> HttpLimits:
    """Whatever the longest body is, a few of them have room."""
    longest = settings.max_body_bytes
    usual = HttpLimits()
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        descriptors = DESCRIPTORS_RESERVED + usual.max_connections
    # The log must be able to rotate, and checkpoints to write segments, whatever clients hold open.
    reserved = min(DESCRIPTORS_RESERVED, descriptors // 2)
    return HttpLimits(
        max_body_bytes=longest,
        max_bodies_bytes=max(BODIES_OF_LENGTH * longest, usual.max_bodies_bytes),
        max_connections=min(usual.max_connections, descriptors - reserved),
        listen_backlog=min(usual.listen_backlog, max(16, reserved // 2)),
    )


def _raise_descriptor_limit() -> None:
    """Let the process have as many open files as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def announce(server: TopicsServer) -> None:
    """Log what a person wants to know when a server starts; warn if it is open to all."""
    settings = server.settings
    data = "in memory only, gone when it stops" if server.is_memory else os.path.abspath(settings.data_dir)
    log.info("listening on http://%s/v0", _host_and_port(server.address))
    log.info("data: %s", data)
    if settings.api_keys.enabled:
        log.info("keys: on, %d keys", len(settings.api_keys))
        return
    where = "on this machine" if server.is_local else "in the network"
    log.warning(
        "keys: OFF, anyone %s who reaches it may read and delete everything; set TOPICS_API_KEYS", where
    )


def _host_and_port(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _run(server: TopicsServer, started: Callable[[TopicsServer], None] | None) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    is_starting = True

    def stop() -> None:
        stopping.set()
        if is_starting:
            server.cancel_start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if server.settings.api_keys_file is not None:
        loop.add_signal_handler(signal.SIGHUP, server.reload_keys)
    try:
        await server.start()
    except StartCancelled:
        log.info("stopped before it was ready; the data directory is as it was")
        return
    is_starting = False
    _freeze_gc()
    announce(server)
    if started is not None:
        started(server)
    await stopping.wait()
    log.info("stopping")
    await server.stop()
    log.info("stopped")


def _freeze_gc() -> None:
    """Let the garbage collector pass over what was there at the start, and look at the rest less often.

    Nearly everything that a request makes goes away by itself. To look through all objects every few
    hundred requests would be the longest wait that a client sees.
    """
    gc.collect()
    gc.freeze()
    # Each object that stays is looked at twice. To gather many of them before the second time would save
    # nothing and make it one long step: 90 ms in a checkpoint of 60,000 topics.
    gc.set_threshold(COLLECTOR_ALLOCATIONS, 1, COLLECTOR_ROUNDS)


def run(
    settings: ServerSettings,
    *,
    memory: bool = False,
    source: str | None = None,
    follow_interval_s: float = 1.0,
    started: Callable[[TopicsServer], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; with `source` as a standby of the server that ships there."""
    _raise_descriptor_limit()
    configure_logging(settings.log_level, settings.log_format, sys.stderr)
    # The plain text of the keys is needed no more, and child processes must not inherit it.
    os.environ.pop("TOPICS_API_KEYS", None)
    server = TopicsServer(settings, memory=memory, source=source, follow_interval_s=follow_interval_s)
    make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        make_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_run(server, started))
