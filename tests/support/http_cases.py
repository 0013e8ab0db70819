"""A topics server to test against, and the client side of the tests: requests in, replies out.

The cases talk to a `Client`, one small method, so that the same cases can run through another client library.
`Api` gives the operations of the contract their names; it checks nothing by itself.
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode

import uvloop

from everlog.clock import SystemClock
from everlog.server.app import App
from everlog.server.auth import KeyRing
from everlog.server.serve import TopicsServer
from everlog.server.settings import ServerSettings
from everlog.topics import Engine

PATIENCE_S = 20.0
NS_PER_MS = 1_000_000
JSON = "application/json"
Result = TypeVar("Result")

ConfigDefaults: dict[str, object] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "concurrency_limit": 0,
    "rate_limit": None,
    "retry": None,
    "unique_window_ms": 0,
    "paused": False,
}


# --- Clients ---------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """What came back: header names are lower-case, `json` is None if the body is none."""

    status: int
    headers: dict[str, str]
    json: Any
    text: str = ""


class Client(Protocol):
    """Sends one request at a time.

    A body of bytes goes out as it is, any other but None as JSON. The content type is that of JSON unless a
    header says otherwise; a header of None is not sent.
    """

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str | None] | None = None
    ) -> Reply:
        """Send a request and wait for its reply."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


class HttpClient:
    """A client on one keep-alive connection of the standard library."""

    def __init__(self, address: tuple[str, int], token: str | None = None) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
        self._token = token

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str | None] | None = None
    ) -> Reply:
        """Send a request and wait for its reply."""
        sent: dict[str, str | None] = {}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if data is not None:
            sent["Content-Type"] = JSON
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        sent.update(headers or {})
        present = {name: value for name, value in sent.items() if value is not None}
        self._connection.request(method, path, data, present)
        response = self._connection.getresponse()
        answer = response.read()
        received = {name.lower(): value for name, value in response.getheaders()}
        text = (gzip.decompress(answer) if received.get("content-encoding") == "gzip" else answer).decode()
        is_json = received.get("content-type") == JSON and bool(text)
        return Reply(response.status, received, json.loads(text) if is_json else None, text)

    def leave(self) -> None:
        """Go away, also in the middle of a request."""
        assert self._connection.sock is not None, "this client is not connected"
        self._connection.sock.shutdown(socket.SHUT_RDWR)

    def send(self, data: bytes) -> None:
        """Send bytes past the library; no answer is read."""
        assert self._connection.sock is not None, "this client is not connected"
        self._connection.sock.sendall(data)

    @property
    def local_port(self) -> int | None:
        """What tells its connection from others; None if it has none."""
        sock = self._connection.sock
        return None if sock is None else int(sock.getsockname()[1])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Api:
    """The operations of the contract by name."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def request(self, method: str, path: str, body: object = None, **headers: str | None) -> Reply:
        """Any request; underscores in header names stand for hyphens."""
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, path, body, spelled)

    def put(self, topic: str, **config: object) -> Reply:
        """Create or configure a topic."""
        return self.client.request("PUT", topic_path(topic), config)

    @property
    def http(self) -> HttpClient:
        """The plain client, for what no other client can do."""
        assert isinstance(self.client, HttpClient)
        return self.client

    def append(self, topic: str, records: Sequence[object] = ({"data": 1},), **fields: Any) -> Reply:
        """Append records, each an object of the contract."""
        return self.client.request("POST", topic_path(topic), {"records": list(records), **fields})

    def append_text(self, topic: str, data: str, extra: str = "") -> Reply:
        """Append one record whose data is this text, as it stands."""
        body = b'{"records":[{"data":' + data.encode() + extra.encode() + b"}]}"
        return self.client.request("POST", topic_path(topic), body)

    def fill(self, topic: str, *values: object) -> None:
        """Append plain values; they must be taken."""
        reply = self.append(topic, [{"data": value} for value in values])
        taken(reply, 201 if reply.status == 201 else 200)

    def state(self, topic: str, **query: object) -> Reply:
        """Report a topic."""
        return self.client.request("GET", topic_path(topic) + query_text(query))

    def topics(self, **query: object) -> Reply:
        """List topics."""
        return self.client.request("GET", "/v0/topics" + query_text(query))

    def drop(self, topic: str, **query: object) -> Reply:
        """Delete a topic."""
        return self.client.request("DELETE", topic_path(topic) + query_text(query))

    def diff(self, topic: str, **fields: object) -> Reply:
        """Read records."""
        return self.client.request("POST", topic_path(topic, "diff"), fields)

    def delete(self, topic: str, **fields: object) -> Reply:
        """Delete records."""
        return self.client.request("POST", topic_path(topic, "delete"), fields)

    def claim(self, topic: str, node: str = "w", **fields: object) -> Reply:
        """Claim jobs of a queue."""
        return self.client.request("POST", topic_path(topic, "claim"), {"node": node, **fields})

    def settle(
        self, verb: str, topic: str, seqs: Sequence[object], node: str = "w", **fields: object
    ) -> Reply:
        """Ack, nack or extend jobs of a queue."""
        return self.client.request("POST", topic_path(topic, verb), {"node": node, "seqs": seqs, **fields})

    def put_router(self, router: str, source: str, dest: str, **fields: object) -> Reply:
        """Create or change a router."""
        return self.client.request("PUT", router_path(router), {"source": source, "dest": dest, **fields})

    def router(self, router: str) -> Reply:
        """Report a router."""
        return self.client.request("GET", router_path(router))

    def routers(self, **query: object) -> Reply:
        """List routers."""
        return self.client.request("GET", "/v0/routers" + query_text(query))

    def drop_router(self, router: str) -> Reply:
        """Delete a router."""
        return self.client.request("DELETE", router_path(router))

    def values(self, topic: str, **fields: object) -> list[object]:
        """The data of the records that one read gives."""
        return [record["data"] for record in taken(self.diff(topic, **fields))["records"]]

    def seqs(self, topic: str, **fields: object) -> list[int]:
        """The seqs of the records that one read gives."""
        return [record["$seq"] for record in taken(self.diff(topic, **fields))["records"]]


def topic_path(topic: str, operation: str = "") -> str:
    """The path of a topic, or of one of its operations."""
    return f"/v0/topics/{quote(topic, safe='')}" + (f"/{operation}" if operation else "")


def router_path(router: str) -> str:
    """The path of a router."""
    return f"/v0/routers/{quote(router, safe='')}"


def query_text(query: Mapping[str, object]) -> str:
    """A query string with its question mark; nothing if there is none."""
    return f"?{urlencode(query)}" if query else ""


def append_head(length: int) -> bytes:
    """The head of an append to the topic `t`, for clients that write their own bytes."""
    request = b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return request + b"Content-Length: %d\r\n\r\n" % length


# --- Replies ---------------------------------------------------------------------------------------------


def taken(reply: Reply, status: int = 200) -> Any:
    """The body of a reply that must be a success."""
    assert reply.status == status, (reply.status, reply.text)
    assert reply.headers["content-type"] == JSON
    return reply.json


def assert_error(reply: Reply, status: int, code: str, **detail: object) -> None:
    """The reply is this error, in the one shape that errors have; `detail` is what it must at least tell."""
    assert reply.status == status, (reply.status, reply.text)
    assert_error_shape(reply)
    error = reply.json["error"]
    assert error["code"] == code, error
    told = error.get("detail", {})
    assert {name: told.get(name, "nothing") for name in detail} == detail, error
    if status in (429, 503):
        assert int(reply.headers["retry-after"]) >= 1


def assert_error_shape(reply: Reply) -> None:
    """Errors have one shape."""
    assert reply.headers["content-type"] == JSON
    assert set(reply.json) == {"error"}
    error = reply.json["error"]
    assert {"code", "message"} <= set(error) <= {"code", "message", "detail"}
    assert isinstance(error["code"], str)
    assert error["message"]
    assert isinstance(error.get("detail", {}), dict)


# --- Servers ---------------------------------------------------------------------------------------------


class MovableClock(SystemClock):
    """The system's time, with wall time that a test can move ahead."""

    def __init__(self) -> None:
        self.ahead_ns = 0
        self.frozen_ns: int | None = None

    def wall_ns(self) -> int:
        """Wall time, moved."""
        return (super().wall_ns() if self.frozen_ns is None else self.frozen_ns) + self.ahead_ns

    def freeze(self) -> None:
        """Let wall time pass only when it is moved."""
        self.frozen_ns = super().wall_ns()

    def advance_ms(self, duration_ms: int) -> None:
        """Move wall time ahead."""
        self.ahead_ns += duration_ms * NS_PER_MS


class ServerUnderTest(TopicsServer):
    """A server whose recovery a test can hold open, and whose wall time it can move."""

    def __init__(self, settings: ServerSettings, *, memory: bool) -> None:
        super().__init__(settings, memory=memory)
        self.clock = MovableClock()
        self.may_recover = threading.Event()

    @property
    def app(self) -> App:
        """What answers."""
        assert self._app is not None, "the server has not been started"
        return self._app

    def _open_engine(self, app: App) -> Engine:
        assert self.may_recover.wait(PATIENCE_S), "the test never let recovery go on"
        engine = super()._open_engine(app)
        engine._core.clock = self.clock
        return engine


def settings_of(*, keys: str = "", **fields: Any) -> ServerSettings:
    """Settings of a small server on any free port of this host."""
    return ServerSettings(
        port=fields.pop("port", 0),
        wal_shards=fields.pop("wal_shards", 2),
        api_keys=KeyRing.parse(keys),
        **fields,
    )


class RunningServer:
    """A server on the event loop of a thread of its own."""

    client_kind: ClassVar[Callable[..., Client]] = HttpClient
    """What `api` talks through, called with an address and a token; the same cases run through others."""

    def __init__(self, settings: ServerSettings, *, memory: bool = True, recovers: bool = True) -> None:
        self.complaints: list[dict[str, Any]] = []
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._clients: list[Client] = []
        self._pool = ThreadPoolExecutor(8)
        self._thread.start()
        self.server = ServerUnderTest(settings, memory=memory)
        if recovers:
            self.server.may_recover.set()
        self._started = asyncio.run_coroutine_threadsafe(self.server.start(), self._loop)
        try:
            if recovers:
                self._started.result(PATIENCE_S)
            else:
                wait_for(lambda: self.server.address[1] != 0)
        except BaseException:
            self._end()
            raise

    @property
    def clock(self) -> MovableClock:
        """The time that its topics live in."""
        return self.server.clock

    @property
    def app(self) -> App:
        """What answers."""
        return self.server.app

    def let_recover(self) -> None:
        """Let a held recovery go on, and wait for its end."""
        self.server.may_recover.set()
        self._started.result(PATIENCE_S)

    def api(self, token: str | None = None) -> Api:
        """A client on a connection of its own."""
        client = type(self).client_kind(self.server.address, token)
        self._clients.append(client)
        return Api(client)

    def background(self, api: Api, step: Callable[[Api], Reply]) -> Future[Reply]:
        """Send a request that takes its time; that client can do nothing else meanwhile."""
        return self._pool.submit(step, api)

    def at_once(
        self, count: int, step: Callable[[Api, int], Reply], token: str | None = None
    ) -> list[Future[Reply]]:
        """Let so many clients, each with its number, send their requests at the same time."""
        apis = [self.api(token) for _ in range(count)]
        return [self._pool.submit(step, api, number) for number, api in enumerate(apis)]

    def call(self, step: Callable[[], Result]) -> Result:
        """Do something on the thread of the server, which owns everything in it."""

        async def take() -> Result:
            return step()

        return asyncio.run_coroutine_threadsafe(take(), self._loop).result(PATIENCE_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something about the server is true."""
        wait_for(lambda: self.call(condition))

    def until_parked(self, topic: str, readers: int = 1) -> None:
        """Wait until so many long polls wait for a topic."""

        def parked() -> bool:
            engine = self.app.engine
            return engine is not None and len(engine._core.topics[topic].schedule.waiters) == readers

        self.until(parked)

    def until_in_flight(self, requests: int) -> None:
        """Wait until so many requests of keys are in progress."""
        self.until(lambda: sum(self.app._in_flight.values()) == requests)

    def keep_clients(self) -> None:
        """Let the clients stay connected when the server is stopped."""
        self._clients.clear()

    def stop(self, drain_s: float = 5.0) -> None:
        """Stop it as a signal would; a second time does nothing."""
        if self._loop.is_closed():
            return
        for client in self._clients:
            client.close()
        try:
            self.server.may_recover.set()
            self._started.result(PATIENCE_S)
            asyncio.run_coroutine_threadsafe(self.server.stop(drain_s), self._loop).result(PATIENCE_S)
        finally:
            self._end()

    def _end(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Look again and again until something is true; that it takes too long fails the test."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "what the test waits for did not happen"
        time.sleep(0.002)


@contextmanager
def running(*, memory: bool = True, recovers: bool = True, **fields: Any) -> Iterator[RunningServer]:
    """A server with these settings, stopped at the end."""
    server = RunningServer(settings_of(**fields), memory=memory, recovers=recovers)
    try:
        yield server
    finally:
        server.stop()
    assert server.complaints == []
