"""GET /v0/watch/:wid: the stream of a session, from its first frame to its end.

Owns what one connection was sent and what it gets next. Records are read when the client has room for them,
so a slow client costs no memory and delays no other; it lags, and what comes meanwhile is sent together.
Broadcasts and shared batches are in `fan_out`, the text of frames in `sse`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from everlog.api_types import ConsumerAtRisk
from everlog.errors import Closed, EverlogError, TopicNotFound
from everlog.server import sse
from everlog.server.app import App, Call, Route
from everlog.server.auth import Key, Scope, allows_name
from everlog.server.errors import CHALLENGE, ApiError, from_engine
from everlog.server.fan_out import Batch, FanOut, WatchCursor, Watcher
from everlog.server.http import Stream
from everlog.server.streams import KEY_REVOKED, Heartbeat, StreamSlots, Timer, Timers, stream_key
from everlog.server.watch_journal import FRAME_KEY, FrameJournal
from everlog.server.watch_sessions import Position, Session, WatchSessions
from everlog.server.watch_starts import MATCHED_MAX, pattern_of

# Frames of one topic that may be sent before those of another one with a backlog.
BURST_FRAMES: Final = 64
JOINS_PER_STEP: Final = 64
SCANS_PER_STEP: Final = 512
CLOSE_AFTER_S: Final = 30.0
"""A stream whose client takes nothing for so long ends; its session can be resumed.

The buffer of a connection counts as full at the limit of the HTTP layer (64 KiB), which is less than 1024
frames, since each has 64 bytes or more.
"""


class WatchStream(Watcher):
    """One open stream."""

    __slots__ = (
        "_cursors",
        "_dirty",
        "_full_timer",
        "_heartbeat",
        "_is_over",
        "_joining",
        "_left",
        "_routes",
        "_scans",
        "_session",
        "_sole",
        "_stream",
        "_unsent",
    )

    def __init__(self, routes: WatchRoutes, session: Session, stream: Stream) -> None:
        super().__init__(session.options, routes.timers.time())
        self._routes = routes
        self._session = session
        self._stream = stream
        # Patterns may match thousands of topics, which join a few at a time.
        self._joining: deque[str] = deque(session.positions if session.patterns else ())
        self._scans: deque[tuple[str, str | None]] = deque()  # prefixes to look for, and behind which name
        self._cursors = {
            name: _cursor(name, position)
            for name, position in session.positions.items()
            if not session.patterns
        }
        self._left = len(self._cursors)
        self._dirty: dict[str, None] = dict.fromkeys(self._cursors)  # topics to read, the first one first
        # All streams of one topic alone, in chunks of HTTP/1.1, get the same bytes.
        is_sole = len(self._cursors) == 1 and stream.takes_chunks and not session.patterns
        self._sole = next(iter(self._cursors.values())) if is_sole else None
        if self._sole is not None:
            self.options = self._sole.options
        # Position and epoch of cursors before the first frame that the kernel has not taken.
        self._unsent: dict[WatchCursor, tuple[int, int]] = {}
        self._full_timer: Timer | None = None
        self._heartbeat: Heartbeat | None = None
        self._is_over = False
        session.owner = self

    def start(self) -> None:
        """Send the first line and begin with the backlog."""
        self._stream.on_gone = self.end
        self._stream.on_writable = self._writable
        for name in self._cursors:
            self._routes.fan_out.join(name, self)
        if self._session.patterns:
            self._follow_patterns()
        self._write(sse.RETRY)
        self._heartbeat = Heartbeat(
            self._routes.timers, self._session.heartbeat_ms / 1000, lambda: self.output_s, self._beat
        )
        self._routes.fan_out.serve_soon(self)
        for named in self._session.consumers.items():
            self._routes.fan_out.follow_consumer(*named, self)

    def warn(self, risk: ConsumerAtRisk) -> None:
        """Say that a consumer of this watch may lose records."""
        self._write(sse.at_risk_lines(risk) + b"\n")

    # --- Patterns ----------------------------------------------------------------------------------------

    def _follow_patterns(self) -> None:
        """Hear of new topics, and look for those that appeared while the session had no stream."""
        session = self._session
        assert session.journal is not None
        session.journal.begin({name: (each.seq, each.epoch) for name, each in session.positions.items()})
        for pattern in session.patterns:
            self._routes.fan_out.follow(pattern.prefix, self)
            self._scans.append((pattern.prefix, None))

    def topic_created(self, name: str) -> None:
        """Note that a topic appeared that a pattern matches."""
        self._joining.append(name)

    def _scan_some(self) -> None:
        """Look at the next few names for topics that appeared before this stream."""
        prefix, after = self._scans[0]
        names = self._routes.app.ready_engine().summaries.names(prefix, after, SCANS_PER_STEP)
        known = self._session.positions
        self._joining.extend(name for name in names if name not in known)
        if len(names) < SCANS_PER_STEP:
            self._scans.popleft()
        else:
            self._scans[0] = (prefix, names[-1])

    def _join_some(self) -> None:
        """Follow the next few topics that patterns match."""
        for _ in range(min(len(self._joining), JOINS_PER_STEP)):
            name = self._joining.popleft()
            if name in self._cursors:
                continue
            position = self._session.positions.get(name)
            is_new = position is None
            if position is None:
                position = self._appeared(name)
            if position is None:
                continue
            cursor = self._cursors[name] = _cursor(name, position)
            if is_new:
                end = self._end(cursor, -1, cursor.epoch)
                self._write(sse.topic_created_lines(cursor.topic, cursor.head_seq) + end)
            self._routes.fan_out.join(name, self)
            self._dirty[name] = None

    def _appeared(self, name: str) -> Position | None:
        """Where a topic that has appeared is read from; None if it is not for this reader."""
        session = self._session
        pattern = pattern_of(session.patterns, name)
        if pattern is None or not allows_name(session.key, name):
            return None
        if len(self._cursors) >= MATCHED_MAX:
            self.advise([name], 0)
            return None
        try:
            state = self._routes.app.ready_engine().state(name, touch=False)
        except TopicNotFound:
            return None
        position = Position(0, state.epoch, state.head_seq, pattern.options)
        if session.owner is self:
            session.positions[name] = position
        return position

    # --- Delivery ----------------------------------------------------------------------------------------

    def topic_changed(self, name: str) -> bool:
        """Note that a topic changed or is deleted; returns whether to deliver now."""
        self.at_head = None
        cursor = self._cursors.get(name)
        if cursor is None or cursor.is_gone or cursor.held is not None:
            return False
        self._dirty[name] = None
        return True

    def send_shared(self, batch: Batch) -> bool:
        """Send the chunk that all streams at this cursor get; False if the client has no room."""
        cursor = self.at_head
        if cursor is None:
            return False
        is_taken = self._stream.write_chunk(batch.sse_chunk)
        if is_taken is None:
            return False
        if not is_taken:
            self.at_head = None
            self._unsent.setdefault(cursor, (cursor.seq, cursor.epoch))
        cursor.seq, cursor.head_seq = batch.to_seq, batch.head_seq
        self.output_s = self._routes.timers.time()
        return True

    def deliver(self) -> None:
        """Send the next of what is due, if the client has room for it."""
        if self._is_over or not (self._dirty or self._joining or self._scans):
            return
        stream = self._stream
        if not stream.is_writable:
            self._note_full()
            return
        if self._scans:
            self._scan_some()
        if self._joining:
            self._join_some()
        if self._dirty:
            self._deliver_first()
        if (self._dirty or self._joining or self._scans) and not self._is_over:
            self._routes.fan_out.serve_soon(self)
        else:
            self._note_at_head()

    def _deliver_first(self) -> None:
        """Send the next of the topic that has waited longest."""
        stream = self._stream
        if self._unsent and stream.buffered == 0:
            self._unsent.clear()
        cursor = self._cursors[next(iter(self._dirty))]
        batch = cursor.held
        if batch is None:
            batch = self._routes.fan_out.read(cursor.name, cursor.epoch, cursor.seq, cursor.options)
        if batch is None:
            self._send_deleted(cursor)
        elif not batch.commit.done:
            self._hold(cursor, batch)
        elif batch.commit.error is not None:
            self.fail(batch.commit.error)
        elif not batch.is_incomplete:
            self._send(cursor, batch)

    def _note_at_head(self) -> None:
        """Share the next batch with others if this stream follows one topic and nothing is due."""
        cursor = self._sole
        if (
            cursor is not None
            and cursor.is_live
            and cursor.held is None
            and not (self._dirty or self._unsent or self._is_over)
        ):
            self.at_head = cursor

    def _hold(self, cursor: WatchCursor, batch: Batch) -> None:
        """Wait for a batch that is not committed or needs a cold segment; other topics go on."""
        del self._dirty[cursor.name]
        cursor.held = batch
        batch.commit.on_done(lambda _: self._release(cursor, batch))

    def _release(self, cursor: WatchCursor, batch: Batch) -> None:
        if self._is_over:
            return
        if batch.is_incomplete and batch.commit.error is None:
            cursor.held = None  # the segment is loaded: read again
        self._dirty = {cursor.name: None, **self._dirty}
        self._routes.fan_out.serve_soon(self)

    # --- Frames ------------------------------------------------------------------------------------------

    def _send(self, cursor: WatchCursor, batch: Batch) -> None:
        """Send what was read and move the cursor."""
        was_held, cursor.held = cursor.held is not None, None
        before = (cursor.seq, cursor.epoch)
        frames = self._lost(cursor, batch) + self._records(cursor, batch)
        cursor.is_first = False
        cursor.epoch = batch.epoch
        cursor.head_seq = batch.head_seq
        frames += self._after_read(cursor, batch.caught_up)
        if was_held:
            self._dirty[cursor.name] = None  # changes meanwhile were not noted
        self._write(frames)
        if self._stream.buffered:
            self._unsent.setdefault(cursor, before)

    def _lost(self, cursor: WatchCursor, batch: Batch) -> bytes:
        """The tombstone of a read, if it has one; its id is the position where reading goes on."""
        lost = batch.tombstone
        if lost is None:
            return b""
        is_late = cursor.is_first and lost.reason != "recreated"
        before, cursor.seq = cursor.seq, batch.start_seq
        return sse.tombstone_lines(
            cursor.topic,
            "from_seq_too_old" if is_late else lost.reason,
            lost.gap_from,
            lost.gap_to,
            lost.earliest_seq,
            lost.head_seq,
        ) + self._end(cursor, before, cursor.epoch)

    def _records(self, cursor: WatchCursor, batch: Batch) -> bytes:
        """The records of a read, if there are any that this reader gets."""
        before, cursor.seq = cursor.seq, batch.to_seq
        if not batch.lines:
            return b""
        if len(self._cursors) == 1 and not self._session.patterns:
            return batch.sse_frame
        return batch.lines + self._end(cursor, before, batch.epoch)

    def _after_read(self, cursor: WatchCursor, is_caught_up: bool) -> bytes:
        """Decide whether the topic is read again; return the frame that says its backlog is over."""
        if not is_caught_up:
            cursor.is_live = False
            cursor.burst += 1
            if cursor.burst >= BURST_FRAMES:
                cursor.burst = 0
                del self._dirty[cursor.name]
                self._dirty[cursor.name] = None
            return b""
        del self._dirty[cursor.name]
        cursor.burst = 0
        if cursor.is_live:
            return b""
        cursor.is_live = True
        return sse.caught_up_lines(cursor.topic, cursor.head_seq) + self._end(
            cursor, cursor.seq, cursor.epoch
        )

    def _send_deleted(self, cursor: WatchCursor) -> None:
        """Report a deleted topic; a new topic of the name is not sent on this connection."""
        del self._dirty[cursor.name]
        cursor.is_gone = True
        self._routes.fan_out.leave(cursor.name, self)
        end = self._end(cursor, cursor.seq, cursor.epoch)
        self._write(sse.topic_deleted_lines(cursor.topic, cursor.head_seq) + end)
        if self._session.patterns:
            # A topic of this name that appears again joins like any other.
            del self._cursors[cursor.name]
            self._unsent.pop(cursor, None)
            if self._session.owner is self:
                self._session.positions.pop(cursor.name, None)
            return
        self._left -= 1
        if self._left == 0:
            self._close()

    def _end(self, cursor: WatchCursor, seq: int, epoch: int) -> bytes:
        """The last lines of a frame that moves a topic on from here: the positions in all topics.

        With patterns these can be thousands, and the id is the number of the frame instead.
        """
        journal = self._session.journal
        if journal is not None:
            return sse.end_with_id({FRAME_KEY: journal.note(cursor.name, seq, epoch)})
        return sse.end_with_id({name: each.seq for name, each in self._cursors.items()})

    def save_positions(self) -> None:
        """Store the cursors in the session, unless a newer stream has taken it over."""
        if self._session.owner is not self or self._is_over:
            return
        for name, cursor in self._cursors.items():
            position = self._session.positions[name]
            position.seq, position.epoch, position.head_seq = cursor.seq, cursor.epoch, cursor.head_seq

    def _rewind_session(self) -> None:
        """Resume the session at what the kernel has taken: the rest is discarded with the stream."""
        if self._session.owner is self:
            for cursor, before in self._unsent.items():
                position = self._session.positions[cursor.name]
                position.seq, position.epoch = before

    def _write(self, frames: bytes) -> None:
        if frames:
            self._stream.write(frames)
            self.output_s = self._routes.timers.time()

    # --- Heartbeats and slow readers ---------------------------------------------------------------------

    def _beat(self) -> None:
        if self._stream.buffered == 0:
            self._write(sse.HEARTBEAT)

    def _note_full(self) -> None:
        """The client has no room; if that lasts, the stream ends."""
        if self._full_timer is None:
            self._full_timer = self._routes.timers.call_later(CLOSE_AFTER_S, self._give_up)

    def _writable(self) -> None:
        """The client has room again."""
        if self._full_timer is not None:
            self._full_timer.cancel()
            self._full_timer = None
        self._routes.fan_out.serve_soon(self)

    def _give_up(self) -> None:
        message = "this reader is too slow: it took nothing for too long; connect again to go on"
        self._end_with(sse.error(429, message, retry_after_ms=2000, topics=list(self._dirty)))

    def advise(self, names: list[str], retry_after_ms: int) -> None:
        """Say that these topics are not pushed for now; the stream goes on."""
        if self._stream.is_writable:
            message = "the server has too much to do: these topics are pushed later, and can be read at once"
            self._write(sse.error(429, message, retry_after_ms=retry_after_ms, topics=names))

    # --- The end -----------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """End the stream with the reason; the client connects again and resumes."""
        if isinstance(error, Closed | ApiError):
            self.shut_down()
        elif isinstance(error, EverlogError):
            self._end_with(sse.error("internal", str(from_engine(error, None))))
        else:
            self._end_with(sse.error("internal", "internal error; see the server log"))

    def shut_down(self) -> None:
        """The server stops."""
        message = "the server is shutting down; connect again"
        self._end_with(sse.error("server_shutting_down", message))

    def revoke(self) -> None:
        """The key of the stream no longer works."""
        self._end_with(sse.error("unauthorized", KEY_REVOKED))

    @property
    def key(self) -> Key | None:
        """The key that the stream was opened with."""
        return self._session.key

    def _end_with(self, frame: bytes) -> None:
        self._stream.write(frame)
        self._close()

    def _close(self) -> None:
        self._stream.close()
        self.end()

    def end(self) -> None:
        """Release everything the stream holds, once."""
        if self._is_over:
            return
        self.save_positions()
        self._is_over = True
        self.at_head = None
        if self._full_timer is not None:
            self._rewind_session()
        for timer in (self._heartbeat, self._full_timer):
            if timer is not None:
                timer.cancel()
        fan_out = self._routes.fan_out
        for cursor in self._cursors.values():
            fan_out.leave(cursor.name, self)
        for pattern in self._session.patterns:
            fan_out.unfollow(pattern.prefix, self)
        for named in self._session.consumers.items():
            fan_out.unfollow_consumer(*named, self)
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
    ) -> None:
        self.app = app
        self.slots = slots or StreamSlots(app.settings)
        self.timers: Timers = timers or app.loop
        self.sessions = WatchSessions(app)
        self.fan_out = FanOut(app)
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
        hint = "send the key that created this watch session"
        if stream_key(self.app, request, hint) is not session.key:
            raise ApiError(401, "unauthorized", hint, None, CHALLENGE)
        headers = sse.STREAM_HEADERS + self.app.cors_headers(call)
        self.slots.take(session.key)
        stream = call.exchange.start_stream(200, headers)
        if stream.is_closed:  # the answer to HEAD, or the client has gone already
            self.slots.give_back(session.key)
            return
        if isinstance(session.owner, WatchStream):
            session.owner.save_positions()
        _rewind(session, request.header(b"last-event-id"))
        self.app.answered.note(call, 200, self.app.now_ns())
        watch = WatchStream(self, session, stream)
        self.sessions.stream_opened(session)
        self.streams.add(watch)
        watch.start()

    def stream_ended(self, watch: WatchStream, session: Session) -> None:
        """Release the slot and the session of a stream."""
        self.streams.discard(watch)
        self.slots.give_back(session.key)
        self.sessions.stream_closed(session)

    def shut_down(self) -> None:
        """End every stream with an error that asks the client to connect again."""
        for watch in tuple(self.streams):
            watch.shut_down()


def _cursor(name: str, position: Position) -> WatchCursor:
    return WatchCursor(name, position.seq, position.epoch, position.head_seq, position.options)


def _rewind(session: Session, last_event_id: bytes | None) -> None:
    """Go back to what the client has processed; an id can never skip anything."""
    cursors = None if last_event_id is None else sse.read_event_id(last_event_id)
    if session.journal is not None and cursors is not None and FRAME_KEY in cursors:
        _rewind_frames(session, session.journal, cursors[FRAME_KEY])
        return
    for name, seq in (cursors or {}).items():
        position = session.positions.get(name)
        if position is not None and seq < position.seq:
            position.seq = seq


def _rewind_frames(session: Session, journal: FrameJournal, number: int) -> None:
    """Go back to a frame of the last stream of patterns."""
    moved = journal.before(number)
    if moved is None:
        moved = {name: journal.start.get(name, (-1, 0)) for name in session.positions} | journal.start
    for name, (seq, epoch) in moved.items():
        position = session.positions.get(name)
        if seq < 0:
            session.positions.pop(name, None)  # it appears again
        elif position is not None:
            position.seq, position.epoch = seq, epoch
        elif (pattern := pattern_of(session.patterns, name)) is not None:
            session.positions[name] = Position(seq, epoch, seq, pattern.options)
