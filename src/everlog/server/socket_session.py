"""GET /v0/ws: commands and pushes of one client over one WebSocket.

Owns what a socket is subscribed to, which commands it still has to answer, and what is sent next: replies
first, then records. Everything is rendered when the socket has room for it and not before. Frames and flow
control are in `websocket`, broadcasts and shared batches in `fan_out`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from wsproto.frame_protocol import CloseReason

from everlog.api_types import ConsumerAtRisk
from everlog.errors import Closed, EverlogError, TopicNotFound
from everlog.native.topics.log import SEQS_LISTED, SEQS_NULL
from everlog.server import sse
from everlog.server.app import App, Call, Route, query_flag, scope_missing
from everlog.server.auth import Key, Scope, allows_name
from everlog.server.bodies import Append, check_counts, check_nodes
from everlog.server.body_checks import UnknownMember, ignored_field
from everlog.server.errors import ApiError, from_engine, invalid
from everlog.server.fan_out import Batch, FanOut, ReadOptions, WatchCursor, Watcher, options_of
from everlog.server.http import Upgraded
from everlog.server.socket_commands import (
    NULL,
    BadCommand,
    Command,
    Ping,
    Publish,
    Subscribe,
    Unsubscribe,
    decode_command,
    echoed,
)
from everlog.server.streams import KEY_REVOKED, StreamSlots, stream_key
from everlog.server.topic_routes import append_batch, appended_fields, check_dead_letter
from everlog.server.watch_sessions import when_all_done
from everlog.server.watch_starts import (
    MATCHED_MAX,
    PART_TOPICS,
    TOPICS_MAX,
    Pattern,
    Resolution,
    WatchStart,
    is_pattern,
    pattern_of,
    positions_answer,
    start_parts,
)
from everlog.server.websocket import (
    WebSocket,
    handshake_headers,
    key_of_protocols,
    push_frame,
    text_frame,
)
from everlog.topics import Appended, Commit
from everlog.topics.jobs.steps import Steps

SWITCHING: Final = 101
UNANSWERED_MAX: Final = 64
"""Commands of one socket that may be without a reply; then no more are read from it."""
MESSAGES_PER_KEY: Final = 2
"""Unfinished messages of the largest size that all sockets of a key may hold together."""
PUSHES_PER_READ: Final = 3
"""A gap, records and the end of a backlog can come out of one read."""
READS_PER_PUMP: Final = 4
_STEPS_OVER: Final = object()
_json = msgspec.json.Encoder()
log = logging.getLogger("everlog.server.websocket")


class Subscription(WatchCursor):
    """The cursor of one socket in one topic."""

    __slots__ = ("consumer", "is_active")

    def __init__(self, start: WatchStart) -> None:
        state = start.state
        super().__init__(state.topic, start.seq, state.epoch, state.head_seq, start.options)
        self.consumer = start.consumer
        self.is_active = False  # not before the reply that confirms it


class SocketSession(Watcher):
    """One open WebSocket and what it asked for."""

    def __init__(
        self, routes: WebSocketRoutes, key: Key | None, channel: Upgraded, *, is_strict: bool
    ) -> None:
        super().__init__(ReadOptions(), routes.app.loop.time())
        self.key = key
        self._is_strict = is_strict
        self._channel = channel
        self._held_bytes = 0
        self._routes = routes
        self._app = routes.app
        self._socket = WebSocket(channel, self, routes.app.loop, routes.app.settings.max_body_bytes)
        self._subscriptions: dict[str, Subscription] = {}
        self._due: dict[str, Subscription] = {}  # those to look at, the first one first
        self._patterns: dict[str, Pattern] = {}  # by prefix
        self._appeared: deque[str] = deque()  # topics that patterns match, not followed yet
        self._risks: dict[str, ConsumerAtRisk] = {}  # by topic: of its consumer, to be pushed
        self._unanswered = 0
        self._replies: deque[Callable[[], bytes]] = deque()
        self._sending_is_due = False
        self._is_leaving = False
        self._is_over = False

    def start(self) -> None:
        """Begin to listen."""
        self._socket.start()

    # --- What the socket calls ---------------------------------------------------------------------------

    @property
    def accepts_message(self) -> bool:
        """Whether another command may come: replies to too many are due, or none will be read any more."""
        return self._unanswered < UNANSWERED_MAX and not self._is_leaving

    def message_received(self, message: bytes | bytearray) -> None:
        """Carry out a command; it gets exactly one reply, now or later."""
        self._unanswered += 1
        try:
            command, unknown = decode_command(message, is_strict=self._is_strict)
        except BadCommand as bad:
            self._reply_error(_echo(bad.request_id), bad.error)
            return
        echo = _echo(echoed(command.request_id), unknown)
        self._guarded(echo, _topic_of(command), partial(self._carry_out, command, echo))
        # What it changed is written at the end of this turn of the loop.
        self._app.turn_soon()

    def message_refused(self, code: str, reason: str) -> None:
        """A message that cannot be a command is answered as well."""
        self._unanswered += 1
        self._reply_error(_echo(NULL), ApiError(400, code, reason))

    def hold(self, size: int) -> bool:
        """Count bytes of an unfinished message: for the key, and for the server as those of bodies."""
        if not self._routes.hold(self.key, size):
            return False
        self._held_bytes += size
        if self._channel.hold(size):
            return True
        self.release()
        return False

    def release(self) -> None:
        """Uncount what was held."""
        self._routes.hold(self.key, -self._held_bytes)
        self._held_bytes = 0
        self._channel.release()

    def error_frame(self, code: str, message: str) -> bytes:
        """An error that answers no command."""
        return text_frame(_render_error(_echo(NULL), code, message))

    def room_made(self) -> None:
        """The client has taken something."""
        self._send_replies()
        self._serve_soon()

    def ended(self) -> None:
        """Give back all it held."""
        self._is_over = True
        self.at_head = None
        self._drop_all()
        self._replies.clear()
        self._routes.fan_out.forget(self)
        self._routes.socket_ended(self)

    # --- Commands ----------------------------------------------------------------------------------------

    def _guarded(self, echo: bytes, topic: str | None, step: Callable[[], None]) -> None:
        """Take a step of a command; whatever goes wrong is its reply and leaves the socket open."""
        try:
            step()
        except ApiError as error:
            self._reply_error(echo, error)
        except EverlogError as error:
            self._reply_error(echo, from_engine(error, topic))
        except Exception:
            log.exception("a command failed")
            message = "internal error; see the server log"
            self._reply_error(echo, ApiError(500, "internal", message))

    def _carry_out(self, command: Command, echo: bytes) -> None:
        if isinstance(command, Publish):
            self._publish(command, echo)
        elif isinstance(command, Subscribe):
            self._subscribe(command, echo)
        elif isinstance(command, Unsubscribe):
            self._unsubscribe(command, echo)
        else:
            self._reply(partial(_render, b"pong", echo))

    def _require_scope(self, scope: Scope) -> None:
        if self.key is not None and not self.key.allows(scope):
            raise scope_missing(scope)

    def _require(self, scope: Scope, name: str) -> None:
        """Refuse what the key of this socket may not do."""
        self._require_scope(scope)
        if not allows_name(self.key, name):
            raise ApiError(403, "forbidden", f"this key may not use the name {name!r}", {"topic": name})

    def _publish(self, command: Publish, echo: bytes) -> None:
        started_ns = self._app.now_ns()
        name = command.topic
        self._require(Scope.WRITE if command.config is None else Scope.WRITE | Scope.ADMIN, name)
        self._app.check_writable()
        check_dead_letter(self.key, command.config)
        appended = append_batch(self._app, self.key, name, Append.of(command))
        acknowledge = partial(
            self._render_ack, name, echo, appended, with_seqs=command.return_seqs, started_ns=started_ns
        )

        def done(commit: Commit) -> None:
            if commit.error is not None:
                self._reply_error(echo, from_engine(commit.error, name))
            else:
                self._reply(acknowledge)

        appended.commit.on_done(done)

    def _render_ack(
        self, name: str, echo: bytes, appended: Appended, *, with_seqs: bool, started_ns: int
    ) -> bytes:
        seqs = SEQS_LISTED if with_seqs else SEQS_NULL
        return _render(b"ack", echo, appended_fields(self._app, name, appended, seqs, started_ns))

    def _subscribe(self, command: Subscribe, echo: bytes) -> None:
        wanted = command.wanted()
        check_counts(command)
        check_nodes(command.node)
        self._require_scope(Scope.READ)
        resolution = Resolution(self._app, self.key, wanted, options_of(command), is_lenient=command.lenient)
        self._step(echo, self._subscribe_steps(echo, resolution))

    def _step(self, echo: bytes, steps: Steps[None]) -> None:
        """Take a step of a command; the others follow after what else is due."""
        if next(steps, _STEPS_OVER) is not _STEPS_OVER:
            self._app.loop.call_soon(self._guarded, echo, None, partial(self._step, echo, steps))

    def _subscribe_steps(self, echo: bytes, resolution: Resolution) -> Steps[None]:
        """Subscribe to what is found, and reply as soon as its numbers are committed."""
        resolved = yield from resolution.steps()
        if self._is_over:
            return
        has_patterns = bool(resolved.patterns or self._patterns)
        most = MATCHED_MAX if has_patterns else TOPICS_MAX
        if len(self._subscriptions.keys() | resolved.starts.keys()) > most:
            raise invalid(f"a socket follows {most} topics at most; open another one for more")
        for pattern in resolved.patterns:
            self._patterns[pattern.prefix] = pattern
            self._routes.fan_out.follow(pattern.prefix, self)
        fresh: list[Subscription] = []
        floors: list[Commit] = []
        answers: list[bytes] = []
        for part in start_parts(resolved):
            engine = self._app.ready_engine()
            for name, start in part.items():
                fresh.append(self._follow(start))
                if engine.has_topic(name) and not (floor := engine.floor_commit(name)).done:
                    floors.append(floor)
            answers.append(positions_answer(part))
            if len(part) == PART_TOPICS:
                yield None
                if self._has_ended():
                    return
        when_all_done(floors, partial(self._subscribed, echo, fresh, b",".join(answers)))

    def _has_ended(self) -> bool:
        return self._is_over

    def _follow(self, start: WatchStart) -> Subscription:
        """Follow a topic; what was pushed of it before is forgotten."""
        name = start.state.topic
        self._drop(name)
        subscription = self._subscriptions[name] = Subscription(start)
        self._routes.fan_out.join(name, self)
        return subscription

    def topic_created(self, name: str) -> None:
        """Note that a topic appeared that a pattern matches."""
        self._appeared.append(name)

    def _join_appeared(self) -> None:
        """Follow topics that have appeared, from their first record on."""
        name = self._appeared.popleft()
        pattern = pattern_of(tuple(self._patterns.values()), name)
        if pattern is None or name in self._subscriptions or not allows_name(self.key, name):
            return
        if len(self._subscriptions) >= MATCHED_MAX:
            message = f"topic {name!r} is not followed: a socket follows {MATCHED_MAX} topics at most"
            self._socket.send(self.error_frame("throttled", message))
            return
        try:
            state = self._app.ready_engine().state(name, touch=False)
        except TopicNotFound:
            return
        subscription = self._follow(WatchStart(state, 0, pattern.options))
        self._push("topic_created", sse.topic_created_lines(subscription.topic, state.head_seq))
        subscription.is_active = True
        self._due[name] = subscription

    def _subscribed(
        self,
        echo: bytes,
        fresh: list[Subscription],
        topics: bytes,
        failed: Commit | None,
    ) -> None:
        """Send the reply now that its numbers are committed, and then what is in the topics."""
        # A later command may have replaced or ended some of them meanwhile.
        current = [known for known in fresh if self._subscriptions.get(known.name) is known]
        if failed is not None and failed.error is not None:
            for subscription in current:
                self._drop(subscription.name)
            self._reply_error(echo, from_engine(failed.error, None))
            return
        self._reply(partial(_render, b"subscribed", echo, b'"topics":{%b}' % topics))
        for subscription in current:
            subscription.is_active = True
            self._due[subscription.name] = subscription
            if subscription.consumer is not None:
                self._routes.fan_out.follow_consumer(subscription.name, subscription.consumer, self)
        self._serve_soon()

    def _unsubscribe(self, command: Unsubscribe, echo: bytes) -> None:
        names = command.names()
        if not names:
            raise invalid("name the topics to unsubscribe from, in topic or topics")
        for name in names:
            if is_pattern(name):
                self._drop_pattern(name[:-1])
            self._drop(name)
        self._reply(partial(_render, b"unsubscribed", echo, b'"topics":%b' % _json.encode(names)))

    def _drop(self, name: str) -> None:
        """Follow a topic no more; not following it is no error."""
        self.at_head = None
        subscription = self._subscriptions.pop(name, None)
        if subscription is not None:
            self._due.pop(name, None)
            self._risks.pop(name, None)
            self._routes.fan_out.leave(name, self)
            if subscription.consumer is not None:
                self._routes.fan_out.unfollow_consumer(name, subscription.consumer, self)

    def _drop_pattern(self, prefix: str) -> None:
        """Follow no topic any more that this pattern matches and no other one does."""
        if self._patterns.pop(prefix, None) is None:
            return
        self._routes.fan_out.unfollow(prefix, self)
        left = tuple(self._patterns.values())
        for name in [name for name in self._subscriptions if name.startswith(prefix)]:
            if pattern_of(left, name) is None:
                self._drop(name)

    def _drop_all(self) -> None:
        for prefix in tuple(self._patterns):
            self._drop_pattern(prefix)
        for name in tuple(self._subscriptions):
            self._drop(name)

    # --- Replies -----------------------------------------------------------------------------------------

    def _reply_error(self, echo: bytes, error: ApiError) -> None:
        self._reply(partial(_render_error, echo, error.code, str(error)))

    def _reply(self, render: Callable[[], bytes]) -> None:
        """Send a reply, rendered when there is room for it; those of one turn go out together."""
        if self._is_over:
            return
        self.at_head = None
        self._replies.append(render)
        self._send_replies_soon()

    def _send_replies_soon(self) -> None:
        if not self._sending_is_due:
            self._sending_is_due = True
            self._app.loop.call_soon(self._send_replies)

    def _send_replies(self) -> None:
        """Send the replies that there is room for, and take commands for those that went out."""
        self._sending_is_due = False
        self._render_replies()
        if self._is_leaving:
            self._leave_when_answered()
        else:
            self._socket.read_on()

    def _render_replies(self) -> None:
        socket = self._socket
        while self._replies and socket.room:
            self._unanswered -= 1
            socket.send(text_frame(self._replies.popleft()()))
            if not socket.room:
                socket.flush()
        socket.flush()

    # --- Pushes ------------------------------------------------------------------------------------------

    def topic_changed(self, name: str) -> bool:
        """Note that a topic changed or is deleted; returns whether to deliver now."""
        self.at_head = None
        subscription = self._subscriptions.get(name)
        if subscription is None or not subscription.is_active or subscription.held is not None:
            return False
        self._due[name] = subscription
        return self._socket.room >= PUSHES_PER_READ

    def send_shared(self, batch: Batch) -> bool:
        """Send the frame that all sockets at this cursor get; False if others have to be sent before."""
        cursor = self.at_head
        if cursor is None or not self._socket.send_now(batch.socket_frame):
            return False
        cursor.seq, cursor.head_seq = batch.to_seq, batch.head_seq
        return True

    def warn(self, risk: ConsumerAtRisk) -> None:
        """Push soon that a consumer may lose records."""
        self._risks[risk.topic] = risk
        self._serve_soon()

    def advise(self, names: list[str], retry_after_ms: int) -> None:
        """Say that these topics are not pushed for now."""
        if self._socket.room >= PUSHES_PER_READ:
            message = f"too much to do: {names} are pushed later, and can be read; wait {retry_after_ms} ms"
            self._socket.send(self.error_frame("throttled", message))
            self._socket.flush()

    def _serve_soon(self) -> None:
        """Ask for a turn; without room there is nothing to do in it, and `room_made` asks again."""
        if (self._due or self._appeared or self._risks) and self._socket.room >= PUSHES_PER_READ:
            self._routes.fan_out.serve_soon(self)

    def deliver(self) -> None:
        """Send a little of what is due. Replies are first: nothing of a topic comes before `subscribed`."""
        if self._is_over:
            return
        if self._replies:
            self._render_replies()
            # No commands inside a turn of the watchers: nothing may change in it.
            self._send_replies_soon()
        while self._risks and self._socket.room >= PUSHES_PER_READ:
            self._push("consumer_at_risk", sse.at_risk_lines(self._risks.pop(next(iter(self._risks)))))
            self._socket.flush()
        for _ in range(READS_PER_PUMP):
            if self._appeared and self._socket.room >= PUSHES_PER_READ:
                self._join_appeared()
            if not self._due or self._socket.room < PUSHES_PER_READ:
                break
            self._read(next(iter(self._due.values())))
            self._socket.flush()
        self._serve_soon()
        self._note_at_head()

    def _note_at_head(self) -> None:
        """Share the next batch with others if this socket follows one topic and nothing is due."""
        if (
            len(self._subscriptions) != 1
            or self._due
            or self._appeared
            or self._replies
            or not self._socket.is_quiet
        ):
            return
        (subscription,) = self._subscriptions.values()
        if subscription.is_active and subscription.is_live and subscription.held is None:
            self.at_head, self.options = subscription, subscription.options

    def _read(self, subscription: Subscription) -> None:
        """Read one topic, or use the batch that had to wait, and send it."""
        batch = subscription.held
        try:
            if batch is None:
                batch = self._routes.fan_out.read(
                    subscription.name, subscription.epoch, subscription.seq, subscription.options
                )
            if batch is not None and batch.commit.done and batch.commit.error is not None:
                raise batch.commit.error
        except EverlogError as error:
            self._give_up(subscription, error)
            return
        if batch is None:
            self._drop(subscription.name)
            self._push("topic_deleted", sse.topic_deleted_lines(subscription.topic, subscription.head_seq))
        elif not batch.commit.done:
            self._hold(subscription, batch)
        elif not batch.is_incomplete:
            self._send(subscription, batch)

    def _hold(self, subscription: Subscription, batch: Batch) -> None:
        """Wait for a batch that is not committed or needs a cold segment; other topics go on."""
        del self._due[subscription.name]
        subscription.held = batch
        batch.commit.on_done(lambda _: self._release(subscription, batch))

    def _release(self, subscription: Subscription, batch: Batch) -> None:
        if self._subscriptions.get(subscription.name) is not subscription:
            return
        if batch.is_incomplete and batch.commit.error is None:
            subscription.held = None  # the segment is loaded: read again
        self._due[subscription.name] = subscription
        self._serve_soon()

    def _send(self, subscription: Subscription, batch: Batch) -> None:
        """Send what was read and move the cursor."""
        was_held, subscription.held = subscription.held is not None, None
        lost = batch.tombstone
        if lost is not None:
            self._push(
                "tombstone",
                sse.tombstone_lines(
                    subscription.topic,
                    lost.reason,
                    lost.gap_from,
                    lost.gap_to,
                    lost.earliest_seq,
                    lost.head_seq,
                ),
            )
        if batch.lines:
            self._socket.send(batch.socket_frame)
        subscription.seq = batch.to_seq
        subscription.epoch = batch.epoch
        subscription.head_seq = batch.head_seq
        # Behind the other topics, if there is more: a long backlog must not delay them.
        del self._due[subscription.name]
        if was_held or not batch.caught_up:
            self._due[subscription.name] = subscription  # changes meanwhile were not noted
        if batch.caught_up and not subscription.is_live:
            self._push("caught_up", sse.caught_up_lines(subscription.topic, batch.head_seq))
        subscription.is_live = batch.caught_up

    def _give_up(self, subscription: Subscription, error: EverlogError) -> None:
        """Unsubscribe from a topic that cannot be read; the others go on."""
        if isinstance(error, Closed):
            self.shut_down()
            return
        self._drop(subscription.name)
        shown = from_engine(error, subscription.name)
        message = f"reading topic {subscription.name!r} failed, it is unsubscribed: {shown}"
        self._socket.send(self.error_frame(shown.code, message))

    def _push(self, op: str, lines: bytes) -> None:
        self._socket.send(push_frame(op, lines))

    # --- The end -----------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """End the socket because a delivery raised."""
        if isinstance(error, ApiError):  # there is no engine any more
            self.shut_down()
            return
        self._drop_all()
        self._socket.send(self.error_frame("internal", "internal error; see the server log"))
        self._socket.close(CloseReason.INTERNAL_ERROR, "internal")

    def shut_down(self) -> None:
        """Answer the commands that were received, accept no more, and say that the server stops."""
        self._is_leaving = True
        self._drop_all()
        self._leave_when_answered()

    def revoke(self) -> None:
        """The key of the socket no longer works."""
        self._drop_all()
        self._socket.send(self.error_frame("unauthorized", KEY_REVOKED))
        self._socket.close(CloseReason.POLICY_VIOLATION, "unauthorized")

    def _leave_when_answered(self) -> None:
        if self._unanswered == 0 and not self._is_over:
            message = "the server is shutting down; connect again"
            self._socket.send(self.error_frame("server_shutting_down", message))
            self._socket.close(CloseReason.GOING_AWAY, "server_shutting_down")


class WebSocketRoutes:
    """The handler of /v0/ws, and the sockets that are open."""

    def __init__(self, app: App, *, slots: StreamSlots | None = None, fan_out: FanOut | None = None) -> None:
        self.app = app
        self.slots = slots or StreamSlots(app.settings)
        self.fan_out = fan_out or FanOut(app)
        self._sessions: set[SocketSession] = set()
        self._held_of_keys: dict[int, int] = {}
        app.add("GET", "/v0/ws", Route(Scope(0), self.open_socket, checks_key=True))

    @property
    def sessions(self) -> tuple[SocketSession, ...]:
        """The sockets that are open."""
        return tuple(self._sessions)

    @property
    def open_sockets(self) -> int:
        """How many sockets are open."""
        return len(self._sessions)

    def hold(self, key: Key | None, size: int) -> bool:
        """Count bytes of unfinished messages of a key; False if it holds as many as it may."""
        if key is None:
            return True
        held = self._held_of_keys.get(key.number, 0) + size
        if size > 0 and held > MESSAGES_PER_KEY * self.app.settings.max_body_bytes:
            return False
        self._held_of_keys[key.number] = held
        return True

    def open_socket(self, call: Call) -> None:
        """GET /v0/ws."""
        hint = "send a valid key as a bearer token, or as a subprotocol: everlog.key.<base64url of the key>"
        key = stream_key(self.app, call.request, hint, key_of_protocols)
        headers = handshake_headers(call.request)
        self.slots.take(key)
        try:
            channel = call.exchange.upgrade(headers)
        except BaseException:
            self.slots.give_back(key)
            raise
        is_strict = query_flag(call.query(), "strict", False)
        self.app.answered.note(call, SWITCHING, self.app.now_ns())
        session = SocketSession(self, key, channel, is_strict=is_strict)
        self._sessions.add(session)
        session.start()

    def socket_ended(self, session: SocketSession) -> None:
        """Release the slot of a socket."""
        self._sessions.discard(session)
        self.slots.give_back(session.key)

    def shut_down(self) -> None:
        """End every socket with an error that asks the client to connect again."""
        for session in tuple(self._sessions):
            session.shut_down()


def _topic_of(command: Command) -> str | None:
    return None if isinstance(command, Ping) else command.topic


def _echo(request_id: bytes, unknown: list[UnknownMember] | None = None) -> bytes:
    """What a reply repeats of its command: the id, and the members that were ignored."""
    echo = b'"request_id":' + request_id
    return ignored_field(echo, unknown) if unknown else echo


def _render(op: bytes, echo: bytes, fields: bytes = b"") -> bytes:
    """A reply: `fields` are those besides what every reply has."""
    return b'{"op":"%b",%b%b%b}' % (op, echo, b"," if fields else b"", fields)


def _render_error(echo: bytes, code: str, message: str) -> bytes:
    fields = b'"code":%b,"message":%b' % (_json.encode(code), _json.encode(message))
    return _render(b"error", echo, fields)
