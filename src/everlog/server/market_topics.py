"""Topics whose records a bridge made of market messages, copied to queues, so that books are built of them.

Owns these copies: in temporary directories, filled as far as requests had time for, bounded, and gone when no
page asks any more. A copy is chosen, and its topic read, on the thread of the loop; what touches its files
runs on the thread on which queues are looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

import msgspec
import numpy as np

from everlog.market.event_json import EventReader
from everlog.queue import Queue, QueueWriter, WriterConfig
from everlog.queue.config import MIB
from everlog.server.app import App, Call
from everlog.server.auth import allows_name
from everlog.server.errors import ApiError
from everlog.server.queue_routes import QueueRoutes
from everlog.topics import Commit, Diff, Engine

COPIES_MAX: Final = 4
RECORDS_MAX: Final = 1_000_000
"""Before the end of a topic; in a longer one a book begins with the first snapshot of these."""
PAGE_RECORDS: Final = 5000
BYTES_MAX: Final = 1024 * MIB
SEGMENT_BYTES: Final = 16 * MIB
T = TypeVar("T", bound=msgspec.Struct)


class TopicCopy:
    """The market messages of a topic, in a queue of their own."""

    def __init__(self, topic: str, earliest_seq: int, head_seq: int) -> None:
        """Begin `RECORDS_MAX` before the head, or with the first record there is."""
        self.topic = topic
        self.next_seq = max(earliest_seq - 1, head_seq - RECORDS_MAX, 0)
        self.is_partial = self.next_seq > 0
        """Whether it begins in the middle: then books wait for a snapshot."""
        self.is_busy = False
        """Records are on their way to it."""
        self.size = 0
        self.used_s = time.monotonic()
        self._events = EventReader()
        self._folder: TemporaryDirectory[str] | None = None
        self._writer: QueueWriter | None = None

    @property
    def path(self) -> str:
        """Where the queue is, once something was added."""
        assert self._folder is not None
        return self._folder.name

    def add(self, records: bytes) -> None:
        """Append the messages in a JSON array of records."""
        if self._writer is None:
            self._folder = TemporaryDirectory(prefix="everlog-market-", ignore_cleanup_errors=True)
            config = WriterConfig.archive().replace(segment_size=SEGMENT_BYTES)
            self._writer = Queue.open_publisher(self._folder.name, config)
        messages = self._events.read(records)
        if not messages:
            return
        self._writer.append_packed(
            np.array([message.type_id for message in messages], dtype=np.uint16),
            np.frombuffer(b"".join(message.payload for message in messages), dtype=np.uint8),
            np.array(list(accumulate(len(message.payload) for message in messages)), dtype=np.uint64),
            np.array([message.timestamp_ns for message in messages], dtype=np.uint64),
            np.array([message.flags for message in messages], dtype=np.uint16),
        )
        self.size = self._writer.bytes_written

    def close(self) -> None:
        """Remove it."""
        if self._writer is not None:
            self._writer.close()
        if self._folder is not None:
            self._folder.cleanup()


class TopicSteps:
    """Steps that need the copy of a topic: each request first adds a page of new records to it."""

    def __init__(self, app: App, queues: QueueRoutes) -> None:
        self._app = app
        self._queues = queues
        self._copies: dict[str, TopicCopy] = {}

    def look(self, call: Call, topic: str, step: Callable[[TopicCopy, bool], T]) -> None:
        """Answer with a step; it is told whether the copy has all records that there were."""
        if not allows_name(call.key, topic):
            raise ApiError(403, "forbidden", f"this key may not use the name {topic!r}", {"topic": topic})
        engine = self._app.ready_engine()
        copy = self._copy_of(engine, topic)
        if copy.is_busy:
            self._queues.look(call, partial(_step, copy, None, partial(step, copy, False)))
            return
        diff = engine.diff(topic, copy.next_seq, PAGE_RECORDS, touch=False, block=False)
        if diff.tombstone is not None and diff.tombstone.reason == "recreated":
            self._drop([copy])
            copy = self._copy_of(engine, topic)
            diff = engine.diff(topic, copy.next_seq, PAGE_RECORDS, touch=False, block=False)
        copy.is_busy = True
        read = partial(self._read, call, copy, diff, step)
        diff.commit.on_done(lambda commit: self._app.guarded(call, partial(read, commit)))

    def _read(
        self, call: Call, copy: TopicCopy, diff: Diff, step: Callable[[TopicCopy, bool], T], commit: Commit
    ) -> None:
        """Hand on what was read; a cold segment that is still being fetched is for the next request."""
        is_whole = commit.error is None and not (diff.incomplete or diff.paused)
        copy.is_busy = is_whole
        if commit.error is not None:
            raise commit.error
        asked = partial(step, copy, is_whole and diff.caught_up)
        try:
            self._queues.look(call, partial(_step, copy, diff if is_whole else None, asked))
        except ApiError:
            copy.is_busy = False
            raise

    def _copy_of(self, engine: Engine, topic: str) -> TopicCopy:
        copy = self._copies.get(topic)
        if copy is None or copy.size > BYTES_MAX:
            state = engine.state(topic, touch=False)
            by_use = sorted(self._copies.values(), key=lambda one: one.used_s)
            self._drop(by_use[: max(0, len(by_use) - COPIES_MAX + 1)])
            if copy is not None:
                self._drop([copy])
            copy = self._copies[topic] = TopicCopy(topic, state.earliest_seq, state.head_seq)
        copy.used_s = time.monotonic()
        return copy

    def _drop(self, copies: Iterable[TopicCopy]) -> None:
        for copy in copies:
            if self._copies.pop(copy.topic, None) is not None:
                self._queues.run(copy.close)

    def close_idle(self, idle_s: float) -> bool:
        """Remove the copies that were not used for so long; whether some are left."""
        before_s = time.monotonic() - idle_s
        self._drop([copy for copy in self._copies.values() if copy.used_s <= before_s])
        return bool(self._copies)


def _step(copy: TopicCopy, page: Diff | None, step: Callable[[], T]) -> T:
    """Add a page, and take a step. One thread does this, so pages come in their order."""
    try:
        copy.add(b"[]" if page is None else page.records)
        if page is not None:
            copy.next_seq = page.next_from_seq
    finally:
        if page is not None:
            copy.is_busy = False
    return step()
