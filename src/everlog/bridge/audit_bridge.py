"""The audit of a bridge: what its state counts as forwarded is in the target, each record once.

From a queue: every record of the bridge carries its `$node`, and the first of each batch names the messages
of the queue that the batch holds, so the topic shows what arrived. To a queue: messages have the order of the
records and their timestamps (`origin`). Both sides are read as a stream; counts and a window of messages are
kept in memory.

    present      is in the target
    gone         arrived, and was deleted, evicted or expired there since
    duplicates   is in the target twice
    unexplained  was forwarded by the bridge's count, and is none of these
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import numpy as np

from everlog.api_types import RawRecord
from everlog.bridge.audit_topic import Audit, pages
from everlog.bridge.base import NOT_FOUND
from everlog.bridge.layouts import GAP_TYPE_ID, GapReason, decode_gap
from everlog.bridge.origin import meta_of, timestamp_of
from everlog.bridge.rendering import Marker
from everlog.bridge.state import (
    QueueToTopicState,
    State,
    TopicToQueueState,
    load_any,
    reader_name,
)
from everlog.client import ApiFailed, Client
from everlog.errors import Corrupt, QueueNotFound
from everlog.fs import Fs, OsFs
from everlog.queue import Queue, StartMode
from everlog.queue.reader_meta import ReaderPosition, list_readers

BATCH_MAX: Final = 16_384
WINDOW: Final = 65_536
"""How many messages are looked at for a record before it counts as missing."""


class BridgeAudit(Audit):
    """The account of a bridge. It balances: `forwarded` is present + gone + unexplained."""

    bridge: str
    direction: str
    topic: str
    forwarded: int = 0
    present: int = 0
    gone: int = 0
    gaps: int = 0
    duplicates: int = 0
    unexplained: int = 0
    under_way: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether everything is explained and nothing is there twice."""
        return self.unexplained == 0 and self.duplicates == 0


def audit_bridge(client: Client, queue: str, name: str, fs: Fs | None = None) -> BridgeAudit:
    """Account for everything that a bridge of a queue has forwarded."""
    files = fs or OsFs()
    state: State | None = load_any(files, queue, name)
    if state is None:
        raise QueueNotFound(f"no bridge {name!r} has run on {queue}; see `everlog audit bridge --help`")
    if isinstance(state, QueueToTopicState):
        return _QueueToTopicAudit(client, queue, state, files).run()
    return _TopicToQueueAudit(client, queue, state).run()


# --- Queue to topic --------------------------------------------------------------------------------------


class _Meta(msgspec.Struct, frozen=True):
    bridge: Marker | None = None


_meta: Final = msgspec.json.Decoder(_Meta).decode


def marker_of(record: RawRecord) -> Marker | None:
    """Return the marker that the first record of a batch carries; None for all others."""
    if not bytes(record.meta):
        return None
    try:
        return _meta(record.meta).bridge
    except msgspec.MsgspecError:
        return None


class _QueueToTopicAudit:
    def __init__(self, client: Client, queue: str, state: QueueToTopicState, fs: Fs) -> None:
        self._client = client
        self._state = state
        self.audit = BridgeAudit(state.name, "queue-to-topic", state.topic)
        plan = state.plan
        self._confirmed = state.forwarded
        self._last_seq = -1 if plan is None else plan.first_seq - 1
        if plan is not None:
            if _position(fs, queue, reader_name(state.name)) >= plan.end:
                self._confirmed += plan.count
                self._last_seq = plan.last_seq
            else:
                self.audit.under_way = plan.count
        self._next_source = state.first_seq or 0
        self._block_end = 0  # the topic's seqs up to here belong to a batch whose marker was seen
        self._block_counts = True
        self._seen = 0
        self._dead_outside = 0
        self._strays = 0
        self._uncovered = 0

    def run(self) -> BridgeAudit:
        audit, state = self.audit, self._state
        audit.forwarded = self._confirmed
        try:
            head_seq = self._client.topic(state.topic, touch=False).head_seq
        except ApiFailed as error:
            if error.status != NOT_FOUND:
                raise
            head_seq = 0
        for page in pages(self._client, state.topic, head_seq, include_meta=True):
            for record in page.records:
                if record.seq <= head_seq:
                    self._add(record)
        self._pass_dead(head_seq + 1)
        self._uncovered += max(0, self._last_seq + 1 - self._next_source)
        self._balance()
        return audit

    def _add(self, record: RawRecord) -> None:
        self._pass_dead(record.seq)
        self._seen = record.seq
        if record.node != self._state.node:
            return
        marker = marker_of(record)
        if marker is not None:
            self._begin_block(record.seq, marker)
        elif record.seq > self._block_end:
            # The first record of its batch is gone; it is one of those that no marker covers.
            self._strays += 1
            return
        if self._block_counts:
            self.audit.present += 1

    def _begin_block(self, topic_seq: int, marker: Marker) -> None:
        audit = self.audit
        self._block_end = topic_seq + marker.count - 1
        # A batch without a confirmation is in flight, and counts for neither side yet.
        self._block_counts = marker.last_seq <= self._last_seq
        if marker.first_seq < self._next_source:
            twice = min(marker.last_seq + 1, self._next_source) - marker.first_seq
            audit.duplicates += twice
            audit.problem(marker.first_seq, marker.first_seq + twice - 1, f"again at seq {topic_seq}")
            self._block_counts = False
        elif marker.first_seq > self._next_source:
            self._uncovered += marker.first_seq - self._next_source
        self._next_source = max(self._next_source, marker.last_seq + 1)

    def _pass_dead(self, topic_seq: int) -> None:
        """Count the seqs between the last record and this one, which hold no live record."""
        first_dead = self._seen + 1
        if first_dead < topic_seq:
            self._dead_outside += max(0, topic_seq - max(first_dead, self._block_end + 1))
        self._seen = max(self._seen, topic_seq - 1)

    def _balance(self) -> None:
        """Explain messages that no marker covers: only batches whose records are gone can have held them."""
        audit = self.audit
        audit.present += self._strays
        missing = audit.forwarded - audit.present
        audit.unexplained = min(max(0, self._uncovered - self._strays - self._dead_outside), max(0, missing))
        if audit.unexplained:
            audit.problem(
                self._state.first_seq or 0,
                self._last_seq,
                f"{self._uncovered} messages of the queue are in no batch of the topic, and only "
                f"{self._dead_outside} records are gone there",
            )
        audit.gone = max(0, missing - audit.unexplained)


def _position(fs: Fs, queue: str, reader: str) -> tuple[int, int]:
    found = (list_readers(fs, queue) or {}).get(reader)
    return (found.segment_id, found.offset) if isinstance(found, ReaderPosition) else (0, 0)


# --- Topic to queue --------------------------------------------------------------------------------------


class _Wanted(NamedTuple):
    """A live record: the timestamp of its message, which no other one has if `is_unique`, and its seq."""

    stamp: int
    seq: int
    is_unique: bool


class _Window:
    """The next messages of a queue, by their timestamps, of which any can be looked for."""

    def __init__(self, stamps: Iterator[int]) -> None:
        self._stamps = stamps
        self._next: deque[int] = deque()
        self._counts: Counter[int] = Counter()
        self._fill()

    def _fill(self) -> None:
        more = list(islice(self._stamps, WINDOW - len(self._next)))
        self._next += more
        self._counts.update(more)

    def __len__(self) -> int:
        return len(self._next)

    def __contains__(self, stamp: int) -> bool:
        if len(self._next) <= WINDOW // 2:
            self._fill()
        return self._counts[stamp] > 0

    @property
    def next(self) -> int:
        """The next message."""
        return self._next[0]

    def take(self) -> int:
        """Take the next message."""
        stamp = self._next.popleft()
        self._counts[stamp] -= 1
        if not self._counts[stamp]:
            del self._counts[stamp]
        if not self._next:
            self._fill()
        return stamp


class _TopicToQueueAudit:
    """Finds the records of the topic among the messages, which may include more: of records gone since.

    There are at most as many of these before a record as there are seqs without one before it (`_dead`).
    """

    def __init__(self, client: Client, queue: str, state: TopicToQueueState) -> None:
        self._client = client
        self._queue = queue
        self._state = state
        self.audit = BridgeAudit(state.name, "topic-to-queue", state.topic)
        self._matched: _Wanted | None = None  # the last record that was found
        self._dead = 0
        self._first_queue_seq = 0

    def run(self) -> BridgeAudit:
        audit, plan = self.audit, self._state.plan
        arrived = min(max(0, self._next_queue_seq() - plan.first_queue_seq), plan.count)
        audit.forwarded, audit.gaps = self._state.counts(arrived)
        audit.under_way = plan.count - arrived
        start = self._start_of_instance() if audit.gaps else 0
        self._window = _Window(self._messages(start, plan.first_queue_seq + arrived))
        is_trimmed = self._first_queue_seq > start
        # Messages that retention has deleted were records as well, which are not ahead of the first one.
        seen = max(0, self._first_queue_seq - audit.gaps) if is_trimmed else 0
        cursor = plan.cursor_after(arrived)
        for wanted in self._wanted(cursor):
            self._dead += max(0, wanted.seq - seen - 1)
            seen = max(seen, wanted.seq)
            if not self._find(wanted) and not (is_trimmed and self._matched is None):
                audit.unexplained += 1
                audit.problem(wanted.seq, wanted.seq, "in the topic and not in the queue")
        self._dead += max(0, cursor - seen)
        while len(self._window):
            self._pass_over()
        missing = audit.forwarded - audit.present - audit.unexplained
        audit.gone = max(0, missing)
        if missing < 0:
            extra = f"{-missing} more messages than the bridge has forwarded"
            audit.problem(0, 0, f"{extra}; does another program write to the queue?")
        return audit

    def _find(self, wanted: _Wanted) -> bool:
        """Go to the message of a record, over those of records that are gone."""
        while wanted.stamp not in self._window:
            if self._dead < len(self._window) or not len(self._window):
                return False
            for _ in range(len(self._window)):
                self._pass_over()
        while self._window.next != wanted.stamp:
            self._pass_over()
        self._window.take()
        self._matched = wanted
        self.audit.present += 1
        return True

    def _pass_over(self) -> None:
        """Pass over a message that is no live record; one that is the last record again is counted."""
        stamp, last = self._window.take(), self._matched
        if last is not None and stamp == last.stamp and (self._dead <= 0 or last.is_unique):
            self.audit.duplicates += 1
            self.audit.problem(last.seq, last.seq, "twice in the queue")
            return
        self.audit.present += 1
        self._dead -= 1

    def _start_of_instance(self) -> int:
        """The queue's seq behind the last gap that says that the topic was recreated: 0 if none does."""
        start = 0
        with Queue.open_subscriber(self._queue, None, StartMode.EARLIEST) as reader:
            while len(batch := reader.read_batch(BATCH_MAX)):
                for place in np.flatnonzero(batch.type_id == GAP_TYPE_ID):
                    payload, _ = batch.joined(np.array([place]))
                    if decode_gap(payload.tobytes()).reason is GapReason.RECREATED:
                        start = int(batch.seq[place]) + 1
        return start

    def _messages(self, start_seq: int, end_seq: int) -> Iterator[int]:
        """The timestamps of the records in the queue, in order; a bridge at work appends more meanwhile."""
        with Queue.open_subscriber(self._queue, None, StartMode.EARLIEST) as reader:
            is_first = True
            while len(batch := reader.read_batch(BATCH_MAX)):
                if is_first:
                    self._first_queue_seq = int(batch.seq[0])
                    is_first = False
                is_record = (batch.type_id != GAP_TYPE_ID) & (batch.seq < np.uint64(end_seq))
                is_earlier = is_record & (batch.seq < np.uint64(start_seq))
                self.audit.present += int(is_earlier.sum())
                yield from batch.timestamp_ns[is_record & ~is_earlier].tolist()

    def _next_queue_seq(self) -> int:
        with Queue.open_subscriber(self._queue, None, StartMode.EARLIEST) as reader:
            # The end is found from the plan on: everything before it was there when the plan was made.
            if not reader.seek_seq(self._state.plan.first_queue_seq):
                return self._state.plan.first_queue_seq
            last = self._state.plan.first_queue_seq - 1
            while len(batch := reader.read_batch(BATCH_MAX)):
                last = int(batch.seq[-1])
            return last + 1

    def _wanted(self, cursor: int) -> Iterator[_Wanted]:
        """What the live records of the topic became, in order."""
        try:
            for page in pages(self._client, self._state.topic, cursor, include_meta=True):
                for record in page.records:
                    if record.seq <= cursor:
                        meta = meta_of(record.meta)
                        stamp = timestamp_of(meta, record.ts_ms, record.seq)
                        yield _Wanted(stamp, record.seq, not meta.is_complete)
        except ApiFailed as error:
            if error.status != NOT_FOUND:
                raise
        except Corrupt as error:
            self.audit.problem(0, cursor, str(error))
