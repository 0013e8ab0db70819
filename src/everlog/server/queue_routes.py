"""The routes about queues below the directory that the server was started with (`--bus`).

Owns what these answers look like. It only looks: nothing is mapped for writing, no reader is registered, and
all of it runs on a thread of its own, because the files may be on a disk that hangs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Final, TypeVar

import msgspec

from everlog.bus.feed_status import FeedStatus, read_statuses
from everlog.clock import SystemClock
from everlog.errors import EverlogError, InvalidConfig, QueueNotFound
from everlog.fs import OsFs
from everlog.queue import Queue, StartMode
from everlog.queue.inspect import QueueInfo, find_queues, inspect_queue
from everlog.queue.reader_lags import ReaderLag, measure_lags
from everlog.queue.seq_bounds import SeqBounds
from everlog.server.answers import (
    FeedList,
    QueueList,
    QueueMessage,
    QueueMessages,
    QueueReaderState,
    QueueState,
)
from everlog.server.app import App, Call, Route, query_seq
from everlog.server.auth import Scope
from everlog.server.errors import ApiError, limit_reached

QUEUES_MAX: Final = 500
READERS_COUNTED_MAX: Final = 50
"""The lag of a reader in messages takes a search; beyond these it is shown in bytes only."""
COUNTING_NS: Final = 100_000_000
"""How long a list of queues counts messages."""
MESSAGES_MAX: Final = 500
PAYLOAD_BYTES_MAX: Final = 4096
LOOKS_MAX: Final = 16
NS_PER_MS: Final = 1_000_000
SEQ_MAX: Final = 1 << 63
T = TypeVar("T")


class QueueRoutes:
    """Handlers of everything below /v0/queues, and of /v0/feeds."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._root = app.settings.bus_root
        self._waiting = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="everlog-queues")
        app.add("GET", "/v0/queues", Route(Scope.READ, self.list_queues, needs_poll=False))
        app.add("GET", "/v0/feeds", Route(Scope.READ, self.feeds, needs_poll=False))
        app.add("GET", "/v0/queues/messages", Route(Scope.READ, self.messages, needs_poll=False))

    def list_queues(self, call: Call) -> None:
        """GET /v0/queues."""
        self.check_key(call)
        if self._root is None:
            self._send(call, QueueList(root=None, queues=[]))
        elif name := call.query().get("queue"):
            self.look(call, partial(one_queue, self._root, self.path_of(name)))
        else:
            self.look(call, partial(all_queues, self._root))

    def feeds(self, call: Call) -> None:
        """GET /v0/feeds."""
        self.check_key(call)
        self.look(call, partial(all_feeds, self._root))

    def messages(self, call: Call) -> None:
        """GET /v0/queues/messages."""
        self.check_key(call)
        query = call.query()
        path = self.path_of(query.get("queue", ""))
        limit = min(max(query_seq(query, "limit", 100), 1), MESSAGES_MAX)
        first = query_seq(query, "from_seq", SEQ_MAX)
        self.look(call, partial(read_messages, path, first, limit))

    def check_key(self, call: Call) -> None:
        """Refuse a key with prefixes: queues have no names that these could be about."""
        if call.key is not None and call.key.prefixes:
            raise ApiError(403, "forbidden", "a key with prefixes may not look at queues and tables")

    def path_of(self, name: str) -> str:
        """The directory of a queue that is named relative to the root; never one outside."""
        root = None if self._root is None else os.path.realpath(self._root)
        path = "" if root is None else os.path.realpath(os.path.join(root, name))
        if root is None or not name or not f"{path}/".startswith(f"{root}/"):
            raise ApiError(404, "not_found", f"there is no queue {name[:100]!r} below the bus directory")
        return path

    def look(self, call: Call, step: Callable[[], msgspec.Struct]) -> None:
        """Take a step on the thread for looking, and answer with what it gives."""
        if self._waiting >= LOOKS_MAX:
            raise limit_reached("too many requests look at queues", "max_queue_looks", LOOKS_MAX)
        self._waiting += 1
        looking = self.run(step)
        looking.add_done_callback(partial(self._done, call))

    def run(self, step: Callable[[], T]) -> asyncio.Future[T]:
        """Take a step on the thread for looking."""
        return self._app.loop.run_in_executor(self._pool, step)

    def _done(self, call: Call, looking: asyncio.Future[msgspec.Struct]) -> None:
        self._waiting -= 1
        self._app.guarded(call, partial(self._answer, call, looking))

    def _answer(self, call: Call, looking: asyncio.Future[msgspec.Struct]) -> None:
        try:
            self._send(call, looking.result())
        except QueueNotFound as error:
            raise ApiError(404, "not_found", str(error)) from None

    def _send(self, call: Call, answer: msgspec.Struct) -> None:
        self._app.answer(call, self._app.rendered(call, answer))


def all_queues(root: str) -> QueueList:
    """The queues below a directory; of each the reader that is most behind, with its lag in messages.

    That takes a walk through the newest segment, so it ends when `COUNTING_NS` have passed. Readers that are
    little behind come first; those that are not reached are shown with their lag in bytes.
    """
    fs, clock = OsFs(), SystemClock()
    states: list[QueueState] = []
    behind: list[tuple[int, int, int, QueueInfo]] = []
    for path in find_queues(fs, root).paths[:QUEUES_MAX]:
        try:
            info = inspect_queue(fs, clock, path)
        except EverlogError:
            continue  # removed since it was found
        lags = [reader.lag_bytes or 0 for reader in info.readers]
        if lags:
            behind.append((max(lags), len(states), lags.index(max(lags)), info))
        states.append(_state(root, info))
    deadline_ns = clock.monotonic_ns() + COUNTING_NS
    for _, place, most, info in sorted(behind, key=lambda each: each[:2]):
        if clock.monotonic_ns() >= deadline_ns:
            break
        with suppress(EverlogError):
            (lag,) = measure_lags(info.path, [info.readers[most]], info.seen_ns).readers
            states[place].readers[most] = _counted(states[place].readers[most], lag)
    return QueueList(root=root, queues=states)


def all_feeds(root: str | None) -> FeedList:
    """What the feeds of a bus last said of themselves; none if it has no feeds."""
    feeds: list[FeedStatus] = []
    if root is not None:
        with suppress(InvalidConfig):
            feeds = read_statuses(root)
    return FeedList(root=root, time_ms=SystemClock().wall_ns() // NS_PER_MS, feeds=feeds)


def one_queue(root: str, path: str) -> QueueList:
    """One queue with its seqs and the lag of its readers in messages."""
    info = inspect_queue(OsFs(), SystemClock(), path)
    state = _state(root, info)
    try:
        lags = measure_lags(path, info.readers[:READERS_COUNTED_MAX], info.seen_ns)
    except EverlogError as error:
        return QueueList(root=root, queues=[msgspec.structs.replace(state, error=str(error))])
    readers = [
        _counted(shown, lag) for shown, lag in zip_longest(state.readers, lags.readers) if shown is not None
    ]
    counted = msgspec.structs.replace(
        state, first_seq=lags.first_seq, last_seq=lags.last_seq, readers=readers
    )
    return QueueList(root=root, queues=[counted])


def _counted(shown: QueueReaderState, lag: ReaderLag | None) -> QueueReaderState:
    if lag is None:
        return shown
    return msgspec.structs.replace(
        shown, next_seq=lag.next_seq, lag_messages=lag.messages, lag_ms=lag.age_ns // NS_PER_MS
    )


def read_messages(path: str, first_seq: int, limit: int) -> QueueMessages:
    """Messages from a seq on; from beyond the end: the last ones."""
    with Queue.open_subscriber(path, None, StartMode.EARLIEST) as reader:
        seqs = SeqBounds(reader)
        if seqs.last is None or seqs.first is None:
            return QueueMessages(first_seq=None, last_seq=None, messages=[])
        start = first_seq if first_seq <= seqs.last else max(seqs.first, seqs.last - limit + 1)
        reader.seek_seq(start)
        messages: list[QueueMessage] = []
        while len(messages) < limit and (view := reader.next()) is not None:
            payload = bytes(view)
            shown = payload[:PAYLOAD_BYTES_MAX]
            messages.append(
                QueueMessage(
                    view.seq, view.timestamp_ns, view.type_id, len(payload), shown.hex(), _text(shown)
                )
            )
        return QueueMessages(first_seq=seqs.first, last_seq=seqs.last, messages=messages)


def _state(root: str, info: QueueInfo) -> QueueState:
    control = info.control
    return QueueState(
        queue=os.path.relpath(os.path.realpath(info.path), os.path.realpath(root)),
        ready=info.ready,
        writer="alive" if info.writer_alive else "dead" if info.lock else "none",
        writer_heartbeat_ms=None if control is None else control.writer_heartbeat_ns // NS_PER_MS,
        head_segment=None if control is None else control.head_segment,
        segments=len(info.segments),
        bytes_on_disk=info.bytes_on_disk,
        first_seq=None,
        last_seq=None,
        readers=[
            QueueReaderState(
                name=reader.name,
                next_seq=None,
                lag_messages=None,
                lag_ms=None,
                lag_bytes=reader.lag_bytes,
                heartbeat_ms=None if reader.position is None else reader.position.heartbeat_ns // NS_PER_MS,
                error=reader.error,
            )
            for reader in info.readers
        ],
        error=None if info.control_error is None else str(info.control_error),
    )


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return None
