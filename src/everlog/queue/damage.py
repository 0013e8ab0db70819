"""Finds sound records behind damage: holes, lengths that cannot be right, bytes of something else.

Reads mapped segments only. The native core walks from record to record; where that is not possible, every
place where a record may start is looked at.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from everlog.native.queue import ring as native
from everlog.queue.layout import (
    HEADER_SIZE,
    MESSAGE_HEADER,
    MSG_SEQ,
    MSG_VERSION_PAYLOAD,
    PAD_TYPE_ID,
    RECORD_ALIGN,
    SEG_DATA_OFFSET,
    align64,
)

HEADER_DTYPE: Final = np.dtype(
    {
        "names": ["commit_len", "version", "zero", "seq", "type_id", "reserved"],
        "formats": ["<u4", "u1", ("u1", 3), "<u8", "<u2", ("<u8", 4)],
        "offsets": [0, 4, 5, 8, 24, 32],
        "itemsize": HEADER_SIZE,
    }
)


def is_sound(mapping: native.Mapping, offset: int) -> bool:
    """Whether a committed record, not padding, lies at `offset` and has the checksum of its version."""
    if offset + HEADER_SIZE > len(mapping):
        return False
    data = memoryview(mapping)
    commit_len, version, _, _, type_id, _, checksum = MESSAGE_HEADER.unpack_from(data, offset)
    end = offset + align64(HEADER_SIZE + commit_len - 1)
    if commit_len == 0 or type_id == PAD_TYPE_ID or end > len(mapping):
        return False
    if version == MSG_VERSION_PAYLOAD:
        payload = data[offset + HEADER_SIZE : offset + HEADER_SIZE + commit_len - 1]
        return zlib.crc32(payload) == int(checksum)
    return native.crc32_matches(data[offset:end], commit_len - 1, 1) == 1


def next_sound(mapping: native.Mapping, start: int, after_seq: int | None = None) -> int:
    """Return the offset of the first sound record from `start` on, 0 if there is none.

    With `after_seq`, the seq of the last record before `start`, only records that can follow it count: bytes
    of a payload may look like a record.
    """
    count = max(0, len(mapping) - start) // RECORD_ALIGN
    cells = np.ndarray((count,), HEADER_DTYPE, memoryview(mapping), start if count else 0)
    places = np.arange(count, dtype=np.uint64)
    # A record takes as many cells as its payload needs, and one for its header.
    sizes = (cells["commit_len"].astype(np.uint64) + np.uint64(RECORD_ALIGN - 2)) // np.uint64(RECORD_ALIGN)
    sizes += np.uint64(1)
    fits = (cells["commit_len"] > 0) & (places + sizes <= count) & (cells["type_id"] != PAD_TYPE_ID)
    fits &= (cells["version"] > 0) & ~cells["zero"].any(axis=1) & ~cells["reserved"].any(axis=1)
    if after_seq is not None:
        # A record takes a cell at least, so no more seqs than cells can have passed.
        distance = cells["seq"] - np.uint64(after_seq) - np.uint64(1)
        fits &= distance <= places + np.uint64(1)
    candidates = (start + int(place) * RECORD_ALIGN for place in np.flatnonzero(fits))
    return next((offset for offset in candidates if is_sound(mapping, offset)), 0)


def first_sound(mapping: native.Mapping) -> int:
    """Return the offset of a segment's first sound record, 0 if none is committed at its start."""
    if mapping.load_u32(SEG_DATA_OFFSET) == 0:
        return 0
    return SEG_DATA_OFFSET if is_sound(mapping, SEG_DATA_OFFSET) else next_sound(mapping, SEG_DATA_OFFSET)


def first_seq(mapping: native.Mapping) -> int | None:
    """Return the seq of a segment's first sound record, None if it has none."""
    offset = first_sound(mapping)
    return mapping.load_u64(offset + MSG_SEQ) if offset else None
