"""GET /v0/watch/:wid: the stream of a session, from its first frame to its end.

Owns what one connection was sent and what it gets next. It pulls: records are read when the client has room
for them, so a slow reader costs no memory and holds up nobody; it lags, and what comes meanwhile is sent
together. Who is told of changes, and rendering, are in `fan_out`; the text of frames in `sse`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from everlog.errors import Closed, EverlogError
from everlog.native.live_readers import Place
from everlog.server import sse
from everlog.server.app import App, Call, Route
from everlog.server.auth import Scope, bearer_token, token_of_query
from everlog.server.errors import CHALLENGE, ApiError
from everlog.server.fan_out import Batch, FanOut, Watcher
from everlog.server.http import Stream
from everlog.server.stream_slots import StreamSlots
from everlog.server.watch_sessions import Position, Session, WatchSessions

# So many frames of one topic may go before another one that has a backlog too; a small backlog is sent whole.
BURST_FRAMES: Final = 64
# A timer may go off a rounding error before its time; waiting for the rest of it would be a busy loop.
TIMER_SLACK_S: Final = 0.0005
_json = msgspec.json.Encoder()


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Take it back."""
        ...


class Timers(Protocol):
    """The time that heartbeats and slow readers are measured in; an event loop is one."""

    def time(self) -> float:
        """Now, in seconds."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call back after so many seconds."""
        ...


class SlowLimits(NamedTuple):
    """What happens to a reader whose connection takes nothing more, and when.

    The queue of a connection is the output that the kernel has not taken: it counts as full at the limit of
    the HTTP layer (64 KiB), which is less than 1024 frames, since each has 64 bytes or more.
    """

    skip_after_s: float = 5.0
    """A topic that may lose records is resumed at its head, with a tombstone for what was passed over."""
    close_after_s: float = 30.0
    """The stream ends; its session can be resumed."""


def _place(name: str, position: Position) -> Place:
    """Where a stream begins in a topic."""
    return Place(name, _json.encode(name), position.seq, position.epoch, position.head_seq)


class WatchStream(Watcher):
    """One open stream."""

    __slots__ = (
        "_beat_timer",
        "_cursors",
        "_dirty",
        "_full_since_s",
        "_full_timer",
        "_is_over",
        "_left",
        "_only",
        "_places",
        "_routes",
        "_session",
        "_stream",
        "_under_way",
    )

    def __init__(self, routes: WatchRoutes, session: Session, stream: Stream) -> None:
        self._routes = routes
        self._session = session
        self._stream = stream
        self._places = {name: _place(name, position) for name, position in session.positions.items()}
        self._cursors = {name: place.seq for name, place in self._places.items()}
        self._left = len(self._places)
        self._dirty: dict[str, None] = dict.fromkeys(self._places)  # topics to look at, the first one first
        # Who watches one topic, in pieces of HTTP/1.1, gets what others get, to the byte.
        is_alone = len(self._places) == 1 and stream.takes_chunks
        self._only = next(iter(self._places.values())) if is_alone else None
        # How far topics were before the first frame that the kernel has not taken, if there is any.
        self._under_way: dict[Place, tuple[int, int]] = {}
        self.outlet = stream.outlet
        self.wishes = session.wishes
        self.output_s = routes.timers.time()
        self._full_since_s: float | None = None
        self._full_timer: Timer | None = None
        self._beat_timer: Timer | None = None
        self._is_over = False
        session.owner = self

    def start(self) -> None:
        """Send the first line and begin with the backlog."""
        self._stream.on_gone = self.end
        self._stream.on_writable = self._writable
        for name in self._places:
            self._routes.fan_out.join(name, self)
        self._write(sse.RETRY)
        self._arm_heartbeat(self._session.heartbeat_ms / 1000)
        self._routes.fan_out.serve_soon(self)

    # --- What to look at next ----------------------------------------------------------------------------

    def topic_changed(self, name: str) -> bool:
        """There may be something new in this topic, or it is gone."""
        self.at_ease = None
        place = self._places[name]
        if place.is_gone or place.held is not None:
            return False
        self._dirty[name] = None
        return True

    def pump(self) -> None:
        """Send the next of what is due, if the client has room for it."""
        if self._is_over or not self._dirty:
            return
        stream = self._stream
        if not stream.is_writable:
            self._note_full()
            return
        if self._under_way and stream.buffered == 0:
            self._under_way.clear()
        place = self._only or self._places[next(iter(self._dirty))]
        batch = place.held
        if batch is None:
            batch = self._routes.fan_out.read(place.name, place.epoch, place.seq, self.wishes)
            if batch is not None and batch.is_plain and place is self._only and self._pass_on(place, batch):
                self._rest()
                return
        if batch is None:
            self._send_deleted(place)
        elif not batch.commit.done:
            self._hold(place, batch)
        elif batch.commit.error is not None:
            self.fail(batch.commit.error)
        elif not batch.is_incomplete:
            self._deliver(place, batch)
        if self._dirty and not self._is_over:
            self._routes.fan_out.serve_soon(self)
        else:
            self._rest()

    def _rest(self) -> None:
        """Nothing is due: if it stays so simple, what comes next can be passed on without asking."""
        place = self._only
        if (
            place is not None
            and place.is_live
            and place.held is None
            and not (place.skips or self._dirty or self._under_way or self._is_over)
        ):
            self.at_ease = place

    def rendered(self, batch: Batch) -> bytes:
        """The frame and its framing: who follows one topic gets them as others do, to the byte."""
        return batch.chunk_alone

    def passed_in_part(self, data: bytes, sent_bytes: int, before_seq: int) -> None:
        """What everybody gets was not taken as a whole: the rest waits in the transport."""
        place, outlet = self.at_ease, self.outlet
        assert place is not None and outlet is not None, "only who is at ease is passed anything"
        self.at_ease = None
        self._under_way.setdefault(place, (before_seq, place.epoch))
        outlet.finish(data, sent_bytes)

    def _pass_on(self, place: Place, batch: Batch) -> bool:
        """Send what everybody gets who is live in one topic, the short way; False if it is not so simple."""
        commit = batch.commit
        if not place.is_live or place.skips or not commit.done or commit.error is not None:
            return False
        before = place.seq
        place.seq = self._cursors[place.name] = batch.to_seq
        place.head_seq = batch.head_seq
        self._dirty.clear()
        self.output_s = self._routes.timers.time()
        if self._stream.write_chunk(batch.chunk_alone):
            self._under_way.setdefault(place, (before, place.epoch))
        return True

    def _hold(self, place: Place, batch: Batch) -> None:
        """What was read may not be shown yet, or a cold segment is on its way; other topics go on."""
        del self._dirty[place.name]
        place.held = batch
        batch.commit.on_done(lambda _: self._release(place, batch))

    def _release(self, place: Place, batch: Batch) -> None:
        if self._is_over:
            return
        if batch.is_incomplete and batch.commit.error is None:
            place.held = None  # it is there now: read again
        self._dirty = {place.name: None, **self._dirty}
        self._routes.fan_out.serve_soon(self)

    # --- Frames ------------------------------------------------------------------------------------------

    def _deliver(self, place: Place, batch: Batch) -> None:
        """Send what was read and move the cursor."""
        was_held, place.held = place.held is not None, None
        before = (place.seq, place.epoch)
        if place.skips and batch.loss and batch.epoch == place.epoch and batch.head_seq > place.seq:
            frames = self._skip(place, batch, batch.loss)
            is_caught_up = True
        else:
            frames = self._lost(place, batch) + self._records(place, batch)
            is_caught_up = batch.caught_up
        place.is_first = place.skips = False
        place.epoch = batch.epoch
        place.head_seq = batch.head_seq
        frames += self._after_read(place, is_caught_up)
        if was_held:
            self._dirty[place.name] = None  # it was not told of what has come meanwhile
        self._write(frames)
        self._save(place, before)

    def _lost(self, place: Place, batch: Batch) -> bytes:
        """The tombstone of a read, if it has one; its id stands for the place where reading goes on."""
        lost = batch.tombstone
        if lost is None:
            return b""
        is_late = place.is_first and lost.reason != "recreated"
        self._move(place, batch.start_seq)
        return (
            sse.tombstone_lines(
                place.topic,
                "from_seq_too_old" if is_late else lost.reason,
                lost.gap_from,
                lost.gap_to,
                lost.earliest_seq,
                lost.head_seq,
            )
            + self._end()
        )

    def _records(self, place: Place, batch: Batch) -> bytes:
        """The records of a read, if there are any that this reader gets."""
        self._move(place, batch.to_seq)
        if not batch.lines:
            return b""
        return batch.frame_alone if len(self._cursors) == 1 else batch.lines + self._end()

    def _skip(self, place: Place, batch: Batch, reason: str) -> bytes:
        """Go to the head of a topic that may lose records; the tombstone tells what was passed over."""
        gap_from = place.seq + 1
        self._move(place, batch.head_seq)
        return (
            sse.tombstone_lines(
                place.topic, reason, gap_from, batch.head_seq, batch.earliest_seq, batch.head_seq
            )
            + self._end()
        )

    def _after_read(self, place: Place, is_caught_up: bool) -> bytes:
        """Decide whether the topic needs another look; return the frame that says its backlog is over."""
        if not is_caught_up:
            place.is_live = False
            place.burst += 1
            if place.burst >= BURST_FRAMES:
                place.burst = 0
                del self._dirty[place.name]
                self._dirty[place.name] = None
            return b""
        del self._dirty[place.name]
        place.burst = 0
        if place.is_live:
            return b""
        place.is_live = place.was_live = True
        return sse.caught_up_lines(place.topic, place.head_seq) + self._end()

    def _send_deleted(self, place: Place) -> None:
        """The topic is gone; its name stays silent on this connection, whatever becomes of it."""
        del self._dirty[place.name]
        place.is_gone = True
        self._routes.fan_out.leave(place.name, self)
        self._write(sse.topic_deleted_lines(place.topic, place.head_seq) + self._end())
        self._left -= 1
        if self._left == 0:
            self._close()

    def _end(self) -> bytes:
        """The last lines of a frame: how far all topics of the stream are."""
        if self._only is not None:
            self._cursors[self._only.name] = self._only.seq
        return sse.end_with_id(self._cursors)

    def _move(self, place: Place, seq: int) -> None:
        place.seq = self._cursors[place.name] = seq

    def _save(self, place: Place, before: tuple[int, int]) -> None:
        """What was sent is what the session goes on from."""
        if self._stream.buffered:
            self._under_way.setdefault(place, before)
        if self._session.owner is self:
            position = self._session.positions[place.name]
            position.seq, position.epoch, position.head_seq = place.seq, place.epoch, place.head_seq

    def save_place(self) -> None:
        """As `_save`, for what was passed on the short way: only who opens the session again wants it."""
        place = self._only
        if place is not None and self._session.owner is self and not self._is_over:
            position = self._session.positions[place.name]
            position.seq, position.epoch, position.head_seq = place.seq, place.epoch, place.head_seq

    def _go_back(self) -> None:
        """Let the session go on from what has left this machine: the rest is thrown away with the stream."""
        if self._session.owner is self:
            for place, taken in self._under_way.items():
                position = self._session.positions[place.name]
                position.seq, position.epoch = taken

    def _write(self, frames: bytes) -> None:
        if frames:
            self._stream.write(frames)
            self.output_s = self._routes.timers.time()

    # --- Heartbeats and slow readers ---------------------------------------------------------------------

    def _arm_heartbeat(self, delay_s: float) -> None:
        self._beat_timer = self._routes.timers.call_later(delay_s, self._beat)

    def _beat(self) -> None:
        """Send a sign of life if nothing else was sent for so long, and look again later."""
        interval_s = self._session.heartbeat_ms / 1000
        quiet_s = self._routes.timers.time() - self.output_s
        if quiet_s > interval_s - TIMER_SLACK_S:
            # A client that does not take what is waiting for it has no use for more of it.
            if self._stream.buffered == 0:
                self._write(sse.HEARTBEAT)
            quiet_s = 0.0
        self._arm_heartbeat(interval_s - quiet_s)

    def _note_full(self) -> None:
        """The client takes nothing more: from now on it lags, and not for ever."""
        if self._full_since_s is None:
            timers, limits = self._routes.timers, self._routes.limits
            self._full_since_s = timers.time()
            self._full_timer = timers.call_later(limits.close_after_s, self._give_up)

    def _writable(self) -> None:
        """The client has room again."""
        timers, full_since_s = self._routes.timers, self._full_since_s
        if full_since_s is not None:
            self._full_since_s = None
            if self._full_timer is not None:
                self._full_timer.cancel()
            if timers.time() - full_since_s >= self._routes.limits.skip_after_s:
                self.at_ease = None
                for place in self._places.values():
                    # Who reads history was never live; it is meant to get all of it.
                    place.skips = place.was_live
        self._routes.fan_out.serve_soon(self)

    def _give_up(self) -> None:
        message = "this reader is too slow: it took nothing for too long; connect again to go on"
        self._end_with(sse.error(429, message, retry_after_ms=2000, topics=list(self._dirty)))

    def advise(self, names: list[str], retry_after_ms: int) -> None:
        """Tell the reader that these topics are not pushed for now; the stream goes on."""
        if self._stream.is_writable:
            message = "the server has too much to do: these topics are pushed later, and can be read at once"
            self._write(sse.error(429, message, retry_after_ms=retry_after_ms, topics=names))

    # --- The end -----------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """End the stream with the reason; the reader connects again and goes on where it was."""
        if isinstance(error, Closed | ApiError):
            self.shut_down()
        elif isinstance(error, EverlogError):
            self._end_with(sse.error("internal", str(error)))
        else:
            self._end_with(sse.error("internal", "the server made a mistake; its log tells more"))

    def shut_down(self) -> None:
        """The server stops."""
        message = "the server is shutting down; connect again"
        self._end_with(sse.error("server_shutting_down", message))

    def _end_with(self, frame: bytes) -> None:
        self._stream.write(frame)
        self._close()

    def _close(self) -> None:
        self._stream.close()
        self.end()

    def end(self) -> None:
        """The stream is over, whoever ended it: give back all it held."""
        if self._is_over:
            return
        self.save_place()
        self._is_over = True
        self.at_ease = self.outlet = None
        if self._full_since_s is not None:
            self._go_back()
        for timer in (self._beat_timer, self._full_timer):
            if timer is not None:
                timer.cancel()
        fan_out = self._routes.fan_out
        for place in self._places.values():
            fan_out.leave(place.name, self)
        fan_out.forget(self)
        self._routes.stream_ended(self, self._session)


class WatchRoutes:
    """Handlers of /v0/watch, and the streams that are open."""

    def __init__(
        self,
        app: App,
        *,
        slots: StreamSlots | None = None,
        timers: Timers | None = None,
        limits: SlowLimits | None = None,
    ) -> None:
        self.app = app
        self.slots = slots or StreamSlots(app.settings)
        self.timers: Timers = timers or app.loop
        self.limits = limits or SlowLimits()
        self.sessions = WatchSessions(app)
        self.fan_out = FanOut(app, self.timers.time)
        self.streams: set[WatchStream] = set()
        app.add("POST", "/v0/watch", Route(Scope.READ, self.sessions.create))
        app.add("GET", "/v0/watch/:name", Route(Scope(0), self.open_stream, checks_key=True))

    def open_stream(self, call: Call) -> None:
        """GET /v0/watch/:wid."""
        request = call.request
        if not sse.is_acceptable(request.header(b"accept")):
            raise ApiError(406, "not_acceptable", "this route sends text/event-stream only")
        self.sessions.sweep()
        session = self.sessions.find(call.name)
        if session is None:
            raise ApiError(404, "not_found", "there is no such watch session; POST /v0/watch makes a new one")
        self._check_key(call, session)
        headers = sse.STREAM_HEADERS + self.app.cors_headers(call)
        self.slots.take(session.key)
        stream = call.exchange.start_stream(200, headers)
        if stream.is_closed:  # the answer to HEAD, or the client has gone already
            self.slots.give_back(session.key)
            return
        if isinstance(session.owner, WatchStream):
            session.owner.save_place()
        _lower(session, request.header(b"last-event-id"))
        watch = WatchStream(self, session, stream)
        self.sessions.stream_opened(session)
        self.streams.add(watch)
        watch.start()

    def _check_key(self, call: Call, session: Session) -> None:
        """Only the key that made a session opens its stream."""
        keys = self.app.settings.api_keys
        if not keys.enabled:
            return
        request = call.request
        token = bearer_token(request.header(b"authorization")) or token_of_query(request.query)
        key = None if token is None else keys.find(token)
        if key is None or key is not session.key:
            message = "send the key that created this watch session"
            raise ApiError(401, "unauthorized", message, None, CHALLENGE)

    def stream_ended(self, watch: WatchStream, session: Session) -> None:
        """A stream gives back what it took."""
        self.streams.discard(watch)
        self.slots.give_back(session.key)
        self.sessions.stream_closed(session)

    def shut_down(self) -> None:
        """End every stream, telling its reader to connect again."""
        for watch in tuple(self.streams):
            watch.shut_down()


def _lower(session: Session, last_event_id: bytes | None) -> None:
    """Go back to what the client has really processed; it can never skip anything that way."""
    cursors = None if last_event_id is None else sse.read_event_id(last_event_id)
    for name, seq in (cursors or {}).items():
        position = session.positions.get(name)
        if position is not None and seq < position.seq:
            position.seq = seq
