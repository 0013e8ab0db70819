"""The heads of a segment's frames: what a start has to read of data that is in an object store.

Owns their encoding. An index has no tags, and not how long the text of a record with a tag or a node is. So
for these records the stub keeps the frame up to its text, and the byte of its deletion mark. Compressed::

    length of each head (u32) | the heads, one behind the other | the last byte of each frame
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from everlog.errors import Corrupt
from everlog.topics.storage import layout
from everlog.topics.storage.segment_loading import frame_field, index_entries

_LEVEL = 1


def heads_of(data: bytes, index: bytes) -> bytes:
    """Return the heads of the records that the index does not describe completely."""
    raw = np.frombuffer(data, dtype=np.uint8)
    starts, sizes = _incomplete(index, len(data))
    lengths = np.full(len(starts), layout.SEGMENT_HEADER_SIZE, dtype="<u4")
    for offset in (layout.SEGMENT_NODE_LEN, layout.SEGMENT_TAG_LEN):
        lengths += frame_field(raw, starts, offset, "<u2")
    lengths[lengths > sizes] = 0  # damaged: it is missing, and the start says so
    heads = raw[_places(starts, lengths)]
    marks = raw[starts + sizes - 1]
    return zlib.compress(lengths.tobytes() + heads.tobytes() + marks.tobytes(), _LEVEL)


def data_of_heads(heads: bytes, index: bytes, size: int) -> memoryview:
    """Return the data of a segment with its heads and marks alone; all other bytes are zero."""
    data = np.zeros(size, dtype=np.uint8)
    starts, sizes = _incomplete(index, size)
    count = len(starts)
    try:
        content = np.frombuffer(zlib.decompress(heads), dtype=np.uint8)
    except zlib.error as error:
        raise Corrupt(f"the heads of a segment in an object store are damaged: {error}") from error
    lengths = content[: 4 * count].view("<u4")
    places = _places(starts, lengths)
    data[places] = content[4 * count : 4 * count + len(places)]
    data[starts + sizes - 1] = content[4 * count + len(places) :]
    return data.data


def _incomplete(index: bytes, data_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offset and size of the frames that have a tag or a node; those that are marked as deleted as well."""
    entries = index_entries(index)
    ends = entries["offset"].astype(np.int64) + entries["size"]
    smallest = layout.SEGMENT_HEADER_SIZE + layout.SEGMENT_TRAILER_SIZE
    wanted = entries["flags"] & (layout.FLAG_HAS_TAG | layout.FLAG_HAS_NODE) != 0
    found = entries[wanted & (entries["size"] >= smallest) & (ends <= data_bytes)]
    return found["offset"].astype(np.int64), found["size"].astype(np.int64)


def _places(starts: NDArray[np.int64], lengths: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The offsets of all bytes of ranges, one behind the other."""
    wide = lengths.astype(np.int64)
    before = np.cumsum(wide) - wide
    places: NDArray[np.int64] = np.repeat(starts - before, wide) + np.arange(int(wide.sum()), dtype=np.int64)
    return places
