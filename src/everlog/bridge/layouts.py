"""The messages that a bridge appends to a queue: type ids, the layout of a gap, and seqs in timestamps.

Integers are little-endian, bytes without a name are zero.

    0x3000  a record of a topic: its data as JSON text
    0x3001  a gap: records of the topic that are gone

A record that a bridge from a queue has encoded as base64 becomes a message with its own type id and bytes.

The timestamp of a message is the record's `$ts`, which counts milliseconds, in nanoseconds; the six digits
below the millisecond are the last six digits of its `$seq`. So the queue itself shows which records it holds.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from typing_extensions import Buffer

from everlog.errors import Corrupt, UnsupportedVersion

RECORD_TYPE_ID: Final = 0x3000
GAP_TYPE_ID: Final = 0x3001
LAYOUT_VERSION: Final = 1
NS_PER_MS: Final = 1_000_000
SEQ_DIGITS: Final = 1_000_000


class GapReason(IntEnum):
    """Why records are gone, as the topic says."""

    OTHER = 0
    CAP = 1
    TTL = 2
    MIXED = 3
    SOURCE_TRIM = 4
    RECREATED = 5


GAP: Final = np.dtype(
    {
        "names": ["version", "reason", "gap_from", "gap_to", "missed_estimate"],
        "formats": ["<u2", "<u2", "<u8", "<u8", "<u8"],
        "offsets": [0, 2, 8, 16, 24],
        "itemsize": 32,
    }
)
"""Seqs `gap_from` to `gap_to` of the topic, inclusive, are gone; after `recreated` reading starts over."""


class GapMessage(NamedTuple):
    """Records of a topic that are gone: seqs `gap_from` to `gap_to`, both included."""

    gap_from: int
    gap_to: int
    missed_estimate: int
    reason: GapReason


def encode_gap(gap: GapMessage) -> bytes:
    """Return the payload of a gap message."""
    row = np.zeros(1, dtype=GAP)
    row["version"] = LAYOUT_VERSION
    row["reason"] = gap.reason
    row["gap_from"], row["gap_to"] = gap.gap_from, gap.gap_to
    row["missed_estimate"] = gap.missed_estimate
    return row.tobytes()


def decode_gap(payload: Buffer) -> GapMessage:
    """Read the payload of a gap message."""
    data = memoryview(payload).cast("B")
    if len(data) != GAP.itemsize:
        raise Corrupt(f"a gap message has {GAP.itemsize} bytes, this payload has {len(data)}")
    row = np.frombuffer(data, dtype=GAP)[0]
    if row["version"] != LAYOUT_VERSION:
        version = int(row["version"])
        raise UnsupportedVersion(f"a gap has layout {version}; this build reads {LAYOUT_VERSION}", version)
    reason = int(row["reason"])
    known = GapReason(reason) if reason <= max(GapReason) else GapReason.OTHER
    return GapMessage(int(row["gap_from"]), int(row["gap_to"]), int(row["missed_estimate"]), known)


def gap_reason(word: str) -> GapReason:
    """Return the number of a tombstone's reason."""
    return GapReason.__members__.get(word.upper(), GapReason.OTHER)


def timestamp_ns(ts_ms: int, seq: int) -> int:
    """Return the timestamp of the message that a record becomes."""
    return ts_ms * NS_PER_MS + seq % SEQ_DIGITS


def seq_digits(timestamp_ns: int) -> int:
    """Return the last six digits of the `$seq` of the record that became a message."""
    return timestamp_ns % SEQ_DIGITS
