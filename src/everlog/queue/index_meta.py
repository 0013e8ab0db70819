"""Where `flush_sync` last stood: `index.meta`.

Owns the format and its fallback. Recovery may start its scan there instead of at the start of
the segment; a missing or senseless file only makes the scan longer.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from everlog.fs import Fs, replace_file
from everlog.queue.layout import (
    INDEX_META,
    INDEX_META_FILE,
    RECORD_ALIGN,
    SEG_DATA_OFFSET,
    SEGMENT_ID_MAX,
)


class IndexPosition(NamedTuple):
    """A segment and the offset up to which it was flushed."""

    segment_id: int
    offset: int


START = IndexPosition(0, SEG_DATA_OFFSET)
"""What a missing file stands for."""


def encode(position: IndexPosition) -> bytes:
    """Return the 16 bytes of the file."""
    return INDEX_META.pack(position.segment_id, position.offset)


def decode(data: bytes, segment_size: int) -> IndexPosition | None:
    """Return the position, None if it cannot be one in a queue with this segment size."""
    if len(data) != INDEX_META.size:
        return None
    position = IndexPosition(*INDEX_META.unpack(data))
    if position.segment_id > SEGMENT_ID_MAX or position.offset % RECORD_ALIGN:
        return None
    if not SEG_DATA_OFFSET <= position.offset <= segment_size:
        return None
    return position


def load_if_present(fs: Fs, queue_path: str, segment_size: int) -> IndexPosition | None:
    """Return the stored position, None if the file is missing or its content makes no sense."""
    try:
        fd = fs.open(os.path.join(queue_path, INDEX_META_FILE), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        data = fs.pread(fd, INDEX_META.size + 1, 0)
    finally:
        fs.close(fd)
    return decode(data, segment_size)


def load(fs: Fs, queue_path: str, segment_size: int) -> IndexPosition:
    """Return the stored position, or the start of the queue."""
    return load_if_present(fs, queue_path, segment_size) or START


def store(fs: Fs, queue_path: str, segment_id: int, offset: int, *, durable: bool = True) -> None:
    """Replace the file."""
    path = os.path.join(queue_path, INDEX_META_FILE)
    replace_file(fs, path, encode(IndexPosition(segment_id, offset)), durable=durable)
