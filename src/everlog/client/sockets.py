"""The WebSocket of a server: publish and subscribe on one connection, blocking or on an event loop.

Owns commands, their answers and pushed events. `Messages` holds the protocol and moves no bytes; `Socket` and
`AsyncSocket` move them. A socket remembers nothing across connections; `at` says where to subscribe again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

import msgspec
import wsproto
import wsproto.events as ws

from everlog.api_types import (
    Appended,
    CaughtUp,
    ConsumerAtRisk,
    NewRecord,
    Records,
    Tombstone,
    TopicCreated,
    TopicGone,
    TopicSettings,
    Watched,
    WatchEvent,
)
from everlog.client.arguments import (
    Gaps,
    Nodes,
    WatchStart,
    checked_gaps,
    checked_records,
    checked_settings,
    checked_starts,
    show_as_method,
    traced,
)
from everlog.client.async_connection import AsyncConnection
from everlog.client.calls import new_key
from everlog.client.connection import Connection
from everlog.client.encoding import encode
from everlog.client.errors import UNREACHABLE, ApiFailed
from everlog.client.streams import advance, lost, stream_failure, watched_from
from everlog.client.wire import Answer, RequestWriter, foreign, refusal

P = ParamSpec("P")
T = TypeVar("T")

_PUSHED: Final[dict[str, type[WatchEvent]]] = {
    "record": Records,
    "caught_up": CaughtUp,
    "tombstone": Tombstone,
    "topic_deleted": TopicGone,
    "topic_created": TopicCreated,
    "consumer_at_risk": ConsumerAtRisk,
}


class _Head(msgspec.Struct):
    op: str
    request_id: int | None = None
    code: str = ""
    message: str = ""
    detail: dict[str, Any] | None = None


class Messages:
    """The protocol of a WebSocket: commands out, answers and pushed events in. Moves no bytes."""

    def __init__(self, writer: RequestWriter, gaps: Gaps) -> None:
        self.address = writer.address
        self.gaps = checked_gaps(gaps)
        self._writer = writer
        self.at: dict[str, int] = {}
        self.is_ended = False
        self.failure: ApiFailed | None = None
        self._protocol = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._is_accepted = False
        self._text: list[str] = []
        self._answers: dict[int, bytes | ApiFailed] = {}
        self._events: deque[WatchEvent] = deque()
        self._last_id = 0

    # --- Out -----------------------------------------------------------------------------------------------

    def hello(self, authorization: bytes | None) -> bytes:
        """The request for the upgrade."""
        headers = [] if authorization is None else [(b"Authorization", authorization)]
        host, target = self.address.host_and_port, f"{self.address.prefix}/v0/ws?strict=true"
        return self._protocol.send(ws.Request(host=host, target=target, extra_headers=headers))

    def command(self, command: Command[Any]) -> tuple[int, bytes]:
        """A command as bytes, and the number that its answer carries."""
        self._check_end()
        self._last_id += 1
        message = {"op": command.op, "request_id": self._last_id}
        message |= {name: value for name, value in command.fields.items() if value is not None}
        return self._last_id, self._protocol.send(ws.TextMessage(encode(message).decode()))

    def goodbye(self) -> bytes:
        """The closing message, unless the connection has ended."""
        if self.is_ended or not self._is_accepted:
            return b""
        self.is_ended = True
        return self._protocol.send(ws.CloseConnection(code=1000))

    # --- In ------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> bytes:
        """Take in bytes; returns bytes that are to be sent back at once."""
        reply = b""
        try:
            self._protocol.receive_data(data or None)
            for event in self._protocol.events():
                reply += self._take(event)
        except wsproto.utilities.RemoteProtocolError as error:
            self._end(foreign(self.address, 101, f"the WebSocket: {error}"))
        return reply

    def _take(self, event: ws.Event) -> bytes:
        if isinstance(event, ws.TextMessage):
            self._text.append(event.data)
            if event.message_finished:
                text = "".join(self._text)
                self._text.clear()
                self._read(text.encode())
        elif isinstance(event, ws.AcceptConnection):
            self._is_accepted = True
        elif isinstance(event, ws.Ping):
            return self._protocol.send(event.response())
        elif isinstance(event, ws.CloseConnection):
            self._end(ApiFailed(UNREACHABLE, "unreachable", f"{self.address} closed the WebSocket"))
            if self._protocol.state is wsproto.connection.ConnectionState.REMOTE_CLOSING:
                return self._protocol.send(event.response())
        elif isinstance(event, ws.RejectConnection):
            headers = {bytes(name).lower(): bytes(value) for name, value in event.headers}
            self._refused = Answer(event.status_code, headers)
            if not event.has_body:
                self._end(refusal(self._writer, self._refused))
        elif isinstance(event, ws.RejectData):
            self._refused.body += bytes(event.data)
            if event.body_finished:
                self._end(refusal(self._writer, self._refused))
        return b""

    def _end(self, failure: ApiFailed) -> None:
        self.is_ended = True
        self.failure = self.failure or failure

    def _read(self, text: bytes) -> None:
        try:
            head = msgspec.json.decode(text, type=_Head)
            kind = _PUSHED.get(head.op)
            if kind is not None:
                event = msgspec.json.decode(text, type=kind)
                advance(self.at, event)
                self._events.append(event)
            elif head.op == "error":
                self._fail(head)
            elif head.request_id is not None:
                self._answers[head.request_id] = text
        except msgspec.MsgspecError as error:
            self._end(foreign(self.address, 101, f"a message: {error}"))

    def _fail(self, head: _Head) -> None:
        if head.request_id is None:
            failure = stream_failure(head.code, head.message)
            if head.code == "server_shutting_down":
                self.failure = failure
            else:
                self._end(failure)
            return
        self._answers[head.request_id] = ApiFailed(400, head.code, head.message, head.detail)

    # --- For the two sockets -------------------------------------------------------------------------------

    def is_open(self) -> bool:
        """Whether the upgrade is done; raises the refusal if it failed."""
        self._check_end()
        return self._is_accepted

    def answer(self, number: int) -> bytes | None:
        """The answer to a command, if it has come; raises its refusal."""
        found = self._answers.pop(number, None)
        if isinstance(found, ApiFailed):
            raise found
        if found is None:
            self._check_end()
        return found

    def event(self) -> WatchEvent | None:
        """The next event, if there is one; raises a gap that is to be raised."""
        if not self._events:
            self._check_end()
            return None
        event = self._events.popleft()
        if isinstance(event, Tombstone) and self.gaps == "raise":
            raise lost(event)
        return event

    def _check_end(self) -> None:
        if self.is_ended:
            closed = ApiFailed(UNREACHABLE, "unreachable", f"the WebSocket to {self.address} is closed")
            raise self.failure or closed


# --- Commands --------------------------------------------------------------------------------------------


class Command(Generic[T]):
    """A command, and how its answer is read."""

    def __init__(self, op: str, fields: Mapping[str, object], read: Callable[[Messages, bytes], T]) -> None:
        self.op = op
        self.fields = fields
        self.read = read


def _no_result(messages: Messages, text: bytes) -> None:
    """For commands whose answer says only that they were carried out."""


def publish(
    topic: str,
    records: Iterable[NewRecord],
    *,
    node: str | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    config: TopicSettings | None = None,
) -> Command[Appended]:
    """Append records and wait until they are acknowledged."""
    fields = {
        "topic": topic,
        "records": traced(checked_records(records)),
        "node": node,
        "idempotency_key": new_key() if idempotency_key is None else idempotency_key,
        "create": create,
        "config": None if config is None else checked_settings(config),
        "return_seqs": False,
    }
    return Command("publish", fields, lambda messages, text: msgspec.json.decode(text, type=Appended))


class _Subscribed(msgspec.Struct):
    topics: dict[str, Watched]


def _read_subscribed(messages: Messages, text: bytes) -> dict[str, Watched]:
    topics = msgspec.json.decode(text, type=_Subscribed).topics
    for topic, watched in topics.items():
        messages.at.setdefault(topic, watched.from_seq)
    return topics


def subscribe(
    topics: Mapping[str, WatchStart] | str,
    *,
    node: Nodes | None = None,
    include_tags: bool = False,
    lenient: bool = False,
) -> Command[dict[str, Watched]]:
    """Follow topics, each from its start; a topic that is followed already begins anew."""
    starts = checked_starts({topics: "earliest"} if isinstance(topics, str) else topics)
    wanted = {topic: watched_from(start) for topic, start in starts.items()}
    fields = {"topics": wanted, "node": node, "include_tags": include_tags, "lenient": lenient}
    return Command("subscribe", fields, _read_subscribed)


def unsubscribe(*topics: str) -> Command[None]:
    """Stop following topics."""
    return Command("unsubscribe", {"topics": list(topics)}, _no_result)


def ping() -> Command[None]:
    """Send a ping and wait for its answer."""
    return Command("ping", {}, _no_result)


# --- The two sockets -------------------------------------------------------------------------------------

_FOREVER_S: Final = 10.0 * 365 * 24 * 3600


def _method(build: Callable[P, Command[T]]) -> Callable[Concatenate[Socket, P], T]:
    @wraps(build)
    def method(self: Socket, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._carry_out(build(*args, **kwargs))

    show_as_method(method, build)
    return method


class Socket:
    """A WebSocket; iterate over it for pushed events. Any thread may publish while one iterates."""

    def __init__(self, writer: RequestWriter, timeout_s: float, gaps: Gaps = "raise") -> None:
        self._timeout_s = timeout_s
        self._messages = Messages(writer, gaps)
        self._connection = Connection(writer.address, timeout_s)
        self._changed = threading.Condition()
        self._is_reading = False
        try:
            self._connection.send(self._messages.hello(writer.authorization))
            while not self._messages.is_open():
                self._messages.receive(self._connection.receive(timeout_s))
        except BaseException:
            self._connection.close()
            raise

    @property
    def at(self) -> dict[str, int]:
        """How far each subscribed topic was pushed."""
        return dict(self._messages.at)

    publish = _method(publish)
    subscribe = _method(subscribe)
    unsubscribe = _method(unsubscribe)
    ping = _method(ping)

    def __iter__(self) -> Iterator[WatchEvent]:
        while True:
            yield self.next_event()

    def next_event(self) -> WatchEvent:
        """Wait for the next pushed event."""
        with self._changed:
            while (event := self._messages.event()) is None:
                self._read_or_wait(None)
        return event

    def _carry_out(self, command: Command[T]) -> T:
        with self._changed:
            number, data = self._messages.command(command)
            self._connection.send(data)
            while (answer := self._messages.answer(number)) is None:
                self._read_or_wait(self._timeout_s)
        return command.read(self._messages, answer)

    def _read_or_wait(self, timeout_s: float | None) -> None:
        """Let one thread read for all; called with the condition held, which is released meanwhile."""
        if self._is_reading:
            self._changed.wait()
            return
        self._is_reading = True
        self._changed.release()
        data, failure = b"", None
        try:
            data = self._connection.receive(_FOREVER_S if timeout_s is None else timeout_s)
        except ApiFailed as error:
            failure = error
        finally:
            self._changed.acquire()
            self._is_reading = False
            self._changed.notify_all()
        if failure is not None:
            self._messages.is_ended, self._messages.failure = True, failure
            return
        reply = self._messages.receive(data)
        if reply and self._connection.is_open:
            self._connection.send(reply)

    def close(self) -> None:
        """Close the connection; a thread that waits gets an error."""
        data = self._messages.goodbye()
        if data and self._connection.is_open:
            try:
                self._connection.send(data)
            except ApiFailed:
                return  # it is closed already
        self._connection.interrupt()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _async_method(
    build: Callable[P, Command[T]],
) -> Callable[Concatenate[AsyncSocket, P], Coroutine[Any, Any, T]]:
    @wraps(build)
    async def method(self: AsyncSocket, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._carry_out(build(*args, **kwargs))

    show_as_method(method, build)
    return method


class AsyncSocket:
    """A WebSocket on an event loop; iterate over it for pushed events, publish from any task meanwhile."""

    def __init__(self, writer: RequestWriter, timeout_s: float, gaps: Gaps = "raise") -> None:
        self._writer = writer
        self._timeout_s = timeout_s
        self._messages = Messages(writer, gaps)
        self._connection: AsyncConnection
        self._changed = asyncio.Condition()
        self._is_reading = False

    async def open(self) -> Self:
        """Connect; done by `async with`."""
        self._connection = await AsyncConnection.connect(self._writer.address, self._timeout_s)
        try:
            await self._connection.send(self._messages.hello(self._writer.authorization))
            while not self._messages.is_open():
                self._messages.receive(await self._connection.receive(self._timeout_s))
        except BaseException:
            self._connection.close()
            raise
        return self

    @property
    def at(self) -> dict[str, int]:
        """How far each subscribed topic was pushed."""
        return dict(self._messages.at)

    publish = _async_method(publish)
    subscribe = _async_method(subscribe)
    unsubscribe = _async_method(unsubscribe)
    ping = _async_method(ping)

    async def __aiter__(self) -> AsyncIterator[WatchEvent]:
        while True:
            yield await self.next_event()

    async def next_event(self) -> WatchEvent:
        """Wait for the next pushed event."""
        async with self._changed:
            while (event := self._messages.event()) is None:
                await self._read_or_wait(None)
        return event

    async def _carry_out(self, command: Command[T]) -> T:
        async with self._changed:
            number, data = self._messages.command(command)
            await self._connection.send(data)
            while (answer := self._messages.answer(number)) is None:
                await self._read_or_wait(self._timeout_s)
        return command.read(self._messages, answer)

    async def _read_or_wait(self, timeout_s: float | None) -> None:
        """Let one task read for all; called with the condition held, which is released meanwhile."""
        if self._is_reading:
            await self._changed.wait()
            return
        self._is_reading = True
        self._changed.release()
        data, failure = b"", None
        try:
            data = await self._connection.receive(_FOREVER_S if timeout_s is None else timeout_s)
        except ApiFailed as error:
            failure = error
        finally:
            await self._changed.acquire()
            self._is_reading = False
            self._changed.notify_all()
        if failure is not None:
            self._messages.is_ended, self._messages.failure = True, failure
            return
        reply = self._messages.receive(data)
        if reply and self._connection.is_open:
            await self._connection.send(reply)

    async def close(self) -> None:
        """Close the connection; a task that waits gets an error."""
        data = self._messages.goodbye()
        if data and self._connection.is_open:
            try:
                await self._connection.send(data)
            except ApiFailed:
                return  # it is closed already
        self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
