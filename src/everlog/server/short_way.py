"""The short way of plain appends: what its native part asks for, and answers that are not plain after all.

Owns when there is a short way, and the way back from it to the routes. What is plain is decided in
`native/plain_append`; whatever is not goes through `http_reading`, `App.handle` and `topic_routes` as ever.
"""

from __future__ import annotations

import sys
import time

from everlog.clock import SystemClock
from everlog.errors import EverlogError
from everlog.native.plain_append import PlainAppend, PlainAppends
from everlog.native.record_batch import RecordBatch
from everlog.server.app import App, Call
from everlog.server.bodies import MAX_NESTING
from everlog.server.compression import COMPRESSED_BYTES_MIN
from everlog.server.http import HttpServer
from everlog.topics import Appended, Durability, Engine
from everlog.topics.appending import frame_ceiling
from everlog.topics.config import CEILING_LOW
from everlog.topics.core import CONTROL_ROOM, QUEUE_MAX
from everlog.topics.topic import Topic


class ShortWay:
    """The owner of the native short way of one server."""

    def __init__(self, app: App, server: HttpServer, engine: Engine) -> None:
        self._app = app
        self._server = server
        self._engine = engine

    def topic_name(self, path: bytes) -> str | None:
        """The topic to which a POST of this path appends; None if it means something else."""
        return self._app.appended_topic(path)

    def append(self, topic: Topic, records: RecordBatch, now_ms: int) -> Appended | None:
        """Append a batch that needs more than its frames; None if it is refused, which the routes tell."""
        try:
            return self._engine.append_batch(topic, records, now_ms)
        except EverlogError:
            return None

    def answer_late(self, append: PlainAppend, body: bytes, error: Exception | None) -> None:
        """Answer as the routes would have: with an error, or with more than the usual head."""
        exchange = append.connection.take_over(append)
        call = Call(exchange, append.started_ns)
        call.name = append.topic.name
        if error is not None:
            self._app.fail(call, error)
        else:
            self._app.answer(call, body)


def open_short_way(app: App, server: HttpServer, engine: Engine) -> PlainAppends | None:
    """The short way to an engine; None if every request needs a closer look."""
    settings = app.settings
    if settings.api_keys.enabled or settings.cors_origins or engine.core.settings.max_total_bytes:
        return None
    clock = engine.core.clock
    return PlainAppends(
        ShortWay(app, server, engine),
        app,
        server,
        engine.core,
        # Asked for with every append, so the system's own clock is bound directly.
        wall_ns=time.time_ns if type(clock) is SystemClock else clock.wall_ns,
        classes=Durability,
        frame_ceiling=frame_ceiling,
        limits=server.plain_limits,
        uncounted_bytes=server.limits.uncounted_body_bytes,
        packed_bytes=COMPRESSED_BYTES_MIN if settings.gzip else sys.maxsize,
        ceiling_low=CEILING_LOW,
        queue_max=QUEUE_MAX,
        control_room=CONTROL_ROOM,
        max_nesting=MAX_NESTING,
    )
