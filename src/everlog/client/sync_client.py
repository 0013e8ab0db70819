"""`Client`: the blocking client of a topics server.

Owns how the steps of a flow are carried out with blocking sockets; what is sent is described in `calls` and
`streams`. Any number of threads may share a client.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import wraps
from html import escape
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from everlog import tracing
from everlog.api_types import Framed, Record
from everlog.client import calls, streams
from everlog.client.arguments import Gaps, call_span, show_as_method
from everlog.client.connection import Connection, Connections
from everlog.client.errors import ApiFailed
from everlog.client.flows import ClientContext, Described, Emit, Flow, More, Open, Pause, Send, Step, Stream
from everlog.client.retrying import ONCE, Reached, RetryPolicy, checked_policy
from everlog.client.sockets import Socket
from everlog.client.wire import DEFAULT_URL, TIMEOUT_S, Answer, RequestWriter, ServerAddress
from everlog.clock import NS_PER_S, Clock, SystemClock
from everlog.errors import Closed, InvalidConfig, InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")


def _method(build: Callable[P, Described[T]]) -> Callable[Concatenate[Client, P], T]:
    """The method that carries out what `build` describes."""

    @wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not tracing.is_exported():
            return self._run(build(*args, **kwargs).steps(self._context))
        with call_span(build.__name__, args):
            return self._run(build(*args, **kwargs).steps(self._context))

    show_as_method(method, build)
    return method


def _iterator(build: Callable[P, Stream[T]]) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """The method that iterates over what `build` describes."""

    @wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._iterate(build(*args, **kwargs).steps(self._context))

    show_as_method(method, build)
    return method


class Reading(Framed, Iterator[T]):
    """The records of a topic, read while they are iterated over; a data frame of them reads to the end."""

    __slots__ = ("_records", "_topic")

    def __init__(self, topic: str, records: Generator[T]) -> None:
        self._topic = topic
        self._records = records

    def __iter__(self) -> Generator[T]:
        return self._records

    def __next__(self) -> T:
        return next(self._records)

    def close(self) -> None:
        """End it before its end; the connection of one that follows is closed."""
        self._records.close()

    @property
    def records(self) -> list[Record]:
        """Those that have not been iterated over yet."""
        found: list[Record] = []
        for record in self._records:
            if not isinstance(record, Record):
                raise InvalidRequest("a data frame has no rows for gaps; read without gaps='yield'")
            found.append(record)
        return found

    def __repr__(self) -> str:
        return f"<records of {self._topic!r}: iterate over them, or call to_pandas() or to_polars()>"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"


def _reader(build: Callable[P, Stream[T]]) -> Callable[Concatenate[Client, P], Reading[T]]:
    """The method that reads what `build` describes."""

    @wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Reading[T]:
        topic = args[0] if args else kwargs["topic"]
        return Reading(str(topic), self._iterate(build(*args, **kwargs).steps(self._context)))

    show_as_method(method, build, "Reading")
    return method


class Client:
    """A topics server, for programs that wait for their answers.

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
    ) -> None:
        self.address = ServerAddress.parse(url)
        self._clock: Clock = clock if clock is not None else SystemClock()
        writer = RequestWriter(self.address, key)
        now_ns = self._clock.monotonic_ns
        self._context = ClientContext(writer, checked_policy(retry), timeout_s, now_ns, Reached())
        self._connections = Connections(self.address)
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
    read = _reader(streams.read)
    watch = _iterator(streams.watch)
    work = _iterator(streams.work)

    def __repr__(self) -> str:
        return f"<Client of {self.address}>"

    def socket(self, *, gaps: Gaps = "raise") -> Socket:
        """A WebSocket, to be used in a `with` block."""
        self._check_open()
        return Socket(self._context.writer, self._context.timeout_s, gaps)

    def call(self, described: Described[T], *, retry: RetryPolicy | None = None) -> T:
        """Carry out a request of `everlog.client.calls`, with another retry policy if one is given."""
        context = self._context if retry is None else self._context._replace(policy=retry)
        return self._run(described.steps(context))

    def iterate(self, described: Stream[T]) -> Iterator[T]:
        """Iterate over what a description of `everlog.client.streams` emits."""
        return self._iterate(described.steps(self._context))

    def exchange(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send any request, once, and return what the server answers; for what has no method here."""
        request = self._context.writer.bare_request(method, target, body, dict(headers or {}))
        self._check_open()
        return self._send(Send(request, self._context.timeout_s))

    def _send(self, step: Send) -> Answer:
        connect_s = min(step.timeout_s, self._context.timeout_s)
        connection = self._connections.take(connect_s)
        try:
            answer = connection.exchange(step.request, step.timeout_s)
        except ApiFailed as error:
            if not (
                step.may_repeat and connection.was_idle and isinstance(error.__context__, ConnectionError)
            ):
                raise
            connection = self._connections.open(connect_s)
            answer = connection.exchange(step.request, step.timeout_s)
        self._connections.give_back(connection)
        if self._is_closed:
            self._connections.close()  # by another thread, in the middle of this call
        return answer

    def _step(self, step: Step) -> Any:
        if isinstance(step, Send):
            return self._send(step)
        assert isinstance(step, Pause), "only an iteration has streams"
        self._clock.sleep_ns(int(step.duration_s * NS_PER_S))
        return None

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"this client of {self.address} was closed; make another one")

    def _run(self, flow: Flow[T]) -> T:
        self._check_open()
        try:
            step = next(flow)
            while True:
                try:
                    outcome = self._step(step)
                except ApiFailed as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as done:
            result: T = done.value
            return result

    def _iterate(
        self, flow: Flow[None], on_open: Callable[[Connection], None] | None = None
    ) -> Generator[Any]:
        self._check_open()
        stream: Connection | None = None
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
                        stream = self._connections.new_stream(step.timeout_s)
                        self._check_open()
                        if on_open is not None:
                            on_open(stream)
                        outcome = stream.open_stream(step.request, step.timeout_s)
                    elif isinstance(step, More):
                        assert stream is not None, "a stream is opened first"
                        outcome = stream.more(step.timeout_s)
                    else:
                        outcome = self._step(step)
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

    def close(self) -> None:
        """Close the connections; calls after this raise Closed, and so do iterations that are under way."""
        self._is_closed = True
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def iterate_once(client: Client, described: Stream[T], on_open: Callable[[Connection], None]) -> Generator[T]:
    """Iterate over one connection, until it fails. `on_open` gets it, so that it can be interrupted."""
    return client._iterate(described.steps(client._context._replace(policy=ONCE)), on_open)


def client_of(client: Client | str, key: str | None) -> Client:
    """The given client, or a new one for the given URL; raises InvalidConfig for anything else."""
    if isinstance(client, str):
        return Client(client, key)
    if not isinstance(client, Client):
        raise InvalidConfig(f"the client is {client!r}; give an everlog.Client, or the URL of a server")
    if key is not None:
        raise InvalidConfig("a key beside a client; give it to the client: Client(url, key)")
    return client
