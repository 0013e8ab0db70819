"""`Client`: the blocking client of a topics server.

Owns how the steps of a flow are carried out with blocking sockets; what the steps are is decided in `flows`,
what is sent in `calls`. Any number of threads may share a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from everlog.api_types import Job, Record, RouterSummary, Tombstone, TopicSummary, WatchEvent
from everlog.client import calls, flows
from everlog.client.arguments import Gaps, Start, checked_starts, show_as_method
from everlog.client.calls import Call, Nodes
from everlog.client.connection import Connection, Connections
from everlog.client.errors import ApiFailed
from everlog.client.flows import Emit, Flow, Open, Pause, ReadWishes, Send, Step, WatchWishes, Wishes
from everlog.client.retrying import RetryPolicy, checked_policy
from everlog.client.sockets import Socket
from everlog.client.wire import DEFAULT_URL, TIMEOUT_S, Answer, Place, RequestWriter
from everlog.clock import NS_PER_S, Clock, SystemClock
from everlog.errors import InvalidConfig

P = ParamSpec("P")
T = TypeVar("T")


def _method(build: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """The method that carries out what `build` describes."""

    @wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(flows.call(self._wishes, build(*args, **kwargs)))

    show_as_method(method, build)
    return method


class Client:
    """A topics server, for programs that wait for their answers.

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
    ) -> None:
        self.place = Place.parse(url)
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._writer = RequestWriter(self.place, key)
        self._timeout_s = timeout_s
        self._wishes = Wishes(self._writer, checked_policy(retry), timeout_s, self._clock.monotonic_ns)
        self._connections = Connections(self.place)

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
        return f"<Client of {self.place}>"

    def topics(self, prefix: str | None = None) -> list[TopicSummary]:
        """All topics, or those whose names begin so."""
        return self._run(flows.topics(self._wishes, prefix))

    def routers(
        self, prefix: str | None = None, *, source: str | None = None, dest: str | None = None
    ) -> list[RouterSummary]:
        """All routers, or those that are meant."""
        return self._run(flows.routers(self._wishes, prefix, source, dest))

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
    ) -> Iterator[Record]: ...

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
    ) -> Iterator[Record | Tombstone]: ...

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
    ) -> Iterator[Record | Tombstone]:
        """Iterate over the records of a topic, from `start` to its present end, or on and on with `follow`.

        Without `follow`, `start="now"` follows and the others do not. Records that are gone before they were
        read are told: by `RecordsLost`, or by a `Tombstone` in their place with `gaps="yield"`.
        """
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
    ) -> Iterator[WatchEvent]:
        """Iterate over what happens to topics; it ends when all of them are gone.

        A mapping says where each begins, otherwise all begin at what comes from now on. When the connection
        or the server is lost it goes on where it was, without a record missing or coming twice.
        """
        options = watch_options(node, include_tags, include_meta, include_data, limit, consistency)
        wanted = WatchWishes(checked_starts(topics), gaps, lenient, options)
        return self._iterate(flows.watch(self._wishes, wanted))

    def work(self, queue: str, node: str, max: int = 1, *, lease_ms: int | None = None) -> Iterator[Job]:
        """Iterate over jobs that the server pushes, never more than `max` that are not settled.

        Settle each with `ack` or `nack`. The leases end with this iteration.
        """
        return self._iterate(flows.work(self._wishes, queue, node, max, lease_ms))

    def socket(self, *, gaps: Gaps = "raise") -> Socket:
        """A WebSocket, to be used in a `with` block."""
        return Socket(self._writer, self._timeout_s, gaps)

    # --- Steps ---------------------------------------------------------------------------------------------

    def exchange(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send any request, once, and return whatever the server answers; for what has no method here."""
        request = self._writer.bare_request(method, target, body, dict(headers or {}))
        return self._send(Send(request, self._timeout_s))

    def _send(self, step: Send) -> Answer:
        connection = self._connections.take(min(step.timeout_s, self._timeout_s))
        answer = connection.exchange(step.request, step.timeout_s)
        self._connections.give_back(connection)
        return answer

    def _run(self, flow: Flow[T]) -> T:
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

    def _step(self, step: Step) -> Any:
        if isinstance(step, Send):
            return self._send(step)
        assert isinstance(step, Pause), "only an iteration has streams"
        self._clock.sleep_ns(int(step.duration_s * NS_PER_S))
        return None

    def _iterate(self, flow: Flow[None]) -> Iterator[Any]:
        with _stream(self.place) as stream:
            try:
                step = next(flow)
                while True:
                    try:
                        if isinstance(step, Emit):
                            yield step.value
                            outcome: Any = None
                        elif isinstance(step, Send | Pause):
                            outcome = self._step(step)
                        else:
                            outcome = stream.step(step)
                    except ApiFailed as error:
                        step = flow.throw(error)
                    else:
                        step = flow.send(outcome)
            except StopIteration:
                return
            finally:
                flow.close()

    def close(self) -> None:
        """Give the connections back; the next call opens new ones."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def client_of(client: Client | str, key: str | None) -> Client:
    """The client that was given, or one for the URL that was; raises InvalidConfig for anything else."""
    if isinstance(client, str):
        return Client(client, key)
    if not isinstance(client, Client):
        raise InvalidConfig(f"the client is {client!r}; give an everlog.Client, or the URL of a server")
    if key is not None:
        raise InvalidConfig("a key beside a client; give it to the client: Client(url, key)")
    return client


class _Stream:
    """The connection of an iteration."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection: Connection | None = None

    def step(self, step: Step) -> Answer | bytes:
        if isinstance(step, Open):
            self.close()
            self._connection = Connection(self._place, step.timeout_s)
            return self._connection.open_stream(step.request, step.timeout_s)
        assert isinstance(step, flows.More) and self._connection is not None, "a stream is opened first"
        return self._connection.more(step.timeout_s)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


@contextmanager
def _stream(place: Place) -> Iterator[_Stream]:
    stream = _Stream(place)
    try:
        yield stream
    finally:
        stream.close()


def watch_options(
    node: Nodes | None,
    include_tags: bool,
    include_meta: bool,
    include_data: bool,
    limit: int,
    consistency: str,
) -> dict[str, object]:
    """The options of a watch session."""
    return {
        "node": node,
        "include_tags": include_tags,
        "include_meta": include_meta,
        "include_data": include_data,
        "limit": limit,
        "consistency": consistency,
    }
