"""`AsyncClient`: the client of a topics server for asyncio. The same methods as `Client`, to be awaited.

Owns how the steps of a flow are carried out on an event loop; what the steps are is decided in `flows`, what
is sent in `calls`. Any number of tasks may share a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from everlog.api_types import Job, Record, RouterSummary, Tombstone, TopicSummary, WatchEvent
from everlog.client import calls, flows
from everlog.client.arguments import Gaps, Start, checked_starts, show_as_method
from everlog.client.async_connection import AsyncConnection, AsyncConnections
from everlog.client.calls import Call, Nodes
from everlog.client.errors import ApiFailed
from everlog.client.flows import Emit, Flow, Open, Pause, ReadWishes, Send, Step, WatchWishes, Wishes
from everlog.client.retrying import RetryPolicy, checked_policy
from everlog.client.sockets import AsyncSocket
from everlog.client.sync_client import watch_options
from everlog.client.wire import DEFAULT_URL, TIMEOUT_S, Answer, Place, RequestWriter
from everlog.clock import Clock, SystemClock

P = ParamSpec("P")
T = TypeVar("T")


def _method(build: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The method that carries out what `build` describes."""

    @wraps(build)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(flows.call(self._wishes, build(*args, **kwargs)))

    show_as_method(method, build)
    return method


class AsyncClient:
    """A topics server, for programs on an event loop; asyncio's own or uvloop.

    Server errors are `ApiFailed` with the server's code and detail. Lost connections, 429 and 503 are tried
    again within the deadline of `retry`; what may have been carried out is repeated only if that is harmless.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        *,
        retry: RetryPolicy | None = None,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        self.place = Place.parse(url)
        self._sleep = sleep
        self._writer = RequestWriter(self.place, key)
        self._timeout_s = timeout_s
        now_ns = (clock if clock is not None else SystemClock()).monotonic_ns
        self._wishes = Wishes(self._writer, checked_policy(retry), timeout_s, now_ns)
        self._connections = AsyncConnections(self.place)

    put_topic = _method(calls.put_topic)
    topic = _method(calls.topic)
    account = _method(calls.account)
    topics_page = _method(calls.topics_page)
    delete_topic = _method(calls.delete_topic)
    append = _method(calls.append)
    append_many = _method(calls.append_many)
    diff = _method(calls.diff)
    delete_records = _method(calls.delete_records)
    put_router = _method(calls.put_router)
    router = _method(calls.router)
    routers_page = _method(calls.routers_page)
    delete_router = _method(calls.delete_router)
    claim = _method(calls.claim)
    ack = _method(calls.ack)
    nack = _method(calls.nack)
    extend = _method(calls.extend)
    health = _method(calls.health)
    ready = _method(calls.ready)
    metrics = _method(calls.metrics)

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.place}>"

    async def topics(self, prefix: str | None = None) -> list[TopicSummary]:
        """All topics, or those whose names begin so."""
        return await self._run(flows.topics(self._wishes, prefix))

    async def routers(
        self, prefix: str | None = None, *, source: str | None = None, dest: str | None = None
    ) -> list[RouterSummary]:
        """All routers, or those that are meant."""
        return await self._run(flows.routers(self._wishes, prefix, source, dest))

    # --- Iterating -----------------------------------------------------------------------------------------

    @overload
    def read(
        self,
        topic: str,
        start: Start = "earliest",
        *,
        follow: bool | None = None,
        gaps: Literal["raise"] = "raise",
        limit: int = 1000,
        node: Nodes | None = None,
        include_tags: bool = True,
        include_meta: bool = True,
    ) -> AsyncIterator[Record]: ...

    @overload
    def read(
        self,
        topic: str,
        start: Start = "earliest",
        *,
        follow: bool | None = None,
        gaps: Literal["yield"],
        limit: int = 1000,
        node: Nodes | None = None,
        include_tags: bool = True,
        include_meta: bool = True,
    ) -> AsyncIterator[Record | Tombstone]: ...

    def read(
        self,
        topic: str,
        start: Start = "earliest",
        *,
        follow: bool | None = None,
        gaps: Gaps = "raise",
        limit: int = 1000,
        node: Nodes | None = None,
        include_tags: bool = True,
        include_meta: bool = True,
    ) -> AsyncIterator[Record | Tombstone]:
        """Iterate over the records of a topic; see `Client.read`."""
        wanted = ReadWishes(topic, start, follow, gaps, limit, node, include_tags, include_meta)
        return self._iterate(flows.read(self._wishes, wanted))

    def watch(
        self,
        topics: Mapping[str, Start] | Iterable[str] | str,
        *,
        gaps: Gaps = "raise",
        lenient: bool = False,
        node: Nodes | None = None,
        include_tags: bool = True,
        include_meta: bool = True,
        include_data: bool = True,
        limit: int = 256,
        consistency: Literal["eventual", "strong"] = "eventual",
    ) -> AsyncIterator[WatchEvent]:
        """Iterate over what happens to topics; see `Client.watch`."""
        options = watch_options(node, include_tags, include_meta, include_data, limit, consistency)
        wanted = WatchWishes(checked_starts(topics), gaps, lenient, options)
        return self._iterate(flows.watch(self._wishes, wanted))

    def work(self, queue: str, node: str, max: int = 1, *, lease_ms: int | None = None) -> AsyncIterator[Job]:
        """Iterate over jobs that the server pushes; see `Client.work`."""
        return self._iterate(flows.work(self._wishes, queue, node, max, lease_ms))

    def socket(self, *, gaps: Gaps = "raise") -> AsyncSocket:
        """A WebSocket, to be used in an `async with` block."""
        return AsyncSocket(self._writer, self._timeout_s, gaps)

    # --- Steps ---------------------------------------------------------------------------------------------

    async def exchange(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send any request, once, and return whatever the server answers; for what has no method here."""
        request = self._writer.bare_request(method, target, body, dict(headers or {}))
        return await self._send(Send(request, self._timeout_s))

    async def _send(self, step: Send) -> Answer:
        connection = await self._connections.take(min(step.timeout_s, self._timeout_s))
        answer = await connection.exchange(step.request, step.timeout_s)
        self._connections.give_back(connection)
        return answer

    async def _run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    outcome = await self._step(step)
                except ApiFailed as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _step(self, step: Step) -> Any:
        if isinstance(step, Send):
            return await self._send(step)
        assert isinstance(step, Pause), "only an iteration has streams"
        await self._sleep(step.duration_s)
        return None

    async def _iterate(self, flow: Flow[None]) -> AsyncIterator[Any]:
        stream = _Stream(self.place)
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, Emit):
                        yield step.value
                        outcome: Any = None
                    elif isinstance(step, Send | Pause):
                        outcome = await self._step(step)
                    else:
                        outcome = await stream.step(step)
                except ApiFailed as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration:
            return
        finally:
            flow.close()
            stream.close()

    async def close(self) -> None:
        """Give the connections back; the next call opens new ones."""
        self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Stream:
    """The connection of an iteration."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection: AsyncConnection | None = None

    async def step(self, step: Step) -> Answer | bytes:
        if isinstance(step, Open):
            self.close()
            self._connection = await AsyncConnection.connect(self._place, step.timeout_s)
            return await self._connection.open_stream(step.request, step.timeout_s)
        assert isinstance(step, flows.More) and self._connection is not None, "a stream is opened first"
        return await self._connection.more(step.timeout_s)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
