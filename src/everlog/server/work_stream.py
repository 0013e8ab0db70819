"""GET /v0/topics/:queue/work: jobs pushed to a worker for as long as it is connected.

Owns the open streams of every job queue, the leases each of them holds, and when they are served again: as
soon as the engine says that there may be jobs or room, and when the next lease or delay ends. A stream that
ends releases exactly the leases it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from everlog.errors import Closed, EverlogError, NotAQueue, TopicNotFound
from everlog.server import sse
from everlog.server.app import App, Call, Route, scope_missing
from everlog.server.auth import Key, Scope
from everlog.server.errors import ApiError, from_engine, invalid
from everlog.server.http import Stream
from everlog.server.job_routes import Claimer, ClaimWindows
from everlog.server.origins import check_state_changing_get
from everlog.server.streams import KEY_REVOKED, Heartbeat, StreamSlots, Timer, Timers, stream_key
from everlog.topics import Claimed, ClaimRequest, Commit
from everlog.topics.jobs.claims import CLAIM_MAX, check_node

HEARTBEAT_S: Final = 15.0
# What is pushed before the connection of the worker is checked again, so that its buffer stays bounded.
PUSH_BYTES_MAX: Final = 256 * 1024
_json: Final = msgspec.json.Encoder()


class WorkStream:
    """One connected worker."""

    def __init__(
        self, queue: WorkQueue, stream: Stream, key: Key | None, node: str, maximum: int, lease_ms: int | None
    ) -> None:
        self._queue = queue
        self._stream = stream
        self._node = node
        self._maximum = maximum
        self._lease_ms = lease_ms
        self._topic: bytes = _json.encode(queue.name)
        self._output_s = queue.timers.time()
        self._heartbeat: Heartbeat | None = None
        self._is_over = False
        self.key = key
        self.held: dict[int, int] = {}  # running leases, seq -> lease id; the engine removes those that end

    def start(self) -> None:
        """Send the first line and ask for jobs."""
        self._stream.on_gone = self.end
        self._stream.on_writable = self._queue.serve_soon
        self._write(sse.RETRY)
        self._heartbeat = Heartbeat(self._queue.timers, HEARTBEAT_S, lambda: self._output_s, self._beat)
        self._queue.join(self)

    @property
    def wants_jobs(self) -> bool:
        """Whether it has room, and reads what it is sent."""
        return not self._is_over and len(self.held) < self._maximum and self._stream.is_writable

    def request(self) -> ClaimRequest | None:
        """What the worker wants now."""
        if not self.wants_jobs:
            return None
        wanted = self._maximum - len(self.held)
        return ClaimRequest(self._node, wanted, self._lease_ms, self.held, PUSH_BYTES_MAX)

    def served(self, claimed: Claimed) -> None:
        """Send the jobs once their leases are committed."""
        if claimed.jobs:
            claimed.commit.on_done(lambda commit: self._send(claimed, commit))
            if claimed.ready and self.wants_jobs:
                self._queue.serve_soon()

    def refused(self, error: EverlogError) -> None:
        """End the stream with the error."""
        self.fail(error)

    def _send(self, claimed: Claimed, commit: Commit) -> None:
        if self._is_over:
            return
        if commit.error is not None:
            self.fail(commit.error)
            return
        topic = self._topic
        self._write(
            b"".join(
                b'event: job\nid: %d\ndata: {"topic":%b,%b\n\n' % (seq, topic, job[1:])
                for seq, job in zip(claimed.leases, claimed.jobs, strict=True)
            )
        )

    def _write(self, frames: bytes) -> None:
        self._stream.write(frames)
        self._output_s = self._queue.timers.time()

    def _beat(self) -> None:
        if self._stream.buffered == 0:
            self._write(sse.HEARTBEAT)

    # --- The end -----------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """End the stream with the reason."""
        if isinstance(error, NotAQueue | TopicNotFound):
            self.end_with(sse.error(409, f"this queue is gone: {error}"))
        elif isinstance(error, Closed | ApiError):
            self.shut_down()
        elif isinstance(error, EverlogError):
            self.end_with(sse.error("internal", str(from_engine(error, None))))
        else:
            self.end_with(sse.error("internal", "internal error; see the server log"))

    def shut_down(self) -> None:
        """The server stops."""
        self.end_with(sse.error("server_shutting_down", "the server is shutting down; connect again"))

    def revoke(self) -> None:
        """The key of the stream no longer works."""
        self.end_with(sse.error("unauthorized", KEY_REVOKED))

    def end_with(self, frame: bytes) -> None:
        """Send a last frame and end."""
        if not self._is_over:
            self._stream.write(frame)
            self._stream.close()
            self.end()

    def end(self) -> None:
        """Release everything the stream holds, once."""
        if self._is_over:
            return
        self._is_over = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._queue.leave(self)

    def release(self, release: Callable[[str, str, dict[int, int]], None]) -> None:
        """Release the leases that still run."""
        if self.held:
            release(self._queue.name, self._node, dict(self.held))


class WorkQueue:
    """The workers that are connected to one job queue."""

    def __init__(self, routes: WorkRoutes, name: str, epoch: int) -> None:
        self._routes = routes
        self._epoch = epoch
        self._streams: dict[WorkStream, None] = {}
        self._serve_is_due = False
        self._timer: Timer | None = None
        self.name = name
        self.timers = routes.timers

    def join(self, stream: WorkStream) -> None:
        """Add a worker."""
        self._streams[stream] = None
        self.serve_soon()

    def leave(self, stream: WorkStream) -> None:
        """Remove a worker; its jobs are claimable at once."""
        self._streams.pop(stream, None)
        self._routes.windows.leave(self.name, stream)
        self._routes.stream_ended(self, stream)
        if not self._streams:
            self._forget()

    def is_of(self, epoch: int) -> bool:
        """Whether it belongs to this instance of the topic."""
        return self._epoch == epoch

    def serve_soon(self) -> None:
        """Serve all workers after the current callback: there may be jobs, or room for them."""
        if not self._serve_is_due:
            self._serve_is_due = True
            self._routes.app.loop.call_soon(self._serve_due)

    def _serve_due(self) -> None:
        self._serve_is_due = False
        if not self._streams:
            return
        try:
            self._serve()
        except (EverlogError, ApiError) as error:
            for stream in tuple(self._streams):
                stream.fail(error)
        self._routes.app.turn_soon()

    def _serve(self) -> None:
        engine = self._routes.app.ready_engine()
        if engine.state(self.name, touch=False).epoch != self._epoch:
            raise TopicNotFound(
                f"the topic {self.name!r} of this stream was deleted; there is another one now"
            )
        engine.on_jobs(self.name, self.serve_soon)  # before looking, so that nothing is missed in between
        engine.expire_jobs(self.name)
        wanting: list[Claimer] = [stream for stream in self._streams if stream.wants_jobs]
        if wanting:
            # The first worker now is the last one next time, so that it does not get everything.
            first = next(iter(self._streams))
            del self._streams[first]
            self._streams[first] = None
            self._routes.windows.claim(self.name, wanting)
        self._arm(engine.expire_jobs(self.name))

    def _arm(self, delay_ms: int | None) -> None:
        """Serve again when the next lease or delay ends."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay_ms is None else self.timers.call_later(delay_ms / 1000, self.serve_soon)

    def _forget(self) -> None:
        self._arm(None)
        self._routes.forget_queue(self)
        engine = self._routes.app.engine
        if engine is not None:
            engine.forget_jobs(self.name, self.serve_soon)


class WorkRoutes:
    """The handler of /work, and the streams that are open."""

    def __init__(
        self, app: App, windows: ClaimWindows, *, slots: StreamSlots, timers: Timers | None = None
    ) -> None:
        self.app = app
        self.windows = windows
        self.slots = slots
        self.timers: Timers = timers or app.loop
        self.streams: set[WorkStream] = set()
        self._queues: dict[str, WorkQueue] = {}
        both = Scope.READ | Scope.WRITE
        app.add("GET", "/v0/topics/:name/work", Route(both, self.open_stream, checks_key=True))

    def open_stream(self, call: Call) -> None:
        """GET /v0/topics/:queue/work."""
        key = self._check_key(call)
        if not sse.is_acceptable(call.request.header(b"accept")):
            raise ApiError(406, "not_acceptable", "this route sends text/event-stream only")
        query = call.query()
        node = query.get("node", "")
        check_node(node)
        maximum = min(max(_number(query, "max", 1), 1), CLAIM_MAX)
        lease_ms = _number(query, "lease_ms", 0) if query.get("lease_ms") else None
        engine = self.app.ready_engine()
        engine.expire_jobs(call.name)  # raises if there is no such queue
        epoch = engine.state(call.name, touch=False).epoch
        self.slots.take(key)
        stream = call.exchange.start_stream(200, sse.STREAM_HEADERS + self.app.cors_headers(call))
        if stream.is_closed:  # the answer to HEAD, or the client has gone already
            self.slots.give_back(key)
            return
        queue = self._queues.get(call.name)
        if queue is None or not queue.is_of(epoch):
            queue = self._queues[call.name] = WorkQueue(self, call.name, epoch)
        work = WorkStream(queue, stream, key, node, maximum, lease_ms)
        self.app.answered.note(call, 200, self.app.now_ns())
        self.streams.add(work)
        work.start()

    def _check_key(self, call: Call) -> Key | None:
        """The key of a worker, which must allow to read and write this job queue."""
        key = stream_key(self.app, call.request, "send a valid key as a bearer token or as ?token=")
        if key is None:
            check_state_changing_get(call.request.headers)
            return None
        if not key.allows(Scope.READ | Scope.WRITE):
            raise scope_missing(Scope.READ | Scope.WRITE)
        if not key.allows_name(call.name.encode()):
            raise ApiError(
                403, "forbidden", f"this key may not use the name {call.name!r}", {"topic": call.name}
            )
        return key

    def stream_ended(self, queue: WorkQueue, work: WorkStream) -> None:
        """Release the slot and the leases of a stream."""
        self.streams.discard(work)
        self.slots.give_back(work.key)
        engine = self.app.engine
        if engine is not None:
            work.release(engine.release)
            self.app.turn_soon()

    def forget_queue(self, queue: WorkQueue) -> None:
        """Drop a job queue without workers."""
        if self._queues.get(queue.name) is queue:
            del self._queues[queue.name]

    def shut_down(self) -> None:
        """End every stream with an error that asks the worker to connect again; its leases are released."""
        for work in tuple(self.streams):
            work.shut_down()


def _number(query: dict[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) >= 2**64:
        raise invalid(f"{name} is {text!r}; it must be an unsigned 64-bit number")
    return int(text)
