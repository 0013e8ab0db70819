"""The first and last seq of a queue, and the message at a position: a queue stores no count.

Owns nothing on disk and moves no reader. The cost is a walk through the newest segment, whose index is not
written yet; a full one of small messages takes a tenth of a second.
"""

from __future__ import annotations

from typing import NamedTuple

from everlog.fs import OsFs
from everlog.queue.layout import MSG_SEQ, MSG_TIMESTAMP_NS
from everlog.queue.reader import QueueReader
from everlog.queue.seek import Seeker, SegmentPosition


class MessageTime(NamedTuple):
    """A message by its seq, and when it was appended."""

    seq: int
    timestamp_ns: int


class SeqBounds:
    """The seqs of a queue; `first` and `last` are None if it holds no message."""

    def __init__(self, reader: QueueReader) -> None:
        self._seeker = Seeker(OsFs(), reader.path, reader.segment_size, reader.published_head)
        oldest, newest = self.at_or_after(0, 0), _message(self._seeker.last())
        self.first = None if oldest is None else oldest.seq
        self.last = None if newest is None else newest.seq

    def at_or_after(self, segment_id: int, offset: int) -> MessageTime | None:
        """Return the first message at or behind a position; None if there is none yet."""
        return _message(self._seeker.at_or_after(segment_id, offset))


def _message(found: SegmentPosition | None) -> MessageTime | None:
    if found is None:
        return None
    mapping, _, offset = found
    return MessageTime(mapping.load_u64(offset + MSG_SEQ), mapping.load_u64(offset + MSG_TIMESTAMP_NS))
