"""`AsyncClient`: the client of a topics server for asyncio. The same methods as `Client`, to be awaited.

Owns how the steps of a flow are carried out on an event loop; what is sent is described in `calls` and
`streams`. Any number of tasks may share a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from everlog import tracing
from everlog.client import calls, streams
from everlog.client.arguments import Gaps, call_span, show_as_method
from everlog.client.async_connection import AsyncConnection, AsyncConnections
from everlog.client.errors import ApiFailed
from everlog.client.flows import ClientContext, Described, Emit, Flow, More, Open, Pause, Send, Step, Stream
from everlog.client.retrying import Reached, RetryPolicy, checked_policy
from everlog.client.sockets import AsyncSocket
from everlog.client.wire import DEFAULT_URL, TIMEOUT_S, Answer, RequestWriter, ServerAddress
from everlog.clock import Clock, SystemClock
from everlog.errors import Closed

P = ParamSpec("P")
T = TypeVar("T")


def _method(
    build: Callable[P, Described[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The method that carries out what `build` describes."""

    @wraps(build)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not tracing.is_exported():
            return await self._run(build(*args, **kwargs).steps(self._context))
        with call_span(build.__name__, args):
            return await self._run(build(*args, **kwargs).steps(self._context))

    show_as_method(method, build)
    return method


def _iterator(build: Callable[P, Stream[T]]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """The method that iterates over what `build` describes."""

    @wraps(build)
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._iterate(build(*args, **kwargs).steps(self._context))

    show_as_method(method, build, "AsyncIterator")
    return method


class AsyncClient:
    """A topics server, for programs on an event loop; asyncio's own or uvloop.

    Server errors are `ApiFailed` with the server's code and detail. Lost connections, 429 and 503 are retried
    within the deadline of `retry`; a request that may have been carried out only if a repeat is harmless.
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
        self.address = ServerAddress.parse(url)
        self._sleep = sleep
        writer = RequestWriter(self.address, key)
        now_ns = (clock if clock is not None else SystemClock()).monotonic_ns
        self._context = ClientContext(writer, checked_policy(retry), timeout_s, now_ns, Reached())
        self._connections = AsyncConnections(self.address)
        self._is_closed = False

    @property
    def retry(self) -> RetryPolicy:
        """How long calls keep trying."""
        return self._context.policy

    put_topic = _method(calls.put_topic)
    topic = _method(calls.topic)
    account = _method(calls.account)
    topics_page = _method(calls.topics_page)
    topics = _method(calls.topics)
    delete_topic = _method(calls.delete_topic)
    append = _method(calls.append)
    append_many = _method(calls.append_many)
    diff = _method(calls.diff)
    latest = _method(calls.latest)
    histogram = _method(calls.histogram)
    delete_records = _method(calls.delete_records)
    put_router = _method(calls.put_router)
    router = _method(calls.router)
    routers_page = _method(calls.routers_page)
    routers = _method(calls.routers)
    delete_router = _method(calls.delete_router)
    claim = _method(calls.claim)
    ack = _method(calls.ack)
    nack = _method(calls.nack)
    extend = _method(calls.extend)
    jobs_page = _method(calls.jobs_page)
    job = _method(calls.job)
    cancel_jobs = _method(calls.cancel_jobs)
    retry_jobs = _method(calls.retry_jobs)
    pause_queue = _method(calls.pause_queue)
    resume_queue = _method(calls.resume_queue)
    purge_jobs = _method(calls.purge_jobs)
    redrive = _method(calls.redrive)
    put_schedule = _method(calls.put_schedule)
    schedule = _method(calls.schedule)
    schedules_page = _method(calls.schedules_page)
    schedules = _method(calls.schedules)
    delete_schedule = _method(calls.delete_schedule)
    put_consumer = _method(calls.put_consumer)
    consumer = _method(calls.consumer)
    consumers_page = _method(calls.consumers_page)
    consumers = _method(calls.consumers)
    delete_consumer = _method(calls.delete_consumer)
    read_consumer = _method(calls.read_consumer)
    commit_consumer = _method(calls.commit_consumer)
    acquire_consumer = _method(calls.acquire_consumer)
    reset_consumer = _method(calls.reset_consumer)
    health = _method(calls.health)
    ready = _method(calls.ready)
    metrics = _method(calls.metrics)
    read = _iterator(streams.read)
    watch = _iterator(streams.watch)
    work = _iterator(streams.work)

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.address}>"

    def socket(self, *, gaps: Gaps = "raise") -> AsyncSocket:
        """A WebSocket, to be used in an `async with` block."""
        self._check_open()
        return AsyncSocket(self._context.writer, self._context.timeout_s, gaps)

    async def call(self, described: Described[T], *, retry: RetryPolicy | None = None) -> T:
        """Carry out a request of `everlog.client.calls`, with another retry policy if one is given."""
        context = self._context if retry is None else self._context._replace(policy=retry)
        return await self._run(described.steps(context))

    def iterate(self, described: Stream[T]) -> AsyncIterator[T]:
        """Iterate over what a description of `everlog.client.streams` emits."""
        return self._iterate(described.steps(self._context))

    async def exchange(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send any request, once, and return what the server answers; for what has no method here."""
        request = self._context.writer.bare_request(method, target, body, dict(headers or {}))
        self._check_open()
        return await self._send(Send(request, self._context.timeout_s))

    async def _send(self, step: Send) -> Answer:
        connect_s = min(step.timeout_s, self._context.timeout_s)
        connection = await self._connections.take(connect_s)
        try:
            answer = await connection.exchange(step.request, step.timeout_s)
        except ApiFailed as error:
            if not (
                step.may_repeat and connection.was_idle and isinstance(error.__context__, ConnectionError)
            ):
                raise
            connection = await self._connections.open(connect_s)
            answer = await connection.exchange(step.request, step.timeout_s)
        self._connections.give_back(connection)
        if self._is_closed:
            self._connections.close()  # by another task, in the middle of this call
        return answer

    async def _step(self, step: Step) -> Any:
        if isinstance(step, Send):
            return await self._send(step)
        assert isinstance(step, Pause), "only an iteration has streams"
        await self._sleep(step.duration_s)
        return None

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"this client of {self.address} was closed; make another one")

    async def _run(self, flow: Flow[T]) -> T:
        self._check_open()
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

    async def _iterate(self, flow: Flow[None]) -> AsyncIterator[Any]:
        self._check_open()
        stream: AsyncConnection | None = None
        try:
            step = next(flow)
            while True:
                try:
                    outcome: Any = None
                    if isinstance(step, Emit):
                        yield step.value
                    elif isinstance(step, Open):
                        if stream is not None:
                            self._connections.forget_stream(stream)
                        stream = await self._connections.new_stream(step.timeout_s)
                        self._check_open()
                        outcome = await stream.open_stream(step.request, step.timeout_s)
                    elif isinstance(step, More):
                        assert stream is not None, "a stream is opened first"
                        outcome = await stream.more(step.timeout_s)
                    else:
                        outcome = await self._step(step)
                except ApiFailed as error:
                    self._check_open()
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
                if not isinstance(step, Emit):
                    self._check_open()
        except StopIteration:
            return
        finally:
            flow.close()
            if stream is not None:
                self._connections.forget_stream(stream)

    async def close(self) -> None:
        """Close the connections; calls after this raise Closed, and so do iterations that are under way."""
        self._is_closed = True
        self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
