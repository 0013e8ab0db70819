"""Ranges of seqs of a live queue directory, and reading one of them; does not depend on Spark.

A message that retention deleted is reported as a `Gap`, never skipped. Readers here have no name: they hold
back no retention.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from everlog.clock import SystemClock
from everlog.errors import Corrupt, QueueNotFound, SegmentMissing
from everlog.fs import OsFs
from everlog.native.queue import ring as native
from everlog.queue import Queue, identity
from everlog.queue.batch import Batch
from everlog.queue.control import ControlBlock
from everlog.queue.damage import first_seq
from everlog.queue.layout import HEADER_SIZE, MSG_TIMESTAMP_NS, RECORD_ALIGN, SEG_DATA_OFFSET
from everlog.queue.reader import QueueReader
from everlog.queue.seek import is_record
from everlog.queue.segment import list_segments, map_segment
from everlog.seq_ranges import Gap, SeqRange

BATCH_RECORDS: Final = 16384
"""Enough that the cost of a batch itself does not count, few enough to stay in the processor's cache: tasks
on one machine share its memory bandwidth."""
LARGE_BATCH_RECORDS: Final = 65536
"""For work that costs something for each market in a batch."""

TASK_BYTES: Final = 32 << 20
"""What a task reads of small segments: starting one costs as much as reading a few MiB."""

RETENTION: Final = "retention"
RECREATED: Final = "recreated"
CORRUPT: Final = "corrupt"
ReadNext = Callable[[QueueReader, int], Batch]


class _Tail(NamedTuple):
    """The newest message that was seen, and its position."""

    segment_id: int
    offset: int
    seq: int
    timestamp_ns: int


class QueueBounds:
    """The seqs that a queue holds; each call scans only what is new since the one before."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: tuple[int, int] | None = None
        self._firsts: dict[int, int] = {}
        self._tail: _Tail | None = None
        self._segment_size = TASK_BYTES

    def __reduce__(self) -> tuple[type[QueueBounds], tuple[str]]:
        """Leave out what was found: tasks and checkpoints need the path only."""
        return QueueBounds, (self._path,)

    def ranges(self) -> list[SeqRange]:
        """Return the range of each segment that has messages, oldest first, without gaps between them."""
        firsts, end = self._scan()
        return [SeqRange(first, after) for first, after in pairwise([*firsts, end])]

    def task_ranges(self) -> list[SeqRange]:
        """Return the ranges of tasks: small segments are joined up to `TASK_BYTES`, none is split."""
        ranges = self.ranges()
        joined = max(1, TASK_BYTES // self._segment_size)
        groups = [ranges[first : first + joined] for first in range(0, len(ranges), joined)]
        return [SeqRange(group[0].first, group[-1].end) for group in groups]

    def bounds(self) -> SeqRange:
        """Return the range of all retained messages; in an empty queue, an empty one at the next seq."""
        firsts, end = self._scan()
        return SeqRange(firsts[0] if firsts else end, end)

    def _scan(self) -> tuple[list[int], int]:
        """Return the first seq of each segment that has messages, and the seq that the next one will have."""
        fs = OsFs()
        segment_size, head = self._check_writer(fs)
        self._segment_size = segment_size
        end = self._end(fs, segment_size, head)
        firsts = {}
        for segment_id in list_segments(fs, self._path):
            first = self._firsts.get(segment_id)
            if first is None:
                first = _first_seq(fs, self._path, segment_id, segment_size)
            if first is not None and first < end:
                firsts[segment_id] = first
        self._firsts = firsts
        return list(firsts.values()), end

    def _check_writer(self, fs: OsFs) -> tuple[int, tuple[int, int]]:
        """Forget what was found under another writer: the queue may be new. Return segment size and head."""
        if not ControlBlock.is_ready(fs, self._path):
            raise QueueNotFound(
                f"there is no queue at {self._path!r}; check the path, or start its writer first"
            )
        control = ControlBlock.open(fs, SystemClock(), self._path, writable=False)
        control.close()
        writer = (os.stat(control.path).st_ino, control.writer_epoch)
        if writer != self._writer:
            self._writer, self._firsts, self._tail = writer, {}, None
        return control.segment_size, control.head()

    def _end(self, fs: OsFs, segment_size: int, head: tuple[int, int]) -> int:
        for segment_id in reversed(list_segments(fs, self._path)):
            try:
                mapping = map_segment(fs, self._path, segment_id, segment_size)
            except FileNotFoundError:
                continue
            scan = native.scan_segment(mapping, self._scan_start(mapping, segment_id), verify=False)
            if (segment_id, scan["end"]) < head and not scan["padded"] and scan["end"] < segment_size:
                raise Corrupt(
                    f"segment {segment_id} of {self._path} ends at offset {scan['end']} although the head of "
                    "the queue is further on: records are missing; 'everlog queue doctor --deep' names them"
                )
            if scan["records"]:
                last, seq = scan["last"], scan["last_seq"]
                self._tail = _Tail(segment_id, last, seq, mapping.load_u64(last + MSG_TIMESTAMP_NS))
                return seq + 1
        return 0

    def _scan_start(self, mapping: native.Mapping, segment_id: int) -> int:
        """Return the offset to scan from: that of the newest message that was seen, if it is still there."""
        tail = self._tail
        if tail is None or tail.segment_id != segment_id:
            return SEG_DATA_OFFSET
        return tail.offset if is_record(mapping, *tail[1:]) else SEG_DATA_OFFSET


def instance_of(path: str) -> str | None:
    """Return the identity of a queue; None if its writer is of an earlier version."""
    return identity.load(OsFs(), path)


def bounds(path: str) -> SeqRange:
    """Return the range of all retained messages; in an empty queue, an empty one at the next seq."""
    return QueueBounds(path).bounds()


def seq_at_time(path: str, timestamp_ns: int) -> int:
    """Return the seq of the first message at or after this time; the next one's if there is none."""
    with Queue.open_subscriber(path, None, "earliest") as reader:
        if reader.seek_timestamp(timestamp_ns):
            return int(reader.read_batch(1, verify=False).seq[0])
    return bounds(path).end


def split(ranges: list[SeqRange], wanted: SeqRange, parts: int | None) -> list[SeqRange]:
    """Split a range at the ends of segments; with `parts`, into at most that many of about equal length."""
    inside = [SeqRange(max(one.first, wanted.first), min(one.end, wanted.end)) for one in ranges]
    inside = [one for one in inside if one.size]
    if parts is None or not inside:
        return inside
    first, end = inside[0].first, inside[-1].end
    size = max(1, -(-(end - first) // parts))
    return [SeqRange(start, min(start + size, end)) for start in range(first, end, size)]


def end_within_bytes(path: str, wanted: SeqRange, max_bytes: int) -> int:
    """Return the end of the part of `wanted` that occupies at most `max_bytes`, of one message at least."""
    taken = 0
    for piece in read(path, wanted, verify=False):
        if isinstance(piece, Gap):
            continue
        sizes = (piece.length.astype("u8") + (HEADER_SIZE + RECORD_ALIGN - 1)) // RECORD_ALIGN * RECORD_ALIGN
        grown = sizes.cumsum() + taken
        fitting = int(grown.searchsorted(max_bytes, side="right"))
        if fitting < len(piece):
            return max(int(piece.seq[0]) + fitting, wanted.first + 1)
        taken = int(grown[-1])
    return wanted.end


def read(
    path: str,
    wanted: SeqRange,
    *,
    batch_records: int = BATCH_RECORDS,
    read_next: ReadNext | None = None,
    verify: bool = True,
    instance: str | None = None,
    pass_damage: bool = False,
) -> Iterator[Batch | Gap]:
    """Yield the messages of a range in order, at most `batch_records` at once, and the gaps in it.

    `read_next(reader, limit)` replaces the read of a batch; it returns at most `limit`, of one segment. If
    the queue is no longer that `instance`, the whole range is a gap. With `pass_damage`, messages that fail
    their checksum or have no usable length are a gap as well; otherwise they raise `Corrupt`.
    """
    if not wanted.size:
        return

    def read_plain(reader: QueueReader, limit: int) -> Batch:
        return reader.read_batch(min(batch_records, limit))

    at = wanted.first
    with Queue.open_subscriber(path, None, "earliest", verify=verify) as reader:
        if instance is not None and instance_of(path) not in (instance, None):
            yield Gap(wanted.first, wanted.end, RECREATED)
            return
        reader.seek_seq(at)
        while at < wanted.end:
            reason = RETENTION
            try:
                batch = (read_next or read_plain)(reader, wanted.end - at)
            except SegmentMissing:
                # Retention deleted the segment: continue with the oldest message that is left.
                reader.seek_seq(at)
                batch = read_plain(reader, wanted.end - at)
            except Corrupt:
                if not pass_damage:
                    raise
                batch, reason = _first_sound(reader), CORRUPT
            found = int(batch.seq[0]) if len(batch) else wanted.end
            if found > at:
                gap = Gap(at, min(found, wanted.end), reason)
                yield gap
                at = gap.end
                if reason == CORRUPT and at < wanted.end:
                    at += len(batch)
                    yield batch
                elif len(batch):
                    reader.seek_seq(at)
                continue
            at += len(batch)
            yield batch


def _first_sound(reader: QueueReader) -> Batch:
    """Return the message behind the damage at which the reader stands; an empty batch if none follows."""
    while True:
        is_followed = reader.skip_damage()
        with contextlib.suppress(Corrupt):
            batch = reader.read_batch(1)
            if len(batch) or not is_followed:
                return batch


def _first_seq(fs: OsFs, path: str, segment_id: int, segment_size: int) -> int | None:
    """Return the seq of a segment's first message, None if it has none or is gone."""
    try:
        mapping = map_segment(fs, path, segment_id, segment_size)
    except FileNotFoundError:
        return None
    return first_seq(mapping)


def queue_name(path: str) -> str:
    """Return the value of the column `queue`: the path in its normal form."""
    return os.path.normpath(path)
