"""A topic's log in plain Python: the oracle for the native indexes, for rendering and for replay.

Slow and obvious. Writes and reads frames with `struct` and `xxhash` of its own, so that a mistake in
the native layouts cannot hide.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xxhash

LOG_HEADER = struct.Struct("<IBBQQQHHI")
SEGMENT_HEADER = struct.Struct("<IBQQHHI")
INDEX_ENTRY = struct.Struct("<IIQB3x")
CHECKSUM_SIZE = 8
HAS_TAG, HAS_NODE, DURABLE, HAS_META, CONTINUES, DEAD = 1, 2, 4, 8, 16, 64
APPEND = 1


@dataclass(slots=True)
class NewRecord:
    """What is appended: an object with the four attributes the native batch reads."""

    data: Any
    tag: Any = None
    node: Any = None
    meta: Any = None


def compact(text: bytes) -> bytes:
    """JSON text without white space between tokens, by parsing it."""
    return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode()


def blob(data: bytes, meta: bytes | None) -> bytes:
    """The data part of a frame."""
    return data if meta is None else struct.pack("<I", len(meta)) + meta + data


def log_frame(
    kind: int,
    flags: int,
    topic_id: int,
    seq: int,
    ts: int,
    node: bytes = b"",
    tag: bytes = b"",
    data: bytes = b"",
) -> bytes:
    """One frame of the log."""
    body = node + tag + data
    length = LOG_HEADER.size - 4 + len(body) + CHECKSUM_SIZE
    head = LOG_HEADER.pack(length, kind, flags, topic_id, seq, ts, len(node), len(tag), len(data))
    return head + body + struct.pack("<Q", xxhash.xxh3_64_intdigest((head + body)[4:]))


def segment_frame(flags: int, seq: int, ts: int, node: bytes, tag: bytes, data: bytes) -> bytes:
    """One frame of a segment, not deleted."""
    body = node + tag + data
    length = SEGMENT_HEADER.size - 4 + len(body) + CHECKSUM_SIZE + 1
    head = SEGMENT_HEADER.pack(length, flags, seq, ts, len(node), len(tag), len(data))
    return head + body + struct.pack("<Q", xxhash.xxh3_64_intdigest((head + body)[4:])) + b"\0"


def index_entry(offset: int, size: int, ts: int, flags: int) -> bytes:
    """One entry of a segment's index."""
    return INDEX_ENTRY.pack(offset, size, ts, flags)


@dataclass(slots=True)
class TwinRecord:
    """A record that was appended, dead or live."""

    seq: int
    ts: int
    data: bytes
    tag: bytes
    node: bytes
    meta: bytes | None
    live: bool = True

    @property
    def payload(self) -> int:
        """Bytes that count against caps."""
        return len(self.data) + len(self.meta or b"")

    @property
    def flags(self) -> int:
        """Flags that say which parts there are."""
        meta = HAS_META if self.meta is not None else 0
        return (HAS_TAG if self.tag else 0) | (HAS_NODE if self.node else 0) | meta

    def log_frame(self, topic_id: int, flags: int) -> bytes:
        """Its frame in the log."""
        flags |= self.flags
        data = blob(self.data, self.meta)
        return log_frame(APPEND, flags, topic_id, self.seq, self.ts, self.node, self.tag, data)

    def segment_frame(self, flags: int = 0) -> bytes:
        """Its frame in a segment."""
        flags |= self.flags
        return segment_frame(flags, self.seq, self.ts, self.node, self.tag, blob(self.data, self.meta))

    def rendered(self, tags: bool = True, meta: bool = True, data: bool = True) -> dict[str, Any]:
        """What a reader gets."""
        parts: dict[str, Any] = {"$seq": self.seq, "$ts": self.ts}
        if self.node:
            parts["$node"] = self.node.decode()
        if self.tag and tags:
            parts["$tag"] = self.tag.decode()
        if self.meta is not None and meta:
            parts["meta"] = json.loads(self.meta)
        if data:
            parts["data"] = json.loads(self.data)
        return parts


class TwinRendered(NamedTuple):
    """What a read should give; the records already parsed."""

    records: list[dict[str, Any]]
    next_from_seq: int
    delivered: int
    scanned: int


@dataclass
class TwinLog:
    """One topic; `records` has no holes, `timestamps` has every seq from `first_seq` on."""

    topic_id: int
    next_seq: int = 1
    base_seq: int = 1
    first_seq: int = 1
    last_ts: int = 0
    records: dict[int, TwinRecord] = field(default_factory=dict)
    timestamps: list[int] = field(default_factory=list)

    def live(self) -> list[TwinRecord]:
        """Live records, ascending."""
        return [record for record in self.records.values() if record.live]

    @property
    def first_live(self) -> int:
        """First live seq, `next_seq` if there is none."""
        return next((record.seq for record in self.records.values() if record.live), self.next_seq)

    def append(self, new: NewRecord, ts: int, batch_node: str | None) -> TwinRecord:
        """Push one record."""
        node = batch_node if new.node is None else new.node
        meta = None if new.meta is None else compact(bytes(new.meta))
        texts = compact(bytes(new.data)), (new.tag or "").encode(), (node or "").encode(), meta
        record = TwinRecord(self.next_seq, ts, *texts)
        self.records[record.seq] = record
        self._advance(ts)
        return record

    def push_holes(self, count: int, ts: int) -> None:
        """Push seqs without a record; without entries only the base moves."""
        empty = self.base_seq == self.next_seq
        for _ in range(count):
            self._advance(ts)
        if empty:
            self.base_seq = self.next_seq

    def _advance(self, ts: int) -> None:
        self.timestamps.append(ts)
        self.next_seq += 1
        self.last_ts = max(self.last_ts, ts)

    def pop(self, count: int) -> None:
        """Take back the newest entries."""
        for _ in range(count):
            self.next_seq -= 1
            self.timestamps.pop()
            self.records.pop(self.next_seq, None)

    def kill(self, seqs: list[int]) -> tuple[int, int]:
        """Mark dead; returns (count, payload)."""
        killed = []
        for seq in seqs:
            record = self.records.get(seq)
            if record is not None and record.live:
                record.live = False
                killed.append(record.payload)
        return len(killed), sum(killed)

    def drop_front(self, seq: int) -> None:
        """Forget entries below `seq`, at most those below the first live one."""
        self.base_seq = max(self.base_seq, min(seq, self.first_live))
        for gone in [old for old in self.records if old < self.base_seq]:
            del self.records[gone]

    def find_tag(self, tag: bytes, prefix: bool, before_seq: int) -> list[int]:
        """Live seqs with the tag, ascending."""
        return [
            record.seq
            for record in self.live()
            if record.seq < before_seq
            and record.tag
            and (record.tag.startswith(tag) if prefix else record.tag == tag)
        ]

    def find_ts(self, cutoff: int, end_seq: int) -> int:
        """First seq from the first live one on whose timestamp is at least `cutoff`."""
        end = min(end_seq, self.next_seq)
        low = self.first_live
        if low >= end:
            return end
        return (
            bisect_left(self.timestamps, cutoff, low - self.first_seq, end - self.first_seq) + self.first_seq
        )

    def plan_caps(
        self, floor: int, count: int, size: int, max_records: int, max_bytes: int
    ) -> tuple[int, int, int]:
        """Let the oldest live records from `floor` on go until both limits hold."""
        for record in self.live():
            if not (0 < max_records < count or 0 < max_bytes < size):
                break
            if record.seq >= floor:
                floor, count, size = record.seq + 1, count - 1, size - record.payload
        return floor, count, size

    def render(
        self,
        from_seq: int,
        end_seq: int,
        limit: int,
        max_bytes: int,
        nodes: tuple[bytes, ...],
        parts: tuple[bool, bool, bool],
    ) -> TwinRendered:
        """Read as the native log does, from buffers that are all there."""
        last = min(end_seq, self.next_seq - 1)
        records: list[dict[str, Any]] = []
        size = scanned = 0
        passed = from_seq
        for record in self.live():
            if not passed < record.seq <= last:
                continue
            if len(records) == limit:
                return TwinRendered(records, passed, len(records), scanned)
            if record.node not in nodes or not record.node:
                if records and max_bytes and size + record.payload > max_bytes:
                    return TwinRendered(records, record.seq - 1, len(records), scanned)
                size += record.payload
                records.append(record.rendered(*parts))
            scanned += 1
            passed = record.seq
        full = len(records) == limit
        return TwinRendered(records, passed if full else max(last, passed), len(records), scanned)


class TwinFrame(NamedTuple):
    """A frame of the log as read back."""

    size: int
    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node: bytes
    tag: bytes
    data: bytes


def read_frame(raw: bytes, at: int) -> TwinFrame | str:
    """The log frame at `at`, or why there is none."""
    left = len(raw) - at
    if left < 4 or raw[at : at + 4] == bytes(4):
        return "end"
    size = struct.unpack_from("<I", raw, at)[0] + 4
    if size > left:
        return "torn"
    if size < LOG_HEADER.size + CHECKSUM_SIZE:
        return "corrupt"
    _, kind, flags, topic_id, seq, ts, node_len, tag_len, data_len = LOG_HEADER.unpack_from(raw, at)
    if LOG_HEADER.size + node_len + tag_len + data_len + CHECKSUM_SIZE != size:
        return "corrupt"
    if flags & HAS_META and data_len < 4:
        return "corrupt"
    end = at + size - CHECKSUM_SIZE
    if xxhash.xxh3_64_intdigest(raw[at + 4 : end]) != struct.unpack_from("<Q", raw, end)[0]:
        return "corrupt"
    body = raw[at + LOG_HEADER.size : end]
    node, tag, data = body[:node_len], body[node_len : node_len + tag_len], body[node_len + tag_len :]
    return TwinFrame(size, kind, flags, topic_id, seq, ts, node, tag, data)


class TwinReplay(NamedTuple):
    """What whole batches of a file hold, where they end and why there."""

    frames: list[tuple[int, TwinFrame]]
    position: int
    outcome: str


def replay(raw: bytes) -> TwinReplay:
    """Read whole batches from the start of a file."""
    frames: list[tuple[int, TwinFrame]] = []
    batch: list[tuple[int, TwinFrame]] = []
    start = at = 0
    while True:
        frame = read_frame(raw, at)
        if isinstance(frame, str):
            return TwinReplay(frames, start, "torn" if batch and frame == "end" else frame)
        batch.append((at, frame))
        at += frame.size
        if not frame.flags & CONTINUES:
            frames += batch
            batch = []
            start = at
