"""The audit of a bridge: what its state counts as forwarded is in the target, each record once.

From a queue: every record of the bridge carries its `$node`, and the first of each batch names the messages
of the queue that the batch holds, so the topic shows what arrived. To a queue: the timestamp of a message
shows which record it was. Both sides are read as a stream; only counts are kept in memory.

    present      is in the target
    gone         arrived, and was deleted, evicted or expired there since
    duplicates   is in the target twice
    unexplained  was forwarded by the bridge's count, and is none of these
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from everlog.api_types import RawRecord
from everlog.bridge.audit_topic import Audit, pages
from everlog.bridge.base import NOT_FOUND
from everlog.bridge.layouts import GAP_TYPE_ID, NS_PER_MS, SEQ_DIGITS, timestamp_ns
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
_HALF: Final = SEQ_DIGITS // 2


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


class _TopicToQueueAudit:
    def __init__(self, client: Client, queue: str, state: TopicToQueueState) -> None:
        self._client = client
        self._queue = queue
        self._state = state
        self.audit = BridgeAudit(state.name, "topic-to-queue", state.topic)
        self._retired = 0
        self._matched = 0

    def run(self) -> BridgeAudit:
        audit, plan = self.audit, self._state.plan
        arrived = min(max(0, self._next_queue_seq() - plan.first_queue_seq), plan.count)
        messages = self._messages(plan.first_queue_seq + arrived)
        audit.forwarded, audit.gaps = self._state.counts(arrived)
        audit.under_way = plan.count - arrived
        cursor = plan.cursor_after(arrived)
        stamp, present = next(messages, None), 0
        for wanted, seq in self._stamps(cursor):
            while stamp is not None and _is_before(stamp, wanted):
                present += 1
                stamp = self._following(messages, stamp)
            if stamp is not None and stamp == wanted:
                present += 1
                self._matched += 1
                stamp = self._following(messages, stamp)
            elif self._matched == 0 and self._is_trimmed:
                self._retired += 1
            else:
                audit.unexplained += 1
                audit.problem(seq, seq, "in the topic and not in the queue")
        while stamp is not None:
            present += 1
            stamp = self._following(messages, stamp)
        audit.present = present
        missing = audit.forwarded - audit.present - audit.unexplained
        audit.gone = max(0, missing)
        if missing < 0:
            extra = f"{-missing} more messages than the bridge has forwarded"
            audit.problem(0, 0, f"{extra}; does another program write to the queue?")
        return audit

    def _following(self, messages: Iterator[int], last: int) -> int | None:
        """The next message; one that is the same record again is counted and passed over."""
        for stamp in messages:
            if stamp != last:
                return stamp
            self.audit.duplicates += 1
            self.audit.problem(stamp % SEQ_DIGITS, stamp % SEQ_DIGITS, "twice in the queue (last six digits)")
        return None

    _is_trimmed = False

    def _messages(self, end_seq: int) -> Iterator[int]:
        """The timestamps of the records in the queue, in order; a bridge at work appends more meanwhile."""
        with Queue.open_subscriber(self._queue, None, StartMode.EARLIEST) as reader:
            is_first = True
            while len(batch := reader.read_batch(BATCH_MAX)):
                if is_first:
                    self._is_trimmed = int(batch.seq[0]) > 0
                    is_first = False
                is_record = (batch.type_id != GAP_TYPE_ID) & (batch.seq < np.uint64(end_seq))
                yield from batch.timestamp_ns[is_record].tolist()

    def _next_queue_seq(self) -> int:
        with Queue.open_subscriber(self._queue, None, StartMode.EARLIEST) as reader:
            # The end is found from the plan on: everything before it was there when the plan was made.
            if not reader.seek_seq(self._state.plan.first_queue_seq):
                return self._state.plan.first_queue_seq
            last = self._state.plan.first_queue_seq - 1
            while len(batch := reader.read_batch(BATCH_MAX)):
                last = int(batch.seq[-1])
            return last + 1

    def _stamps(self, cursor: int) -> Iterator[tuple[int, int]]:
        """What the live records of the topic became, in order: timestamp and seq."""
        try:
            for page in pages(self._client, self._state.topic, cursor):
                for record in page.records:
                    if record.seq <= cursor:
                        yield timestamp_ns(record.ts_ms, record.seq), record.seq
        except ApiFailed as error:
            if error.status != NOT_FOUND:
                raise
        except Corrupt as error:
            self.audit.problem(0, cursor, str(error))


def _is_before(stamp: int, wanted: int) -> bool:
    """Whether a record precedes another one; the digits may wrap around within a millisecond."""
    if stamp // NS_PER_MS != wanted // NS_PER_MS:
        return stamp < wanted
    distance = (wanted - stamp) % SEQ_DIGITS
    return 0 < distance < _HALF
