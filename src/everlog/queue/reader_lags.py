"""How many messages a queue holds, and how far each of its readers is behind: in messages and in time.

Owns that arithmetic, which the command line and the server share. Nothing is changed. The newest segment is
walked once to find its last message; each reader takes one look at the message it stands before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everlog.errors import EverlogError
from everlog.queue.inspect import ReaderInfo
from everlog.queue.queue import Queue
from everlog.queue.reader import StartMode
from everlog.queue.seq_bounds import SeqBounds


class ReaderLag(NamedTuple):
    """Where a reader goes on, how many messages are left for it, and how old the oldest of those is."""

    next_seq: int
    messages: int
    age_ns: int


class QueueLags(NamedTuple):
    """The seqs of a queue (None: it holds no message) and the lag of each reader (None: unknown)."""

    first_seq: int | None
    last_seq: int | None
    readers: list[ReaderLag | None]

    @property
    def messages(self) -> int:
        """How many messages the queue holds."""
        if self.first_seq is None or self.last_seq is None:
            return 0
        return max(0, self.last_seq - self.first_seq + 1)  # a damaged seq may be any number


def measure_lags(path: str, readers: Sequence[ReaderInfo], now_ns: int) -> QueueLags:
    """Return the seqs of a queue and how far these readers of it are behind."""
    with Queue.open_subscriber(path, None, StartMode.EARLIEST) as reader:
        seqs = SeqBounds(reader)
        return QueueLags(seqs.first, seqs.last, [_lag(seqs, known, now_ns) for known in readers])


def lags_if_readable(path: str, readers: Sequence[ReaderInfo], now_ns: int) -> QueueLags | None:
    """Return what `measure_lags` does; None for a queue that cannot be read."""
    try:
        return measure_lags(path, readers, now_ns)
    except EverlogError:
        return None


def _lag(seqs: SeqBounds, known: ReaderInfo, now_ns: int) -> ReaderLag | None:
    if known.position is None or seqs.first is None or seqs.last is None:
        return None
    oldest = seqs.at_or_after(known.position.segment_id, known.position.offset)
    # What was appended since the last message was found is not counted.
    if oldest is None or oldest.seq > seqs.last:
        return ReaderLag(seqs.last + 1, 0, 0)
    return ReaderLag(oldest.seq, seqs.last - oldest.seq + 1, max(0, now_ns - oldest.timestamp_ns))
