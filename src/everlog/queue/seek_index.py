"""The seek index of one segment: `NNNNNNNNN.idx`.

Owns the format and the two lookups. The index only saves scanning: whatever is wrong with the
file, `load` returns None and the seek scans the segment. It carries no checksum, so `decode`
checks everything that follows from how it is written.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from everlog.errors import Corrupt
from everlog.fs import Fs, replace_file
from everlog.queue.layout import (
    HEADER_SIZE,
    RECORD_ALIGN,
    SEEK_INDEX_ENTRY,
    SEEK_INDEX_FLAG_PARTIAL,
    SEEK_INDEX_HEADER,
    SEEK_INDEX_MAGIC,
    SEEK_INDEX_VERSION,
    SEG_DATA_OFFSET,
    seek_index_name,
)

ENTRY_DTYPE = np.dtype([("seq", "<u8"), ("timestamp_ns", "<u8"), ("offset", "<u8")])
assert ENTRY_DTYPE.itemsize == SEEK_INDEX_ENTRY.size

_U64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True, eq=False)
class SeekIndex:
    """Every `entry_stride`-th record of a segment, beginning with the first.

    `partial`: the writer was reopened in the middle of the segment and knows only the records
    after that point. The minima and maxima cover the records the writer knows, not only the
    entries.
    """

    segment_id: int
    segment_size: int
    entry_stride: int
    partial: bool
    min_seq: int
    max_seq: int
    min_ts_ns: int
    max_ts_ns: int
    entries: NDArray[np.void]

    def entry_at_or_before_seq(self, seq: int) -> int | None:
        """Return the offset of the last entry whose seq is not above `seq`."""
        if seq < 0:
            return None
        above = np.searchsorted(self.entries["seq"], np.uint64(min(seq, _U64_MAX)), side="right")
        return self._offset_before(int(above))

    def entry_before_timestamp(self, timestamp_ns: int) -> int | None:
        """Return an offset from which a scan finds the first record at or after `timestamp_ns`.

        That is the last entry *before* the timestamp: records with an equal timestamp may
        precede an entry with it. Where timestamps go back, no entry after the first one that
        reaches `timestamp_ns` is considered. None: scan from the start of the segment.
        """
        if timestamp_ns <= 0:
            return None
        if timestamp_ns > _U64_MAX:
            return self._offset_before(len(self.entries))
        highest_so_far = np.maximum.accumulate(self.entries["timestamp_ns"])
        reached = np.searchsorted(highest_so_far, np.uint64(timestamp_ns), side="left")
        return self._offset_before(int(reached))

    def _offset_before(self, entry: int) -> int | None:
        return int(self.entries["offset"][entry - 1]) if entry > 0 else None


def encode(index: SeekIndex) -> bytes:
    """Return the bytes of the file."""
    header = SEEK_INDEX_HEADER.pack(
        SEEK_INDEX_MAGIC,
        SEEK_INDEX_VERSION,
        SEEK_INDEX_HEADER.size,
        SEEK_INDEX_FLAG_PARTIAL if index.partial else 0,
        index.segment_id,
        index.segment_size,
        SEG_DATA_OFFSET,
        index.entry_stride,
        index.min_seq,
        index.max_seq,
        index.min_ts_ns,
        index.max_ts_ns,
        len(index.entries),
    )
    return header + np.ascontiguousarray(index.entries, dtype=ENTRY_DTYPE).tobytes()


def decode(data: bytes) -> SeekIndex:
    """Return the index; `Corrupt` for anything that the writer of an index cannot have written."""
    if len(data) < SEEK_INDEX_HEADER.size:
        raise Corrupt(f"seek index of {len(data)} bytes is shorter than its header; delete it")
    (
        magic,
        version,
        header_len,
        flags,
        segment_id,
        segment_size,
        data_offset,
        entry_stride,
        min_seq,
        max_seq,
        min_ts_ns,
        max_ts_ns,
        entry_count,
    ) = SEEK_INDEX_HEADER.unpack_from(data)
    _require(magic == SEEK_INDEX_MAGIC, "magic", magic)
    _require(version == SEEK_INDEX_VERSION, "version", version)
    _require(header_len == SEEK_INDEX_HEADER.size, "header_len", header_len)
    _require(flags & ~SEEK_INDEX_FLAG_PARTIAL == 0, "flags", flags)
    _require(data_offset == SEG_DATA_OFFSET, "data_offset", data_offset)
    _require(entry_stride > 0, "entry_stride", entry_stride)
    expected_size = SEEK_INDEX_HEADER.size + entry_count * SEEK_INDEX_ENTRY.size
    _require(len(data) == expected_size, f"length ({entry_count} entries)", len(data))
    entries: NDArray[np.void] = np.frombuffer(data, ENTRY_DTYPE, entry_count, SEEK_INDEX_HEADER.size)
    partial = bool(flags & SEEK_INDEX_FLAG_PARTIAL)
    index = SeekIndex(
        segment_id, segment_size, entry_stride, partial, min_seq, max_seq, min_ts_ns, max_ts_ns, entries
    )
    if entry_count:
        _check_entries(index)
    return index


def _check_entries(index: SeekIndex) -> None:
    seq, timestamp_ns, offset = (index.entries[field] for field in ("seq", "timestamp_ns", "offset"))
    _require(bool(np.all(seq[1:] > seq[:-1])), "entry seq (not ascending)", seq[:8].tolist())
    _require(bool(np.all(offset[1:] > offset[:-1])), "entry offset (not ascending)", offset[:8].tolist())
    _require(bool(np.all(offset % RECORD_ALIGN == 0)), "entry offset (not aligned)", offset[:8].tolist())
    first, last = int(offset[0]), int(offset[-1])
    _require(first >= SEG_DATA_OFFSET, "entry offset", first)
    _require(last + HEADER_SIZE <= index.segment_size, "entry offset", last)
    _require(index.min_seq <= int(seq[0]) and int(seq[-1]) <= index.max_seq, "entry seq", int(seq[0]))
    earliest, latest = int(timestamp_ns.min()), int(timestamp_ns.max())
    _require(index.min_ts_ns <= earliest and latest <= index.max_ts_ns, "entry timestamp", earliest)


def _require(condition: bool, field: str, value: object) -> None:
    if not condition:
        raise Corrupt(f"seek index has an impossible {field}: {value!r}; delete it, seeks will scan")


def load(fs: Fs, queue_path: str, segment_id: int, segment_size: int) -> SeekIndex | None:
    """Return the index of a segment, None if it is missing, short, corrupt or of another segment."""
    entries_max = segment_size // RECORD_ALIGN
    size_max = SEEK_INDEX_HEADER.size + entries_max * SEEK_INDEX_ENTRY.size
    try:
        fd = fs.open(os.path.join(queue_path, seek_index_name(segment_id)), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        data = fs.pread(fd, min(fs.size(fd), size_max + 1), 0)
    finally:
        fs.close(fd)
    try:
        index = decode(data)
    except Corrupt:
        return None
    if (index.segment_id, index.segment_size) != (segment_id, segment_size):
        return None
    return index


def store(fs: Fs, queue_path: str, index: SeekIndex, *, durable: bool = False) -> None:
    """Replace the index file of the segment.

    Not forced to disk by default: what a power loss leaves of it is recognised and ignored.
    """
    path = os.path.join(queue_path, seek_index_name(index.segment_id))
    replace_file(fs, path, encode(index), durable=durable)
