"""The bridge from a topic to a queue.

The order of steps makes it exactly once: read records, make what is in the queue durable, store the plan
(which records become which messages), append. The writer of a queue finds its end after any crash; compared
with the plan, that end says which record was appended last. A record that says which message of a queue it
was (`origin`) becomes that message again, with its time, type and flags.
"""

from __future__ import annotations

import binascii
import contextlib
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from everlog.bridge.base import NOT_FOUND, READ_BYTES, READ_LIMIT, Bridge, Progress, Stopped
from everlog.bridge.layouts import (
    GAP_TYPE_ID,
    RECORD_TYPE_ID,
    GapMessage,
    encode_gap,
    gap_reason,
    seq_digits,
)
from everlog.bridge.market_json import KNOWN_TYPE_IDS
from everlog.bridge.origin import TYPE_ID_MAX, meta_of, timestamp_of
from everlog.bridge.state import (
    STAMPS,
    VERSION,
    QueuePlan,
    StateFile,
    TopicToQueueState,
    check_name,
    new_identity,
    stamps_of,
)
from everlog.client import ApiFailed, Tombstone, calls
from everlog.client.flows import Call
from everlog.client.retrying import ONCE
from everlog.client.wire import topic_path
from everlog.errors import Corrupt, InvalidConfig, InvalidRecord
from everlog.queue import Queue, QueueWriter, StartMode, WriterConfig

BATCH_RECORDS_MAX: Final = 4000
"""So that a plan with all seqs far apart still fits into a slot of the state file."""

POLL_MS: Final = 1000


class PayloadFormat(StrEnum):
    """What becomes the payload of a message."""

    AUTO = "auto"
    JSON = "json"
    BASE64 = "base64"
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class TopicToQueueSettings:
    """What is forwarded and how. `start` applies only if the bridge has never run."""

    queue: str
    topic: str
    name: str
    form: PayloadFormat = PayloadFormat.AUTO
    batch_records: int = BATCH_RECORDS_MAX
    start: Literal["earliest", "latest"] = "earliest"
    once: bool = False
    type_id: int = RECORD_TYPE_ID
    writer: WriterConfig | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 1 <= self.batch_records <= BATCH_RECORDS_MAX:
            raise InvalidConfig(f"a batch has 1 to {BATCH_RECORDS_MAX} records, not {self.batch_records}")
        if not 0 <= self.type_id <= TYPE_ID_MAX:
            raise InvalidConfig(f"a type id is 0 to {TYPE_ID_MAX}, not {self.type_id}")


class _Record(msgspec.Struct, frozen=True, rename={"seq": "$seq", "ts_ms": "$ts"}):
    seq: int
    ts_ms: int
    data: msgspec.Raw = msgspec.Raw(b"null")
    meta: msgspec.Raw = msgspec.Raw(b"")


class _Diff(msgspec.Struct, frozen=True):
    records: list[msgspec.Raw]
    next_from_seq: int
    head_seq: int
    caught_up: bool
    tombstone: Tombstone | None = None


class NewMessage(NamedTuple):
    """A message to append."""

    type_id: int
    timestamp_ns: int
    payload: bytes
    flags: int = 0


_record: Final = msgspec.json.Decoder(_Record).decode


class TopicToQueue(Bridge[TopicToQueueSettings]):
    """Forwards a topic to a queue until it is stopped, or once to the end of what is there."""

    direction = "topic-to-queue"
    back_again = "the topic can be read again"

    def _set_up(self) -> None:
        settings = self._settings
        self._file = StateFile(self._fs, settings.queue, settings.name, TopicToQueueState)
        self._arrived = 0  # messages of the plan that are in the queue

    # --- Running -------------------------------------------------------------------------------------------

    def run(self) -> Progress:
        """Forward until stopped, or to the end with `once`. Raises errors that a retry cannot solve."""
        self._started_ns = self._clock.monotonic_ns()
        settings = self._settings
        with contextlib.ExitStack() as held:
            held.callback(self._file.close)
            config = settings.writer or WriterConfig()
            self._writer = Queue.open_publisher(settings.queue, config, clock=self._clock, fs=self._fs)
            held.callback(self._writer.close)
            with contextlib.suppress(Stopped):
                self._state = self._file.load() or self._first_state()
                self._check_topic(self._state)
                self._cursor = self._cursor_after_crash(self._state.plan, self._writer)
                self._forward()
            # No batch follows that would sync the last one.
            self._writer.flush_sync()
            self._show_progress(is_last=True)
        return self.progress

    def _first_state(self) -> TopicToQueueState:
        settings, cursor = self._settings, 0
        if settings.start == "latest":
            cursor = self._until_answered(self._head_of_topic)
        plan = QueuePlan(self._writer.next_seq, 0, cursor, cursor, [])
        return self._file.create(
            TopicToQueueState(VERSION, settings.name, new_identity(), settings.topic, plan)
        )

    def _head_of_topic(self) -> int:
        wanted = calls.topic(self._settings.topic, touch=False)
        return self._client.call(wanted, retry=ONCE).head_seq

    def _check_topic(self, state: TopicToQueueState) -> None:
        settings = self._settings
        if state.topic != settings.topic:
            raise InvalidConfig(
                f"the bridge {settings.name!r} forwards topic {state.topic!r} to {settings.queue}; give a "
                f"bridge from {settings.topic!r} another --name"
            )

    def _cursor_after_crash(self, plan: QueuePlan, writer: QueueWriter) -> int:
        """Compare the end of the queue with the plan: how much of it was appended."""
        arrived = writer.next_seq - plan.first_queue_seq
        if arrived < 0:
            raise Corrupt(
                f"{self._settings.queue} ends at seq {writer.next_seq - 1}, but the bridge "
                f"{self._settings.name!r} had seq {plan.first_queue_seq - 1} on disk; the queue was "
                "replaced or restored. Use another --name to forward the topic again"
            )
        if arrived > plan.count:
            self._warn(
                "foreign_messages",
                f"another program has appended {arrived - plan.count} messages to {self._settings.queue}",
            )
        self._arrived = min(arrived, plan.count)
        record_seq = plan.record_seq(self._arrived)
        if record_seq is not None:
            self._check_message(plan, record_seq)
        return plan.cursor_after(arrived)

    def _check_message(self, plan: QueuePlan, record_seq: int) -> None:
        """Check that the last appended message has the planned time, if it is still there."""
        queue_seq = plan.first_queue_seq + self._arrived - 1
        with Queue.open_subscriber(self._settings.queue, None, StartMode.EARLIEST) as reader:
            found = reader.next() if reader.seek_seq(queue_seq) else None
            if found is None or found.seq != queue_seq:
                return  # deleted by retention
            planned = plan.stamp(self._arrived)
            # A plan of an earlier version has no times; then each message shows the seq of its record.
            is_other = (
                seq_digits(found.timestamp_ns) != seq_digits(record_seq)
                if planned is None
                else found.timestamp_ns % STAMPS != planned
            )
            if is_other:
                raise Corrupt(
                    f"message {queue_seq} of {self._settings.queue} is not record {record_seq} of topic "
                    f"{self._settings.topic!r}, as the bridge had planned; another program has written to "
                    "the queue while a batch was incomplete. Use another --name to forward the topic again"
                )

    def _forward(self) -> None:
        end: int | None = None
        while not self.stop.is_set():
            diff = self._until_answered(lambda: self._read(self._cursor, POLL_MS))
            if self._settings.once and end is None:
                end = diff.head_seq
            diff, records = self._gather(diff)
            if records or diff.tombstone is not None:
                self._append(diff, records)
            self._cursor = diff.next_from_seq
            self._show_lag(diff)
            if end is not None and (diff.caught_up or self._cursor >= end):
                return

    def _gather(self, diff: _Diff) -> tuple[_Diff, list[msgspec.Raw]]:
        """Read until there is a full batch, or a gap."""
        records, gap = list(diff.records), diff.tombstone
        room = self._settings.batch_records - READ_LIMIT
        while not diff.caught_up and len(records) <= room and not self.stop.is_set():
            try:
                following = self._read(diff.next_from_seq, 0)
            except ApiFailed:
                break  # append what is here first; the next read meets the same error
            if following.tombstone is not None:
                break
            records += following.records
            diff = following
        return msgspec.structs.replace(diff, tombstone=gap), records

    def _read(self, from_seq: int, wait_ms: int) -> _Diff:
        settings = self._settings
        body = {
            "from_seq": from_seq,
            "limit": min(READ_LIMIT, settings.batch_records),
            "max_batch_bytes": READ_BYTES,
            "include_tags": settings.form is PayloadFormat.RECORD,
            "wait_ms": 0 if settings.once else wait_ms,
        }
        path = topic_path(settings.topic, "/diff")
        content = msgspec.json.encode(body)
        wanted = Call("POST", path, _Diff, content, wait_s=wait_ms / 1000)
        return self._client.call(wanted, retry=ONCE)

    # --- Appending -----------------------------------------------------------------------------------------

    def _append(self, diff: _Diff, raws: list[msgspec.Raw]) -> None:
        records = [_record(raw) for raw in raws]
        messages = [self._message(*pair) for pair in zip(records, raws, strict=True)]
        gap_cursor: int | None = None
        gap = diff.tombstone
        if gap is not None:
            # A topic that was created again is read from its start; there is nothing to skip in it.
            gap_cursor = 0 if gap.reason == "recreated" else gap.gap_to
            messages.insert(0, _gap_message(gap, self._clock.wall_ns()))
        # In this order: a stored plan says that everything before it is on disk.
        self._writer.flush_sync()
        plan = QueuePlan(
            self._writer.next_seq,
            len(messages),
            self._cursor,
            diff.next_from_seq,
            _runs([record.seq for record in records]),
            gap_cursor,
            stamps_of([message.timestamp_ns for message in messages]),
        )
        self._state = self._state.behind(self._arrived, plan)
        self._file.store(self._state)
        append(self._writer, messages)
        self._arrived = plan.count
        self._count(len(records), records[-1].seq if records else None, gaps=int(gap is not None))

    def _message(self, record: _Record, raw: msgspec.Raw) -> NewMessage:
        form, type_id = self._settings.form, self._settings.type_id
        meta = meta_of(record.meta)
        stamp_ns = timestamp_of(meta, record.ts_ms, record.seq)
        if form is PayloadFormat.RECORD:
            return NewMessage(type_id, stamp_ns, bytes(raw))
        if form is PayloadFormat.BASE64 or (form is PayloadFormat.AUTO and meta.encoding == "base64"):
            payload = self._decoded(record)
            if payload is not None:
                return NewMessage(meta.own_type(type_id), stamp_ns, payload, meta.own_flags)
        elif meta.is_complete and meta.encoding is None and meta.type not in KNOWN_TYPE_IDS:
            # Messages of known types were rendered as JSON: the text is not a payload of their type.
            return NewMessage(meta.own_type(type_id), stamp_ns, bytes(record.data), meta.own_flags)
        return NewMessage(type_id, stamp_ns, bytes(record.data))

    def _decoded(self, record: _Record) -> bytes | None:
        """Return the payload that base64 holds; None if the record is to be passed on as it is."""
        try:
            return binascii.a2b_base64(msgspec.json.decode(record.data, type=str), strict_mode=True)
        except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
            if self._settings.form is PayloadFormat.AUTO:
                return None
            raise InvalidRecord(
                f"record {record.seq} of topic {self._settings.topic!r} is not base64 ({error}); use "
                "--format auto to pass such records as JSON"
            ) from None

    def _may_pass(self, error: ApiFailed) -> bool:
        """Also wait for a topic that does not exist yet, or at the moment."""
        return super()._may_pass(error) or (error.status == NOT_FOUND and not self._settings.once)

    def _show_lag(self, diff: _Diff) -> None:
        self.progress.lag = max(0, diff.head_seq - diff.next_from_seq)
        self._metrics.lag_records.set(self.progress.lag)
        self._show_progress()


def _gap_message(gap: Tombstone, now_ns: int) -> NewMessage:
    payload = encode_gap(GapMessage(gap.gap_from, gap.gap_to, gap.missed_estimate, gap_reason(gap.reason)))
    return NewMessage(GAP_TYPE_ID, now_ns, payload)


def _runs(seqs: list[int]) -> list[tuple[int, int]]:
    """Ascending seqs as (first, length) of those that follow each other."""
    if not seqs:
        return []
    column = np.array(seqs, dtype=np.int64)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(column) != 1) + 1))
    lengths = np.diff(np.concatenate((starts, [len(column)])))
    return list(zip(column[starts].tolist(), lengths.tolist(), strict=True))


def append(writer: QueueWriter, messages: list[NewMessage]) -> None:
    """Append messages of any type and length with one native call."""
    joined = b"".join(message.payload for message in messages)
    writer.append_packed(
        np.array([message.type_id for message in messages], dtype=np.uint16),
        np.frombuffer(joined, dtype=np.uint8),
        np.fromiter(accumulate(len(message.payload) for message in messages), dtype=np.uint64),
        np.array([message.timestamp_ns for message in messages], dtype=np.uint64),
        np.array([message.flags for message in messages], dtype=np.uint16),
    )
