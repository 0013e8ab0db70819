"""Both clients behind one face, so that every case runs through both.

Owns the event loop that the asynchronous one lives on; a test calls its methods as if they were blocking.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from everlog import api_types as shapes
from everlog import job_types
from everlog.client import AsyncClient, Client
from everlog.client.flows import Call
from everlog.client.sockets import AsyncSocket
from everlog.client.wire import Answer
from tests.support.http_cases import JSON, PATIENCE_S, Reply


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def result(self, coroutine: Any) -> Any:
        """Run a coroutine there and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def close(self) -> None:
        """End the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


class Blocking:
    """An object for asyncio whose methods wait."""

    def __init__(self, inner: Any, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def method(*args: Any, **kwargs: Any) -> Any:
            async def call() -> Any:
                made = value(*args, **kwargs)
                return await made if inspect.isawaitable(made) else made

            made = self._thread.result(call())
            if isinstance(made, AsyncIterator):
                return self._iterate(made)
            return Blocking(made, self._thread) if isinstance(made, AsyncSocket) else made

        return method

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._thread.result(anext(items))
                except StopAsyncIteration:
                    return
        finally:
            self._thread.result(items.aclose())  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(aiter(self._inner))

    def __enter__(self) -> Blocking:
        self._thread.result(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.result(self._inner.__aexit__(None, None, None))


@contextmanager
def face(kind: str, url: str, key: str | None = None, **options: Any) -> Iterator[Any]:
    """A client, `sync` or `async`, that is called as a blocking one."""
    if kind == "sync":
        with Client(url, key, **options) as client:
            yield client
        return
    thread = LoopThread()
    try:

        async def make() -> AsyncClient:
            return AsyncClient(url, key, **options)

        with Blocking(thread.result(make()), thread) as awaited:
            yield awaited
    finally:
        thread.close()


# --- Conformance -----------------------------------------------------------------------------------------

# What the typed answer of each route is; every success of a case must be readable as that.
_ANSWERS: dict[tuple[str, str], Any] = {
    ("PUT", "topics"): shapes.TopicPut,
    ("GET", "topics"): shapes.TopicState,
    ("DELETE", "topics"): shapes.TopicDeleted,
    ("POST", "topics"): shapes.Appended,
    ("POST", "diff"): shapes.Diff,
    ("GET", "latest"): shapes.Latest,
    ("GET", "histogram"): shapes.Histogram,
    ("POST", "delete"): shapes.RecordsDeleted,
    ("POST", "claim"): job_types.Claimed,
    ("POST", "ack"): job_types.Acked,
    ("POST", "nack"): job_types.Nacked,
    ("POST", "extend"): job_types.Extended,
    ("GET", "jobs"): job_types.JobPage,
    ("GET", "jobs/:seq"): job_types.JobShown,
    ("POST", "cancel"): job_types.JobsCancelled,
    ("POST", "retry"): job_types.JobsRetried,
    ("POST", "pause"): job_types.QueuePaused,
    ("POST", "resume"): job_types.QueuePaused,
    ("POST", "purge"): job_types.JobsPurged,
    ("POST", "redrive"): job_types.JobsRedriven,
    ("PUT", "routers"): shapes.RouterPut,
    ("GET", "routers"): shapes.RouterState,
    ("DELETE", "routers"): shapes.RouterDeleted,
    ("POST", "watch"): shapes.WatchSession,
    ("GET", "topics list"): shapes.TopicPage,
    ("GET", "routers list"): shapes.RouterPage,
    ("GET", "consumers"): shapes.ConsumerPage,
    ("PUT", "schedules"): job_types.ScheduleShown,
    ("GET", "schedules"): job_types.ScheduleShown,
    ("DELETE", "schedules"): job_types.ScheduleDeleted,
    ("GET", "schedules list"): job_types.SchedulePage,
    ("PUT", "consumer"): shapes.ConsumerState,
    ("GET", "consumer"): shapes.ConsumerState,
    ("DELETE", "consumer"): shapes.ConsumerDeleted,
    ("POST", "consumer read"): shapes.ConsumerDiff,
    ("POST", "consumer commit"): shapes.ConsumerState,
    ("POST", "consumer acquire"): shapes.ConsumerAcquired,
    ("POST", "consumer reset"): shapes.ConsumerReset,
}


def typed_answer(method: str, path: str, body: bytes) -> Any:
    """The answer of a route as the clients give it to programs; None if they have no method for it."""
    parts = path.partition("?")[0].strip("/").split("/")[1:]
    if not parts:
        return None
    what = (
        " ".join(["consumer", *parts[4:]])
        if len(parts) > 3 and parts[2] == "consumers"
        else ("jobs/:seq" if method == "GET" else parts[3])
        if len(parts) > 3 and parts[2] == "jobs"
        else f"{parts[0]} list"
        if len(parts) == 1 and method == "GET"
        else parts[2]
        if len(parts) == 3
        else parts[0]
    )
    kind = _ANSWERS.get((method, what))
    return None if kind is None else Call(method, path, kind).read(body)


class ClientOfCases:
    """A client of ours as the client of the conformance cases; see `http_cases.Client`."""

    def __init__(self, kind: str, address: tuple[str, int], token: str | None = None) -> None:
        self._open = face(kind, "http://{}:{}".format(*address), token)
        self._client = self._open.__enter__()

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str | None] | None = None
    ) -> Reply:
        """Send a request and wait for its reply."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        wanted: dict[str, str | None] = {} if data is None else {"Content-Type": JSON}
        wanted |= headers or {}
        present = {name: value for name, value in wanted.items() if value is not None}
        answer: Answer = self._client.exchange(method, path, data, present)
        received = {name.decode().lower(): value.decode() for name, value in answer.headers.items()}
        text = answer.body.decode()
        is_json = received.get("content-type") == JSON and bool(text)
        reply = Reply(answer.status, received, json.loads(text) if is_json else None, text)
        if answer.is_success and is_json:
            self._check_typed(method, path, reply)
        return reply

    def _check_typed(self, method: str, path: str, reply: Reply) -> None:
        typed = typed_answer(method, path, reply.text.encode())
        if typed is None:
            return
        told = json.loads(msgspec.json.encode(typed))
        for name, value in told.items():
            assert reply.json.get(name) == value or name in ("records", "claimed", "tombstone"), (name, reply)

    def close(self) -> None:
        """Give the connection back."""
        self._open.__exit__(None, None, None)
